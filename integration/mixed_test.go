package integration

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/barnabas-mq/barnabas/integration/check"
	"github.com/barnabas-mq/barnabas/integration/harness"
	"github.com/barnabas-mq/barnabas/integration/member"
	"github.com/barnabas-mq/barnabas/internal/testtool"
)

// mixedPartitions is how many partitions the topic of a mixed group has.
const mixedPartitions = 12

// mixedSession is the session timeout of a mixed group's members: only those that are killed are to lose their sessions, and nothing
// is to be received twice because a machine was slow.
const mixedSession = 20 * time.Second

// mixedGroup is a group with members of several kinds, under load.
type mixedGroup struct {
	t        *testing.T
	to       target
	id       string
	conn     *zk.Conn
	asking   sync.Mutex
	admin    *kadm.Client
	history  check.History
	producer *harness.Producer
	old      *groupMember            // one process with all consumers by ZooKeeper
	olds     map[string]bool         // those that are in
	all      map[string]*groupMember // by name, gone ones included
	live     map[string]*groupMember // by Kafka's protocols

	mu       sync.Mutex
	files    []*memberFile
	grew     time.Time
	longest  time.Duration   // in which nobody received anything
	seen     check.Sightings // of owners, of all kinds
	receipts []check.Receipt
	control  *mixedGroup // a group of one member, which shows what the machine does to any; nil: none
	stop     chan struct{}
	watched  sync.WaitGroup
}

func newMixedGroup(t *testing.T, to target, id string) *mixedGroup {
	g := &mixedGroup{t: t, to: to, id: id, conn: dialZK(t, strings.Split(to.zookeeper, ",")...), admin: kadm.NewClient(harness.Client(t, to.brokers)),
		seen: check.Sightings{Topic: id}, olds: map[string]bool{}, all: map[string]*groupMember{}, live: map[string]*groupMember{}, stop: make(chan struct{})}
	harness.CreateTopic(t, to.brokers, id, mixedPartitions, to.replicas, nil)
	return g
}

// startOld starts the process with all consumers by ZooKeeper that joinOld has join.
func (g *mixedGroup) startOld() {
	// A consumer that is told to leave while it rebalances fails four attempts first, with this pause after each (2 s).
	d := oldJVM("0.8.2.2", testtool.Kafka082, "rebalance.backoff.ms=400")
	d.idle, d.session = true, mixedSession
	g.old = d.start(g.t, g.to, g.id, g.id, "old")
	g.all["old"] = g.old
	g.follow(g.old, false)
	g.until("the old consumers' process is ready", func() error {
		if _, others := g.old.received(g.t); len(others) == 0 {
			return errors.New("not yet")
		}
		return nil
	})
}

func (g *mixedGroup) until(what string, check func() error) {
	g.t.Helper()
	begun := time.Now()
	testtool.Eventually(g.t, memberLimit, func() error {
		for name, m := range g.live {
			if !m.Alive() {
				g.t.Fatalf("%s has ended:\n%s", name, m.Tail(30))
			}
		}
		if err := check(); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		return nil
	})
	g.t.Logf("%s after %v", what, time.Since(begun).Round(100*time.Millisecond))
}

// load starts to produce, and to watch who receives and owns what.
func (g *mixedGroup) load() {
	g.producer = harness.Produce(g.t, g.to.brokers, g.id, &g.history, harness.ProducerOptions{Interval: 2 * time.Millisecond,
		Opts: []kgo.Opt{kgo.ProducerBatchCompression(kgo.NoCompression())}}) // kafka-node has no codec that needs a compiler
	g.grew = time.Now()
	for _, watch := range []func(){g.watchFiles, g.watchOwners} {
		g.watched.Go(func() {
			tick := time.NewTicker(100 * time.Millisecond)
			defer tick.Stop()
			for {
				select {
				case <-g.stop:
					return
				case <-tick.C:
					watch()
				}
			}
		})
	}
}

