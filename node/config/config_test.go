package config

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/barnabas-mq/barnabas/internal/id"
	"pgregory.net/rapid"
)

func parse(t *testing.T, lines ...string) Config {
	t.Helper()
	c, err := Parse(values(lines...), "box")
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func values(lines ...string) map[string]string {
	m := map[string]string{}
	for _, l := range lines {
		k, v, _ := strings.Cut(l, "=")
		m[k] = v
	}
	return m
}

func notes(c Config) (keys []string) {
	for _, n := range c.Notes {
		keys = append(keys, n.Key)
	}
	return keys
}

func TestNothingGiven(t *testing.T) {
	c := parse(t)
	want := Config{
		NodeID: id.NoBroker, DataDir: "barnabas-data",
		Listeners:           []Listener{{Name: "PLAINTEXT", Protocol: "PLAINTEXT", Port: 9092}},
		Advertised:          []Listener{{Name: "PLAINTEXT", Protocol: "PLAINTEXT", Host: "box", Port: 9092}},
		InterBrokerListener: "PLAINTEXT",
		ClusterListen:       ":7946", ClusterAdvertise: "box:7946", ZooKeeperListen: ":2181", AdminListen: ":8080",
		Topics: Topics{Partitions: 1, AutoCreate: true, Delete: true},
		Log: Log{SegmentBytes: 1 << 30, RollAfter: 168 * time.Hour, IndexIntervalBytes: 4096, MessageMaxBytes: 1048588,
			RetentionTime: 168 * time.Hour, RetentionBytes: Unlimited, FlushOnAck: true},
		Network: Network{SendBuffer: -1, ReceiveBuffer: -1, RequestMaxBytes: 104857600, ReplicaFetchMaxBytes: 1048576},
		Groups: Groups{InitialRebalanceDelay: time.Second, MinSessionTimeout: 6 * time.Second, MaxSessionTimeout: 30 * time.Minute, MaxSize: 1<<31 - 1,
			ConsumerHeartbeat: time.Second, ConsumerSession: 45 * time.Second, ConsumerMaxSize: 1<<31 - 1, Migration: "bidirectional",
			OffsetsRetention: 7 * 24 * time.Hour, OffsetsCheck: 10 * time.Minute,
			OffsetsTopic: true, OffsetsTopicFormat: 3, OffsetsTopicPartitions: 50, OffsetsTopicReplication: 3, OffsetsTopicSegmentBytes: 100 << 20},
	}
	if !reflect.DeepEqual(c, want) {
		t.Errorf("got  %+v\nwant %+v", c, want)
	}
}

// The file that Apache Kafka 0.8.2 ships, and the one of 4.x in KRaft mode, with their comments removed.
func TestShippedFilesAreAccepted(t *testing.T) {
	old := parse(t, "broker.id=0", "port=9092", "num.network.threads=3", "num.io.threads=8",
		"socket.send.buffer.bytes=102400", "socket.receive.buffer.bytes=102400", "socket.request.max.bytes=104857600",
		"log.dirs=/tmp/kafka-logs", "num.partitions=1", "num.recovery.threads.per.data.dir=1", "log.retention.hours=168",
		"log.segment.bytes=1073741824", "log.retention.check.interval.ms=300000", "log.cleaner.enable=false",
		"zookeeper.connect=localhost:2181", "zookeeper.connection.timeout.ms=6000")
	if old.NodeID != 0 || old.DataDir != "/tmp/kafka-logs" || old.Network.SendBuffer != 102400 {
		t.Errorf("0.8.2: %+v", old)
	}
	if why := old.Notes[len(old.Notes)-1]; why.Key != "zookeeper.connection.timeout.ms" || why.Why != whyNoZK {
		t.Errorf("0.8.2: %+v", old.Notes)
	}
	kraft := parse(t, "process.roles=broker,controller", "node.id=1", "controller.quorum.bootstrap.servers=localhost:9093",
		"listeners=PLAINTEXT://:9092,CONTROLLER://:9093", "inter.broker.listener.name=PLAINTEXT",
		"advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093", "controller.listener.names=CONTROLLER",
		"listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL",
		"log.dirs=/tmp/kraft-combined-logs", "offsets.topic.replication.factor=1", "share.coordinator.state.topic.min.isr=1",
		"transaction.state.log.min.isr=1")
	if len(kraft.Listeners) != 1 || kraft.Listeners[0].Port != 9092 || kraft.Advertised[0].Host != "localhost" {
		t.Errorf("KRaft: %+v", kraft)
	}
	if got := kraft.Notes[len(kraft.Notes)-2]; got != (Note{"share.coordinator.state.topic.min.isr", "unknown key"}) {
		t.Errorf("KRaft: %+v", kraft.Notes)
	}
}

func TestEveryFaultAtOnce(t *testing.T) {
	_, err := Parse(values("num.partitions=many", "min.insync.replicas=0", "auto.create.topics.enable=yes", "log.roll.ms=soon",
		"listeners=SSL://:9093", "node.id=1", "broker.id=2", "process.roles=controller", "log.dirs=,",
		"barnabas.cluster.id=short", "zookeeper.listener=nowhere", "log.retention.hours=${HOURS}", "log.retention.bytes=-2",
		"message.max.bytes=200000000", "security.inter.broker.protocol=SSL"), "box")
	var faults Faults
	if !errors.As(err, &faults) {
		t.Fatalf("error is %T: %v", err, err)
	}
	for _, key := range []string{"num.partitions", "min.insync.replicas", "auto.create.topics.enable", "log.roll.ms", "listeners",
		"node.id", "process.roles", "log.dirs", "barnabas.cluster.id", "zookeeper.listener", "log.retention.hours",
		"log.retention.bytes", "message.max.bytes", "security.inter.broker.protocol"} {
		if !strings.Contains(err.Error(), "\n  "+key+": ") {
			t.Errorf("no fault for %s in\n%v", key, err)
		}
	}
	if len(faults) != 14 {
		t.Errorf("%d faults:\n%v", len(faults), err)
	}
}

func TestDurations(t *testing.T) {
	for in, want := range map[string]time.Duration{
		"log.roll.ms=1500": 1500 * time.Millisecond, "log.roll.ms=500ms": 500 * time.Millisecond, "log.roll.ms=2h": 2 * time.Hour,
		"log.roll.hours=3": 3 * time.Hour, "log.roll.hours=120m": 2 * time.Hour, "log.roll.ms=7d": 168 * time.Hour,
		"log.roll.ms=9223372036854775807": 1<<63 - 1,
	} {
		if got := parse(t, in).Log.RollAfter; got != want {
			t.Errorf("%s: %v, want %v", in, got, want)
		}
	}
	if got := parse(t, "log.retention.minutes=-1", "log.retention.hours=5").Log.RetentionTime; got != Unlimited {
		t.Errorf("minutes before hours: %v", got)
	}
	for _, bad := range []string{"log.roll.ms=0", "log.roll.ms=-1", "log.roll.ms=0s", "log.roll.ms=-5s", "log.roll.hours=5m", "log.roll.ms=1 day"} {
		if _, err := Parse(values(bad), "box"); err == nil {
			t.Errorf("%s was accepted", bad)
		}
	}
}

func TestListeners(t *testing.T) {
	c := parse(t, "listeners=INSIDE://10.0.0.1:9092,OUTSIDE://:9094", "advertised.listeners=OUTSIDE://kafka.example:443,INSIDE://10.0.0.1:9092",
		"listener.security.protocol.map=INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT", "inter.broker.listener.name=OUTSIDE")
	if got := c.Advertised[1].String(); got != "OUTSIDE://kafka.example:443" {
		t.Errorf("advertised %v", c.Advertised)
	}
	if c.ZooKeeperListen != "10.0.0.1:2181" || c.ClusterAdvertise != "10.0.0.1:7946" {
		t.Errorf("other ports follow the first listener: %+v", c)
	}
	c = parse(t, "host.name=127.0.0.1", "port=19092", "advertised.host.name=kafka", "advertised.port=9", "zookeeper.port=-1")
	if c.Listeners[0].String() != "PLAINTEXT://127.0.0.1:19092" || c.Advertised[0].String() != "PLAINTEXT://kafka:9" || c.ZooKeeperListen != "" {
		t.Errorf("0.8 names: %+v", c)
	}
	c = parse(t, "listeners=PLAINTEXT://[::1]:9092", "port=1", "advertised.listeners=PLAINTEXT://[::1]:9092", "advertised.port=2")
	if got := notes(c); !reflect.DeepEqual(got, []string{"advertised.port", "port"}) {
		t.Errorf("keys without effect: %v", got)
	}
	for bad, want := range map[string]string{
		"group.min.session.timeout.ms=2h":                      "is above group.max.session.timeout.ms",
		"listeners=A://:1":                                     "A has no protocol",
		"listeners=9092":                                       "is not NAME://host:port",
		"listeners=PLAINTEXT://:99999":                         "no port within",
		"listeners=PLAINTEXT://:1,PLAINTEXT://:2":              "named twice",
		"listeners=PLAINTEXT://:2181":                          "port 2181 is also that of listeners",
		"advertised.listeners=PLAINTEXT://:9092":               "needs a host that clients can reach",
		"advertised.listeners=SASL_PLAINTEXT://h:9092":         "not built yet",
		"inter.broker.listener.name=NOWHERE":                   "not among the advertised listeners",
		"listener.security.protocol.map=A":                     "is not NAME:PROTOCOL",
		"cluster.port=9092":                                    "port 9092 is also that of listeners",
		"barnabas.join=host":                                   "is not host:port",
		"barnabas.join=:7946":                                  "needs a host and a port",
		"barnabas.voters=a@h:1,b@h:2":                          "odd number",
		"barnabas.voters=a@h:1":                                "needs barnabas.cluster.id",
		"controller.listener.names=PLAINTEXT":                  "names no listener for clients",
		"default.replication.factor=40000":                     "not within",
		"log.segment.bytes=1e9":                                "not a whole number",
		"log.cleaner.enable=maybe":                             "neither true nor false",
		"log.retention.ms=${env:RETENTION}":                    "not expanded",
		"listeners=PLAINTEXT://127.0.0.1:7946,SSL://h:1":       "SSL asks for SSL",
		"process.roles=broker,wizard":                          "neither broker nor controller",
		"barnabas.directory.id=" + strings.Repeat("x", 65):     "1 to 64 characters",
		"advertised.listeners=PLAINTEXT://a:1,PLAINTEXT://b:2": "named twice",
		"socket.request.max.bytes=1048576":                     "could not arrive",
	} {
		_, err := Parse(values(bad), "box")
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", bad, err, want)
		}
	}
}

