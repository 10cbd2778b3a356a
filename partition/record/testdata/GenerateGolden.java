// Made the files in golden/ with Apache Kafka's own classes (org.apache.kafka:kafka-clients:1.1.1 and its dependencies on the class
// path), and lets those classes read what we wrote. Run by hand:
//   java -cp 'jars/*' GenerateGolden.java generate golden
//   java -cp 'jars/*' GenerateGolden.java dump FILE...
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.record.*;
import org.apache.kafka.common.utils.Time;

public class GenerateGolden {
    static final long T = 1500000000000L;
    static final Header[] NONE = new Header[0];

    static MemoryRecordsBuilder builder(byte magic, CompressionType codec, TimestampType type, long pid, boolean txn) {
        return MemoryRecords.builder(ByteBuffer.allocate(1 << 16), magic, codec, type, 100L,
            type == TimestampType.LOG_APPEND_TIME ? T + 7777 : RecordBatch.NO_TIMESTAMP,
            pid, (short) (pid < 0 ? -1 : 3), pid < 0 ? -1 : 2147483646, txn, false, 5);
    }

    // Null and empty are both here, timestamps go back, lengths need one, two and three varint bytes.
    static MemoryRecords fill(MemoryRecordsBuilder b, byte magic) {
        byte[] long300 = new byte[300];
        byte[] long20k = new byte[20000];
        for (int i = 0; i < long300.length; i++) long300[i] = (byte) i;
        for (int i = 0; i < long20k.length; i++) long20k[i] = (byte) (i * i / 7);
        Header[] headers = magic < 2 ? NONE : new Header[] {
            new RecordHeader("h1", "one".getBytes()), new RecordHeader("", (byte[]) null), new RecordHeader("h1", new byte[0])};
        long none = RecordBatch.NO_TIMESTAMP;
        boolean v0 = magic == 0;
        b.append(v0 ? none : T, null, "first".getBytes(), NONE);
        b.append(v0 ? none : T + 1000, "k1".getBytes(), new byte[0], headers);
        b.append(v0 ? none : T - 500, new byte[0], null, NONE);
        b.append(v0 ? none : T + 20, long300, long20k, NONE);
        return b.build();
    }

    static byte[] bytes(MemoryRecords records) {
        ByteBuffer buf = records.buffer().duplicate();
        byte[] out = new byte[buf.remaining()];
        buf.get(out);
        return out;
    }

    static void write(Path dir, String name, MemoryRecords records) throws IOException {
        Files.write(dir.resolve(name + ".bin"), bytes(records));
    }

    static void generate(Path dir) throws IOException {
        for (byte magic = 0; magic <= 2; magic++) {
            for (CompressionType codec : CompressionType.values()) {
                MemoryRecords made = fill(builder(magic, codec, TimestampType.CREATE_TIME, -1, false), magic);
                write(dir, "m" + magic + "-" + codec.name, made);
                for (byte to = 0; to < magic; to++) {
                    write(dir, "m" + magic + "-" + codec.name + "-down" + to,
                        (MemoryRecords) made.downConvert(to, 0L, Time.SYSTEM).records());
                }
            }
            if (magic >= 1) {
                MemoryRecords made = fill(builder(magic, CompressionType.NONE, TimestampType.LOG_APPEND_TIME, -1, false), magic);
                write(dir, "m" + magic + "-none-logappend", made);
                made = fill(builder(magic, CompressionType.GZIP, TimestampType.LOG_APPEND_TIME, -1, false), magic);
                write(dir, "m" + magic + "-gzip-logappend", made);
            }
        }
        write(dir, "m2-none-idempotent", fill(builder((byte) 2, CompressionType.NONE, TimestampType.CREATE_TIME, 4242L, false), (byte) 2));
        write(dir, "m2-none-transactional", fill(builder((byte) 2, CompressionType.NONE, TimestampType.CREATE_TIME, 4242L, true), (byte) 2));
        write(dir, "m2-control", MemoryRecords.withEndTransactionMarker(100L, T, 5, 4242L, (short) 3,
            new EndTransactionMarker(ControlRecordType.COMMIT, 9)));
    }

    static String show(ByteBuffer b) {
        if (b == null) return "null";
        byte[] raw = new byte[b.remaining()];
        b.duplicate().get(raw);
        return raw.length + ":" + java.util.Arrays.hashCode(raw);
    }

    static void dump(String file) throws IOException {
        MemoryRecords records = MemoryRecords.readableRecords(ByteBuffer.wrap(Files.readAllBytes(Paths.get(file))));
        for (RecordBatch batch : records.batches()) {
            batch.ensureValid();
            for (org.apache.kafka.common.record.Record r : batch) {
                r.ensureValid();
                System.out.println(Paths.get(file).getFileName() + " magic=" + batch.magic() + " codec=" + batch.compressionType().name
                    + " offset=" + r.offset() + " ts=" + r.timestamp() + " key=" + show(r.key()) + " value=" + show(r.value())
                    + " headers=" + r.headers().length);
            }
        }
    }

    public static void main(String[] args) throws IOException {
        if (args[0].equals("generate")) {
            generate(Paths.get(args[1]));
            return;
        }
        for (int i = 1; i < args.length; i++) dump(args[i]);
    }
}