// memberFile is what a member's process writes, as far as it was read.
type memberFile struct {
	path  string
	owner string // its only member; "": its lines tell, or nobody knows
	read  int64
}

// follow has the records of a member's process watched; named tells whether the owner is seen by the process's name.
func (g *mixedGroup) follow(m *groupMember, named bool) {
	f := &memberFile{path: m.file}
	if named {
		f.owner = m.name
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.files = append(g.files, f)
}

func (g *mixedGroup) watchFiles() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, f := range g.files {
		data, err := readFrom(f.path, f.read)
		if len(data) == 0 || err != nil {
			continue
		}
		f.read += int64(len(data))
		g.grew = time.Now()
		type reader struct {
			owner     string
			partition int32
		}
		told := map[reader]bool{} // one receipt of each is enough for a look
		for line := range bytes.Lines(data) {
			r, member, ok := recordOf(line)
			at := reader{cmp.Or(member, f.owner), r.partition}
			if ok && at.owner != "" && !told[at] {
				told[at] = true
				g.receipts = append(g.receipts, check.Receipt{Owner: at.owner, Topic: g.id, Partition: at.partition, At: g.grew})
			}
		}
	}
	g.longest = max(g.longest, time.Since(g.grew))
}

// readFrom returns the whole lines of a file behind an offset.
func readFrom(path string, offset int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.NewSectionReader(f, offset, 1<<30))
	return data[:bytes.LastIndexByte(data, '\n')+1], err
}

// oldOwner is who has a partition by its owner znode, and the change that made it so.
type oldOwner struct {
	name  string
	since int64
}

func (g *mixedGroup) oldOwners() (map[int32]oldOwner, error) {
	dir := "/consumers/" + g.id + "/owners/" + g.id
	names, _, err := g.conn.Children(dir)
	if errors.Is(err, zk.ErrNoNode) {
		return nil, nil
	}
	owners := map[int32]oldOwner{}
	for _, name := range names {
		var p int32
		if _, err := fmt.Sscan(name, &p); err != nil {
			return nil, err
		}
		data, stat, err := g.conn.Get(dir + "/" + name)
		if errors.Is(err, zk.ErrNoNode) {
			continue
		}
		if err != nil {
			return nil, err
		}
		who := strings.TrimSuffix(strings.TrimPrefix(string(data), g.id+"_"), "-0")
		owners[p] = oldOwner{who, stat.Czxid}
	}
	return owners, err
}

// newOwners is who has each partition as the coordinator tells it, of the members by Kafka's protocols.
func (g *mixedGroup) newOwners() (map[int32][]string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	g.asking.Lock()
	defer g.asking.Unlock()
	described, err := g.admin.DescribeConsumerGroups(ctx, g.id)
	if err != nil { // the client goes on asking the coordinator that it knows, though it is dead
		g.admin = kadm.NewClient(harness.Client(g.t, g.to.brokers))
		return nil, err
	}
	err = described[g.id].Err
	if errors.Is(err, kerr.GroupIDNotFound) {
		return nil, nil
	}
	owners := map[int32][]string{}
	for _, m := range described[g.id].Members {
		if strings.HasPrefix(m.ClientHost, "zookeeper") {
			continue
		}
		for p := range m.Assignment[g.id] {
			owners[p] = append(owners[p], m.ClientID)
		}
	}
	return owners, err
}

