package integration

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/barnabas-mq/barnabas/integration/harness"
	"github.com/barnabas-mq/barnabas/integration/member"
	"github.com/barnabas-mq/barnabas/internal/testtool"
)

func TestMain(m *testing.M) {
	if code, is := member.Run(); is { // this process is one of a test's members
		os.Exit(code)
	}
	os.Exit(m.Run())
}

// memberLimit is how long a group may take for one step on a busy machine: sessions of 6 s expire, JVMs start.
const memberLimit = 3 * time.Minute

// dialect is one kind of group member, as a process of its own.
type dialect struct {
	name    string
	legacy  bool          // it finds its group in ZooKeeper
	idle    bool          // Members: it waits until it is told to join
	session time.Duration // timeout of its session; 0: 6 s
	command func(t *testing.T, j joining) *exec.Cmd
}

// joining is what a member joins.
type joining struct {
	target
	group, topic, name string
	session            time.Duration
}

// join has a member join that waits for it.
func (m *groupMember) join(t *testing.T) {
	t.Helper()
	if _, err := fmt.Fprintf(m.stdin, "join %s\n", m.name); err != nil {
		t.Fatal(err)
	}
}

// start starts a member. Its records are in the file, a line each; its standard input stays open until it is stopped.
func (d dialect) start(t *testing.T, to target, group, topic, name string) *groupMember {
	t.Helper()
	if d.session == 0 {
		d.session = 6 * time.Second
	}
	cmd := d.command(t, joining{target: to, group: group, topic: topic, name: name, session: d.session})
	file, err := os.Create(filepath.Join(t.TempDir(), "lines"))
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout = file
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	m := &groupMember{Process: testtool.Start(t, strings.ReplaceAll(d.name, " ", "-")+"-"+name, cmd), name: name, file: file.Name(), stdin: stdin}
	file.Close()
	if !d.idle {
		m.join(t)
	}
	return m
}

type groupMember struct {
	*testtool.Process
	name, file string
	stdin      io.WriteCloser
	killed     bool // by the test
}

// spot is where a record lies in the one topic of a member.
type spot struct {
	partition int32
	offset    int64
}

var consoleLine = regexp.MustCompile(`^Partition:(\d+)\tOffset:(\d+)\t`)

// received returns the records that the member wrote of so far, in its order, and its other lines.
func (m *groupMember) received(t *testing.T) (records []spot, others []string) {
	t.Helper()
	data, err := os.ReadFile(m.file)
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(data[:bytes.LastIndexByte(data, '\n')+1]) {
		if r, _, ok := recordOf(line); ok {
			records = append(records, r)
		} else {
			others = append(others, strings.TrimSpace(string(line)))
		}
	}
	return records, others
}

// recordOf reads a line that tells of a record; member is who received it, if the process has several and says.
func recordOf(line []byte) (r spot, member string, ok bool) {
	if found := consoleLine.FindSubmatch(line); found != nil {
		p, _ := strconv.ParseInt(string(found[1]), 10, 32)
		o, _ := strconv.ParseInt(string(found[2]), 10, 64)
		return spot{int32(p), o}, "", true
	}
	var said struct {
		Partition *int32
		Offset    int64
		Member    string
	}
	if json.Unmarshal(line, &said) != nil || said.Partition == nil {
		return spot{}, "", false
	}
	return spot{*said.Partition, said.Offset}, said.Member, true
}

// oldJVM is the high-level consumer of a release's jars.
func oldJVM(release string, jars testtool.Tool, properties ...string) dialect {
	return dialect{name: "JVM " + release, legacy: true, command: func(t *testing.T, j joining) *exec.Cmd {
		args := []string{"--zookeeper", j.zookeeper, "--group", j.group, "--topic", j.topic, "--property",
			fmt.Sprintf("zookeeper.session.timeout.ms=%d", j.session.Milliseconds())}
		for _, p := range properties {
			args = append(args, "--property", p)
		}
		return testtool.ProgramCommand(context.Background(), t, jars, "Members", args...)
	}}
}

