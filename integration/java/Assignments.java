import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationHandler;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.I0Itec.zkclient.IZkConnection;
import org.I0Itec.zkclient.ZkClient;
import org.I0Itec.zkclient.serialize.ZkSerializer;
import org.apache.zookeeper.KeeperException;
import org.apache.zookeeper.WatchedEvent;
import org.apache.zookeeper.Watcher;
import org.apache.zookeeper.ZooKeeper;
import scala.Tuple2;

/**
 * Apache Kafka's own assignors of the old consumer (kafka.consumer.RangeAssignor and RoundRobinAssignor of 0.8.2 to 1.1),
 * unmodified, over registrations and topics that are kept here in place of a ZooKeeper. It reads lines of words parted by tabs:
 *
 * <pre>
 * clear
 * topic  NAME  JSON      the data of /brokers/topics/NAME
 * member ID    JSON      the data of /consumers/g/ids/ID
 * assign range|roundrobin
 * </pre>
 *
 * and answers each assign with a line for each partition that a member would take, "ID TOPIC PARTITION THREAD", or "ID
 * error MESSAGE" for a member that fails, and then "done".
 */
public final class Assignments {
    private static final String GROUP = "g";

    private final TreeMap<String, byte[]> nodes = new TreeMap<>();
    private final List<String> members = new ArrayList<>();
    private final PrintStream out = new PrintStream(System.out, false, "UTF-8");
    private final ZkClient zk;

    private Assignments() throws Exception {
        IZkConnection connection = (IZkConnection) Proxy.newProxyInstance(IZkConnection.class.getClassLoader(),
                new Class<?>[] {IZkConnection.class}, new Tree());
        zk = new ZkClient(connection, 10_000, new Text());
    }

    /** What of a ZooKeeper connection an assignor uses. */
    private final class Tree implements InvocationHandler {
        @Override
        public Object invoke(Object proxy, Method method, Object[] args) throws Throwable {
            switch (method.getName()) {
                case "connect":
                    WatchedEvent up = new WatchedEvent(Watcher.Event.EventType.None, Watcher.Event.KeeperState.SyncConnected, null);
                    new Thread(() -> ((Watcher) args[0]).process(up), "events").start(); // ends with it
                    return null;
                case "close":
                    return null;
                case "getZookeeperState":
                    return ZooKeeper.States.CONNECTED;
                case "getServers":
                    return "memory";
                case "exists":
                    return nodes.containsKey(args[0]) || !children((String) args[0]).isEmpty();
                case "getChildren":
                    return children((String) args[0]);
                case "readData":
                    byte[] data = nodes.get(args[0]);
                    if (data == null) {
                        throw new KeeperException.NoNodeException((String) args[0]);
                    }
                    return data;
                default:
                    throw new UnsupportedOperationException(method.toString());
            }
        }
    }

    private List<String> children(String path) {
        List<String> names = new ArrayList<>();
        for (String node : nodes.keySet()) {
            if (node.startsWith(path + "/")) {
                names.add(node.substring(path.length() + 1));
            }
        }
        return names;
    }

    /** As kafka.utils.ZKStringSerializer. */
    private static final class Text implements ZkSerializer {
        @Override
        public byte[] serialize(Object data) {
            return ((String) data).getBytes(StandardCharsets.UTF_8);
        }

        @Override
        public Object deserialize(byte[] bytes) {
            return bytes == null ? null : new String(bytes, StandardCharsets.UTF_8);
        }
    }

    private void run() throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] word = line.split("\t");
            switch (word[0]) {
                case "clear":
                    nodes.clear();
                    members.clear();
                    break;
                case "topic":
                    nodes.put("/brokers/topics/" + word[1], word[2].getBytes(StandardCharsets.UTF_8));
                    break;
                case "member":
                    members.add(word[1]);
                    nodes.put("/consumers/" + GROUP + "/ids/" + word[1], word[2].getBytes(StandardCharsets.UTF_8));
                    break;
                case "assign":
                    for (String member : members) {
                        assign(member, word[1].equals("range") ? "RangeAssignor" : "RoundRobinAssignor");
                    }
                    out.println("done");
                    out.flush();
                    break;
                default:
                    throw new IllegalArgumentException(line);
            }
        }
    }

    private void assign(String member, String assignor) throws Exception {
        Object owned;
        try {
            Object strategy = Class.forName("kafka.consumer." + assignor).getConstructor().newInstance();
            Method assign = Class.forName("kafka.consumer.PartitionAssignor").getMethods()[0];
            owned = assign.invoke(strategy, context(member));
            if (!(owned instanceof scala.collection.Map)) { // kafka.utils.Pool, by member
                owned = owned.getClass().getMethod("get", Object.class).invoke(owned, member);
            }
        } catch (InvocationTargetException e) {
            out.println(member + "\terror\t" + String.valueOf(e.getCause()).replace('\n', ' ').replace('\t', ' '));
            return;
        }
        if (owned == null) {
            return;
        }
        scala.collection.Iterator<?> it = ((scala.collection.Map<?, ?>) owned).iterator();
        while (it.hasNext()) {
            Tuple2<?, ?> entry = (Tuple2<?, ?>) it.next();
            Object partition = entry._1();
            out.println(member + "\t" + partition.getClass().getMethod("topic").invoke(partition) + "\t"
                    + partition.getClass().getMethod("partition").invoke(partition) + "\t" + entry._2());
        }
    }

    /** A kafka.consumer.AssignmentContext: up to 0.8 it takes a ZkClient, later ZkUtils over one. */
    private Object context(String member) throws Exception {
        Class<?> context = Class.forName("kafka.consumer.AssignmentContext");
        try {
            return context.getConstructor(String.class, String.class, boolean.class, ZkClient.class).newInstance(GROUP, member, true, zk);
        } catch (NoSuchMethodException later) {
            Class<?> utils = Class.forName("kafka.utils.ZkUtils");
            Object over = utils.getConstructor(ZkClient.class, Class.forName("org.I0Itec.zkclient.ZkConnection"), boolean.class)
                    .newInstance(zk, null, false);
            return context.getConstructor(String.class, String.class, boolean.class, utils).newInstance(GROUP, member, true, over);
        }
    }

    public static void main(String[] args) throws Exception {
        new Assignments().run();
    }
}
