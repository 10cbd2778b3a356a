package integration

import (
	"encoding/json"
	"fmt"
	"path"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/barnabas-mq/barnabas/integration/harness"
	"github.com/barnabas-mq/barnabas/internal/testtool"
)

// heldSession is the session timeout of the real members here: only the holds are to be seen, not what a slow machine does.
const heldSession = 20 * time.Second

// lazy is a member of a group, of the same dialect as the real one beside it, that registers and then does what the test says
// and no more: it neither claims nor releases by itself.
type lazy struct {
	t         *testing.T
	conn      *zk.Conn
	group, id string
	owners    string // the path of its owner znodes
	pykafka   bool
	published time.Time // of its registration, by the server's clock
}

// beLazy registers a lazy member and returns when its generation is published.
func beLazy(t *testing.T, to target, d dialect, group string) *lazy {
	t.Helper()
	l := &lazy{t: t, conn: dialZK(t, strings.Split(to.zookeeper, ",")...), group: group, id: group + "_!lazy", owners: "/consumers/" + group + "/owners/" + group}
	registration := `{"version":1,"subscription":{"` + group + `":1},"pattern":"static","timestamp":"1400000000000"}`
	switch {
	case strings.HasPrefix(d.name, "pykafka"):
		l.pykafka, registration, l.owners = true, group, "/consumers/"+group+"/owners/b'"+group+"'"
	case strings.HasPrefix(d.name, "kafka-node"):
		registration = `{"version":1,"subscription":{"` + group + `": 1},"pattern":"white_list","timestamp":"1400000000000"}`
	case d.name == "wvanbergen":
		registration = `{"pattern":"static","subscription":{"` + group + `":1},"timestamp":1400000000,"version":1}`
	}
	l.mkdir("/consumers/" + group + "/ids")
	l.mkdir(l.owners)
	l.create("/consumers/"+group+"/ids/"+l.id, registration, zk.FlagEphemeral)
	testtool.Eventually(t, memberLimit, func() error {
		_, stat, err := l.conn.Get("/consumers/" + group + "/ids/" + l.id)
		if err == nil {
			l.published = time.UnixMilli(stat.Ctime) // not when a busy machine got to hear of it
		}
		return err
	})
	return l
}

func (l *lazy) mkdir(node string) {
	if node != "/" {
		l.mkdir(path.Dir(node))
		l.create(node, "", 0)
	}
}

func (l *lazy) create(node, data string, flags int32) {
	l.t.Helper()
	createNode(l.t, l.conn, node, []byte(data), flags)
}

// claim takes all partitions.
func (l *lazy) claim(admin map[int32]int32) {
	l.t.Helper()
	for p := range int32(groupPartitions) {
		name := fmt.Sprint(p)
		if l.pykafka {
			name = fmt.Sprintf("%d-%d", admin[p], p)
		}
		l.create(l.owners+"/"+name, l.id+map[bool]string{false: "-0"}[l.pykafka], zk.FlagEphemeral)
	}
}

// leave ends the session: its nodes go with it.
func (l *lazy) leave() { l.conn.Close() }

// heldCase is one real member beside a lazy one.
type heldCase struct {
	*group
	kind string
	lazy *lazy
	real *groupMember
	stat *zk.Stat      // of the real member's registration
	left time.Duration // after it, by the server's clock: the lazy member's leave; 0: not yet
}

// turn has the lazy member leave when it has been slow for long enough; an error says what is waited for.
func (h *heldCase) turn(t *testing.T, conn *zk.Conn) (err error) {
	if h.left > 0 {
		return nil
	}
	if h.stat == nil {
		if h.stat, err = h.registered(conn); err != nil {
			return err
		}
	}
	since := time.Since(time.UnixMilli(h.stat.Ctime))
	if h.kind == "released" && strings.HasPrefix(h.name, "JVM") { // what is held is part of an attempt
		since = min(since, h.attempting(t))
	}
	switch {
	case h.kind == "released" && since < 3*time.Second, h.kind == "bound" && since < 11*time.Second:
		return fmt.Errorf("%s %s: its time comes", h.name, h.kind)
	case h.kind == "join":
		if err := h.checkJoin(t, conn); err != nil {
			return err
		}
	}
	h.lazy.leave()
	h.left = time.Since(time.UnixMilli(h.stat.Ctime))
	return nil
}