// watchOwners notes who has each partition at one moment: that at which the coordinator tells it of the members by Kafka's protocols. An
// owner znode that is the same before and after was there at that moment.
func (g *mixedGroup) watchOwners() {
	before, err := g.oldOwners()
	if err != nil {
		return
	}
	holders, err := g.newOwners()
	if err != nil {
		return
	}
	at := time.Now()
	if _, err := g.conn.Sync("/"); err != nil { // that node may be behind the coordinator
		return
	}
	after, err := g.oldOwners()
	if err != nil {
		return
	}
	if holders == nil {
		holders = map[int32][]string{}
	}
	for p, who := range before {
		if after[p] == who {
			holders[p] = append(holders[p], who.name)
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.seen.Saw(at, holders)
}

// whole says why not every partition has an owner, among so many consumers of both kinds.
func (g *mixedGroup) whole(olds, news int) error {
	a, err := g.oldOwners()
	if err != nil {
		return err
	}
	b, err := g.newOwners()
	if err != nil {
		return err
	}
	by := map[string][]int32{}
	for p, who := range a {
		by[who.name] = append(by[who.name], p)
	}
	haveOld := len(by)
	for p, who := range b {
		if len(who) > 1 {
			return fmt.Errorf("partition %d is held by %v", p, who)
		}
		by[who[0]] = append(by[who[0]], p)
	}
	if len(a)+len(b) != mixedPartitions || haveOld != olds || len(by)-haveOld != news {
		return fmt.Errorf("%d partitions are owned by %d old consumers, %d by %d others; want %d and %d owners of %d: %v", len(a), haveOld, len(b), len(by)-haveOld,
			olds, news, mixedPartitions, by)
	}
	return nil
}

func (g *mixedGroup) joinOld(names ...string) {
	for _, name := range names {
		if _, err := fmt.Fprintf(g.old.stdin, "join %s\n", name); err != nil {
			g.t.Fatal(err)
		}
		g.olds[name] = true
	}
}

func (g *mixedGroup) leaveOld(name string) {
	if _, err := fmt.Fprintf(g.old.stdin, "leave %s\n", name); err != nil {
		g.t.Fatal(err)
	}
	delete(g.olds, name)
}

func (g *mixedGroup) join(d dialect, names ...string) {
	d.session = cmp.Or(d.session, mixedSession)
	for _, name := range names {
		m := d.start(g.t, g.to, g.id, g.id, name)
		g.all[name], g.live[name] = m, m
		g.follow(m, !d.legacy)
	}
}

// leave has a member leave cleanly.
func (g *mixedGroup) leave(name string) {
	m := g.live[name]
	delete(g.live, name)
	if err := m.stdin.Close(); err != nil {
		g.t.Fatal(err)
	}
	if err := m.WaitFor(memberLimit); err != nil {
		g.t.Errorf("%s ended with %v:\n%s", name, err, m.Tail(20))
	}
}

func (g *mixedGroup) kill(name string) {
	g.live[name].Kill()
	delete(g.live, name)
}

// finish ends the load and checks that everything was received, and that nothing ever had two owners.
func (g *mixedGroup) finish() {
	for _, err := range g.producer.Stop(g.t) {
		g.t.Error(err)
	}
	acks := g.history.Acks()
	seen := map[spot]int{}
	g.until("all received", func() error {
		clear(seen)
		for _, m := range g.all {
			records, _ := m.received(g.t)
			for _, r := range records {
				seen[r]++
			}
		}
		missing := 0
		for _, a := range acks {
			if seen[spot{a.Partition, a.Offset}] == 0 {
				missing++
			}
		}
		if missing > 0 {
			return fmt.Errorf("%d of %d records were received by nobody", missing, len(acks))
		}
		return nil
	})
	close(g.stop)
	g.watched.Wait()
	again := map[int32]int{}
	for s, n := range seen {
		if n > 1 {
			again[s.partition] += n - 1
		}
	}
	owned := g.seen.Owned()
	for _, f := range append(check.OneOwner(owned, -1), check.ReadByOwner(g.receipts, owned, 5*time.Second)...) {
		g.t.Error(f)
	}
	g.t.Logf("%d records; received again, by partition: %v; %d intervals of ownership, %d looks at receipts; the longest stop of the whole group: %v", len(acks), again,
		len(owned), len(g.receipts), g.longest)
	if len(owned) == 0 || len(g.receipts) == 0 && g.old != nil {
		g.t.Error("nobody was seen to own or to receive anything")
	}
	g.verifyStop()
}

// verifyStop holds the longest stop against the bound of 5 s: on a machine that also makes a group of one member, which nothing happens to,
// stand still, as many times longer.
func (g *mixedGroup) verifyStop() {
	limit := time.Minute
	if g.control != nil {
		g.control.producer.Stop(g.t)
		close(g.control.stop)
		g.control.watched.Wait()
		limit = 5 * time.Second
		if !long() {
			limit += 5 * g.control.longest
		}
		g.t.Logf("the longest stop of the group beside it: %v; limit %v", g.control.longest, limit)
	}
	if g.longest > limit {
		g.t.Errorf("the group stood still for %v, limit %v", g.longest, limit)
	}
}

// beside starts a group of one member that goes on through all of it, with a topic and a load of its own.
func (g *mixedGroup) beside() {
	g.control = newMixedGroup(g.t, g.to, g.id+"-beside")
	g.control.join(careful("consumer"), "alone")
	g.control.until("the group beside it", func() error { return g.control.whole(0, 1) })
	g.control.load()
}

func careful(balancer string) dialect {
	return goMember("franz-go "+balancer, "franz", false, func(o *member.Options) { o.Balancer, o.Careful = balancer, true })
}

// explained returns the group's history as the coordinator tells it.
func (g *mixedGroup) explained() string {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, harness.Binary(g.t, false), "group", "explain", g.id, "-a", g.to.cluster.Nodes[0].Admin).CombinedOutput()
	if err != nil {
		g.t.Errorf("group explain: %v", err)
	}
	return string(out)
}

// moved has `group move` say that only members of the kind are left, that they own everything, and that no offset has gone back.
func (g *mixedGroup) moved(to string) {
	g.t.Helper()
	out, err := exec.Command(harness.Binary(g.t, false), "group", "move", g.id, "--to", to, "--wait", "90s", "-b", g.to.bootstrap).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "group "+g.id+": moved") {
		g.t.Errorf("group move --to %s: %v\n%s", to, err, out)
	}
}

