package main

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

func loadText(t *testing.T, name, text string, env []string, args ...string) (map[string]string, error) {
	t.Helper()
	file := ""
	if name != "" {
		file = filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, kv := range env {
		k, v, _ := strings.Cut(kv, "=")
		t.Setenv(k, v)
	}
	f := pflag.NewFlagSet("server", pflag.ContinueOnError)
	addKeyFlags(f)
	if err := f.Parse(args); err != nil {
		t.Fatal(err)
	}
	return load(file, env, f, nil)
}

func TestPropertiesKeepDotsAndPrefixes(t *testing.T) {
	got, err := loadText(t, "server.properties", "# ${comment}\nbroker.id=7\nbroker.id.generation.enable=false\nlog.dirs = /a,/b\nunknown.Key:x\n"+
		"advertised.listeners=PLAINTEXT://h:9092\n", nil)
	want := map[string]string{"broker.id": "7", "broker.id.generation.enable": "false", "log.dirs": "/a,/b", "unknown.key": "x",
		"advertised.listeners": "PLAINTEXT://h:9092"}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v %v", got, err)
	}
}

func TestYAML(t *testing.T) {
	got, err := loadText(t, "b.yaml", "node.id: 3\nlog:\n  dirs: [/a, /b]\n  retention: {ms: 500ms, bytes: 1073741824}\nlisteners: \"PLAINTEXT://:9092\"\n"+
		"auto.create.topics.enable: false\nempty:\n", nil)
	want := map[string]string{"node.id": "3", "log.dirs": "/a,/b", "log.retention.ms": "500ms", "log.retention.bytes": "1073741824",
		"listeners": "PLAINTEXT://:9092", "auto.create.topics.enable": "false"}
	delete(got, "empty")
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v %v", got, err)
	}
}

func TestPrecedence(t *testing.T) {
	got, err := loadText(t, "s.properties", "num.partitions=1\nlog.dirs=/file\nport=1\n",
		[]string{"BARNABAS_NUM_PARTITIONS=2", "BARNABAS_LOG_DIRS=/env", "BARNABAS_NO_SUCH=1", "BARNABAS_PORT=tcp://10.0.0.1:9092",
			"BARNABAS_SERVICE_HOST=10.0.0.1", "BARNABAS_PORT_9092_TCP_ADDR=10.0.0.1", "BARNABAS_LOG_LEVEL=debug", "OTHER=1"},
		"--log.dirs", "/flag", "--join", "h:7946")
	want := map[string]string{"num.partitions": "2", "log.dirs": "/flag", "port": "1", "BARNABAS_NO_SUCH": "1", "barnabas.join": "h:7946"}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v %v", got, err)
	}
}

func TestBadFiles(t *testing.T) {
	for name, c := range map[string][2]string{
		"a.properties": {"log.dirs=${HOME}/x\n", "line 1: ${...} is not expanded"},
		"b.yaml":       {"a: [", "is not valid yaml"},
		"c.yaml":       {"a: [{b: 1}]", "item 1 is not a plain value"},
	} {
		if _, err := loadText(t, name, c[0], nil); err == nil || !strings.Contains(err.Error(), c[1]) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := load("/no/such/file", nil, pflag.NewFlagSet("", pflag.ContinueOnError), nil); err == nil {
		t.Error("a missing file was accepted")
	}
}