// attempting is for how long the real member has been rebalancing, 0 when it has not begun.
func (h *heldCase) attempting(t *testing.T) time.Duration {
	_, others := h.real.received(t)
	for _, line := range others {
		var e struct {
			Event string
			At    int64
		}
		if json.Unmarshal([]byte(line), &e) == nil && e.Event == "attempt" {
			return time.Since(time.UnixMilli(e.At))
		}
	}
	return 0
}

// registered returns the real member's registration.
func (h *heldCase) registered(conn *zk.Conn) (*zk.Stat, error) {
	names, _, err := conn.Children("/consumers/" + h.id + "/ids")
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		if name != h.lazy.id {
			_, stat, err := conn.Get("/consumers/" + h.id + "/ids/" + name)
			return stat, err
		}
	}
	return nil, fmt.Errorf("%s %s: the real member has not registered", h.name, h.kind)
}

// TestHeldPath has the real client of each dialect join and claim through the holds of a group whose other member does not do its
// part:
//
//	released  the other has every partition, and releases them while the claims are held: nothing fails
//	bound     it releases them after the bound of the holds only: refusals, and yet all is well in the end
//	join      it claims nothing, so that the real member's join is held until its generation is given up
//
// The clients keep their sessions through all of it.
func TestHeldPath(t *testing.T) {
	to := newTarget(t)
	conn := dialZK(t, strings.Split(to.zookeeper, ",")...)
	admin := kadm.NewClient(harness.Client(t, to.brokers))
	node, py := script("kafka-node 2.6.1", testtool.Node, true, kafkaNodeMember), script("pykafka 2.8.0", testtool.PyKafka, true, pykafkaMember)
	wv := goMember("wvanbergen", "wvanbergen", true, nil)
	kafka := func(release string, jars testtool.Tool) dialect { // its reads of offsets are OffsetFetch
		return oldJVM(release, jars, "offsets.storage=kafka", "dual.commit.enabled=false")
	}
	var cases []*heldCase
	for kind, dialects := range map[string][]dialect{
		"released": {kafka("0.8.2.2", testtool.Kafka082), kafka("0.9.0.1", testtool.Kafka090), kafka("1.1.1", testtool.Kafka111), node, py, wv},
		"bound":    {oldJVM("0.8.2.2", testtool.Kafka082), oldJVM("1.1.1", testtool.Kafka111), node, py, wv},
		"join":     {oldJVM("0.8.2.2", testtool.Kafka082), oldJVM("0.10.2.2", testtool.Kafka0102), node, py, wv},
	} {
		for _, d := range dialects {
			d.idle, d.session = true, heldSession
			h := &heldCase{kind: kind, group: &group{dialect: d, id: strings.ToLower(strings.ReplaceAll(d.name+" "+kind, " ", "-"))}}
			harness.CreateTopic(t, to.brokers, h.id, groupPartitions, to.replicas, nil)
			fill(t, to.brokers, h.id, 0, perPartition)
			h.real = h.start(t, to, h.id, h.id, "real")
			testtool.Eventually(t, memberLimit, func() error {
				if _, others := h.real.received(t); len(others) == 0 {
					return fmt.Errorf("%s is not ready", h.real.Name)
				}
				return nil
			})
			cases = append(cases, h)
		}
	}
	for _, h := range cases {
		h.lazy = beLazy(t, to, h.dialect, h.id)
		if h.kind != "join" {
			h.lazy.claim(harness.Leaders(t, to.brokers, h.id))
		}
		h.real.join(t)
	}
	testtool.Eventually(t, memberLimit, func() error { // each lazy member leaves when its time has come
		var waiting error
		for _, h := range cases {
			if err := h.turn(t, conn); err != nil {
				waiting = err
			}
		}
		return waiting
	})
	for _, h := range cases {
		testtool.Eventually(t, memberLimit, func() error { return h.whole(conn, admin, 1) })
		testtool.Eventually(t, memberLimit, func() error { return h.has(t, 0, perPartition, h.real) })
		h.verify(t, conn)
		if to.cluster != nil {
			h.verifyHolds(t, to.cluster.Nodes[0].Admin)
		}
	}
}

