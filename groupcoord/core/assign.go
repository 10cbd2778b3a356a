package core

import (
	"bytes"
	"cmp"
	"slices"
	"strings"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/raftmeta/state"
)

// Assignors of consumer groups, under Kafka's names (org.apache.kafka.coordinator.group.assignor).
const (
	assignorUniform = "uniform" // balanced over all topics, sticky
	assignorRange   = "range"   // per topic contiguous, in the order of instance ids, then member ids
)

var assignors = []string{assignorUniform, assignorRange} // the first is the default

// parts is a set of partitions, by topic; topics and partitions ascend, no topic is empty. Values are not written to.
type parts []state.TopicPartitions

type partition struct {
	topic id.TopicID
	n     int32
}

// seat is a member as an assignor sees it.
type seat struct {
	id, instance string
	topics       []id.TopicID // subscribed and existing
	has          parts        // its target so far
}

// assign gives every partition of every subscribed topic to one of its subscribers. partitions is what there is to give. Equal
// inputs give equal results; seats must be in order of member id.
func assign(assignor string, seats []seat, partitions map[id.TopicID][]int32) map[string]parts {
	given := map[string]*builder{}
	for i := range seats {
		given[seats[i].id] = &builder{}
	}
	if assignor == assignorRange {
		assignInRanges(seats, partitions, given)
	} else {
		newUniform(seats, partitions).assign(given)
	}
	out := make(map[string]parts, len(given))
	for m, b := range given {
		out[m] = b.parts()
	}
	return out
}

func assignInRanges(seats []seat, partitions map[id.TopicID][]int32, given map[string]*builder) {
	order := slices.Clone(seats)
	slices.SortStableFunc(order, func(a, b seat) int {
		switch {
		case (a.instance == "") != (b.instance == ""): // static members first
			return -cmp.Compare(a.instance, b.instance)
		case a.instance != b.instance:
			return strings.Compare(a.instance, b.instance)
		}
		return strings.Compare(a.id, b.id)
	})
	of := map[id.TopicID][]string{}
	for _, s := range order {
		for _, t := range s.topics {
			of[t] = append(of[t], s.id)
		}
	}
	for t, members := range of {
		ps := partitions[t]
		least, extra := len(ps)/len(members), len(ps)%len(members)
		for i, m := range members {
			n := least
			if i < extra {
				n++
			}
			given[m].add(t, ps[:n]...)
			ps = ps[n:]
		}
	}
}

// uniform is the work of the uniform assignor: who has a partition keeps it unless that would be out of balance.
type uniform struct {
	seats   []seat
	readers map[id.TopicID][]int // seats that read a topic
	owner   map[partition]int    // seat
	load    []int                // by seat
	owned   [][]partition        // by seat
	spare   []partition
	same    bool // all read the same topics
	all     int
}

func newUniform(seats []seat, partitions map[id.TopicID][]int32) *uniform {
	u := &uniform{seats: seats, readers: map[id.TopicID][]int{}, owner: map[partition]int{}, load: make([]int, len(seats)),
		owned: make([][]partition, len(seats)), same: true}
	for i := range seats {
		for _, t := range seats[i].topics {
			u.readers[t] = append(u.readers[t], i)
		}
		u.same = u.same && slices.Equal(sortedTopics(seats[i].topics), sortedTopics(seats[0].topics))
	}
	there := map[partition]bool{}
	topics := make([]id.TopicID, 0, len(u.readers))
	for t := range u.readers {
		topics = append(topics, t)
	}
	topics = sortedTopics(topics)
	for _, t := range topics {
		for _, n := range partitions[t] {
			there[partition{t, n}] = true
		}
	}
	for i := range seats {
		for _, t := range seats[i].has {
			for _, n := range t.Partitions {
				p := partition{t.TopicID, n}
				if _, taken := u.owner[p]; there[p] && !taken && slices.Contains(seats[i].topics, t.TopicID) {
					u.give(p, i)
				}
			}
		}
	}
	for _, t := range topics {
		for _, n := range partitions[t] {
			if _, taken := u.owner[partition{t, n}]; !taken {
				u.spare = append(u.spare, partition{t, n})
			}
		}
	}
	u.all = len(there)
	return u
}

func (u *uniform) give(p partition, seat int) {
	u.owner[p] = seat
	u.owned[seat] = append(u.owned[seat], p)
	u.load[seat]++
}

func (u *uniform) assign(given map[string]*builder) {
	if len(u.seats) == 0 {
		return
	}
	if u.same {
		u.even()
	} else {
		u.spread()
		u.balance()
	}
	for i, ps := range u.owned {
		for _, p := range ps {
			given[u.seats[i].id].add(p.topic, p.n)
		}
	}
}

