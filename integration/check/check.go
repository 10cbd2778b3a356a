// Package check records what clients of a broker were told and saw, and checks it afterwards: nothing acked is lost, nothing
// is there twice, no offset holds two values, no partition has two owners. The checkers are pure functions over recorded
// histories; each has a test with a planted fault.
package check

import (
	"encoding/json"
	"fmt"
	"hash/crc32"
	"os"
	"sort"
	"strings"
	"sync"
	"testing"
	"time"
)

// Record is one record that a client was told of (an ack) or received (a read).
type Record struct {
	Client    string `json:"client,omitempty"` // who was told
	Topic     string `json:"topic,omitempty"`
	Partition int32  `json:"partition"`
	Offset    int64  `json:"offset"`
	Key       string `json:"key"`
	Len       int    `json:"len"` // -1: a null value
	CRC       uint32 `json:"crc"` // IEEE CRC-32 of the value
}

// Place is where a record lies.
type Place struct {
	Topic     string
	Partition int32
	Offset    int64
}

func (p Place) String() string { return fmt.Sprintf("%s-%d@%d", p.Topic, p.Partition, p.Offset) }

// Place returns where the record lies.
func (r Record) Place() Place { return Place{r.Topic, r.Partition, r.Offset} }

// content is what must be equal wherever the record is seen.
func (r Record) content() string {
	return fmt.Sprintf("key %q, %d bytes, crc %08x", r.Key, r.Len, r.CRC)
}

// NewRecord describes one record.
func NewRecord(client, topic string, partition int32, offset int64, key, value []byte) Record {
	r := Record{Client: client, Topic: topic, Partition: partition, Offset: offset, Key: string(key), Len: len(value), CRC: crc32.ChecksumIEEE(value)}
	if value == nil {
		r.Len = -1
	}
	return r
}

// History collects records; safe for use by many clients at once. The zero value is empty and ready.
type History struct {
	mu          sync.Mutex
	acks, reads []Record
}

// Acked notes that a client was told where its record is.
func (h *History) Acked(r Record) { h.mu.Lock(); h.acks = append(h.acks, r); h.mu.Unlock() }

// Read notes that a client received a record.
func (h *History) Read(r Record) { h.mu.Lock(); h.reads = append(h.reads, r); h.mu.Unlock() }

// Acks returns what was acked so far.
func (h *History) Acks() []Record {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]Record(nil), h.acks...)
}

// Reads returns what was read so far.
func (h *History) Reads() []Record {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]Record(nil), h.reads...)
}

// Fault is one broken promise.
type Fault struct {
	Rule, What string
}

func (f Fault) String() string { return f.Rule + ": " + f.What }

// NoLoss (C1): each acked record is in the full read, exactly where the ack said, with the same content. final is a read of
// every partition from its start after everything healed.
func NoLoss(acks, final []Record) []Fault {
	at := make(map[Place]Record, len(final))
	for _, r := range final {
		at[r.Place()] = r
	}
	var faults []Fault
	for _, a := range acks {
		r, ok := at[a.Place()]
		switch {
		case !ok:
			faults = append(faults, Fault{"lost", fmt.Sprintf("%s was acked to %s (%s) and is not there", a.Place(), a.Client, a.content())})
		case r.content() != a.content():
			faults = append(faults, Fault{"lost", fmt.Sprintf("%s was acked to %s with %s and holds %s", a.Place(), a.Client, a.content(), r.content())})
		}
	}
	return faults
}

// NoDuplicate (C2): with an idempotent producer and unique keys, each key lies at one place at most. Reading one place twice
// is no duplicate.
func NoDuplicate(reads []Record) []Fault {
	first := map[string]Place{}
	reported := map[Place]bool{}
	var faults []Fault
	for _, r := range reads {
		was, ok := first[r.Key]
		if !ok {
			first[r.Key] = r.Place()
			continue
		}
		if was != r.Place() && !reported[r.Place()] {
			reported[r.Place()] = true
			faults = append(faults, Fault{"duplicate", fmt.Sprintf("key %q is at %s and at %s", r.Key, was, r.Place())})
		}
	}
	return faults
}

// OffsetUnique (C3): one (partition, offset) has one content, over all acks and reads of all clients at all brokers.
func OffsetUnique(histories ...[]Record) []Fault {
	first := map[Place]Record{}
	var faults []Fault
	for _, h := range histories {
		for _, r := range h {
			was, ok := first[r.Place()]
			if !ok {
				first[r.Place()] = r
			} else if was.content() != r.content() {
				faults = append(faults, Fault{"two values", fmt.Sprintf("%s held %s for %s and %s for %s", r.Place(), was.content(), was.Client,
					r.content(), r.Client)})
			}
		}
	}
	return faults
}

