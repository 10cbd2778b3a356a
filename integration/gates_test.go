package integration

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/barnabas-mq/barnabas/integration/harness"
	"github.com/barnabas-mq/barnabas/zkcompat/jute"
)

// gateWait is how long a hold is let last before what it waits for happens.
const gateWait = 500 * time.Millisecond

// gateCase is one use of a gate: play has a group of its own meet it, and with off true says what a plain ZooKeeper would do.
type gateCase struct {
	gate, name string
	times      float64 // by how much the gate's count rises; 0: at all
	held       time.Duration
	play       func(s *scene, off bool)
	with       []string // gates that are used once more when it is on
	besides    []string // and that are when it is off too
}

var gateCases = []gateCase{
	{"barrier", "barrier", 0, 100 * time.Millisecond, gateBarrier, nil, nil},
	{"claim", "claim, released", 1, gateWait / 2, func(s *scene, off bool) { gateClaim(s, off, true) }, nil, nil},
	{"claim", "claim, never released", 1, 7 * time.Second, func(s *scene, off bool) { gateClaim(s, off, false) }, nil, nil},
	{"offset", "offset, by znode", 1, gateWait / 2, func(s *scene, off bool) { gateOffset(s, false) }, nil, nil},
	{"offset", "offset, by OffsetFetch", 1, gateWait / 2, func(s *scene, off bool) { gateOffset(s, true) }, nil, nil},
	{"reservation", "reservation", 1, gateWait / 2, gateReservation, []string{"claim"}, nil},
	{"delete", "delete", 1, 0, gateDelete, nil, nil},
	{"ghost", "ghost, gave up", 1, 0, gateGhost, nil, []string{"claim"}},
	{"ghost", "ghost, squats", 1, 0, gateSquatter, nil, nil},
	{"commit", "commit", 1, 0, gateCommit, nil, nil},
	{"dialect", "dialect", 1, 8 * time.Second, gateDialect, nil, nil},
	{"fence", "fence", 0, 0, gateFence, nil, []string{"claim", "reservation"}},
	{"pause", "pause", 0, 0, gatePause, nil, nil},
	{"load", "load", 0, 100 * time.Millisecond, gateLoad, nil, nil},
}