// even gives everybody the same number, or one more: those that have most keep most.
func (u *uniform) even() {
	least, extra := u.all/len(u.seats), u.all%len(u.seats)
	order := make([]int, len(u.seats))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(u.load[b], u.load[a]) })
	quota := make([]int, len(u.seats))
	for i, s := range order {
		if quota[s] = least; i < extra {
			quota[s]++
		}
		for u.load[s] > quota[s] {
			last := u.owned[s][u.load[s]-1]
			u.owned[s] = u.owned[s][:u.load[s]-1]
			u.load[s]--
			u.spare = append(u.spare, last)
		}
	}
	slices.SortFunc(u.spare, comparePartitions)
	for len(u.spare) > 0 { // one each in turn: topics are spread too
		for s := range u.seats {
			if u.load[s] < quota[s] && len(u.spare) > 0 {
				u.give(u.spare[0], s)
				u.spare = u.spare[1:]
			}
		}
	}
}

// spread gives what nobody has to the reader with least.
func (u *uniform) spread() {
	for _, p := range u.spare {
		if s := u.idlest(p.topic); s >= 0 {
			u.give(p, s)
		}
	}
	u.spare = nil
}

func (u *uniform) idlest(t id.TopicID) int {
	best := -1
	for _, s := range u.readers[t] {
		if best < 0 || u.load[s] < u.load[best] {
			best = s
		}
	}
	return best
}

// balance moves partitions to readers with less until no move makes two loads more equal. The sum of the squares of the loads falls
// with each move, so it ends.
func (u *uniform) balance() {
	for moved := true; moved; {
		moved = false
		for s := range u.seats {
			for i := len(u.owned[s]) - 1; i >= 0; i-- {
				p := u.owned[s][i]
				if to := u.idlest(p.topic); u.load[to] < u.load[s]-1 {
					u.owned[s] = slices.Delete(u.owned[s], i, i+1)
					u.load[s]--
					u.give(p, to)
					moved = true
				}
			}
		}
	}
}

func compareTopics(a, b id.TopicID) int { return bytes.Compare(a[:], b[:]) }

func comparePartitions(a, b partition) int {
	return cmp.Or(cmp.Compare(a.n, b.n), compareTopics(a.topic, b.topic))
}

func sortedTopics(ts []id.TopicID) []id.TopicID {
	if slices.IsSortedFunc(ts, compareTopics) {
		return ts
	}
	ts = slices.Clone(ts)
	slices.SortFunc(ts, compareTopics)
	return ts
}

// ---- sets of partitions ----

// builder makes parts.
type builder struct {
	of map[id.TopicID]map[int32]int32
} // epoch by partition; -1: none

func (b *builder) put(t id.TopicID, n, epoch int32) {
	if b.of == nil {
		b.of = map[id.TopicID]map[int32]int32{}
	}
	if b.of[t] == nil {
		b.of[t] = map[int32]int32{}
	}
	b.of[t][n] = epoch
}

func (b *builder) add(t id.TopicID, ns ...int32) {
	for _, n := range ns {
		b.put(t, n, -1)
	}
}

func (b *builder) parts() parts {
	var out parts
	for t, ns := range b.of {
		tp := state.TopicPartitions{TopicID: t}
		for n, epoch := range ns {
			tp.Partitions = append(tp.Partitions, n)
			if epoch >= 0 {
				tp.Epochs = append(tp.Epochs, 0)
			}
		}
		slices.Sort(tp.Partitions)
		for i := range tp.Epochs {
			tp.Epochs[i] = ns[tp.Partitions[i]]
		}
		out = append(out, tp)
	}
	slices.SortFunc(out, func(a, b state.TopicPartitions) int { return compareTopics(a.TopicID, b.TopicID) })
	return out
}

func (ps parts) each(fn func(p partition, epoch int32)) {
	for i := range ps {
		for j, n := range ps[i].Partitions {
			epoch := int32(-1)
			if j < len(ps[i].Epochs) {
				epoch = ps[i].Epochs[j]
			}
			fn(partition{ps[i].TopicID, n}, epoch)
		}
	}
}

func (ps parts) has(p partition) bool {
	for i := range ps {
		if ps[i].TopicID == p.topic {
			_, ok := slices.BinarySearch(ps[i].Partitions, p.n)
			return ok
		}
	}
	return false
}

func (ps parts) size() (n int) {
	for i := range ps {
		n += len(ps[i].Partitions)
	}
	return n
}

// same compares the partitions, not the epochs.
func (ps parts) same(other parts) bool {
	return slices.EqualFunc(ps, other, func(a, b state.TopicPartitions) bool {
		return a.TopicID == b.TopicID && slices.Equal(a.Partitions, b.Partitions)
	})
}

// sorted makes parts of a list in any order.
func (ps parts) sorted() parts {
	var b builder
	ps.each(func(p partition, _ int32) { b.add(p.topic, p.n) })
	return b.parts()
}
