package export

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/raftmeta/state"
	pb "github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
)

const parts = 5

// world is a state, the topic's partitions, and two brokers that each follow the state at their own pace.
type world struct {
	t      rapidTB
	s      *state.State
	index  id.Index
	epochs map[int32]uint64

	mu      sync.Mutex
	leaders map[int32]id.BrokerID
	log     map[int32][]Record
	fail    string // what the next append comes to
	reads   int

	brokers []*broker
}

type rapidTB interface {
	Fatalf(string, ...any)
	Helper()
}

type broker struct {
	self    id.BrokerID
	w       *world
	e       *Exporter
	pending []state.Applied // not yet delivered
	cancel  context.CancelFunc
	done    chan struct{}
}

func newWorld(t rapidTB) *world {
	w := &world{t: t, s: state.New(), leaders: map[int32]id.BrokerID{}, log: map[int32][]Record{}, epochs: map[int32]uint64{}}
	w.apply(&pb.Command{Body: &pb.Command_Bootstrap{Bootstrap: &pb.Bootstrap{ClusterId: "c", Level: 1}}})
	for n := range int32(2) {
		res := w.apply(&pb.Command{Body: &pb.Command_RegisterBroker{RegisterBroker: &pb.RegisterBroker{
			DirectoryId: fmt.Sprint("d", n), Nonce: "n", WantedId: n + 1, MinLevel: 1, MaxLevel: 1}}})
		w.epochs[n+1] = res.Epoch
	}
	return w
}

func (w *world) apply(c *pb.Command) *pb.Result {
	w.t.Helper()
	c = proto.Clone(c).(*pb.Command)
	c.Version = 1
	b, err := proto.Marshal(&pb.Entry{WallMs: int64(w.index) * 10, Commands: []*pb.Command{c}})
	if err != nil {
		w.t.Fatalf("%v", err)
	}
	w.index++
	a := w.s.Apply(w.index, 1, b)
	w.mu.Lock()
	a.View.Partitions(state.OffsetsTopic, func(n int32, row *state.Partition) bool { w.leaders[n] = row.Leader; return true })
	if _, ok := a.View.Topic(state.OffsetsTopic); !ok {
		clear(w.leaders)
		clear(w.log)
	}
	w.mu.Unlock()
	for _, b := range w.brokers {
		b.pending = append(b.pending, a)
	}
	return a.Settled[0].Result
}

func (w *world) start(self id.BrokerID) *broker {
	b := &broker{self: self, w: w, done: make(chan struct{})}
	e, err := New(Config{Self: func() id.BrokerID { return self }, Log: b})
	if err != nil {
		w.t.Fatalf("%v", err)
	}
	b.e = e
	ctx, cancel := context.WithCancel(context.Background())
	b.cancel = cancel
	w.brokers = append(w.brokers, b)
	v := w.s.View()
	go func() { defer close(b.done); e.Run(ctx, v) }()
	return b
}

func (w *world) stop() {
	for _, b := range w.brokers {
		b.cancel()
		<-b.done
	}
}

var errLog = errors.New("not the leader, or made to fail")

func (b *broker) Append(_ context.Context, batches []Batch) []error {
	b.w.mu.Lock()
	defer b.w.mu.Unlock()
	out := make([]error, len(batches))
	for i, in := range batches {
		fail := b.w.fail
		b.w.fail = ""
		if b.w.leaders[in.Partition] != b.self || fail == "lost" {
			out[i] = errLog
			continue
		}
		b.w.log[in.Partition] = append(b.w.log[in.Partition], in.Records...)
		if fail == "unknown" {
			out[i] = errLog
		}
	}
	return out
}

func (b *broker) Read(_ context.Context, p int32, fn func(Record)) error {
	b.w.mu.Lock()
	defer b.w.mu.Unlock()
	b.w.reads++
	if b.w.leaders[p] != b.self {
		return errLog
	}
	for _, r := range b.w.log[p] {
		fn(r)
	}
	return nil
}

// deliver hands over the next n applied entries.
func (b *broker) deliver(n int) {
	for range min(n, len(b.pending)) {
		b.e.Applied(b.pending[0].View, b.pending[0].Changes)
		b.pending = b.pending[1:]
	}
}