// goMember is a member of package member; shape, when given, edits its options.
func goMember(name, kind string, legacy bool, shape func(*member.Options)) dialect {
	return dialect{name: name, legacy: legacy, command: func(t *testing.T, j joining) *exec.Cmd {
		o := member.Options{Brokers: j.brokers, ZooKeeper: strings.Split(j.zookeeper, ","), Group: j.group, Topic: j.topic, Name: j.name, Session: j.session}
		if shape != nil {
			shape(&o)
		}
		return member.Command(t, kind, o)
	}}
}

// script is a member in a scripting language; the text is run with the brokers, ZooKeepers, group, topic and session timeout in ms as
// arguments.
func script(name string, tool testtool.Tool, legacy bool, text string) dialect {
	return dialect{name: name, legacy: legacy, command: func(t *testing.T, j joining) *exec.Cmd {
		path := testtool.Need(t, tool)
		args := []string{j.bootstrap, j.zookeeper, j.group, j.topic, fmt.Sprint(j.session.Milliseconds())}
		if tool != testtool.Node {
			return exec.Command(path, append([]string{"-u", "-c", text}, args...)...)
		}
		cmd := exec.Command("node", append([]string{"-e", text, "member"}, args...)...)
		cmd.Env = append(os.Environ(), "NODE_PATH="+filepath.Join(path, "node_modules"))
		return cmd
	}}
}

const pykafkaMember = `
import json, sys, time
from pykafka import KafkaClient
from pykafka.common import OffsetType
brokers, zookeeper, group, topic, session = sys.argv[1:]
print('{"event":"ready"}')
sys.stdin.readline()
client = KafkaClient(hosts=brokers)
while True:
    try:
        c = client.topics[topic.encode()].get_balanced_consumer(consumer_group=group.encode(), zookeeper_connect=zookeeper,
            zookeeper_connection_timeout_ms=int(session), auto_commit_enable=True, auto_commit_interval_ms=200, auto_offset_reset=OffsetType.EARLIEST)
        while True:
            m = c.consume()
            if m is not None:
                print('{"partition":%d,"offset":%d}' % (m.partition_id, m.offset))
    except Exception as e: # it gives up when its first connection is lost, say; an application of it begins anew
        print(json.dumps({'event': 'error', 'message': repr(e)}))
        time.sleep(1)
`

const kafkaNodeMember = `
const kafka = require('kafka-node'), [brokers, zookeeper, group, topic, session] = process.argv.slice(-5);
console.log('{"event":"ready"}');
function join() { // it tries once to register: an application of it begins anew
  const client = new kafka.Client(zookeeper, group, {sessionTimeout: Number(session)});
  const c = new kafka.HighLevelConsumer(client, [{topic}], {groupId: group, autoCommitIntervalMs: 200});
  let joined = false, over = false;
  c.on('rebalanced', () => { joined = true; });
  c.on('message', m => console.log(JSON.stringify({partition: m.partition, offset: m.offset})));
  c.on('error', e => {
    console.log(JSON.stringify({event: 'error', message: String(e)}));
    if (joined || over) return;
    over = true;
    client.close(() => {});
    setTimeout(join, 1000);
  });
}
process.stdin.once('data', join);
`

const kafkajsMember = `
const {Kafka, logLevel} = require('kafkajs'), [brokers, zookeeper, groupId, topic, session] = process.argv.slice(-5);
const c = new Kafka({brokers: brokers.split(','), logLevel: logLevel.ERROR}).consumer({groupId, sessionTimeout: Number(session), heartbeatInterval: 500});
(async () => {
  await c.connect(); await c.subscribe({topics: [topic], fromBeginning: true});
  await c.run({autoCommitInterval: 200, eachMessage: async ({partition, message}) =>
    console.log(JSON.stringify({partition, offset: Number(message.offset)}))});
})().catch(e => { console.error(e); process.exit(1); });
`

