package integration

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// Gates that take a member by ZooKeeper which also fetches: what is kept, cut off and withheld for its sake, how it is made to join anew.

// shortSession is the session timeout of members that vanish.
const shortSession = 6 * time.Second

// gateQuiet is how long a member is left in peace to see that no gate ends its session: what would is due 4 s after its generation is
// complete, which is 2 s after a claim of it was refused.
const gateQuiet = 8 * time.Second

// fetching is a connection that fetches a partition from its beginning, where there is a record, again and again. One goroutine, until the
// scene ends or it is closed.
type fetching struct {
	s         *scene
	partition int32
	mu        sync.Mutex
	wire      *wire
	gone      chan struct{}
}

func (s *scene) fetches(client string, partition int32) *fetching {
	at, _ := s.coordinator()
	conn, err := net.DialTimeout("tcp", at.Kafka, time.Minute)
	if err != nil {
		s.fatal("%v", err)
	}
	f := &fetching{s: s, partition: partition, wire: &wire{Conn: conn, client: client}, gone: make(chan struct{})}
	s.members.Go(func() {
		defer conn.Close()
		for {
			select {
			case <-s.quit:
				return
			case <-f.gone:
				return
			case <-time.After(50 * time.Millisecond):
				f.gets()
			}
		}
	})
	if !f.gets() {
		s.fatal("a connection of %q gets no records", client)
	}
	return f
}

// gets fetches once, and reports whether there were records.
func (f *fetching) gets() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	req := kmsg.NewPtrFetchRequest()
	req.Version, req.ReplicaID, req.MaxWaitMillis, req.MinBytes, req.MaxBytes = 4, -1, 100, 1, 1<<20
	t, p := kmsg.NewFetchRequestTopic(), kmsg.NewFetchRequestTopicPartition()
	t.Topic, p.Partition, p.PartitionMaxBytes = lostTopic, f.partition, 1<<20
	t.Partitions = append(t.Partitions, p)
	req.Topics = append(req.Topics, t)
	resp, err := f.wire.ask(req)
	if err != nil {
		f.s.fatal("a fetch by %q: %v", f.wire.client, err)
	}
	got := resp.(*kmsg.FetchResponse).Topics[0].Partitions[0]
	if got.ErrorCode != 0 {
		f.s.fatal("a fetch by %q: code %d", f.wire.client, got.ErrorCode)
	}
	return len(got.RecordBatches) > 0
}

func (f *fetching) close() { close(f.gone) }

// must fails the scene unless the connection gets records, or gets none.
func (f *fetching) must(records bool, when string) {
	if f.gets() != records {
		f.s.fatal("%s: a connection of %q gets records: %v", when, f.wire.client, !records)
	}
}

// twins is a that owns everything in a generation that b is in too, and whose session can expire.
func (s *scene) twins() (a, b *elder) {
	s.mkdirs()
	a, b = s.mortal("a"), s.elder("b", true)
	both := s.later(func() error { b.register(); return nil })
	a.register()
	<-both
	a.claims()
	return a, b
}

// claims claims all partitions.
func (m *elder) claims() {
	for p := range int32(lostPartitions) {
		m.claim(p)
	}
}

// gone returns when a node is no more there.
func (s *scene) gone(node string) {
	s.until(node+" has gone", func() error {
		_, _, err := s.zk.get(node)
		if errors.Is(err, errNoNode) {
			return nil
		}
		return fmt.Errorf("it is there, or %w", err)
	})
}

// lists returns when a member is shown one member alone.
func (m *elder) lists(only *elder) {
	m.s.until(m.name+" is told of the new generation", func() error {
		names, _, err := m.conn.children(m.s.ids(), false)
		if err != nil || len(names) != 1 || names[0] != only.id {
			return fmt.Errorf("it lists %v, %w", names, err)
		}
		return nil
	})
}

// orphaned has a vanish, and returns when its session has expired and b has been told.
func (s *scene) orphaned(a, b *elder) {
	a.conn.vanish()
	s.gone(a.owner(3))
	b.lists(b)
}

