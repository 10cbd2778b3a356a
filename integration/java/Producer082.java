import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicLong;
import kafka.javaapi.producer.Producer;
import kafka.producer.KeyedMessage;
import kafka.producer.ProducerConfig;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Apache Kafka 0.8.2.2's two producers: --api new is the Java producer (it writes a line for each acked record, as
 * HighLevelConsumer082 does for each received one), --api old is the Scala one (which learns no offsets: it writes only the
 * last line). Keys are the running numbers from --first; a value is its key repeated up to --size bytes. Exits 1 when a
 * record could not be sent.
 */
public final class Producer082 {
    private static final String USAGE = "Producer082 --brokers host:port,... --topic t --count n [--first n] [--size bytes] [--api new|old]\n"
            + "  [--acks 0|1|all] [--compression none|gzip|snappy|lz4] [--output file|-] [--property key=value]...";

    private Producer082() {
    }

    public static void main(String[] args) throws Exception {
        Options options = new Options(args, USAGE, "brokers", "topic", "count", "first", "size", "api", "acks", "compression", "output");
        JsonLines out = new JsonLines(options.get("output", "-"), false);
        AtomicLong failed = new AtomicLong();
        if (options.get("api", "new").equals("old")) {
            sendOld(options, failed);
        } else {
            sendNew(options, out, failed);
        }
        out.event("stop", "sent", Long.parseLong(options.must("count")), "failed", failed.get());
        out.close();
        System.exit(failed.get() == 0 ? 0 : 1);
    }

    private static void sendNew(Options options, JsonLines out, AtomicLong failed) {
        Properties p = new Properties();
        p.put("bootstrap.servers", options.must("brokers"));
        p.put("acks", options.get("acks", "all"));
        p.put("compression.type", options.get("compression", "none"));
        p.put("key.serializer", ByteArraySerializer.class.getName());
        p.put("value.serializer", ByteArraySerializer.class.getName());
        p.put("retries", "10");
        options.into(p);
        String topic = options.must("topic");
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(p)) {
            each(options, (key, value) -> producer.send(new ProducerRecord<>(topic, key, value), (meta, e) -> {
                if (e == null) {
                    out.record(meta.partition(), meta.offset(), key, value);
                } else {
                    failed.incrementAndGet();
                    System.err.println("record " + text(key) + ": " + e);
                }
            }));
        }
    }

    private static void sendOld(Options options, AtomicLong failed) {
        Properties p = new Properties();
        p.put("metadata.broker.list", options.must("brokers"));
        p.put("request.required.acks", options.get("acks", "all").equals("all") ? "-1" : options.get("acks", "all"));
        p.put("compression.codec", options.get("compression", "none"));
        p.put("producer.type", "sync");
        p.put("message.send.max.retries", "10");
        options.into(p);
        String topic = options.must("topic");
        Producer<byte[], byte[]> producer = new Producer<>(new ProducerConfig(p));
        List<KeyedMessage<byte[], byte[]>> batch = new ArrayList<>();
        each(options, (key, value) -> {
            batch.add(new KeyedMessage<>(topic, key, value));
            if (batch.size() == 100) {
                flush(producer, batch, failed);
            }
        });
        flush(producer, batch, failed);
        producer.close();
    }

    private static void flush(Producer<byte[], byte[]> producer, List<KeyedMessage<byte[], byte[]>> batch, AtomicLong failed) {
        try {
            if (!batch.isEmpty()) {
                producer.send(batch);
            }
        } catch (RuntimeException e) {
            failed.addAndGet(batch.size());
            System.err.println("a batch of " + batch.size() + " from record " + text(batch.get(0).key()) + ": " + e);
        }
        batch.clear();
    }

    private interface Sender {
        void send(byte[] key, byte[] value);
    }

    private static void each(Options options, Sender sender) {
        long first = Long.parseLong(options.get("first", "0"));
        long count = Long.parseLong(options.must("count"));
        int size = Integer.parseInt(options.get("size", "100"));
        for (long n = first; n < first + count; n++) {
            byte[] key = Long.toString(n).getBytes(StandardCharsets.UTF_8);
            byte[] value = new byte[size];
            for (int i = 0; i < size; i++) {
                value[i] = key[i % key.length];
            }
            sender.send(key, value);
        }
    }

    private static String text(byte[] key) {
        return new String(key, StandardCharsets.UTF_8);
    }
}
