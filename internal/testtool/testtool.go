// Package testtool finds the programs and jars that tests drive and that are no Go module: real Kafka clients and brokers,
// ZooKeeper, kcat, Python and Node clients. `make tools` fetches them into <repository>/.tools (BARNABAS_TOOLS names
// another folder); this package only looks, it fetches nothing.
//
// A test that lacks its tool is skipped with the tool's name on a developer's machine and fails when CI=true, so that
// a green CI run is one in which every test ran. `go test -short` asks for the pure Go part: there such tests are skipped
// even when the tool is present. For tests only.
package testtool

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
)

// Tool names one thing that `make tools` fetches, or that the machine has.
type Tool string

// What a test can need. Need says what it returns for each.
const (
	Java         Tool = "java"            // a JVM on PATH
	Kcat         Tool = "kcat"            // librdkafka's command line client, on PATH
	Kafka081     Tool = "kafka-0.8.1.1"   // org.apache.kafka:kafka_2.10:0.8.1.1: the first high-level consumer that is supported
	Kafka082     Tool = "kafka-0.8.2.2"   // org.apache.kafka:kafka_2.11:0.8.2.2: broker, tools and the high-level consumer
	Kafka090     Tool = "kafka-0.9.0.1"   // org.apache.kafka:kafka_2.11:0.9.0.1: the high-level consumer of that line
	Kafka0102    Tool = "kafka-0.10.2.2"  // org.apache.kafka:kafka_2.11:0.10.2.2: likewise
	Kafka111     Tool = "kafka-1.1.1"     // org.apache.kafka:kafka_2.11:1.1.1: the last line that speaks ZooKeeper and 0.8's protocol
	Kafka44      Tool = "kafka-4.4"       // Apache Kafka 4.4's tools and clients
	ZooKeeper395 Tool = "zookeeper-3.9.5" // org.apache.zookeeper:zookeeper:3.9.5: server and client
	Programs     Tool = "classes"         // our Java test programs of integration/java, compiled against Kafka082
	Python       Tool = "venv"            // a Python with kazoo, kafka-python and confluent-kafka
	PyKafka      Tool = "pykafka"         // a Python with pykafka and the kazoo of its time
	Node         Tool = "node"            // Node.js with kafka-node and kafkajs
	Sarama       Tool = "sarama"          // a member of a group by sarama: tools/sarama
)

// Root returns the repository's root: the nearest folder above the test's with a go.mod.
func Root(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatalf("cannot tell the working directory: %v", err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		up := filepath.Dir(dir)
		if up == dir {
			t.Fatal("no go.mod above the working directory: run the test inside the repository")
		}
		dir = up
	}
}

// Dir returns the folder that `make tools` fills.
func Dir(t testing.TB) string {
	t.Helper()
	if dir := os.Getenv("BARNABAS_TOOLS"); dir != "" {
		return dir
	}
	return filepath.Join(Root(t), ".tools")
}

// Need returns where the tool is: a program's path for Java, Kcat, Sarama and the Pythons, the folder for Node (use it as the working
// directory or as NODE_PATH's parent) and Programs, and the folder of jars for the others. Without it the test is
// skipped by name, or failed when CI=true.
func Need(t testing.TB, tool Tool) string {
	t.Helper()
	if testing.Short() {
		t.Skipf("needs %s: not in the short run", tool)
	}
	path, err := find(Dir(t), tool)
	if err == nil {
		return path
	}
	if os.Getenv("CI") == "true" {
		t.Fatalf("%s is missing, and with CI=true every test must run: %v", tool, err)
	}
	t.Skipf("needs %s (run `make tools`): %v", tool, err)
	return ""
}

func find(dir string, tool Tool) (string, error) {
	switch tool {
	case Java, Kcat:
		return exec.LookPath(string(tool))
	case Python, PyKafka:
		path := filepath.Join(dir, string(tool), "bin", "python")
		_, err := os.Stat(path)
		return path, err
	case Sarama:
		path := filepath.Join(dir, "bin", "sarama")
		_, err := os.Stat(path)
		return path, err
	case Node:
		if _, err := exec.LookPath("node"); err != nil {
			return "", err
		}
		_, err := os.Stat(filepath.Join(dir, "node", "node_modules"))
		return filepath.Join(dir, "node"), err
	case Programs:
		path := filepath.Join(dir, "classes")
		_, err := os.Stat(filepath.Join(path, "HighLevelConsumer082.class"))
		return path, err
	}
	lib := filepath.Join(dir, string(tool), "lib")
	jars, err := filepath.Glob(filepath.Join(lib, "*.jar"))
	if err != nil {
		return "", err
	}
	if len(jars) == 0 {
		return "", fmt.Errorf("no jars in %s: %w", lib, os.ErrNotExist)
	}
	return lib, nil
}

// JavaCommand returns `java` running the class with one tool's jars (and, when lib is Programs, our classes over
// Kafka082's jars) as its class path. The JVM is small and starts fast: it is a client or a small server, not a load.
// The command is killed when ctx ends. The caller starts it and waits for it.
func JavaCommand(ctx context.Context, t testing.TB, lib Tool, class string, args ...string) *exec.Cmd {
	t.Helper()
	if lib == Programs {
		return ProgramCommand(ctx, t, Kafka082, class, args...)
	}
	return javaCommand(ctx, t, lib, filepath.Join(Need(t, lib), "*"), class, args...)
}

// ProgramCommand is JavaCommand for one of our Java test programs over the jars of a release of Kafka that has what it uses:
// any of 0.8.1 to 1.1 for Members, Kafka082 for the others.
func ProgramCommand(ctx context.Context, t testing.TB, jars Tool, class string, args ...string) *exec.Cmd {
	t.Helper()
	path := Need(t, Programs) + string(os.PathListSeparator) + filepath.Join(Need(t, jars), "*")
	return javaCommand(ctx, t, jars, path, class, args...)
}

func javaCommand(ctx context.Context, t testing.TB, lib Tool, path, class string, args ...string) *exec.Cmd {
	t.Helper()
	if extra := logging(t, lib); extra != "" {
		path = extra + string(os.PathListSeparator) + path
	}
	argv := append([]string{"-Xmx256m", "-Xss512k", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto",
		"-cp", path, class}, args...)
	return exec.CommandContext(ctx, Need(t, Java), argv...)
}

// logging returns a folder with the log configuration of the tool's logging library, warnings on standard error.
func logging(t testing.TB, lib Tool) string {
	t.Helper()
	_, self, _, ok := runtime.Caller(0)
	if !ok {
		return ""
	}
	dir := filepath.Join(filepath.Dir(self), "logging")
	if lib == Kafka44 || lib == ZooKeeper395 {
		dir = filepath.Join(dir, "new")
	} else {
		dir = filepath.Join(dir, "log4j1")
	}
	if _, err := os.Stat(dir); err != nil {
		return ""
	}
	return dir
}