// restore skips what is pending, as a snapshot does.
func (b *broker) restore() {
	b.pending = nil
	b.e.Reset(b.w.s.View())
}

func (w *world) createTopic() {
	c := &pb.CreateTopic{Name: state.OffsetsTopic, TopicId: bytes.Repeat([]byte{byte(w.index) + 1}, 16)}
	for p := range int32(parts) {
		c.Assignments = append(c.Assignments, &pb.Assignment{Replicas: []int32{p%2 + 1, 2 - p%2}})
	}
	w.apply(&pb.Command{Body: &pb.Command_CreateTopic{CreateTopic: c}})
}

func (w *world) commit(group, topic string, p int32, offset int64) {
	w.apply(&pb.Command{Body: &pb.Command_CommitOffsets{CommitOffsets: &pb.CommitOffsets{Group: group, Generation: -1, From: pb.OffsetOrigin_ORIGIN_KAFKA,
		Items: []*pb.OffsetItem{{Topic: topic, Partition: p, Offset: offset, LeaderEpoch: 3, RetentionMs: -1, Metadata: "m"}}}}})
}

func (w *world) join(group string, members int, st pb.GroupState) {
	c := &pb.PutGroup{Group: group, Generation: 1, State: st, ProtocolType: "consumer"}
	if row, ok := w.s.View().Group(group); ok {
		c.GroupVersion, c.Generation = row.Version, row.Generation+1
	}
	for m := range members {
		c.Leader, c.Protocol = "m0", "range"
		c.Members = append(c.Members, &pb.GroupMember{Id: fmt.Sprint("m", m), Client: "c", Host: "h", SessionMs: 10, RebalanceMs: 20,
			Protocols: []*pb.GroupProtocol{{Name: "range", Metadata: []byte("sub")}}, Assignment: []byte("mine")})
	}
	if members == 0 {
		c.State = pb.GroupState_GROUP_EMPTY
	}
	w.apply(&pb.Command{Body: &pb.Command_PutGroup{PutGroup: c}})
}

func (w *world) elect(p int32, leader int32) {
	v := w.s.View()
	t, ok := v.Topic(state.OffsetsTopic)
	if !ok {
		return
	}
	row, _ := v.Partition(state.OffsetsTopic, p)
	w.apply(&pb.Command{Body: &pb.Command_ElectLeaders{ElectLeaders: &pb.ElectLeaders{Elections: []*pb.Election{{TopicId: t.ID[:], Partition: p,
		PartitionEpoch: int32(row.Epoch), Leader: leader}}}}})
}

// shown is what a reader that keeps the last value of each key has.
func (w *world) shown() map[string]string {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := map[string]string{}
	for p, records := range w.log {
		for _, r := range records {
			k, ok := decodeKey(r.Key)
			if !ok || PartitionOf(k.group, parts) != p {
				w.t.Fatalf("partition %d has key %q", p, r.Key)
			}
			if r.Value == nil {
				delete(out, string(r.Key))
			} else {
				out[string(r.Key)] = string(r.Value)
			}
		}
	}
	return out
}

// wanted is what the state says; a group in the midst of a rebalance may show anything.
func (w *world) wanted() (want map[string]string, any map[string]bool) {
	want, any = map[string]string{}, map[string]bool{}
	v := w.s.View()
	v.Groups(func(row *state.Group) bool {
		keysOf(v, row, func(k key) {
			if b, known := value(v, k, Format3); !known {
				any[string(k.encode())] = true
			} else if b != nil {
				want[string(k.encode())] = string(b)
			}
		})
		return true
	})
	return want, any
}

func (w *world) settle() {
	w.t.Helper()
	for _, b := range w.brokers {
		b.deliver(len(b.pending))
	}
	time.Sleep(3 * time.Minute)
	synctest.Wait()
	got := w.shown()
	want, any := w.wanted()
	maps.DeleteFunc(got, func(k, _ string) bool { return any[k] })
	if _, ok := w.s.View().Topic(state.OffsetsTopic); !ok {
		want = map[string]string{}
	}
	if !maps.Equal(got, want) {
		w.t.Fatalf("exported %q\nwant     %q", got, want)
	}
}

