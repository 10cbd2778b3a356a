package zkcompat_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/barnabas-mq/barnabas/internal/testtool"
	"github.com/barnabas-mq/barnabas/zkcompat"
)

// Unmodified clients on the port, over the state without brokers.

func run(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(cmd.Args[len(cmd.Args)-min(len(cmd.Args), 12):], " "), err, out)
	}
	return string(out)
}

func limit(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// kafka-topics --zookeeper of 0.8.2.2 and 1.1.1: what they order happens, and what they show is what is.
func TestTopicCommand(t *testing.T) {
	for _, version := range []testtool.Tool{testtool.Kafka082, testtool.Kafka111} {
		t.Run(string(version), func(t *testing.T) {
			testtool.Need(t, version)
			f := newFold(t, 3)
			_, addr := serve(t, f.backend(t), nil)
			tool := func(args ...string) string {
				t.Helper()
				return run(t, testtool.JavaCommand(limit(t), t, version, "kafka.admin.TopicCommand", append([]string{"--zookeeper", addr}, args...)...))
			}
			has := func(out string, wants ...string) {
				t.Helper()
				for _, want := range wants {
					if !regexp.MustCompile(want).MatchString(out) {
						t.Errorf("%q is missing in:\n%s", want, out)
					}
				}
			}
			has(tool("--create", "--topic", "orders", "--partitions", "4", "--replication-factor", "2", "--config", "retention.ms=60000"), "Created topic")
			has(tool("--list"), "orders")
			has(tool("--describe", "--topic", "orders"), "PartitionCount:4\\s+ReplicationFactor:2\\s+Configs:.*retention.ms=60000",
				`Partition: 3\s+Leader: \d\s+Replicas: \d,\d\s+Isr: \d,\d`)
			has(tool("--alter", "--topic", "orders", "--partitions", "6"), "Adding partitions succeeded")
			has(tool("--alter", "--topic", "orders", "--config", "retention.ms=120000"), "(?i)updated config")
			if top, ok := f.node(t, 0).View().Topic("orders"); !ok || top.Partitions != 6 {
				t.Errorf("%+v", top)
			}
			if c, ok := f.node(t, 0).View().Config("topics", "orders"); !ok || len(c.Entries) != 1 || c.Entries[0].Value != "120000" {
				t.Errorf("%+v", c)
			}
			has(tool("--describe"), "PartitionCount:6")
			has(tool("--delete", "--topic", "orders"), "marked for deletion")
			if _, ok := f.node(t, 0).View().Topic("orders"); ok {
				t.Error("the topic was not deleted")
			}
			if out := tool("--list"); strings.Contains(out, "orders") {
				t.Errorf("--list: %s", out)
			}
		})
	}
}

// The shells of 3.4.6 (44-byte connects aside, what 0.8 and 0.9 carry) and 3.9.5.
func TestZooKeeperShell(t *testing.T) {
	for _, version := range []testtool.Tool{testtool.Kafka082, testtool.ZooKeeper395} {
		t.Run(string(version), func(t *testing.T) {
			testtool.Need(t, version)
			_, addr := serve(t, newFold(t, 1).backend(t), nil)
			cmd := testtool.JavaCommand(limit(t), t, version, "org.apache.zookeeper.ZooKeeperMain", "-server", addr)
			cmd.Stdin = strings.NewReader("create /a one\ncreate -e /a/e two\ncreate -s /a/s three\nls /a\nset /a four\nget /a\nls /brokers/ids\nget /brokers/ids/1\ndelete /a/e\nls /a\nquit\n")
			out := run(t, cmd)
			for _, want := range []string{"Created /a", "Created /a/s0000000001", "[e, s0000000001]", "four", "[1]", `"port":1`, "[s0000000001]"} {
				if !strings.Contains(out, want) {
					t.Errorf("%q is missing in:\n%s", want, out)
				}
			}
		})
	}
}

const kazooScript = `
import sys, threading
from kazoo.client import KazooClient
from kazoo.exceptions import NodeExistsError, NoNodeError, BadVersionError, NotEmptyError
from kazoo.recipe.watchers import ChildrenWatch
a = KazooClient(hosts=sys.argv[1], timeout=6); a.start()
b = KazooClient(hosts=sys.argv[1], timeout=6); b.start()
seen, cond = [], threading.Condition()
def on(children):
    with cond:
        seen.append(sorted(children)); cond.notify_all()
def wait(f):
    with cond:
        assert cond.wait_for(lambda: seen and f(seen[-1]), 20), seen
a.ensure_path('/consumers/g/ids')
ChildrenWatch(b, '/consumers/g/ids', on)
wait(lambda c: c == [])
a.create('/consumers/g/ids/host:1', b't', ephemeral=True)
wait(lambda c: c == ['host:1'])
try:
    b.create('/consumers/g/ids/host:1', b't', ephemeral=True); assert False
except NodeExistsError: pass
assert b.get('/consumers/g/ids/host:1')[1].ephemeralOwner == a.client_id[0]
a.ensure_path("/consumers/g/owners/b'topic'")
a.create("/consumers/g/owners/b'topic'/1-0", b'me', ephemeral=True, makepath=True)
try:
    a.delete('/consumers/g', version=-1); assert False
except NotEmptyError: pass
try:
    a.set('/consumers/g', b'x', version=9); assert False
except BadVersionError: pass
assert a.create('/consumers/g/s', sequence=True) == '/consumers/g/s0000000002', a.get_children('/consumers/g')
assert [b.get('/brokers/ids/' + i)[0] for i in b.get_children('/brokers/ids/')]
a._connection._socket.shutdown(2)          # the connection breaks, the session goes on
a.retry(a.exists, '/consumers/g')
assert b.exists('/consumers/g/ids/host:1')
a.stop(); a.close()
wait(lambda c: c == [])
b.delete('/consumers/g', recursive=True)
b.stop(); b.close()
print('kazoo is content')
`

// kazoo, which pykafka stands on.
func TestKazoo(t *testing.T) {
	python := testtool.Need(t, testtool.Python)
	_, addr := serve(t, newFold(t, 2).backend(t), nil)
	if out := run(t, exec.CommandContext(limit(t), python, "-c", kazooScript, addr)); !strings.Contains(out, "kazoo is content") {
		t.Error(out)
	}
}

const nodeScript = `
const zk = require('node-zookeeper-client'), assert = require('assert');
const P = (o, f, ...a) => new Promise((ok, no) => o[f](...a, (e, ...r) => e ? no(e) : ok(r)));
(async () => {
  const a = zk.createClient(process.argv[2], {sessionTimeout: 30000, spinDelay: 100, retries: 0}); a.connect();
  await new Promise(ok => a.once('connected', ok));
  await P(a, 'mkdirp', '/consumers/g/ids');
  let event; const woken = new Promise(ok => event = ok);
  assert.deepEqual((await P(a, 'getChildren', '/consumers/g/ids', event))[0], []);
  await P(a, 'create', '/consumers/g/ids/g_1', null, null, zk.CreateMode.EPHEMERAL);
  assert.equal((await woken).getName(), 'NODE_CHILDREN_CHANGED');
  await P(a, 'setData', '/consumers/g/ids/g_1', Buffer.from('{"pattern":"white_list"}'), -1);
  const [data, stat] = await P(a, 'getData', '/consumers/g/ids/g_1');
  assert.equal(data.toString(), '{"pattern":"white_list"}'); assert.equal(stat.version, 1);
  assert.equal((await P(a, 'exists', '/nothing'))[0], null);
  await assert.rejects(P(a, 'getData', '/nothing'), e => e.getCode() === zk.Exception.NO_NODE);
  // A broken connection: the client comes back with setWatches and hears what it missed.
  let changed; const again = new Promise(ok => changed = ok);
  await P(a, 'getData', '/consumers/g/ids/g_1', changed);
  const back = new Promise(ok => a.once('connected', ok));
  a.connectionManager.socket.destroy();
  await back;
  assert.equal((await P(a, 'getData', '/consumers/g/ids/g_1'))[0].toString(), '{"pattern":"white_list"}');
  await P(a, 'setData', '/consumers/g/ids/g_1', Buffer.from('x'), -1);
  assert.equal((await again).getName(), 'NODE_DATA_CHANGED');
  a.close(); await new Promise(ok => a.once('disconnected', ok));
  console.log('node is content');
})().catch(e => { console.error(e); process.exit(1); });
`

// node-zookeeper-client, which kafka-node stands on.
func TestNodeClient(t *testing.T) {
	dir := testtool.Need(t, testtool.Node)
	_, addr := serve(t, newFold(t, 1).backend(t), nil)
	file := filepath.Join(t.TempDir(), "client.js")
	if err := os.WriteFile(file, []byte(nodeScript), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(limit(t), "node", file, addr)
	cmd.Env = append(os.Environ(), "NODE_PATH="+filepath.Join(dir, "node_modules"))
	if out := run(t, cmd); !strings.Contains(out, "node is content") {
		t.Error(out)
	}
}

// go-zookeeper/zk, the heir of samuel/go-zookeeper, which kazoo-go stands on.
func TestGoClient(t *testing.T) {
	f := newFold(t, 1)
	var addrs []string
	for range 2 {
		_, addr := serve(t, f.node(t, time.Millisecond).b, func(c *zkcompat.Config) {})
		addrs = append(addrs, addr)
	}
	dial := func() (*zk.Conn, <-chan zk.Event) {
		c, events, err := zk.Connect(addrs, 4*time.Second, zk.WithLogInfo(false), zk.WithLogger(quiet{}))
		if err != nil {
			t.Fatal(err)
		}
		return c, events
	}
	a, _ := dial()
	defer a.Close()
	b, _ := dial()
	defer b.Close()
	acl := zk.WorldACL(zk.PermAll)
	must := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(a.Create("/consumers/g", nil, 0, acl))
	must(a.Create("/consumers/g/ids", nil, 0, acl))
	must(b.Sync("/"))
	_, _, ch, err := b.ChildrenW("/consumers/g/ids")
	must(nil, err)
	must(a.Create("/consumers/g/ids/c", []byte("x"), zk.FlagEphemeral, acl))
	if e := <-ch; e.Type != zk.EventNodeChildrenChanged {
		t.Fatal(e)
	}
	data, st, err := b.Get("/consumers/g/ids/c")
	if err != nil || string(data) != "x" || st.EphemeralOwner != a.SessionID() {
		t.Fatal(string(data), st, err)
	}
	if _, err := b.Set("/consumers/g/ids/c", nil, 7); err != zk.ErrBadVersion {
		t.Fatal(err)
	}
	if err := b.Delete("/consumers/g/ids", -1); err != zk.ErrNotEmpty {
		t.Fatal(err)
	}
	_, _, gone, err := b.ExistsW("/consumers/g/ids/c")
	must(nil, err)
	a.Close()
	if e := <-gone; e.Type != zk.EventNodeDeleted {
		t.Fatal(e)
	}
	must(b.Sync("/"))
	if p, err := b.CreateProtectedEphemeralSequential("/consumers/g/lock-", nil, acl); err != nil || !strings.HasSuffix(p, "lock-0000000001") {
		t.Fatal(p, err)
	}
}

type quiet struct{}

func (quiet) Printf(string, ...any) {}
