// What Kafka 0.8.2.2's own classes (org.apache.kafka:kafka_2.11:0.8.2.2 and its dependencies on the class path) write and read, as its
// producers and consumers do. Run by hand:
//   java -cp 'jars/*' OldClient.java generate golden      made golden/old-*.bin
//   java -cp 'jars/*' OldClient.java dump FILE...         reads sets of magic 0 that we wrote
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.List;
import kafka.message.ByteBufferMessageSet;
import kafka.message.CompressionCodec;
import kafka.message.Message;
import kafka.message.MessageAndOffset;

public class OldClient {
    static byte[] bytes(int n) {
        byte[] out = new byte[n];
        for (int i = 0; i < n; i++) out[i] = (byte) (i * i / 7);
        return out;
    }

    static void generate(Path dir) throws Exception {
        List<Message> messages = new ArrayList<>();
        messages.add(new Message("first".getBytes()));
        messages.add(new Message(new byte[0], "k1".getBytes()));
        messages.add(new Message(null, new byte[0]));
        messages.add(new Message(bytes(20000), bytes(300)));
        CompressionCodec[] codecs = {kafka.message.NoCompressionCodec$.MODULE$, kafka.message.GZIPCompressionCodec$.MODULE$,
            kafka.message.SnappyCompressionCodec$.MODULE$, kafka.message.LZ4CompressionCodec$.MODULE$};
        for (CompressionCodec codec : codecs) {
            ByteBuffer buf = new ByteBufferMessageSet(codec, scala.collection.JavaConversions.asScalaBuffer(messages)).buffer();
            byte[] out = new byte[buf.remaining()];
            buf.get(out);
            Files.write(dir.resolve("old-" + codec.name() + ".bin"), out);
        }
    }

    static void dump(String file) throws Exception {
        ByteBufferMessageSet set = new ByteBufferMessageSet(ByteBuffer.wrap(Files.readAllBytes(Paths.get(file))));
        scala.collection.Iterator<MessageAndOffset> it = set.iterator();
        StringBuilder line = new StringBuilder(Paths.get(file).getFileName() + " valid=" + set.validBytes() + "/" + set.sizeInBytes());
        while (it.hasNext()) {
            MessageAndOffset m = it.next();
            m.message().ensureValid();
            ByteBuffer key = m.message().key();
            ByteBuffer value = m.message().payload();
            line.append(" [" + m.offset() + " " + (key == null ? -1 : key.remaining()) + " " + (value == null ? -1 : value.remaining()) + "]");
        }
        System.out.println(line);
    }

    public static void main(String[] args) throws Exception {
        if (args[0].equals("generate")) {
            generate(Paths.get(args[1]));
            return;
        }
        for (int i = 1; i < args.length; i++) dump(args[i]);
    }
}