// TestGatesAreCounted meets each gate in a group of its own: it holds, within its bound, and the node's metrics say so; switched off for a
// group, it lets what a plain ZooKeeper would answer through at once, and counts nothing.
func TestGatesAreCounted(t *testing.T) {
	c := harness.Start(t, harness.Options{})
	harness.CreateTopic(t, c.Brokers(), lostTopic, lostPartitions, 1, nil)
	producer := harness.Client(t, c.Brokers(), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	for p := range int32(lostPartitions) {
		if err := producer.ProduceSync(t.Context(), &kgo.Record{Topic: lostTopic, Partition: p, Value: []byte("x")}).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	before := gateCounts(t, c)
	playGates(t, c, false)
	on := gateCounts(t, c)
	want, besides, held := map[string]float64{}, map[string]float64{}, map[string]time.Duration{}
	for _, g := range gateCases {
		want[g.gate] += g.times
		held[g.gate] += g.held
		for _, other := range g.with {
			want[other]++
		}
		for _, other := range g.besides {
			want[other]++
			besides[other]++
		}
	}
	for gate, times := range want {
		times, sum := times, on[gate].sum-before[gate].sum
		rose := on[gate].count - before[gate].count
		t.Logf("gate %-8s used %3.0f times, for %6.2f s in all", gate, rose, sum)
		if times > 0 && rose != times || rose == 0 || sum < held[gate].Seconds() {
			t.Errorf("gate %s: used %.0f times for %.2f s, want %.0f (0: any) and %v at least", gate, rose, sum, times, held[gate])
		}
	}
	if t.Failed() {
		return
	}
	playGates(t, c, true)
	now := gateCounts(t, c)
	for gate := range want {
		if rose := now[gate].count - on[gate].count; gate != "barrier" && rose != besides[gate] { // the barrier is off for one of the groups only
			t.Errorf("gate %s is off, and was used %.0f times, %.0f of them by groups where it is on", gate, rose, besides[gate])
		}
	}
}

type gateCount struct{ count, sum float64 }

func gateCounts(t *testing.T, c *harness.Cluster) map[string]gateCount {
	t.Helper()
	all := map[string]gateCount{}
	for _, kind := range []string{"count", "sum"} {
		for _, line := range scrape(t, c.Nodes[0].Admin, "barnabas_gate_hold_seconds_"+kind) {
			_, rest, _ := strings.Cut(line, `gate="`)
			gate, rest, _ := strings.Cut(rest, `"} `)
			value, err := strconv.ParseFloat(rest, 64)
			if err != nil {
				t.Fatalf("%s: %v", line, err)
			}
			n := all[gate]
			if kind == "count" {
				n.count = value
			} else {
				n.sum = value
			}
			all[gate] = n
		}
	}
	return all
}

func playGates(t *testing.T, c *harness.Cluster, off bool) {
	st := newStage(t, c, [16]byte{})
	defer st.end()
	var names []string
	for i, g := range gateCases {
		s := &scene{stage: st, name: g.name, group: fmt.Sprintf("gate-%d-%v", i, off), parked: make(chan struct{}), over: make(chan struct{}),
			quit: make(chan struct{}), owner: map[int32]string{}}
		s.play = func(s *scene) { g.play(s, off) }
		st.scenes, names = append(st.scenes, s), append(names, s.group)
	}
	if off {
		gatesOff(t, c, names)
	}
	for _, s := range st.scenes {
		go s.run()
	}
	deadline := time.After(lostLimit)
	for _, s := range st.scenes {
		select {
		case <-s.over:
		case <-deadline:
			t.Fatalf("%s does not end", s.name)
		}
	}
}

// gatesOff switches each case's gate off for its group.
func gatesOff(t *testing.T, c *harness.Cluster, groups []string) {
	t.Helper()
	client := harness.Client(t, c.Brokers())
	req := kmsg.NewPtrIncrementalAlterConfigsRequest()
	for i, group := range groups {
		r := kmsg.NewIncrementalAlterConfigsRequestResource()
		r.ResourceType, r.ResourceName = kmsg.ConfigResourceTypeGroupConfig, group
		k := kmsg.NewIncrementalAlterConfigsRequestResourceConfig()
		k.Name, k.Value = "legacy.gates.off", &gateCases[i].gate
		r.Configs = append(r.Configs, k)
		req.Resources = append(req.Resources, r)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	resp, err := req.RequestWith(ctx, client)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range resp.Resources {
		if r.ErrorCode != 0 {
			t.Fatalf("%s: %v", r.ResourceName, kerr.ErrorForCode(r.ErrorCode))
		}
	}
}

// pair is a that owns everything, and b that the newest generation has too.
func (s *scene) pair() (a, b *elder) {
	s.mkdirs()
	a, b = s.elder("a", true), s.elder("b", true)
	a.register()
	for p := range int32(lostPartitions) {
		a.claim(p)
	}
	b.register()
	return a, b
}

func (m *elder) claim(p int32) {
	if err := m.create("claim", m.owner(p), []byte(m.id+"-0")); err != nil {
		m.s.fatal("%s: claim of %d: %v", m.name, p, err)
	}
}

func (m *elder) drop(p int32) {
	if err := m.retry("delete", func() error { return m.conn.delete(m.owner(p)) }); err != nil {
		m.s.fatal("%s: release of %d: %v", m.name, p, err)
	}
}

// later runs an operation while the scene goes on; the channel gives its outcome.
func (s *scene) later(do func() error) <-chan error {
	done := make(chan error, 1)
	s.members.Go(func() { done <- do() })
	return done
}

// pending fails the scene when an operation that is to be held has an answer after a while.
func (s *scene) pending(what string, done <-chan error) {
	select {
	case err := <-done:
		s.fatal("%s was not held: %v", what, err)
	case <-time.After(gateWait):
	}
}

func gateBarrier(s *scene, off bool) {
	s.mkdirs()
	a, b := s.elder("a", true), s.elder("b", true)
	a.register() // and it does not claim
	b.does("register")
	done := s.later(func() error { b.register(); return nil })
	if off { // the raw tree, at once
		if err := <-done; err != nil {
			s.fatal("registration: %v", err)
		}
		names, _, err := a.conn.children(s.ids(), false)
		if err != nil || len(names) != 2 {
			s.fatal("a member lists %v, %v", names, err)
		}
		return
	}
	s.pending("the second registration", done)
	for p := range int32(lostPartitions) {
		a.claim(p)
	}
	if err := <-done; err != nil {
		s.fatal("registration: %v", err)
	}
}

func gateClaim(s *scene, off, released bool) {
	a, b := s.pair()
	begun := time.Now()
	done := s.later(func() error { return b.create("claim", b.owner(3), []byte(b.id+"-0")) })
	switch {
	case off:
		if err := <-done; !errors.Is(err, errNodeExists) {
			s.fatal("the claim of an owned partition: %v", err)
		}
	case released:
		s.pending("the claim", done)
		a.drop(3)
		if err := <-done; err != nil {
			s.fatal("a claim that was held: %v", err)
		}
	default:
		err := <-done
		if took := time.Since(begun); !errors.Is(err, errNodeExists) || took < 7*time.Second {
			s.fatal("the claim of a partition that is not released: %v after %v", err, took)
		}
	}
	b.conn.close() // it would be taken for one that gave up
}

func gateOffset(s *scene, kafka bool) {
	a, b := s.pair()
	done := s.later(func() error {
		if !kafka {
			_, _, err := b.conn.get(s.offsetNode(3))
			return err
		}
		req := kmsg.NewPtrOffsetFetchRequest()
		req.Version, req.Group = 1, s.group
		req.Topics = []kmsg.OffsetFetchRequestTopic{{Topic: lostTopic, Partitions: []int32{3}}}
		p := s.peer()
		defer p.close()
		return kerr.ErrorForCode(p.ask(req).(*kmsg.OffsetFetchResponse).Topics[0].Partitions[0].ErrorCode)
	})
	if strings.HasSuffix(s.group, "true") { // off: it is answered though nobody releases
		if err := <-done; err != nil {
			s.fatal("the read: %v", err)
		}
		return
	}
	s.pending("the read", done)
	a.drop(3)
	if err := <-done; err != nil {
		s.fatal("the read: %v", err)
	}
}

func gateDelete(s *scene, off bool) {
	a, b := s.pair()
	err := b.conn.delete(a.owner(0))
	_, _, left := a.conn.get(a.owner(0))
	if !off && (!errors.Is(err, errNoNode) || left != nil) || off && (err != nil || !errors.Is(left, errNoNode)) {
		s.fatal("the delete of another member's owner znode: %v; the znode after it: %v", err, left)
	}
}

func gateCommit(s *scene, off bool) {
	a, b := s.pair()
	a.drop(3)
	b.claim(3)
	b.writeOffset(3, 70)
	a.writeOffset(3, 60)
	want := map[bool]string{false: "70", true: "60"}[off]
	if data, _, err := b.conn.get(s.offsetNode(3)); err != nil || string(data) != want {
		s.fatal("after a late write of 60 over 70 the offset is %q, %v, want %s", data, err, want)
	}
}

func gateDialect(s *scene, off bool) {
	s.mkdirs()
	a := s.elder("a", true)
	a.register()
	for p := range int32(lostPartitions) {
		a.claim(p)
	}
	python := s.elder("python", true)
	begun := time.Now()
	err := python.create("register", s.ids()+"/"+python.id, []byte(lostTopic)) // as pykafka does
	took := time.Since(begun)
	if !off && (!errors.Is(err, errNodeExists) || took < 8*time.Second) || off && err != nil {
		s.fatal("a registration of another dialect: %v after %v", err, took)
	}
}

// gateLoad reads without a pause, far more than a connection may in its time, while another session of the node reads one by one: that one
// is served as ever.
func gateLoad(s *scene, off bool) {
	s.mkdirs()
	a := s.elder("a", true)
	a.register()
	const reads = 60_000 // 20,000 at once, the rest takes 8 s: longer than any machine needs
	conn, err := net.DialTimeout("tcp", s.c.Nodes[0].ZooKeeper, time.Minute)
	if err != nil {
		s.fatal("%v", err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(lostLimit))
	first, _, _ := a.conn.get(s.ids() + "/" + a.id)
	req := jute.ConnectRequest{TimeoutMs: 20_000, Password: make([]byte, 16)}
	_, _ = conn.Write(zframe(req.Append(nil)))
	if _, err := zread(conn); err != nil {
		s.fatal("%v", err)
	}
	register := jute.CreateRequest{Path: s.ids() + "/" + s.group + "_spinner", Data: first, ACL: []jute.ACL{{Perms: jute.PermAll, Scheme: "world", ID: "anyone"}},
		Flags: jute.FlagEphemeral}
	for p := range int32(lostPartitions) {
		a.claim(p)
	}
	_, _ = conn.Write(zframe(register.Append(jute.RequestHeader{Xid: 1, Op: jute.OpCreate}.Append(nil))))
	if _, err := zread(conn); err != nil {
		s.fatal("%v", err)
	}
	var sent sync.WaitGroup
	sent.Go(func() {
		one := zframe((&jute.PathWatch{Path: "/brokers/ids"}).Append(jute.RequestHeader{Xid: 2, Op: jute.OpExists}.Append(nil)))
		var many []byte
		for range 100 {
			many = append(many, one...)
		}
		for range reads / 100 {
			if _, err := conn.Write(many); err != nil {
				return
			}
		}
	})
	begun := time.Now()
	done := s.later(func() error {
		for range reads {
			if _, err := zread(conn); err != nil {
				return err
			}
		}
		return nil
	})
	served, slowest := 0, time.Duration(0)
	for over := false; !over; {
		asked := time.Now()
		if _, _, err := a.conn.get("/brokers/topics/" + lostTopic); err != nil {
			s.fatal("the neighbour: %v", err)
		}
		served, slowest = served+1, max(slowest, time.Since(asked))
		select {
		case err := <-done:
			if over = true; err != nil {
				s.fatal("the spinner: %v", err)
			}
		default:
		}
	}
	sent.Wait()
	s.t.Logf("%d reads without a pause took %v (off: %v), the neighbour read %d times meanwhile, the slowest took %v", reads,
		time.Since(begun).Round(time.Millisecond), off, served, slowest.Round(time.Millisecond))
	if served < 20 {
		s.fatal("a session that read without a pause kept its neighbour waiting: %d reads", served)
	}
}
