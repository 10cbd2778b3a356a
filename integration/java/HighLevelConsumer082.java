import com.yammer.metrics.Metrics;
import com.yammer.metrics.core.Metric;
import com.yammer.metrics.core.MetricName;
import com.yammer.metrics.core.Timer;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicLong;
import kafka.consumer.Consumer;
import kafka.consumer.ConsumerConfig;
import kafka.consumer.ConsumerIterator;
import kafka.consumer.KafkaStream;
import kafka.javaapi.consumer.ConsumerConnector;
import kafka.message.MessageAndMetadata;

/**
 * One member of a group: Apache Kafka 0.8.2.2's high-level consumer, unmodified, as an application of 2015 used it. It
 * writes one JSON line for each record, in the order of each partition, and lines with "event" for start, rebalance
 * and stop. SIGTERM, the limit, or (with --stdin close) the end of standard input shuts it down cleanly:
 * offsets are committed, the last lines are written, and it exits 0.
 */
public final class HighLevelConsumer082 {
    private static final String USAGE = "HighLevelConsumer082 --zookeeper host:port[/chroot] --group g --topic t [--streams n]\n"
            + "  [--fetch-max-bytes n] [--auto-commit-ms n] [--session-timeout-ms n] [--from smallest|largest] [--id suffix]\n"
            + "  [--limit records] [--stdin close|ignore] [--output file|-] [--flush line] [--property key=value]...";

    private final JsonLines out;
    private final ConsumerConnector connector;
    private final AtomicLong received = new AtomicLong();
    private final AtomicBoolean stopping = new AtomicBoolean();
    private final CountDownLatch stop = new CountDownLatch(1);
    private final CountDownLatch stopped = new CountDownLatch(1);
    private final List<Thread> readers = new ArrayList<>();
    private final long limit;

    private HighLevelConsumer082(Options options) throws Exception {
        out = new JsonLines(options.get("output", "-"), options.get("flush", "").equals("line"));
        limit = Long.parseLong(options.get("limit", "0"));
        connector = Consumer.createJavaConsumerConnector(new ConsumerConfig(properties(options)));
    }

    private static Properties properties(Options options) {
        Properties p = new Properties();
        p.put("zookeeper.connect", options.must("zookeeper"));
        p.put("group.id", options.must("group"));
        p.put("fetch.message.max.bytes", options.get("fetch-max-bytes", "1048576"));
        p.put("auto.commit.interval.ms", options.get("auto-commit-ms", "1000"));
        p.put("zookeeper.session.timeout.ms", options.get("session-timeout-ms", "6000"));
        p.put("auto.offset.reset", options.get("from", "smallest"));
        if (!options.get("id", "").isEmpty()) {
            p.put("consumer.id", options.get("id", ""));
        }
        options.into(p);
        return p;
    }

    public static void main(String[] args) throws Exception {
        Options options = new Options(args, USAGE, "zookeeper", "group", "topic", "streams", "fetch-max-bytes", "auto-commit-ms",
                "session-timeout-ms", "from", "id", "limit", "flush", "stdin", "output");
        HighLevelConsumer082 member = new HighLevelConsumer082(options);
        Runtime.getRuntime().addShutdownHook(new Thread(member::stopAndWait, "stop"));
        if (options.get("stdin", "ignore").equals("close")) {
            member.stopWhenInputEnds();
        }
        try {
            member.run(options.must("topic"), Integer.parseInt(options.get("streams", "1")));
        } catch (Exception e) {
            e.printStackTrace();
            Runtime.getRuntime().halt(1);
        }
        System.exit(0);
    }

    private void run(String topic, int streams) throws InterruptedException {
        Thread watcher = watchRebalances();
        out.event("start", "topic", topic, "streams", streams);
        Map<String, List<KafkaStream<byte[], byte[]>>> all = connector.createMessageStreams(Collections.singletonMap(topic, streams));
        out.event("streams");
        for (KafkaStream<byte[], byte[]> stream : all.get(topic)) {
            Thread reader = new Thread(() -> read(stream), "reader-" + readers.size());
            readers.add(reader);
            reader.start();
        }
        stop.await();
        connector.shutdown();
        for (Thread reader : readers) {
            reader.join();
        }
        watcher.join(); // "stop" is the last event
        out.event("stop", "received", received.get(), "rebalances", rebalances());
        out.close();
        stopped.countDown();
    }

    private void read(KafkaStream<byte[], byte[]> stream) {
        try {
            ConsumerIterator<byte[], byte[]> it = stream.iterator();
            while (it.hasNext()) {
                MessageAndMetadata<byte[], byte[]> m = it.next();
                out.record(m.partition(), m.offset(), m.key(), m.message());
                if (received.incrementAndGet() == limit) {
                    stop.countDown();
                }
            }
        } catch (RuntimeException e) {
            e.printStackTrace();
            out.event("failed", "error", e.toString());
            out.flush();
            Runtime.getRuntime().halt(1);
        }
    }

    private void stopAndWait() {
        if (!stopping.compareAndSet(false, true)) {
            return;
        }
        stop.countDown();
        try {
            stopped.await();
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
        Runtime.getRuntime().halt(0); // a clean end is 0, also when SIGTERM asked for it (the JVM would say 143)
    }

    private void stopWhenInputEnds() {
        Thread watcher = new Thread(() -> {
            try {
                while (System.in.read() >= 0) {
                    continue;
                }
            } catch (java.io.IOException e) {
                System.err.println("standard input: " + e);
            }
            stop.countDown();
        }, "stdin");
        watcher.setDaemon(true);
        watcher.start();
    }

    /** How many rebalances this member has gone through, by its own timer. */
    private static long rebalances() {
        long n = 0;
        for (Map.Entry<MetricName, Metric> m : Metrics.defaultRegistry().allMetrics().entrySet()) {
            if (m.getKey().getName().contains("RebalanceRateAndTime") && m.getValue() instanceof Timer) {
                n += ((Timer) m.getValue()).count();
            }
        }
        return n;
    }

    /** Writes an event after each rebalance; 0.8.2.2 has no listener for it, so its own timer is read ten times a second. */
    private Thread watchRebalances() {
        Thread watcher = new Thread(() -> {
            long seen = 0;
            try {
                while (stop.getCount() > 0) {
                    Thread.sleep(100);
                    long now = rebalances();
                    if (now != seen) {
                        out.event("rebalance", "rebalances", now, "received", received.get());
                        seen = now;
                    }
                }
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
            }
        }, "rebalances");
        watcher.setDaemon(true);
        watcher.start();
        return watcher;
    }
}