// gateReservation has a connection from the machine of a member that expired go on fetching for a while, though not under the group's name.
// Other scenes' connections, from the same machine, fetch another partition.
func gateReservation(s *scene, off bool) {
	a, b := s.twins()
	f := s.fetches("other", 2)
	s.orphaned(a, b)
	begun := time.Now()
	done := s.later(func() error { return b.create("claim", b.owner(2), []byte(b.id+"-0")) })
	if !off {
		s.pending("the claim of a partition that is still fetched", done)
		f.close()
	}
	if err := <-done; err != nil {
		s.fatal("the claim of what nobody owns: %v", err)
	}
	if held := time.Since(begun); held > shortSession-time.Second {
		s.fatal("a claim was held for %v though nobody fetches the partition any more", held)
	}
}

// gateFence has the connection of a member that expired go on fetching while another takes over, until its member is back.
func gateFence(s *scene, off bool) {
	a, b := s.twins()
	f := s.fetches(s.group, 3)
	s.orphaned(a, b)
	begun := time.Now()
	b.claim(3)
	kept := time.Since(begun)
	for range 5 {
		f.must(off, "its partition has a new owner")
	}
	s.fetches(s.group, 3).close() // the new owner's gets records
	if off {
		return
	}
	s.t.Logf("the claim of a partition that is still fetched was held for %v, session timeout %v", kept.Round(time.Millisecond), shortSession)
	for p := range int32(lostPartitions - 1) {
		b.claim(p)
	}
	again := s.elder("a", true)
	again.register()
	b.drop(3)
	again.claim(3)
	f.must(true, "the partition is its member's again")
}

// gatePause has a member that was told to release a partition go on fetching it.
func gatePause(s *scene, off bool) {
	s.mkdirs()
	a, b := s.elder("a", true), s.elder("b", true)
	a.register()
	a.claims()
	own, other := s.fetches(s.group, 3), s.fetches("other", 3)
	b.register()
	own.must(off, "its owner is to release the partition")
	other.must(true, "it is not of the group")
	a.drop(3)
	b.claim(3)
	own.must(true, "the partition was released and claimed")
}

// gateGhost has a member give up after a refusal.
func gateGhost(s *scene, off bool) {
	a, b := s.pair()
	if err := b.create("claim", b.owner(3), []byte(b.id+"-0")); !errors.Is(err, errNodeExists) {
		s.fatal("the claim of a partition that is not released: %v", err)
	}
	if off {
		b.leftAlone()
		return
	}
	b.expired(s.ids() + "/" + b.id)
	a.lists(a)
	for p := range int32(lostPartitions) {
		a.drop(p)
	}
	a.claims()
	again := s.elder("b", true)
	again.register()
	a.drop(3)
	again.claim(3)
}

// gateSquatter has a tool delete the registration of a member that knows nothing of it.
func gateSquatter(s *scene, off bool) {
	s.mkdirs()
	a := s.elder("a", true)
	a.register()
	a.claims()
	if err := s.zk.delete(s.ids() + "/" + a.id); err != nil {
		s.fatal("the delete of a registration: %v", err)
	}
	if off {
		a.leftAlone()
		return
	}
	a.expired(a.owner(3))
	again := s.elder("a", true)
	again.register()
	again.claims()
}

// expired returns when the session of a member has been ended, and its node with it.
func (m *elder) expired(node string) {
	m.s.gone(node)
	m.s.until("its client is told", func() error {
		if _, _, err := m.conn.get(node); !errors.Is(err, errExpired) {
			return fmt.Errorf("it is not, %w", err)
		}
		return nil
	})
}

// leftAlone checks that nothing ends the session of a member.
func (m *elder) leftAlone() {
	select {
	case <-time.After(gateQuiet):
	case <-m.s.quit:
		return
	}
	if _, _, err := m.conn.get(m.s.ids()); err != nil || m.conn.session() != m.session {
		m.s.fatal("the session %x of %s is %x now, %v", m.session, m.name, m.conn.session(), err)
	}
}