func (w *world) records() (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, l := range w.log {
		n += len(l)
	}
	return n
}

// step is one of a drawn story.
type step struct {
	op            int
	group, topic  string
	p, to, member int32
	offset        int64
	broker, count int
	state         int32
	fail          string
}

func drawStep(rt *rapid.T) step {
	return step{op: rapid.IntRange(0, 14).Draw(rt, "op"), group: rapid.SampledFrom([]string{"a", "b", "group-c", "dé", "e😀"}).Draw(rt, "group"),
		topic: rapid.SampledFrom([]string{"t", "u"}).Draw(rt, "topic"), p: rapid.Int32Range(0, parts-1).Draw(rt, "p"),
		to: rapid.Int32Range(1, 2).Draw(rt, "to"), member: rapid.Int32Range(0, 2).Draw(rt, "members"), offset: rapid.Int64Range(0, 9).Draw(rt, "offset"),
		broker: rapid.IntRange(0, 1).Draw(rt, "broker"), count: rapid.IntRange(0, 10).Draw(rt, "count"), state: rapid.Int32Range(1, 3).Draw(rt, "state"),
		fail: rapid.SampledFrom([]string{"lost", "unknown"}).Draw(rt, "fail")}
}

func (w *world) step(st step) {
	b := w.brokers[st.broker]
	switch st.op {
	case 0, 1, 2, 3:
		w.commit(st.group, st.topic, st.p, st.offset)
	case 4:
		w.apply(&pb.Command{Body: &pb.Command_DeleteOffsets{DeleteOffsets: &pb.DeleteOffsets{Group: st.group,
			Items: []*pb.OffsetItem{{Topic: st.topic, Partition: st.p}}}}})
	case 5:
		w.apply(&pb.Command{Body: &pb.Command_DeleteGroup{DeleteGroup: &pb.DeleteGroup{Group: st.group}}})
	case 6:
		w.join(st.group, int(st.member), pb.GroupState(st.state))
	case 7, 8:
		w.elect(st.p, st.to)
	case 9:
		if _, ok := w.s.View().Topic(state.OffsetsTopic); !ok {
			w.createTopic()
		}
	case 10:
		b.restore()
	case 11:
		w.mu.Lock()
		w.fail = st.fail
		w.mu.Unlock()
	case 12:
		time.Sleep(1500 * time.Millisecond)
	case 13:
		if st.count == 0 {
			w.apply(&pb.Command{Body: &pb.Command_DeleteTopic{DeleteTopic: &pb.DeleteTopic{Name: state.OffsetsTopic}}})
		}
	case 14:
		b.deliver(st.count)
	}
}

// verdict is a test's end inside a bubble, where rapid's own cannot be.
type verdict struct{ why string }

func (v *verdict) Helper() {}
func (v *verdict) Fatalf(format string, args ...any) {
	v.why = fmt.Sprintf(format, args...)
	panic(v)
}

// TestEndsWithTheState: commits, deletes, groups, leaders that move, brokers that lag or were restored from a snapshot, appends that
// fail or whose outcome is unknown: who keeps the last value of each key ends with the state.
func TestEndsWithTheState(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		steps := rapid.SliceOfN(rapid.Custom(drawStep), 1, 60).Draw(rt, "steps")
		v := &verdict{}
		synctest.Test(t, func(*testing.T) {
			defer func() {
				if r := recover(); r != nil && r != v {
					panic(r)
				}
			}()
			w := newWorld(v)
			w.start(1)
			w.start(2)
			defer w.stop()
			for _, st := range steps {
				w.step(st)
			}
			w.settle()
		})
		if v.why != "" {
			rt.Fatal(v.why)
		}
	})
}