// Three consumers of 0.8.2.2, two by JoinGroup and two Java ones of 4.4 by ConsumerGroupHeartbeat are one group, and any of them may
// come and go: everything is received, by one owner at a time.
func TestMembersOfAllKinds(t *testing.T) {
	g := newMixedGroup(t, newTarget(t), "mixed")
	g.startOld()
	g.joinOld("a", "b", "c")
	g.until("three old consumers", func() error { return g.whole(3, 0) })
	g.load()
	mortal := careful("range")
	mortal.session = mixedSession / 2 // it is to be killed
	g.join(careful("range"), "f1")
	g.join(mortal, "f2")
	g.until("with two classic members", func() error { return g.whole(3, 2) })
	g.join(java44("consumer"), "j1", "j2")
	g.until("with two consumer members", func() error { return g.whole(3, 4) })
	g.producer.AwaitAcks(t, 500)
	g.leaveOld("b")
	g.until("without one old consumer", func() error { return g.whole(2, 4) })
	g.leave("f1")
	g.until("without one classic member", func() error { return g.whole(2, 3) })
	g.joinOld("d")
	g.until("with another old consumer", func() error { return g.whole(3, 3) })
	clean := g.again()
	coordinator := g.to.cluster.Node(harness.Controller(t, g.to.brokers))
	coordinator.Kill()
	g.until("with another coordinator", func() error { return g.whole(3, 3) })
	coordinator.Start()
	g.kill("f2")
	g.producer.AwaitAcks(t, 500)
	g.leaveOld("a")
	g.leaveOld("c")
	g.leaveOld("d")
	g.until("two new ones alone", func() error { return g.whole(0, 2) })
	g.finish()
	if clean != "" {
		t.Errorf("records were received again although nobody had crashed: %s", clean)
	}
	t.Log(g.explained())
}

