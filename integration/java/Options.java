import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;

/** Command line options of the form {@code --name value}; {@code --property key=value} may repeat. */
final class Options {
    private final Map<String, String> values = new LinkedHashMap<>();
    private final List<String> properties = new ArrayList<>();

    Options(String[] args, String usage, String... known) {
        for (int i = 0; i < args.length; i += 2) {
            String name = args[i].startsWith("--") ? args[i].substring(2) : "";
            if (i + 1 >= args.length || !(name.equals("property") || java.util.Arrays.asList(known).contains(name))) {
                System.err.println("unknown option or missing value: " + args[i] + "\n" + usage);
                System.exit(2);
            }
            if (name.equals("property")) {
                properties.add(args[i + 1]);
            } else {
                values.put(name, args[i + 1]);
            }
        }
    }

    String get(String name, String otherwise) {
        return values.getOrDefault(name, otherwise);
    }

    String must(String name) {
        String value = values.get(name);
        if (value == null) {
            System.err.println("--" + name + " is missing");
            System.exit(2);
        }
        return value;
    }

    /** Adds every --property to the given ones, over what they hold. */
    void into(Properties into) {
        for (String p : properties) {
            int eq = p.indexOf('=');
            into.put(p.substring(0, eq), p.substring(eq + 1));
        }
    }
}
