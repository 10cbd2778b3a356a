import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import kafka.common.ConsumerRebalanceFailedException;
import kafka.consumer.Consumer;
import kafka.consumer.ConsumerConfig;
import kafka.consumer.ConsumerIterator;
import kafka.consumer.KafkaStream;
import kafka.javaapi.consumer.ConsumerConnector;
import kafka.message.MessageAndMetadata;
import org.apache.log4j.AppenderSkeleton;
import org.apache.log4j.Level;
import org.apache.log4j.Logger;
import org.apache.log4j.spi.LoggingEvent;
import org.apache.log4j.spi.ThrowableInformation;

/**
 * Any number of high-level consumers of one group in one JVM, by the jars of Apache Kafka 0.8.1.1 to 1.1.1. Commands come on
 * standard input, a line each: "join NAME" and "leave NAME"; its end shuts all down. It writes one JSON line for each record,
 * {"member":m,"partition":p,"offset":o,"at":ms}, and lines with "event": ready, joining, joined, left, and what the consumers
 * log of themselves: attempt (a rebalance begins), failed (an attempt), trouble (why), gaveup
 * (ConsumerRebalanceFailedException). With --trace true
 * also whatever else they log of themselves (trace), and each offset that ZooKeeper has acknowledged to them (wrote).
 */
public final class Members {
    private static final String USAGE = "Members --zookeeper host:port[/chroot] --group g --topic t [--streams n] [--output file|-] [--trace true|false] [--property key=value]...";

    private final JsonLines out;
    private final Options options;
    private final Map<String, ConsumerConnector> connectors = Collections.synchronizedMap(new LinkedHashMap<>());

    private Members(Options options) throws IOException {
        this.options = options;
        out = new JsonLines(options.get("output", "-"), true);
    }

    public static void main(String[] args) throws Exception {
        Members members = new Members(new Options(args, USAGE, "zookeeper", "group", "topic", "streams", "output", "trace"));
        boolean trace = members.options.get("trace", "false").equals("true");
        members.listen(trace);
        if (trace) {
            members.listenToWrites();
        }
        members.warm();
        members.out.event("ready", "at", System.currentTimeMillis());
        members.obey();
        System.exit(0);
    }

    /** Loads what a join needs, so that it costs a member of a busy machine as little as the next one. */
    private void warm() throws Exception {
        for (String name : new String[] {"kafka.consumer.ZookeeperConsumerConnector", "kafka.javaapi.consumer.ZookeeperConsumerConnector",
            "kafka.consumer.ConsumerFetcherManager", "kafka.consumer.ConsumerFetcherThread", "org.I0Itec.zkclient.ZkClient", "org.apache.zookeeper.ZooKeeper"}) {
            Class.forName(name);
        }
    }