const kafkaPythonMember = `
import sys
from kafka import KafkaConsumer
brokers, zookeeper, group, topic, session = sys.argv[1:]
print('{"event":"ready"}')
sys.stdin.readline()
for m in KafkaConsumer(topic, bootstrap_servers=brokers.split(','), group_id=group, auto_offset_reset='earliest', auto_commit_interval_ms=200,
                       session_timeout_ms=int(session), heartbeat_interval_ms=500):
    print('{"partition":%d,"offset":%d}' % (m.partition, m.offset))
`

const confluentMember = `
import sys
from confluent_kafka import Consumer
brokers, zookeeper, group, topic, session = sys.argv[1:]
print('{"event":"ready"}')
sys.stdin.readline()
c = Consumer({'bootstrap.servers': brokers, 'group.id': group, 'auto.offset.reset': 'earliest', 'auto.commit.interval.ms': 200,
              'session.timeout.ms': int(session), 'heartbeat.interval.ms': 500})
c.subscribe([topic])
while True:
    m = c.poll(0.5)
    if m is not None and not m.error():
        print('{"partition":%d,"offset":%d}' % (m.partition(), m.offset()))
`

// java44 is the console consumer of Apache Kafka 4.4.
func java44(protocol string) dialect {
	return dialect{name: "Java 4.4 " + protocol, command: func(t *testing.T, j joining) *exec.Cmd {
		args := []string{"--bootstrap-server", j.bootstrap, "--topic", j.topic, "--group", j.group, "--formatter-property", "print.partition=true",
			"--formatter-property", "print.offset=true", "--command-property", "group.protocol=" + protocol, "--command-property", "auto.offset.reset=earliest",
			"--command-property", "auto.commit.interval.ms=200", "--command-property", "client.id=" + j.name}
		if protocol == "classic" {
			args = append(args, "--command-property", fmt.Sprintf("session.timeout.ms=%d", j.session.Milliseconds()), "--command-property", "heartbeat.interval.ms=500")
		}
		return testtool.JavaCommand(context.Background(), t, testtool.Kafka44, "org.apache.kafka.tools.consumer.ConsoleConsumer", args...)
	}}
}

var saramaMember = dialect{name: "sarama 1.43.3", command: func(t *testing.T, j joining) *exec.Cmd {
	return exec.Command(testtool.Need(t, testtool.Sarama), j.bootstrap, j.group, j.topic)
}}

// legacyOwners returns who holds each partition by the owner znodes: the literal data.
func legacyOwners(conn *zk.Conn, group, topic string) (map[int32]string, error) {
	dir := path.Join("/consumers", group, "owners", topic)
	names, _, err := conn.Children(dir)
	if errors.Is(err, zk.ErrNoNode) { // pykafka on Python 3 has it so
		dir = path.Join("/consumers", group, "owners", "b'"+topic+"'")
		names, _, err = conn.Children(dir)
	}
	if err != nil {
		return nil, err
	}
	owners := map[int32]string{}
	for _, name := range names {
		p, err := strconv.ParseInt(name[strings.LastIndexByte(name, '-')+1:], 10, 32) // pykafka writes leader-partition
		if err != nil {
			return nil, err
		}
		data, _, err := conn.Get(path.Join(dir, name))
		if err != nil {
			return nil, err
		}
		if was, twice := owners[int32(p)]; twice {
			return nil, fmt.Errorf("partition %d is owned by %s and by %s", p, was, data)
		}
		owners[int32(p)] = string(data)
	}
	return owners, nil
}

// modernOwners returns who holds each partition as the coordinator tells it.
func modernOwners(admin *kadm.Client, group, topic string, consumer bool) (map[int32]string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	owners := map[int32]string{}
	take := func(id string, ps []int32) error {
		for _, p := range ps {
			if was, twice := owners[p]; twice {
				return fmt.Errorf("partition %d is held by %s and by %s", p, was, id)
			}
			owners[p] = id
		}
		return nil
	}
	if consumer {
		described, err := admin.DescribeConsumerGroups(ctx, group)
		if err != nil {
			return nil, err
		}
		for _, m := range described[group].Members {
			if err := take(m.MemberID, slices.Collect(maps.Keys(m.Assignment[topic]))); err != nil {
				return nil, err
			}
		}
		return owners, described[group].Err
	}
	described, err := admin.DescribeGroups(ctx, group)
	if err != nil {
		return nil, err
	}
	g := described[group]
	if g.State != "Stable" {
		return nil, fmt.Errorf("%s is %s, %v", group, g.State, g.Err)
	}
	for _, m := range g.Members {
		if a, ok := m.Assigned.AsConsumer(); ok {
			for _, at := range a.Topics {
				if at.Topic != topic {
					continue
				}
				if err := take(m.MemberID, at.Partitions); err != nil {
					return nil, err
				}
			}
		}
	}
	return owners, nil
}

