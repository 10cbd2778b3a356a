package raftmeta

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
)

// A follower that is busy, or failed just now, is not waited for.
func TestAheadNeverWaits(t *testing.T) { synctest.Test(t, aheadNeverWaits) }

func aheadNeverWaits(t *testing.T) {
	got, answer := make(chan raft.ServerID, 16), make(chan error)
	a := newAhead(func(to raft.Server, _ *raft.AppendEntriesRequest) error {
		got <- to.ID
		return <-answer
	})
	q := &raft.AppendEntriesRequest{Term: 1}
	offered := func() (sent bool) {
		a.offer(q, oneFollower)
		select {
		case <-got:
			return true
		case <-time.After(10 * time.Millisecond):
			return false
		}
	}
	eventually(t, "the first message", offered) // not before its goroutine waits
	if offered() {
		t.Error("a second message to one that has not answered")
	}
	answer <- nil
	eventually(t, "the next", offered)
	answer <- errors.New("refused")
	if offered() {
		t.Error("a message to one that has just failed")
	}
	a.offer(q, []raft.Server{{ID: "G"}}) // F has left
	a.close()
	a.offer(q, oneFollower)
}

// The store says what comes before the entries that it is about to write, and says nothing when it does not know.
func TestAheadKnowsWhatIsBefore(t *testing.T) {
	h := newHealStore(raft.NewInmemStore(), nil)
	type before struct{ index, term uint64 }
	var told []before
	h.ahead = func(_ []*raft.Log, index, term uint64) { told = append(told, before{index, term}) }
	must(t, h.StoreLog(&raft.Log{Index: 1, Term: 1}))
	must(t, h.StoreLog(&raft.Log{Index: 2, Term: 3}))
	must(t, h.StoreLog(&raft.Log{Index: 3, Term: 3}))
	h.setSnapshot(snapRef{9, 4})
	must(t, h.StoreLog(&raft.Log{Index: 10, Term: 5}))
	want := []before{{0, 0}, {1, 1}, {2, 3}, {9, 4}} // nothing is before the first entry, and none is sent ahead then
	if len(told) != len(want) {
		t.Fatalf("told %v, want %v", told, want)
	}
	for i := range want {
		if told[i] != want[i] {
			t.Errorf("entry %d: told %v, want %v", i, told[i], want[i])
		}
	}
}

// A leader that dies before it has written what it sent ahead: the others have it, and it is decided as any entry of a dead leader
// that a quorum holds.
func TestAheadOutlivesItsLeader(t *testing.T) {
	t.Parallel()
	for range 10 {
		if aheadThenStop(t) {
			return
		}
	}
	t.Fatal("the leader always wrote something by itself in between")
}

func aheadThenStop(t *testing.T) bool {
	c := newCluster(t, 3, func(k *Config) { k.TickEvery = 10 * time.Second })
	c.bootstrapState()
	c.converge()
	l := c.leader()
	term, last := l.leaderTerm(), l.inst.Load().r.LastIndex()
	var prev raft.Log
	must(t, l.stores.log.GetLog(last, &prev))
	raw, err := encodeCommand(createZnode("/ahead", false))
	must(t, err)
	entry := []*raft.Log{{Index: last + 1, Term: term, Type: raft.LogCommand, Data: appendCommand(nil, raw, 0)}}
	mine := func() bool { return l.leaderTerm() == term && l.inst.Load().r.LastIndex() == last }
	eventually(t, "both followers have it", func() bool {
		if !mine() {
			return true
		}
		l.aheadOf(entry, last, prev.Term)
		n := 0
		for _, f := range c.up() {
			if f.id != l.id && f.inst.Load().r.LastIndex() == last+1 {
				n++
			}
		}
		return n == 2
	})
	// It is sent without a commit index: a follower applies up to its last entry, and nobody has decided this one.
	for _, f := range c.up() {
		if got := f.inst.Load().r.CommitIndex(); got > last && mine() {
			t.Fatalf("%s counts entry %d as committed", f.id, got)
		}
	}
	if !mine() {
		c.stopAll()
		return false
	}
	f := c.follower()
	sends := func() int { // to how many others it has sent, ever
		f.ahead.mu.Lock()
		defer f.ahead.mu.Unlock()
		return len(f.ahead.loops)
	}
	before := sends()
	f.aheadOf(entry, last, prev.Term)
	if n := sends(); n != before {
		t.Errorf("a follower sends entries to %d others", n-before)
	}
	if got := l.inst.Load().r.CommitIndex(); got > last {
		t.Fatalf("the leader counts entry %d as committed, and has not written it", got)
	}
	c.stop(l.id)
	c.elect(l.id)
	eventually(t, "the others apply it", func() bool {
		for _, f := range c.up() {
			if _, ok := f.View().Znode("/ahead"); !ok {
				return false
			}
		}
		return true
	})
	c.stopAll()
	return true
}