    private void obey() throws IOException, InterruptedException {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.trim().split(" ");
            if (words[0].equals("join")) {
                new Thread(() -> join(words[1]), "join-" + words[1]).start();
            } else if (words[0].equals("leave")) {
                leave(words[1]);
            }
        }
        for (String name : new ArrayList<>(connectors.keySet())) {
            leave(name);
        }
    }

    private void join(String name) {
        Properties p = new Properties();
        p.put("zookeeper.connect", options.must("zookeeper"));
        p.put("group.id", options.must("group"));
        p.put("consumer.id", name);
        p.put("auto.commit.interval.ms", "1000");
        p.put("zookeeper.session.timeout.ms", "6000");
        p.put("zookeeper.connection.timeout.ms", "30000");
        p.put("auto.offset.reset", "smallest");
        options.into(p);
        try {
            event("joining", name);
            ConsumerConnector connector = Consumer.createJavaConsumerConnector(new ConsumerConfig(p));
            connectors.put(name, connector);
            String topic = options.must("topic");
            Map<String, List<KafkaStream<byte[], byte[]>>> all =
                connector.createMessageStreams(Collections.singletonMap(topic, Integer.parseInt(options.get("streams", "1"))));
            event("joined", name);
            for (KafkaStream<byte[], byte[]> stream : all.get(topic)) {
                new Thread(() -> read(name, stream), "reader-" + name).start();
            }
        } catch (ConsumerRebalanceFailedException e) { // the member stays in the group; an application of the time would end here
            out.event("gaveup", "member", name, "at", System.currentTimeMillis(), "message", String.valueOf(e.getMessage()));
        } catch (RuntimeException e) {
            e.printStackTrace();
            out.event("broken", "member", name, "at", System.currentTimeMillis(), "message", e.toString());
        }
    }

    private void read(String name, KafkaStream<byte[], byte[]> stream) {
        ConsumerIterator<byte[], byte[]> it = stream.iterator();
        while (it.hasNext()) {
            MessageAndMetadata<byte[], byte[]> m = it.next();
            out.received(name, m.partition(), m.offset());
        }
    }

    private void leave(String name) {
        ConsumerConnector connector = connectors.remove(name);
        if (connector != null) {
            connector.shutdown();
            event("left", name);
        }
    }

    private void event(String what, String name) {
        out.event(what, "member", name, "at", System.currentTimeMillis());
    }

    /** Has what the consumers log of their rebalances written as events too. */
    private void listen(boolean trace) {
        hear("kafka.consumer.ZookeeperConsumerConnector", Level.INFO, e -> {
            String message = String.valueOf(e.getMessage());
            String what = message.contains("begin rebalancing consumer") ? "attempt"
                : message.contains("Rebalancing attempt failed") ? "failed"
                : thrown(e) instanceof ConsumerRebalanceFailedException ? "gaveup"
                : trace ? "trace" : null;
            if (what != null) {
                out.event(what, "at", e.timeStamp, "message", message);
            }
        });
    }

    /** A reply to a setData or create of an offset's znode, as ZooKeeper's client logs it: error, partition, the value in hex. */
    private static final Pattern WROTE = Pattern.compile(
        "replyHeader:: [-0-9]+,[-0-9]+,([-0-9]+) +request:: '/[^,]*consumers/[^,/]+/offsets/[^,/]+/([0-9]+),#([0-9a-f]+),");

    /** Has every offset that was acknowledged written as an event: the thread's name says whose it is (join-NAME-...). */
    private void listenToWrites() {
        Logger.getLogger("org.apache.zookeeper.ClientCnxn").setAdditivity(false);
        hear("org.apache.zookeeper.ClientCnxn", Level.DEBUG, e -> {
            if (e.getLevel().isGreaterOrEqual(Level.WARN)) {
                Logger.getRootLogger().callAppenders(e);
            }
            Matcher m = WROTE.matcher(String.valueOf(e.getMessage()));
            if (!m.find() || !m.group(1).equals("0")) {
                return;
            }
            StringBuilder value = new StringBuilder();
            for (int i = 0; i + 1 < m.group(3).length(); i += 2) {
                value.append((char) Integer.parseInt(m.group(3).substring(i, i + 2), 16));
            }
            String member = e.getThreadName().replaceAll("^join-|-(SendThread|EventThread).*$", "");
            out.event("wrote", "member", member, "partition", Integer.parseInt(m.group(2)), "offset", Long.parseLong(value.toString()), "at", e.timeStamp);
        });
    }

    private static void hear(String name, Level level, java.util.function.Consumer<LoggingEvent> what) {
        Logger logger = Logger.getLogger(name);
        logger.setLevel(level);
        logger.addAppender(new AppenderSkeleton() {
            @Override
            protected void append(LoggingEvent e) {
                what.accept(e);
            }

            @Override
            public void close() {
            }

            @Override
            public boolean requiresLayout() {
                return false;
            }
        });
    }

    private static Throwable thrown(LoggingEvent e) {
        ThrowableInformation t = e.getThrowableInformation();
        return t == null ? null : t.getThrowable();
    }
}
