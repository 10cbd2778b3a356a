// Makes golden/kafka-1.1.1.txt with Apache Kafka's own schemas (org.apache.kafka:kafka-clients:1.1.1 and its dependencies on the
// class path): every version of every API that both it and barnabas serve, as request and as response. Run by hand:
//   java -cp 'jars/*' GenerateGolden.java > golden/kafka-1.1.1.txt
// One line each: API key, "request" or "response", version, "full" or "null", bytes in hex. In "full" every array has two elements and
// every value tells the field it belongs to: a string or bytes is the field's name, a number is a hash of it, so a reader that
// mixes up two fields is found out. In "null" whatever can be null is, and other arrays are empty.
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.zip.CRC32;
import org.apache.kafka.common.protocol.ApiKeys;
import org.apache.kafka.common.protocol.types.*;
import org.apache.kafka.common.record.MemoryRecords;

public class GenerateGolden {
    static final ApiKeys[] APIS = {ApiKeys.PRODUCE, ApiKeys.FETCH, ApiKeys.LIST_OFFSETS, ApiKeys.METADATA, ApiKeys.OFFSET_COMMIT,
        ApiKeys.OFFSET_FETCH, ApiKeys.FIND_COORDINATOR, ApiKeys.API_VERSIONS, ApiKeys.CREATE_TOPICS, ApiKeys.DELETE_TOPICS,
        ApiKeys.INIT_PRODUCER_ID, ApiKeys.OFFSET_FOR_LEADER_EPOCH, ApiKeys.DESCRIBE_CONFIGS, ApiKeys.ALTER_CONFIGS, ApiKeys.CREATE_PARTITIONS,
        ApiKeys.JOIN_GROUP, ApiKeys.HEARTBEAT, ApiKeys.LEAVE_GROUP, ApiKeys.SYNC_GROUP, ApiKeys.DESCRIBE_GROUPS, ApiKeys.LIST_GROUPS,
        ApiKeys.DELETE_GROUPS};

    static long hash(String name) {
        CRC32 crc = new CRC32();
        crc.update(name.getBytes(StandardCharsets.UTF_8));
        return crc.getValue();
    }

    static Object value(String name, Type type, boolean nulls) {
        if (type instanceof Schema) return struct((Schema) type, nulls);
        if (type instanceof ArrayOf) {
            ArrayOf array = (ArrayOf) type;
            if (nulls) return array.isNullable() ? null : new Object[0];
            return new Object[] {value(name, array.type(), false), value(name, array.type(), false)};
        }
        if (nulls && type.isNullable()) return null;
        ByteBuffer bytes = ByteBuffer.wrap(name.getBytes(StandardCharsets.UTF_8));
        if (type == Type.RECORDS) return MemoryRecords.readableRecords(bytes);
        if (type == Type.BYTES || type == Type.NULLABLE_BYTES) return bytes;
        if (type == Type.STRING || type == Type.NULLABLE_STRING) return name;
        if (type == Type.BOOLEAN) return true;
        if (type == Type.INT8) return (byte) (hash(name) & 0x7f);
        if (type == Type.INT16) return (short) (hash(name) & 0x7fff);
        if (type == Type.INT32) return (int) (hash(name) & 0x7fffffff);
        if (type == Type.INT64) return hash(name) << 20;
        throw new IllegalArgumentException(name + " has the type " + type);
    }

    static Struct struct(Schema schema, boolean nulls) {
        Struct s = new Struct(schema);
        for (BoundField f : schema.fields()) s.set(f, value(f.def.name, f.def.type, nulls));
        return s;
    }

    static void print(ApiKeys api, String kind, short version, Schema schema) {
        for (String variant : new String[] {"full", "null"}) {
            Struct s = struct(schema, variant.equals("null"));
            ByteBuffer out = ByteBuffer.allocate(s.sizeOf());
            s.writeTo(out);
            StringBuilder line = new StringBuilder(api.id + " " + kind + " " + version + " " + variant + " ");
            for (byte b : out.array()) line.append(String.format("%02x", b));
            System.out.println(line);
        }
    }

    public static void main(String[] args) {
        for (ApiKeys api : APIS) {
            for (short v = 0; v <= api.latestVersion(); v++) {
                print(api, "request", v, api.requestSchema(v));
                print(api, "response", v, api.responseSchema(v));
            }
        }
    }
}