// group is one group of one dialect over its own topic, both called by the same name.
type group struct {
	dialect
	id      string
	members []*groupMember
}

const (
	groupPartitions = 6
	perPartition    = 40 // records of each of the two loads
)

// whole says why not every partition has one owner among so many.
func (g *group) whole(conn *zk.Conn, admin *kadm.Client, owners int) error {
	var held map[int32]string
	var err error
	if g.legacy {
		held, err = legacyOwners(conn, g.id, g.id)
	} else {
		held, err = modernOwners(admin, g.id, g.id, strings.HasSuffix(g.name, " consumer"))
	}
	if err != nil {
		return fmt.Errorf("%s: %w", g.name, err)
	}
	var names []string
	for _, n := range held {
		if !slices.Contains(names, n) {
			names = append(names, n)
		}
	}
	if len(held) != groupPartitions || len(names) != owners {
		return fmt.Errorf("%s: %d partitions of %d are held, by %d members, want %d", g.name, len(held), groupPartitions, len(names), owners)
	}
	return nil
}

// fill sends records [from, to) to each partition, and returns when they are acknowledged.
func fill(t *testing.T, brokers []string, topic string, from, to int) {
	t.Helper()
	client := harness.Client(t, brokers, kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerBatchCompression(kgo.NoCompression()))
	ctx, cancel := context.WithTimeout(context.Background(), memberLimit)
	defer cancel()
	var all []*kgo.Record
	for n := from; n < to; n++ {
		for p := range int32(groupPartitions) {
			all = append(all, &kgo.Record{Topic: topic, Partition: p, Value: fmt.Appendf(nil, "%d-%d", p, n)})
		}
	}
	if err := client.ProduceSync(ctx, all...).FirstErr(); err != nil {
		t.Fatal(err)
	}
	client.Close()
}

// has says what of the offsets [from, to) of each partition the members have not received.
func (g *group) has(t *testing.T, from, to int64, members ...*groupMember) error {
	t.Helper()
	seen := map[spot]bool{}
	for _, m := range members {
		records, others := m.received(t)
		for _, r := range records {
			seen[r] = true
		}
		if !m.killed && !m.Alive() {
			t.Fatalf("%s %s has ended: %v\n%s", g.name, m.name, others, m.Tail(20))
		}
	}
	missing := 0
	for p := range int32(groupPartitions) {
		for o := from; o < to; o++ {
			if !seen[spot{p, o}] {
				missing++
			}
		}
	}
	if missing > 0 {
		return fmt.Errorf("%s: %d of %d records not received yet", g.name, missing, groupPartitions*(to-from))
	}
	return nil
}

// committed says which partition's offset is not the one given.
func (g *group) committed(admin *kadm.Client, want int64) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	offsets, err := admin.FetchOffsets(ctx, g.id)
	if err != nil {
		return err
	}
	for p := range int32(groupPartitions) {
		if at, ok := offsets.Lookup(g.id, p); !ok || at.At != want {
			return fmt.Errorf("%s: offset of partition %d is %d, want %d", g.name, p, at.At, want)
		}
	}
	return nil
}