// again tells what was received more than once so far without an excuse: on a machine that is too slow for a session or a commit, the
// member counts as crashed.
func (g *mixedGroup) again() string {
	seen, excuses := map[spot]int{}, ""
	again := map[int32]int{}
	for name, m := range g.all {
		records, others := m.received(g.t)
		for _, r := range records {
			if seen[r]++; seen[r] > 1 {
				again[r.partition]++
			}
		}
		for _, line := range others {
			if strings.Contains(line, `"event":"commit"`) || strings.Contains(line, `"event":"failed"`) {
				excuses += name + " " + line + "; "
			}
		}
	}
	for line := range strings.Lines(g.explained()) {
		if strings.Contains(line, "was not heard from") || strings.Contains(line, " expired") {
			excuses += strings.TrimSpace(line) + "; "
		}
	}
	if len(again) == 0 {
		return ""
	}
	if excuses != "" {
		g.t.Logf("received again, by partition: %v; excused: %s", again, excuses)
		return ""
	}
	return fmt.Sprint(again)
}

// Six consumers by ZooKeeper are replaced one by one by six by Kafka's protocols, and those by the old ones again, under load: nothing is
// lost, nothing is received again, nobody owns what another one does.
func TestRollingMoveThereAndBack(t *testing.T) {
	g := newMixedGroup(t, newTarget(t), "moved")
	g.startOld()
	olds := []string{"a", "b", "c", "d", "e", "f"}
	g.joinOld(olds...)
	g.beside()
	g.until("six old consumers", func() error { return g.whole(6, 0) })
	g.load()
	for i, old := range olds {
		d := careful("cooperative")
		if i%2 == 1 {
			d = careful("consumer")
		}
		g.join(d, "n"+old)
		g.until(fmt.Sprintf("%d new ones", i+1), func() error { return g.whole(6-i, i+1) })
		g.leaveOld(old)
		g.until(fmt.Sprintf("%d old ones", 5-i), func() error { return g.whole(5-i, i+1) })
	}
	g.producer.AwaitAcks(t, 500)
	g.moved("new")
	for i, old := range olds {
		g.joinOld(old + "2")
		g.until(fmt.Sprintf("%d old ones again", i+1), func() error { return g.whole(i+1, 6-i) })
		g.leave("n" + old)
		g.until(fmt.Sprintf("%d new ones left", 5-i), func() error { return g.whole(i+1, 5-i) })
	}
	g.moved("zookeeper")
	g.finish()
	if again := g.again(); again != "" {
		t.Errorf("records were received again although nobody had crashed: %s", again)
	}
	t.Log(g.explained())
}

// Old consumers that assign otherwise than 0.8.2.2 mix too: kafka-node by ids, the JVM by round-robin, which deals differently from 1.0
// on. How they do is learnt from what they claim.
func TestOtherOldConsumersMix(t *testing.T) {
	to := newTarget(t)
	for _, d := range []dialect{
		script("kafka-node 2.6.1", testtool.Node, true, kafkaNodeMember),
		oldJVM("0.10.2.2", testtool.Kafka0102, "partition.assignment.strategy=roundrobin"),
		oldJVM("1.1.1", testtool.Kafka111, "partition.assignment.strategy=roundrobin"),
	} {
		t.Run(d.name, func(t *testing.T) {
			g := newMixedGroup(t, to, strings.ToLower(strings.ReplaceAll(d.name, " ", "-")))
			g.join(d, "old1", "old2")
			g.until("two old consumers", func() error { return g.whole(2, 0) })
			g.load()
			g.join(careful("consumer"), "new1")
			g.join(careful("cooperative"), "new2")
			g.until("with two others", func() error { return g.whole(2, 2) })
			g.producer.AwaitAcks(t, 500)
			g.leave("new1")
			g.until("with one", func() error { return g.whole(2, 1) })
			g.finish()
			t.Log(g.explained())
		})
	}
}