// verifyHolds checks that the group's own account tells of the holds that there must have been: of reads of offsets by JVM consumers, which
// read before they claim, in ZooKeeper or by OffsetFetch; of claims or reads by others.
func (h *heldCase) verifyHolds(t *testing.T, admin string) {
	t.Helper()
	gates := map[string]bool{"claim": true, "offset": true}
	switch {
	case h.kind == "join":
		gates = map[string]bool{"barrier": true}
	case h.kind == "released" && strings.HasPrefix(h.name, "JVM"):
		gates = map[string]bool{"offset": true}
	}
	var held int
	testtool.Eventually(t, memberLimit, func() error { // it is told when the generation is complete
		rebalances, err := explained(admin, h.id)
		if err != nil {
			return err
		}
		held = 0
		for _, r := range rebalances {
			for _, hold := range r.Holds {
				var gate string
				var times, ms int
				if _, err := fmt.Sscanf(hold, "%s %dx, %d ms", &gate, &times, &ms); err != nil {
					return fmt.Errorf("%q: %w", hold, err)
				}
				if gates[gate] {
					held += ms
				}
			}
		}
		if held < 500 {
			return fmt.Errorf("%s %s: the group's account has holds of %d ms at %v: %+v", h.name, h.kind, held, gates, rebalances)
		}
		return nil
	})
	t.Logf("%s %s: held for %d ms in all, by the group's own account", h.name, h.kind, held)
}

// checkJoin compares the time of the real member's first claim with that of its join, both by the server's clock; an error says that it
// has not claimed yet.
func (h *heldCase) checkJoin(t *testing.T, conn *zk.Conn) error {
	t.Helper()
	names, _, err := conn.Children(h.lazy.owners)
	if err != nil || len(names) == 0 {
		return fmt.Errorf("%s %s: no claims yet, %v", h.name, h.kind, err)
	}
	_, stat, err := conn.Get(h.lazy.owners + "/" + names[0])
	if err != nil {
		return err
	}
	held := time.Duration(stat.Ctime-h.stat.Ctime) * time.Millisecond
	expected := h.lazy.published.Add(10 * time.Second).Sub(time.UnixMilli(h.stat.Ctime)) // when the generation without claims is given up
	t.Logf("%s %s: first claim %v after it registered, its generation was due %v after", h.name, h.kind, held, expected.Round(10*time.Millisecond))
	if expected > 3*time.Second && held < expected-2*time.Second {
		t.Errorf("%s %s: the join was held for %v at most, want %v", h.name, h.kind, held, expected)
	}
	return nil
}

// verify checks that the real member went through it as a member that lives: same session, and no failed attempt where nothing was
// refused.
func (h *heldCase) verify(t *testing.T, conn *zk.Conn) {
	t.Helper()
	var now *zk.Stat
	testtool.Eventually(t, memberLimit, func() (err error) { now, err = h.registered(conn); return err })
	if now.EphemeralOwner != h.stat.EphemeralOwner {
		t.Errorf("%s %s: its session %x became %x", h.name, h.kind, h.stat.EphemeralOwner, now.EphemeralOwner)
	}
	_, others := h.real.received(t)
	for _, line := range others {
		refused := h.kind == "bound" || h.left > 6*time.Second // a slow machine: holds may have ended before the leave
		if strings.Contains(line, `"gaveup"`) || !refused && (strings.Contains(line, `"failed"`) || strings.Contains(line, `"error"`) || strings.Contains(line, `claimed by other`)) {
			t.Errorf("%s %s: %s", h.name, h.kind, line)
		}
	}
	records, _ := h.real.received(t)
	t.Logf("%s %s: the other left %v after it registered; %d records, %v", h.name, h.kind, h.left.Round(10*time.Millisecond), len(records), tail(others, 8))
}