// TestMembersOfEveryDialect has groups of two of each old client, and then of each new one, side by side on one cluster: both
// members own a share, read everything and commit it; one is killed; the other takes all over and reads on where the
// commits say.
func TestMembersOfEveryDialect(t *testing.T) {
	for name, dialects := range map[string][]dialect{
		"ZooKeeper": {
			oldJVM("0.8.1.1", testtool.Kafka081), oldJVM("0.8.2.2", testtool.Kafka082, "offsets.storage=kafka", "dual.commit.enabled=false"),
			oldJVM("0.9.0.1", testtool.Kafka090), oldJVM("0.10.2.2", testtool.Kafka0102), oldJVM("1.1.1", testtool.Kafka111),
			script("pykafka 2.8.0", testtool.PyKafka, true, pykafkaMember), script("kafka-node 2.6.1", testtool.Node, true, kafkaNodeMember),
			goMember("wvanbergen", "wvanbergen", true, nil),
		},
		"classic": {
			script("kafkajs 2.2.4", testtool.Node, false, kafkajsMember), script("kafka-python 2.0.2", testtool.Python, false, kafkaPythonMember),
			script("confluent-kafka 2.16.1", testtool.Python, false, confluentMember), saramaMember,
			goMember("franz-go 1.22.3", "franz", false, nil), java44("classic"),
		},
	} {
		t.Run(name, func(t *testing.T) { twoMembersEach(t, dialects) })
	}
}

func twoMembersEach(t *testing.T, dialects []dialect) { membersOn(t, newTarget(t), dialects) }

func membersOn(t *testing.T, to target, dialects []dialect) {
	t.Helper()
	var conn *zk.Conn
	if to.zookeeper != "" {
		conn = dialZK(t, strings.Split(to.zookeeper, ",")...)
	}
	admin := kadm.NewClient(harness.Client(t, to.brokers))
	var groups []*group
	for _, d := range dialects {
		g := &group{dialect: d, id: strings.ToLower(strings.ReplaceAll(d.name, " ", "-"))}
		harness.CreateTopic(t, to.brokers, g.id, groupPartitions, to.replicas, nil)
		fill(t, to.brokers, g.id, 0, perPartition)
		groups = append(groups, g)
	}
	begun := time.Now()
	alone := func(g *group, check func() error) {
		t.Helper()
		testtool.Eventually(t, memberLimit, func() error {
			for _, m := range g.members {
				if !m.killed && !m.Alive() {
					t.Fatalf("%s %s has ended:\n%s", g.name, m.name, m.Tail(20))
				}
			}
			return check()
		})
	}
	each := func(what string, check func(g *group) error) {
		t.Helper()
		for _, g := range groups {
			alone(g, func() error { return check(g) })
		}
		t.Logf("%s after %v", what, time.Since(begun).Round(100*time.Millisecond))
	}
	for _, g := range groups {
		for _, who := range []string{"a", "b"} {
			g.members = append(g.members, g.start(t, to, g.id, g.id, who))
		}
		if g.legacy { // one group after the other: each JVM that starts takes a core
			alone(g, func() error { return g.whole(conn, admin, 2) })
		}
	}
	each("whole", func(g *group) error { return g.whole(conn, admin, 2) })
	each("all read", func(g *group) error { return g.has(t, 0, perPartition, g.members...) })
	each("all committed", func(g *group) error { return g.committed(admin, perPartition) })
	before := map[*group]int{}
	for _, g := range groups {
		g.members[0].killed = true
		g.members[0].Kill()
		seen, _ := g.members[1].received(t)
		before[g] = len(seen)
		fill(t, to.brokers, g.id, perPartition, 2*perPartition)
	}
	each("taken over", func(g *group) error { return g.whole(conn, admin, 1) })
	each("read on", func(g *group) error { return g.has(t, perPartition, 2*perPartition, g.members[1]) })
	each("committed", func(g *group) error { return g.committed(admin, 2*perPartition) })
	for _, g := range groups {
		records, others := g.members[1].received(t)
		again := 0
		for _, r := range records[before[g]:] {
			if r.offset < perPartition {
				again++
			}
		}
		if again > 0 {
			t.Errorf("%s: %d records that were committed before the kill were received after it", g.name, again)
		}
		t.Logf("%s: %d records, %d of them more than once; %v", g.name, len(records), again, tail(others, 6))
	}
}

func tail(all []string, n int) []string { return all[max(0, len(all)-n):] }
