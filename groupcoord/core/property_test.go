package core

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
	"pgregory.net/rapid"

	"github.com/barnabas-mq/barnabas/raftmeta/state"
	pb "github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
)

// phase is where a consumer is in the protocol.
type phase int

const (
	isIdle    phase = iota // to join
	isJoining              // waits for the answer
	isJoined               // to sync
	isSyncing
	isStable
)

// consumer is a client that does as real ones do.
type consumer struct {
	name, instance string
	version        int16
	id             string
	generation     int32
	phase          phase
	owns           string // what its last assignment says
	members        []string
}

// crowd is several consumers at one mind, and what has been told to whom.
type crowd struct {
	*stage
	rt        *rapid.T
	consumers []*consumer
	lists     map[int32]string            // members of a generation, as its leader was told
	owners    map[int32]map[string]string // of a generation: partition to member
	highest   int32
}

func newCrowd(t *testing.T, rt *rapid.T) *crowd {
	cfg := Config{InitialDelay: -1}
	if rapid.Bool().Draw(rt, "initial delay") {
		cfg.InitialDelay = 3 * time.Second
	}
	c := &crowd{stage: newStage(t, cfg), rt: rt, lists: map[int32]string{}, owners: map[int32]map[string]string{}}
	for i := range rapid.IntRange(1, 5).Draw(rt, "consumers") {
		x := &consumer{name: string(rune('a' + i)), version: rapid.SampledFrom([]int16{0, 2, 4, 5, 9}).Draw(rt, "version")}
		if x.version >= 5 && rapid.Bool().Draw(rt, "static") {
			x.instance = "i" + x.name
		}
		c.consumers = append(c.consumers, x)
	}
	c.onReply = c.told
	return c
}

func (c *crowd) who(name string) *consumer {
	for _, x := range c.consumers {
		if x.name == name {
			return x
		}
	}
	return nil
}

func (c *crowd) told(name string, r Request, resp kmsg.Response, res *pb.Result) {
	c.checkRow()
	x := c.who(name)
	switch resp := resp.(type) {
	case nil:
		b := r.Command.GetCommitOffsets()
		row := c.row()
		if res.Code == pb.Code_OK && (row == nil || row.Generation != b.Generation || row.Member(b.Member) == nil || row.State == state.GroupCompleting) {
			c.rt.Fatalf("a commit of %s in generation %d was taken at %+v", b.Member, b.Generation, row)
		}
	case *kmsg.JoinGroupResponse:
		if x.phase != isJoining || r.ID != c.asked(x) {
			return // an answer to a former life
		}
		if x.fault(resp.ErrorCode) {
			if resp.ErrorCode == kerr.MemberIDRequired.Code {
				x.id = resp.MemberID
			}
			return
		}
		x.id, x.generation, x.phase, x.members = resp.MemberID, resp.Generation, isJoined, nil
		if resp.LeaderID == x.id && len(resp.Members) > 0 {
			c.checkList(x, resp)
		}
	case *kmsg.SyncGroupResponse:
		if x.phase != isSyncing || r.ID != c.asked(x) || x.fault(resp.ErrorCode) {
			return
		}
		x.phase, x.owns = isStable, string(resp.MemberAssignment)
		c.checkOwner(x)
	case *kmsg.HeartbeatResponse:
		if x.phase == isStable {
			x.fault(resp.ErrorCode)
		}
	}
}

// asked is the consumer's newest request.
func (c *crowd) asked(x *consumer) RequestID {
	newest := RequestID(0)
	for r, n := range c.names {
		if n == x.name && r > newest {
			newest = r
		}
	}
	return newest
}

func (x *consumer) fault(code int16) bool {
	switch code {
	case 0:
		return false
	case kerr.UnknownMemberID.Code, kerr.FencedInstanceID.Code:
		x.id = ""
	}
	x.phase, x.owns = isIdle, ""
	return true
}

func (c *crowd) checkList(x *consumer, resp *kmsg.JoinGroupResponse) {
	for _, m := range resp.Members {
		x.members = append(x.members, m.MemberID)
	}
	if resp.SkipAssignment {
		x.members = nil
		return
	}
	list := fmt.Sprint(x.members)
	if old, ok := c.lists[x.generation]; ok && old != list && x.instance == "" && !strings.Contains(old, "i") {
		c.rt.Fatalf("generation %d has members %s and %s", x.generation, old, list)
	}
	c.lists[x.generation] = list
}

// checkOwner: one owner for a partition in a generation. A static member's later self is the same owner.
func (c *crowd) checkOwner(x *consumer) {
	if c.owners[x.generation] == nil {
		c.owners[x.generation] = map[string]string{}
	}
	for _, p := range strings.Fields(x.owns) {
		if old, ok := c.owners[x.generation][p]; ok && old != x.name {
			c.rt.Fatalf("partition %s belongs to %s and %s in generation %d", p, old, x.name, x.generation)
		}
		c.owners[x.generation][p] = x.name
	}
}

