package integration

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/barnabas-mq/barnabas/integration/check"
	"github.com/barnabas-mq/barnabas/integration/harness"
	"github.com/barnabas-mq/barnabas/integration/member"
	"github.com/barnabas-mq/barnabas/integration/proxy"
	"github.com/barnabas-mq/barnabas/internal/testtool"
)

// long tells whether the full length of a scenario is wanted (`make chaos-groups`), not the short one of every test run.
func long() bool { return os.Getenv("BARNABAS_LONG") != "" }

// TestZombieCommit is S23: a member is frozen for twice its session timeout, another takes over; when it thaws it commits by the
// member and generation that it had. The commit is refused, and the offsets stay.
func TestZombieCommit(t *testing.T) {
	to := newTarget(t)
	admin := kadm.NewClient(harness.Client(t, to.brokers))
	for _, balancer := range []string{"range", "cooperative"} {
		t.Run(balancer, func(t *testing.T) {
			t.Parallel()
			id := "zombie-" + balancer
			harness.CreateTopic(t, to.brokers, id, groupPartitions, to.replicas, nil)
			g := &group{id: id, dialect: goMember("franz-go "+balancer, "franz", false, func(o *member.Options) { o.Balancer, o.Zombie = balancer, true })}
			fill(t, to.brokers, id, 0, perPartition)
			for _, who := range []string{"frozen", "other"} {
				g.members = append(g.members, g.start(t, to, id, id, who))
			}
			frozen, other := g.members[0], g.members[1]
			until := func(check func() error) { t.Helper(); testtool.Eventually(t, memberLimit, check) }
			until(func() error { return g.whole(nil, admin, 2) })
			until(func() error { return g.has(t, 0, perPartition, g.members...) })
			until(func() error { return g.committed(admin, perPartition) })
			if err := frozen.Signal(syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			fill(t, to.brokers, id, perPartition, 2*perPartition)
			time.Sleep(12 * time.Second) // the fault: twice the session timeout
			until(func() error { return g.whole(nil, admin, 1) })
			until(func() error { return g.has(t, perPartition, 2*perPartition, other) })
			until(func() error { return g.committed(admin, 2*perPartition) })
			if err := frozen.Signal(syscall.SIGCONT); err != nil {
				t.Fatal(err)
			}
			var said []string
			until(func() error {
				said = nil
				_, others := frozen.received(t)
				for _, line := range others {
					if strings.Contains(line, `"zombie"`) {
						said = append(said, line)
					}
				}
				if len(said) == 0 {
					return errors.New("the thawed member has not committed yet")
				}
				return nil
			})
			for _, line := range said {
				if !strings.Contains(line, `"22 `) && !strings.Contains(line, `"25 `) {
					t.Errorf("the commit of the thawed member was answered with %s, want 22 or 25", line)
				}
			}
			if err := g.committed(admin, 2*perPartition); err != nil {
				t.Errorf("after the commit of the thawed member: %v", err)
			}
			until(func() error { return g.whole(nil, admin, 2) })
			fill(t, to.brokers, id, 2*perPartition, 3*perPartition)
			until(func() error { return g.has(t, 2*perPartition, 3*perPartition, g.members...) })
			t.Logf("%d commits refused: %s", len(said), said[0])
		})
	}
}

// oldMembers are high-level consumers of 0.8.2.2, each in a process of its own, that are told when to join.
type oldMembers struct {
	t     *testing.T
	topic string
	files map[string]string // by process
	procs map[string]*groupMember
	check *group
}

func startOldMembers(t *testing.T, to target, topic string, timeout time.Duration, names ...string) *oldMembers {
	t.Helper()
	o := &oldMembers{t: t, topic: topic, files: map[string]string{}, procs: map[string]*groupMember{}, check: &group{id: topic, dialect: dialect{name: topic, legacy: true}}}
	d := oldJVM("0.8.2.2", testtool.Kafka082)
	d.idle, d.session = true, timeout
	for _, name := range names {
		m := d.start(t, to, topic, topic, name)
		o.procs[name], o.files[name] = m, m.file
	}
	for _, m := range o.procs {
		testtool.Eventually(t, memberLimit, func() error {
			if _, others := m.received(t); len(others) == 0 {
				return fmt.Errorf("%s is not ready", m.Name)
			}
			return nil
		})
	}
	return o
}

// join has a process join under a member's name.
func (o *oldMembers) join(process, name string) {
	o.t.Helper()
	if _, err := fmt.Fprintf(o.procs[process].stdin, "join %s\n", name); err != nil {
		o.t.Fatal(err)
	}
}

// events returns the lines of a process that hold the word.
func (o *oldMembers) events(process, word string) (found []string) {
	_, others := o.procs[process].received(o.t)
	for _, line := range others {
		if strings.Contains(line, `"event":"`+word+`"`) {
			found = append(found, line)
		}
	}
	return found
}

// ephemerals returns the group's ephemeral nodes by path, with their sessions (C11).
func ephemerals(conn *zk.Conn, group, topic string) (map[string]int64, error) {
	all := map[string]int64{}
	for _, dir := range []string{"/consumers/" + group + "/ids", "/consumers/" + group + "/owners/" + topic} {
		names, _, err := conn.Children(dir)
		if err != nil && !errors.Is(err, zk.ErrNoNode) {
			return nil, err
		}
		for _, name := range names {
			_, stat, err := conn.Get(dir + "/" + name)
			if err == nil {
				all[dir+"/"+name] = stat.EphemeralOwner
			} else if !errors.Is(err, zk.ErrNoNode) {
				return nil, err
			}
		}
	}
	return all, nil
}

// createNode makes a node over whatever happens to the connection: one that is there already is a persistent one, or this session's own.
func createNode(t *testing.T, conn *zk.Conn, path string, data []byte, flags int32) {
	t.Helper()
	testtool.Eventually(t, memberLimit, func() error {
		_, err := conn.Create(path, data, flags, zk.WorldACL(zk.PermAll))
		if !errors.Is(err, zk.ErrNodeExists) {
			return err
		}
		_, stat, err := conn.Exists(path)
		if err == nil && flags == zk.FlagEphemeral && (stat == nil || stat.EphemeralOwner != conn.SessionID()) {
			err = fmt.Errorf("%s is another session's", path)
		}
		return err
	})
}

// nodes is ephemerals over whatever happens to the connection.
func nodes(t *testing.T, conn *zk.Conn, group, topic string) (all map[string]int64) {
	t.Helper()
	testtool.Eventually(t, memberLimit, func() (err error) {
		all, err = ephemerals(conn, group, topic)
		return err
	})
	return all
}

// TestOldMemberKilledAndBack is S25: one of three high-level consumers is killed and started again under its own name within a
// second, below its session timeout. All partitions are owned again soon after the session has ended, no partition has two
// owners, and everything is read.
func TestOldMemberKilledAndBack(t *testing.T) {
	const topic, timeout = "back", 6 * time.Second
	to := newTarget(t)
	conn := dialZK(t, strings.Split(to.zookeeper, ",")...)
	admin := kadm.NewClient(harness.Client(t, to.brokers))
	harness.CreateTopic(t, to.brokers, topic, groupPartitions, to.replicas, nil)
	fill(t, to.brokers, topic, 0, perPartition)
	o := startOldMembers(t, to, topic, timeout, "a", "b", "c", "a again")
	watch := observe(t, to.zookeeper, topic, topic, o.files)
	for _, name := range []string{"a", "b", "c"} {
		o.join(name, name)
	}
	testtool.Eventually(t, memberLimit, func() error { return o.check.whole(conn, admin, 3) })
	testtool.Eventually(t, memberLimit, func() error { return o.check.committed(admin, perPartition) })
	old := nodes(t, conn, topic, topic)["/consumers/"+topic+"/ids/"+topic+"_a"]
	if old == 0 {
		t.Fatal("the member that is to be killed has no node")
	}
	killed := time.Now()
	o.procs["a"].killed = true
	o.procs["a"].Kill()
	o.join("a again", "a")
	fill(t, to.brokers, topic, perPartition, 2*perPartition)
	testtool.Eventually(t, memberLimit, func() error {
		all, err := ephemerals(conn, topic, topic)
		if err != nil {
			return err
		}
		for path, session := range all {
			if session == old {
				return fmt.Errorf("%s of the killed member's session is still there", path)
			}
		}
		return o.check.whole(conn, admin, 3)
	})
	t.Logf("all partitions owned by the living %v after the kill, session timeout %v; %d failed attempts of the member that came back",
		time.Since(killed).Round(10*time.Millisecond), timeout, len(o.events("a again", "failed")))
	if gaveUp := o.events("a again", "gaveup"); len(gaveUp) > 0 {
		t.Errorf("the member that came back gave up: %v", gaveUp)
	}
	testtool.Eventually(t, memberLimit, func() error {
		return o.check.has(t, 0, 2*perPartition, o.procs["a"], o.procs["b"], o.procs["c"], o.procs["a again"])
	})
	for _, f := range append(watch.verify(2*timeout), risingOffsets(t, o)...) {
		t.Error(f)
	}
}

// risingOffsets is C4 for members whose rebalances are not seen: each reads each partition without a gap, but for where a
// rebalance made it begin again.
func risingOffsets(t *testing.T, o *oldMembers) (faults []check.Fault) {
	for name, m := range o.procs {
		next := map[int32]int64{}
		records, _ := m.received(t)
		for _, r := range records {
			if want, ok := next[r.partition]; ok && r.offset > want && len(o.events(name, "attempt")) <= 1 {
				faults = append(faults, check.Fault{Rule: "gap", What: fmt.Sprintf("%s read offset %d of partition %d after %d", name, r.offset, r.partition, want-1)})
			}
			next[r.partition] = r.offset + 1
		}
	}
	return faults
}

// TestOldMembersCutOff is S26: consumers lose ZooKeeper for ten seconds while Kafka answers them. Those with a session timeout of
// 30 s keep their sessions and learn of what changed; those of 5 s are told that theirs have expired, and register again.
func TestOldMembersCutOff(t *testing.T) {
	c := harness.Start(t, harness.Options{Nodes: 3})
	net := proxy.New()
	t.Cleanup(net.Close)
	var through []string
	for _, n := range c.Nodes {
		addr, err := net.Add("zookeeper", n.Name, n.ZooKeeper, proxy.Always("consumers"))
		if err != nil {
			t.Fatal(err)
		}
		through = append(through, addr)
	}
	to := target{cluster: c, brokers: c.Brokers(), bootstrap: c.Bootstrap(), zookeeper: strings.Join(through, ","), replicas: 3}
	conn := dialZK(t, zookeepers(c)...)
	admin := kadm.NewClient(harness.Client(t, to.brokers))
	groups := map[string]*oldMembers{}
	for topic, timeout := range map[string]time.Duration{"long": 30 * time.Second, "twice": 5 * time.Second} {
		harness.CreateTopic(t, to.brokers, topic, groupPartitions-2, to.replicas, nil)
		groups[topic] = startOldMembers(t, to, topic, timeout, "a", "b")
		for name := range groups[topic].procs {
			groups[topic].join(name, name)
		}
	}
	owned := func(topic string, partitions int) error {
		held, err := legacyOwners(conn, topic, topic)
		members := map[string]bool{}
		for _, o := range held {
			members[o] = true
		}
		if err == nil && (len(held) != partitions || len(members) != 2) {
			err = fmt.Errorf("%s: %d partitions of %d are held, by %d members of 2", topic, len(held), partitions, len(members))
		}
		return err
	}
	before := map[string]map[string]int64{}
	for topic := range groups {
		testtool.Eventually(t, memberLimit, func() error { return owned(topic, groupPartitions-2) })
		before[topic] = nodes(t, conn, topic, topic)
	}
	for _, n := range c.Nodes {
		net.Isolate("consumers", n.Name)
	}
	cut := time.Now()
	for topic := range groups { // a change that they must learn of
		ctx, cancel := context.WithTimeout(context.Background(), harness.StartLimit)
		if _, err := admin.CreatePartitions(ctx, 2, topic); err != nil {
			t.Fatal(err)
		}
		cancel()
	}
	testtool.Eventually(t, memberLimit, func() error {
		left, err := ephemerals(conn, "twice", "twice")
		if err == nil && len(left) > 0 {
			err = fmt.Errorf("sessions of 5 s live on: %v", left)
		}
		return err
	})
	t.Logf("sessions of 5 s ended %v after the cut", time.Since(cut).Round(10*time.Millisecond))
	time.Sleep(time.Until(cut.Add(10 * time.Second))) // the fault
	net.Heal()
	for topic := range groups {
		for _, b := range to.brokers {
			harness.AwaitLeaders(t, b, topic, groupPartitions)
		}
		testtool.Eventually(t, memberLimit, func() error { return owned(topic, groupPartitions) })
		fill(t, to.brokers, topic, 0, perPartition)
	}
	for path, session := range nodes(t, conn, "long", "long") {
		if was, ok := before["long"][path]; ok && strings.Contains(path, "/ids/") && was != session {
			t.Errorf("%s: session %x became %x over a third of its timeout", path, was, session)
		}
	}
	for path, session := range nodes(t, conn, "twice", "twice") {
		if was, ok := before["twice"][path]; ok && was == session {
			t.Errorf("%s is of session %x, which had ended", path, was)
		}
	}
	for _, o := range groups {
		testtool.Eventually(t, memberLimit, func() error { return o.check.has(t, 0, perPartition, o.procs["a"], o.procs["b"]) })
	}
}

// TestSessionsOverKilledLeaders is S27: the Raft leader is killed every five seconds while fifty clients hold sessions and only
// read. No session ends.
func TestSessionsOverKilledLeaders(t *testing.T) {
	rounds := 3
	if long() {
		rounds = 12
	}
	c := harness.Start(t, harness.Options{Nodes: 3})
	addrs := zookeepers(c)
	type client struct {
		conn *zk.Conn
		id   int64
		path string
	}
	var clients []client
	admin := dialZK(t, addrs...)
	createNode(t, admin, "/live", nil, 0)
	for i := range 50 {
		conn := dialZK(t, addrs[i%3], addrs[(i+1)%3], addrs[(i+2)%3])
		path := fmt.Sprintf("/live/%d", i)
		createNode(t, conn, path, nil, zk.FlagEphemeral)
		clients = append(clients, client{conn, conn.SessionID(), path})
	}
	for round := range rounds {
		begun := time.Now()
		killed := c.Node(harness.Controller(t, c.Brokers()))
		killed.Kill()
		for i, cl := range clients { // every second one reads, the others are idle
			if i%2 == 0 {
				_, _, err := cl.conn.Exists(cl.path)
				if errors.Is(err, zk.ErrSessionExpired) {
					t.Fatalf("round %d: session %x has expired", round, cl.id)
				}
			}
		}
		time.Sleep(time.Until(begun.Add(5 * time.Second))) // the pace of the faults
		killed.Start()
		c.AwaitServing()
	}
	testtool.Eventually(t, harness.StartLimit, func() error {
		for _, cl := range clients {
			_, stat, err := cl.conn.Exists(cl.path)
			switch {
			case errors.Is(err, zk.ErrConnectionClosed), errors.Is(err, zk.ErrNoServer):
				return err
			case err != nil || cl.conn.SessionID() != cl.id:
				t.Fatalf("session %x became %x, %v", cl.id, cl.conn.SessionID(), err)
			case stat == nil || stat.EphemeralOwner != cl.id:
				t.Fatalf("session %x lives, its node does not: %+v", cl.id, stat)
			}
		}
		return nil
	})
}