// Ownership is an interval in which a client held a partition. Times are on one clock, that of the checker's process.
type Ownership struct {
	Owner     string
	Topic     string
	Partition int32
	From, To  time.Time
}

// OneOwner (C8): the intervals of two owners of one partition overlap by at most slack (an old member notices the loss of its
// session that late).
func OneOwner(owned []Ownership, slack time.Duration) []Fault {
	byPartition := map[Place][]Ownership{}
	for _, o := range owned {
		p := Place{Topic: o.Topic, Partition: o.Partition}
		byPartition[p] = append(byPartition[p], o)
	}
	var faults []Fault
	for p, all := range byPartition {
		sort.Slice(all, func(i, j int) bool { return all[i].From.Before(all[j].From) })
		for i, a := range all {
			for _, b := range all[i+1:] {
				if over := earlier(a.To, b.To).Sub(b.From); a.Owner != b.Owner && over > slack {
					faults = append(faults, Fault{"two owners", fmt.Sprintf("%s-%d was held by %s and by %s for %v", p.Topic, p.Partition, a.Owner, b.Owner, over)})
				}
			}
		}
	}
	sort.Slice(faults, func(i, j int) bool { return faults[i].What < faults[j].What })
	return faults
}

// Sightings makes intervals of ownership of what was seen of a topic's owners, of all kinds of members at once, time after time. A
// partition may be seen with several owners in one sighting: OneOwner with a slack below zero tells of it. Not safe for concurrent use.
type Sightings struct {
	Topic string

	owned []Ownership
	now   map[sighted]int // those of the last sighting: where they are in owned
}

type sighted struct {
	partition int32
	owner     string
}

// Saw notes who held what at a moment, which is after that of the last call. Who is seen twice in a row has held it in between.
func (s *Sightings) Saw(at time.Time, holders map[int32][]string) {
	now := map[sighted]int{}
	for p, owners := range holders {
		for _, owner := range owners {
			k := sighted{p, owner}
			i, before := s.now[k]
			if !before {
				i = len(s.owned)
				s.owned = append(s.owned, Ownership{Owner: owner, Topic: s.Topic, Partition: p, From: at})
			}
			s.owned[i].To, now[k] = at, i
		}
	}
	s.now = now
}

// Owned returns the intervals, from the first to the last sighting of each.
func (s *Sightings) Owned() []Ownership { return s.owned }

// Receipt is a record that a member had received at the time given or a little before.
type Receipt struct {
	Owner     string
	Topic     string
	Partition int32
	At        time.Time
}

// ReadByOwner (C8): nobody receives from a partition that another has held for all of the slack before: what a member has
// buffered, and the time until it notices a lost session, must fit into the slack. One fault for each reader of a partition.
func ReadByOwner(receipts []Receipt, owned []Ownership, slack time.Duration) []Fault {
	byPartition := map[Place][]Ownership{}
	for _, o := range owned {
		p := Place{Topic: o.Topic, Partition: o.Partition}
		byPartition[p] = append(byPartition[p], o)
	}
	seen := map[string]bool{}
	var faults []Fault
	for _, r := range receipts {
		for _, o := range byPartition[Place{Topic: r.Topic, Partition: r.Partition}] {
			if o.Owner != r.Owner && !o.From.After(r.At.Add(-slack)) && !o.To.Before(r.At) {
				what := fmt.Sprintf("%s received from %s-%d while %s held it", r.Owner, r.Topic, r.Partition, o.Owner)
				if !seen[what] {
					seen[what] = true
					faults = append(faults, Fault{"two readers", what})
				}
			}
		}
	}
	return faults
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// Fail fails the test with the faults (the first of them in full), and writes the histories beside them so that they can be
// looked at: into BARNABAS_LOGS when it is set.
func (h *History) Fail(t testing.TB, final []Record, faults []Fault) {
	t.Helper()
	if len(faults) == 0 {
		return
	}
	const shown = 20
	var text strings.Builder
	for i, f := range faults {
		if i == shown {
			fmt.Fprintf(&text, "... and %d more\n", len(faults)-shown)
			break
		}
		fmt.Fprintln(&text, f)
	}
	t.Errorf("%d faults over %d acks and %d reads; histories in %s\n%s", len(faults), len(h.Acks()), len(h.Reads()), h.dump(final), text.String())
}

func (h *History) dump(final []Record) string {
	f, err := os.CreateTemp(os.Getenv("BARNABAS_LOGS"), "history-*.json")
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	out := json.NewEncoder(f)
	for _, part := range []struct {
		kind    string
		records []Record
	}{{"ack", h.Acks()}, {"read", h.Reads()}, {"final", final}} {
		for _, r := range part.records {
			if err := out.Encode(struct {
				Kind string `json:"kind"`
				Record
			}{part.kind, r}); err != nil {
				return err.Error()
			}
		}
	}
	return f.Name()
}