func TestChroots(t *testing.T) {
	c := parse(t, "zookeeper.connect=zk1:2181,zk2:2181/kafka/eu/", "zookeeper.chroots=/old, /kafka/eu")
	if got := strings.Join(c.ZooKeeperChroots, " "); got != "/kafka/eu /old" {
		t.Errorf("%q", got)
	}
	if c := parse(t, "zookeeper.connect=zk1:2181/"); c.ZooKeeperChroots != nil {
		t.Errorf("%q", c.ZooKeeperChroots)
	}
	for _, bad := range []string{"zookeeper.chroots=kafka", "zookeeper.chroots=/a//b", "zookeeper.connect=zk:2181/a/../b"} {
		if _, err := Parse(values(bad), "box"); err == nil || !strings.Contains(err.Error(), "is not a path such as /kafka") {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

func TestVoters(t *testing.T) {
	c := parse(t, "barnabas.cluster.id=AAAAAAAAAAAAAAAAAAAAAA", "barnabas.directory.id=d2",
		"barnabas.voters=d1@127.0.0.1:7946,d2@127.0.0.1:7947,d3@127.0.0.1:7948")
	if len(c.Voters) != 3 || c.Voters[1] != (Voter{"d2", "127.0.0.1:7947"}) {
		t.Errorf("%+v", c.Voters)
	}
}

func TestSecurityIsNeverSilentlyDropped(t *testing.T) {
	c := parse(t, "authorizer.class.name=kafka.security.authorizer.AclAuthorizer", "ssl.keystore.location=/k", "sasl.enabled.mechanisms=PLAIN",
		"Log.Cleaner.Threads=1", "compression.type=lz4")
	want := []Note{{"authorizer.class.name", whyAuthz}, {"compression.type", "unknown key"}, {"log.cleaner.threads", whyRetention},
		{"sasl.enabled.mechanisms", whySecurity}, {"ssl.keystore.location", whySecurity}}
	if !reflect.DeepEqual(c.Notes, want) {
		t.Errorf("%+v", c.Notes)
	}
}

func TestCheckText(t *testing.T) {
	if err := CheckText("# ${ok}\nlog.dirs=/x\n  ! ${ok}\n"); err != nil {
		t.Error(err)
	}
	err := CheckText("a=1\nlog.dirs=${HOME}/kafka\nport=${P}\n")
	if err == nil || !strings.Contains(err.Error(), "line 2: ") || !strings.Contains(err.Error(), "line 3: ") {
		t.Error(err)
	}
}

func TestKeys(t *testing.T) {
	seen := map[string]string{}
	for _, k := range Keys() {
		if other, dup := seen[k.Env]; dup {
			t.Errorf("%s and %s share %s", k.Name, other, k.Env)
		}
		seen[k.Env] = k.Name
		if strings.ToLower(k.Name) != k.Name {
			t.Errorf("%s is not lower case: viper would lose it", k.Name)
		}
	}
	if EnvName("barnabas.join") != "BARNABAS_JOIN" || EnvName("log.dirs") != "BARNABAS_LOG_DIRS" {
		t.Error(EnvName("barnabas.join"), EnvName("log.dirs"))
	}
}

// Any text in any key gives a configuration or faults that name a key; never a panic.
func TestAnyTextIsSafe(t *testing.T) {
	var names []string
	for _, k := range Keys() {
		names = append(names, k.Name)
	}
	text := rapid.OneOf(rapid.String(), rapid.StringMatching(`[A-Za-z0-9:/@,.\[\]-]{0,30}`), rapid.SampledFrom([]string{
		"-1", "0", "9223372036854775807", "PLAINTEXT://h:1", "h:1", "a@h:1", "2h", "true"}))
	rapid.Check(t, func(t *rapid.T) {
		in := rapid.MapOfN(rapid.SampledFrom(names), text, 0, 8).Draw(t, "values")
		c, err := Parse(in, "box")
		if err == nil {
			if len(c.Listeners) == 0 || len(c.Advertised) == 0 || c.DataDir == "" || c.Topics.Partitions < 1 {
				t.Fatalf("accepted without what a node needs: %+v", c)
			}
			return
		}
		var faults Faults
		if !errors.As(err, &faults) || len(faults) == 0 {
			t.Fatalf("%T %v", err, err)
		}
	})
}