// TestResumesWithoutDuplicates: a new leader, a restarted broker and a restored snapshot write nothing that is there already.
func TestResumesWithoutDuplicates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.createTopic()
		w.start(1)
		w.start(2)
		defer w.stop()
		for i := range 20 {
			w.commit(fmt.Sprint("g", i), "t", 0, int64(i))
		}
		w.join("classic", 2, pb.GroupState_GROUP_STABLE)
		w.settle()
		n := w.records()
		for p := range int32(parts) {
			w.elect(p, 1)
			w.elect(p, 2)
		}
		w.settle()
		w.brokers[1].restore()
		w.settle()
		if got := w.records(); got != n {
			t.Fatalf("%d records were written again", got-n)
		}
		for range 1000 { // in one moment: one record
			w.commit("g0", "t", 0, 99)
		}
		w.settle()
		if got := w.records(); got != n+1 {
			t.Fatalf("1000 commits of one key at once became %d records", got-n)
		}
		reads := w.reads
		w.commit("g0", "t", 0, 100)
		w.settle()
		if w.reads != reads {
			t.Fatal("a commit made the log be read again")
		}
	})
}

// TestWaitsForTheIndexItCovers: a new leader whose view is behind what the old one exported does not go back.
func TestWaitsForTheIndexItCovers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.createTopic()
		one := w.start(1)
		two := w.start(2)
		defer w.stop()
		p := PartitionOf("g", parts)
		w.elect(p, 1)
		w.elect(p, 2) // delivered to two below, before it knows of the commit's export
		w.elect(p, 1)
		one.deliver(9)
		two.deliver(9)
		w.commit("g", "t", 0, 1)
		one.deliver(1)
		time.Sleep(5 * time.Second)
		synctest.Wait()
		w.commit("g", "t", 0, 2)
		w.commit("g", "t", 0, 3)
		one.deliver(2)
		time.Sleep(5 * time.Second)
		synctest.Wait()
		two.deliver(1) // it knows of offset 1
		w.mu.Lock()
		w.leaders[p] = 2 // and it leads, by what it is about to apply
		w.mu.Unlock()
		two.e.mu.Lock()
		two.e.parts[p] = &partition{}
		two.e.mu.Unlock()
		two.e.poke()
		time.Sleep(5 * time.Second)
		synctest.Wait()
		w.mu.Lock()
		last := w.log[p][len(w.log[p])-1]
		w.mu.Unlock()
		var v kmsg.OffsetCommitValue
		if err := v.ReadFrom(last.Value); err != nil || v.Offset != 3 {
			t.Fatalf("the last record is %+v (%v), want offset 3", v, err)
		}
	})
}

// TestPartitionOf holds values of Java's String.hashCode.
func TestPartitionOf(t *testing.T) {
	for group, want := range map[string]int32{
		"":                     0,
		"g":                    103 % 50,
		"console-consumer-123": partitionByHand("console-consumer-123"),
		"polygenelubricants":   0, // hashCode is MinValue
		"😀":                    1772899 % 50,
	} {
		if got := PartitionOf(group, 50); got != want {
			t.Errorf("%q: %d, want %d", group, got, want)
		}
	}
}

func partitionByHand(s string) int32 {
	h := int32(0)
	for _, c := range []byte(s) {
		h = h*31 + int32(c)
	}
	return max(h, -h) % 50
}

func TestTooLargeIsLeftOut(t *testing.T) {
	w := &writer{e: &Exporter{cfg: Config{MaxRecord: 10}.withDefaults()}, v: state.New().View(), byPartition: map[int32][]Record{}}
	w.add(0, key{group: "g"}, make([]byte, 11))
	w.add(0, key{group: "g"}, make([]byte, 10))
	if len(w.byPartition[0]) != 1 {
		t.Fatalf("%d records", len(w.byPartition[0]))
	}
}

func TestKeys(t *testing.T) {
	for _, k := range []key{{"g", "t", 3}, {group: "g"}, {"", "t", 0}, {group: ""}} {
		if got, ok := decodeKey(k.encode()); !ok || got != k {
			t.Errorf("%+v came back as %+v, %v", k, got, ok)
		}
	}
	for _, b := range [][]byte{nil, {0}, {0, 1}, {0, 2}, {0, 9, 1}, {1, 1}, slices.Repeat([]byte{255}, 9)} {
		if _, ok := decodeKey(b); ok {
			t.Errorf("%v is no key", b)
		}
	}
}
