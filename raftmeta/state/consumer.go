package state

import (
	"slices"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
)

// ConsumerMember is what a member of a consumer group (KIP-848) is told and has told: the coordinator assigns. A member that came
// by JoinGroup has it too while its group is of that kind.
type ConsumerMember struct {
	Epoch    int32 // StaticLeft: a static member that will come back
	Previous int32 // epoch before: the answer that told the present one may have been lost
	State    MemberState
	Topics   []string // subscribed, ascending
	Regex    string   // RE2, of whole names
	Assignor string   // preferred; "": any
	Rack     string

	// Assigned is what the member was told to own, Revoking what it was told to give up and has not been heard to have given up: both
	// are held. Target is where it shall come to.
	Assigned, Revoking, Target []TopicPartitions
}

// StaticLeft is the epoch of a static member that is away for a while.
const StaticLeft = -2

// MemberState is what a consumer member has to do before it is at its target.
type MemberState uint8

// States as in Kafka's MemberState.
const (
	MemberStable     MemberState = iota // it has all of its target, or a newer target has come since
	MemberUnrevoked                     // it must give up partitions first
	MemberUnreleased                    // others still hold partitions of its target
)

// TopicPartitions are partitions of one topic.
type TopicPartitions struct {
	TopicID    id.TopicID
	Partitions []int32 // ascending
	Epochs     []int32 // of the member when it was given each; nil: not kept (targets)
}

// Classic reports whether a member speaks JoinGroup.
func (m *Member) Classic() bool { return m.Consumer == nil || len(m.Protocols) > 0 }

// Held reports whether a member may still be reading a partition.
func (m *ConsumerMember) Held(t id.TopicID, partition int32) bool {
	_, assigned := find(m.Assigned, t, partition)
	_, revoking := find(m.Revoking, t, partition)
	return assigned || revoking
}

// find returns the epoch in which a partition was given.
func find(parts []TopicPartitions, t id.TopicID, partition int32) (epoch int32, ok bool) {
	for i := range parts {
		if parts[i].TopicID != t {
			continue
		}
		if j, found := slices.BinarySearch(parts[i].Partitions, partition); found {
			if j < len(parts[i].Epochs) {
				epoch = parts[i].Epochs[j]
			}
			return epoch, true
		}
	}
	return 0, false
}

func (m *ConsumerMember) encode(e *enc) {
	e.i64(1, int64(m.Epoch))
	e.i64(2, int64(m.Previous))
	e.u64(3, uint64(m.State))
	for _, t := range m.Topics {
		e.put(4, []byte(t))
	}
	e.str(5, m.Regex)
	e.str(6, m.Assignor)
	e.str(7, m.Rack)
	for _, t := range m.Assigned {
		e.sub(8, t.encode)
	}
	for _, t := range m.Revoking {
		e.sub(9, t.encode)
	}
	for _, t := range m.Target {
		e.sub(10, t.encode)
	}
}

func (m *ConsumerMember) decode(d *dec) {
	parts := func(to *[]TopicPartitions) {
		var t TopicPartitions
		d.sub(t.decode)
		*to = append(*to, t)
	}
	for d.next() {
		switch d.num {
		case 1:
			m.Epoch = d.i32()
		case 2:
			m.Previous = d.i32()
		case 3:
			m.State = MemberState(d.u64())
		case 4:
			m.Topics = append(m.Topics, d.str())
		case 5:
			m.Regex = d.str()
		case 6:
			m.Assignor = d.str()
		case 7:
			m.Rack = d.str()
		case 8:
			parts(&m.Assigned)
		case 9:
			parts(&m.Revoking)
		case 10:
			parts(&m.Target)
		default:
			d.unknown()
		}
	}
}

func (t *TopicPartitions) encode(e *enc) {
	e.bytes(1, t.TopicID[:])
	ints(e, 2, t.Partitions)
	ints(e, 3, t.Epochs)
}

func (t *TopicPartitions) decode(d *dec) {
	for d.next() {
		switch d.num {
		case 1:
			copy(t.TopicID[:], d.raw())
		case 2:
			t.Partitions = decInts[int32](d)
		case 3:
			t.Epochs = decInts[int32](d)
		default:
			d.unknown()
		}
	}
}

func consumerRow(c *statepb.ConsumerMember) *ConsumerMember {
	if c == nil {
		return nil
	}
	return &ConsumerMember{Epoch: c.Epoch, Previous: c.Previous, State: MemberState(c.State), Topics: c.Topics, Regex: c.Regex,
		Assignor: c.Assignor, Rack: c.Rack, Assigned: partsRow(c.Assigned), Revoking: partsRow(c.Revoking), Target: partsRow(c.Target)}
}

func partsRow(ps []*statepb.TopicPartitions) []TopicPartitions {
	var out []TopicPartitions
	for _, p := range ps {
		t := TopicPartitions{Partitions: p.Partitions, Epochs: p.Epochs}
		copy(t.TopicID[:], p.TopicId)
		out = append(out, t)
	}
	return out
}

// members are those of a group after a PutGroup: all that it names, or the old ones with those that changed. A change of a member
// that stays keeps its place.
func members(old *Group, c *statepb.PutGroup) []*Member {
	var out []*Member
	if c.Delta && old != nil {
		out = slices.Clone(old.Members)
	}
	if len(c.Gone) > 0 {
		out = slices.DeleteFunc(out, func(m *Member) bool { return slices.Contains(c.Gone, m.ID) })
	}
	place := map[string]int{}
	for i, m := range out {
		place[m.ID] = i
	}
	for _, m := range c.Members {
		if i, ok := place[m.Id]; ok {
			out[i] = memberRow(m)
		} else {
			place[m.Id] = len(out)
			out = append(out, memberRow(m))
		}
	}
	return out
}

// checkConsumerCommit is Kafka's ConsumerGroup.validateOffsetCommit. A member may be behind its epoch as long as it had the
// partition in the epoch that it names: what it says of a partition that nobody else was given is still true.
func (s *State) checkConsumerCommit(g *Group, c *statepb.CommitOffsets) *statepb.Result {
	if c.Generation < 0 && len(g.Members) == 0 {
		return nil
	}
	m := g.Member(c.Member)
	if m == nil {
		return s.refuse(statepb.Code_UNKNOWN_MEMBER, "group %s has no member %q", c.Group, c.Member)
	}
	if c.NoEpochs && !m.Classic() {
		return s.refuse(statepb.Code_OLD_REQUEST, "member %s of group %s must commit by OffsetCommit v9 or later", c.Member, c.Group)
	}
	code := statepb.Code_STALE_EPOCH
	if m.Classic() {
		code = statepb.Code_ILLEGAL_GENERATION
	}
	switch {
	case c.Generation == m.Consumer.Epoch:
		return nil
	case c.Generation > m.Consumer.Epoch:
		return s.refuse(code, "member %s of group %s is in epoch %d, not %d", c.Member, c.Group, m.Consumer.Epoch, c.Generation)
	}
	for _, it := range c.Items {
		epoch, ok := int32(0), false
		if t, known := s.topics.get(it.Topic); known {
			if epoch, ok = find(m.Consumer.Assigned, t.ID, it.Partition); !ok {
				epoch, ok = find(m.Consumer.Revoking, t.ID, it.Partition)
			}
		}
		if !ok || c.Generation < epoch {
			return s.refuse(code, "member %s of group %s was not given %s-%d by epoch %d", c.Member, c.Group, it.Topic, it.Partition, c.Generation)
		}
	}
	return nil
}