func (c *crowd) checkRow() {
	row := c.row()
	if row == nil {
		return
	}
	if row.Generation < c.highest {
		c.rt.Fatalf("generation %d after %d", row.Generation, c.highest)
	}
	c.highest = row.Generation
	seen := map[string]bool{}
	for _, m := range row.Members {
		if seen[m.ID] || m.Instance != "" && seen["instance "+m.Instance] {
			c.rt.Fatalf("member twice: %+v", m)
		}
		seen[m.ID], seen["instance "+m.Instance] = true, true
	}
	if row.State != state.GroupEmpty && row.Member(row.Leader) == nil {
		c.rt.Fatalf("leader %s is no member", row.Leader)
	}
	for _, m := range row.Members { // every member's end is watched
		if g := c.mind.groups["g"]; g == nil || g.put == nil && g.draft == nil && g.retryAt == never && g.sessions[m.ID] == nil {
			c.rt.Fatalf("member %s has no session", m.ID)
		}
	}
}

// do makes a consumer's next move.
func (c *crowd) do(x *consumer) {
	l := line{name: x.name, kv: map[string]string{"v": fmt.Sprint(x.version), "id": "-" + x.id, "session": "10", "rebalance": "20"}}
	if x.instance != "" {
		l.kv["as"] = x.instance
	}
	switch x.phase {
	case isIdle:
		x.phase = isJoining
		l.verb = "join"
	case isJoined:
		x.phase = isSyncing
		l.verb = "sync"
		l.kv["gen"] = fmt.Sprint(x.generation)
		if len(x.members) > 0 {
			c.syncAsLeader(x)
			return
		}
	case isStable:
		l.verb, l.kv["gen"] = "heartbeat", fmt.Sprint(x.generation)
	default:
		return
	}
	c.tell(l)
}

func (c *crowd) syncAsLeader(x *consumer) {
	req := kmsg.NewPtrSyncGroupRequest()
	req.Version, req.Group, req.MemberID, req.Generation = 5, "g", x.id, x.generation
	if x.instance != "" {
		req.InstanceID = &x.instance
	}
	for i, m := range x.members {
		req.GroupAssignment = append(req.GroupAssignment, kmsg.SyncGroupRequestGroupAssignment{MemberID: m, MemberAssignment: []byte(fmt.Sprintf("p%d", i))})
	}
	c.kafka(x.name, req)
}

// restart is a consumer's process that ends without a word, and starts anew.
func (c *crowd) restart(x *consumer) {
	c.tell(line{verb: "cancel", name: x.name})
	x.id, x.phase, x.owns, x.members = "", isIdle, "", nil
}

func (c *crowd) fate() {
	x := rapid.SampledFrom(c.consumers).Draw(c.rt, "who")
	switch rapid.IntRange(0, 14).Draw(c.rt, "fate") {
	case 0:
		c.restart(x)
	case 1:
		if x.id != "" && x.phase == isStable {
			c.tell(line{verb: "commit", name: x.name, kv: map[string]string{"id": x.id, "gen": fmt.Sprint(x.generation - int32(rapid.IntRange(0, 1).Draw(c.rt, "behind")))}})
		}
	case 2:
		if x.id != "" && x.instance == "" {
			c.tell(line{verb: "cancel", name: x.name})
			c.members[x.name] = x.id
			c.tell(line{verb: "leave", name: x.name, kv: map[string]string{}})
			x.id, x.phase, x.owns, x.members = "", isIdle, "", nil
		}
	case 3:
		c.failover()
	case 4:
		c.hold = true
	case 5:
		c.release()
	case 6:
		c.lose = rapid.SampledFrom([]string{"applied", "dropped"}).Draw(c.rt, "outcome")
	case 7, 8:
		c.advance(time.Duration(rapid.IntRange(1, 12_000).Draw(c.rt, "ms")) * time.Millisecond)
	case 9:
		c.tell(line{verb: "describe", kv: map[string]string{}})
	default:
		c.do(x)
	}
	c.out.Reset()
	c.checkRow()
}

// Whatever members, the clock and coordinators do: generations only rise, a partition has one owner in a generation, no commit
// of another generation is taken; and when the faults end, all members are in one stable generation soon.
func TestMembersOfOneGroup(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		c := newCrowd(t, rt)
		for range rapid.IntRange(1, 80).Draw(rt, "steps") {
			c.fate()
		}
		c.release()
		c.lose = ""
		for range 60 {
			if c.settled() {
				return
			}
			for _, x := range c.consumers {
				c.do(x)
			}
			c.advance(time.Second)
		}
		c.out.Reset()
		c.tell(line{verb: "describe", kv: map[string]string{}})
		rt.Fatalf("not stable after a minute:\n%s", c.out.String())
	})
}

func (c *crowd) settled() bool {
	row, owned := c.row(), map[string]bool{}
	for _, x := range c.consumers {
		owned[x.owns] = true // its leader gives every member one partition
		if x.phase != isStable || row == nil || x.generation != row.Generation {
			return false
		}
	}
	if row.State != state.GroupStable || len(row.Members) != len(c.consumers) || c.mind.groups["g"].reb != nil {
		return false
	}
	if len(owned) != len(c.consumers) || owned[""] || owned[fmt.Sprintf("p%d", len(owned))] {
		c.rt.Fatalf("stable in generation %d with %v", row.Generation, owned)
	}
	return true
}
