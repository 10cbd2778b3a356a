import java.io.BufferedWriter;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.io.OutputStreamWriter;
import java.io.PrintStream;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.util.zip.CRC32;

/**
 * Writes one JSON object a line. Lines are buffered (millions of them are written in a run); a daemon thread flushes
 * whole lines ten times a second, so a reader never sees half a line for long and one who follows the file is at most
 * that much behind.
 */
final class JsonLines {
    private final BufferedWriter out;
    private final boolean eachLine;
    private boolean closed;

    /**
     * Opens the file, or standard output for "-". eachLine flushes every line at once: a process that is to be killed has then
     * told of whatever its consumer may have committed.
     */
    JsonLines(String file, boolean eachLine) throws IOException {
        this.eachLine = eachLine;
        OutputStream to = file.equals("-") ? new PrintStream(System.out) : new FileOutputStream(file);
        out = new BufferedWriter(new OutputStreamWriter(to, StandardCharsets.UTF_8), 1 << 16);
        Thread flusher = new Thread(this::flushForEver, "flush");
        flusher.setDaemon(true);
        flusher.start();
    }

    private void flushForEver() {
        try {
            while (true) {
                Thread.sleep(100);
                synchronized (this) {
                    if (closed) {
                        return;
                    }
                    out.flush();
                }
            }
        } catch (IOException | InterruptedException e) {
            System.err.println("cannot flush the output: " + e);
            Runtime.getRuntime().halt(3);
        }
    }

    /** One record: {"partition":p,"offset":o,"key":"k"|null,"len":n,"crc":u32}; a null value has length -1 and crc 0. */
    void record(int partition, long offset, byte[] key, byte[] value) {
        StringBuilder line = new StringBuilder(80);
        line.append("{\"partition\":").append(partition).append(",\"offset\":").append(offset).append(",\"key\":");
        if (key == null) {
            line.append("null");
        } else {
            quote(line, new String(key, StandardCharsets.UTF_8));
        }
        line.append(",\"len\":").append(value == null ? -1 : value.length).append(",\"crc\":").append(crc(value)).append('}');
        write(line);
    }

    /** One record of one of several members: {"member":m,"partition":p,"offset":o,"at":ms}. */
    void received(String member, int partition, long offset) {
        StringBuilder line = new StringBuilder(80);
        line.append("{\"member\":");
        quote(line, member);
        line.append(",\"partition\":").append(partition).append(",\"offset\":").append(offset)
            .append(",\"at\":").append(System.currentTimeMillis()).append('}');
        write(line);
    }

    private static long crc(byte[] value) {
        if (value == null) {
            return 0;
        }
        CRC32 crc = new CRC32();
        crc.update(value, 0, value.length);
        return crc.getValue();
    }

    /** One event: {"event":name,...}; fields are pairs of a name and a value, strings are quoted, others written as they are. */
    void event(String name, Object... fields) {
        StringBuilder line = new StringBuilder("{\"event\":");
        quote(line, name);
        for (int i = 0; i < fields.length; i += 2) {
            line.append(",\"").append(fields[i]).append("\":");
            if (fields[i + 1] instanceof String) {
                quote(line, (String) fields[i + 1]);
            } else {
                line.append(fields[i + 1]);
            }
        }
        write(line.append('}'));
        flush();
    }

    private synchronized void write(CharSequence line) {
        try {
            if (!closed) {
                out.append(line).append('\n');
                if (eachLine) {
                    out.flush();
                }
            }
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    synchronized void flush() {
        try {
            if (!closed) {
                out.flush();
            }
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    synchronized void close() {
        flush();
        closed = true;
    }

    static void quote(StringBuilder to, String s) {
        to.append('"');
        for (int i = 0; i < s.length(); i++) {
            char c = s.charAt(i);
            if (c == '"' || c == '\\') {
                to.append('\\').append(c);
            } else if (c < ' ') {
                to.append(String.format("\\u%04x", (int) c));
            } else {
                to.append(c);
            }
        }
        to.append('"');
    }
}
