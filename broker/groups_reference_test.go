package broker

import (
	"bufio"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/barnabas-mq/barnabas/internal/testtool"
	"github.com/barnabas-mq/barnabas/internal/testtool/reference"
)

// drama is a group's life over one broker, written down: every member has a connection, and ids are written as who has them.
type drama struct {
	t     testing.TB
	addr  string
	top   map[int16]int16 // newest version by key
	conns map[string]*client
	ids   map[string]string // member id by name
	lines []string
}

func (d *drama) at(name string) *client {
	if d.conns[name] == nil {
		c, err := net.Dial("tcp", d.addr)
		if err != nil {
			d.t.Fatal(err)
		}
		d.t.Cleanup(func() { _ = c.Close() })
		d.conns[name] = &client{t: d.t, c: c, in: bufio.NewReader(c)}
	}
	return d.conns[name]
}

func (d *drama) id(name string) string {
	if id, ok := d.ids[name]; ok {
		return id
	}
	return name
}

func (d *drama) mask(s string) string {
	for name, id := range d.ids {
		if id == s && id != "" {
			return "<" + name + ">"
		}
	}
	return s
}

func (d *drama) note(format string, args ...any) {
	d.lines = append(d.lines, fmt.Sprintf(format, args...))
}

func (d *drama) versioned(req kmsg.Request) kmsg.Request {
	req.SetVersion(d.top[req.Key()])
	return req
}

func (d *drama) joinRequest(name, protocolType string, session int32, protocols ...string) *kmsg.JoinGroupRequest {
	req := d.versioned(kmsg.NewPtrJoinGroupRequest()).(*kmsg.JoinGroupRequest)
	req.Group, req.MemberID, req.ProtocolType, req.SessionTimeoutMillis, req.RebalanceTimeoutMillis = "g", d.ids[name], protocolType, session, 60_000
	if name == strings.ToUpper(name) && req.Version >= 5 { // static members have names in capitals
		req.InstanceID = &name
	}
	meta := kmsg.NewConsumerMemberMetadata()
	meta.Topics = []string{"t"}
	for _, p := range protocols {
		req.Protocols = append(req.Protocols, kmsg.JoinGroupRequestProtocol{Name: p, Metadata: meta.AppendTo(nil)})
	}
	return req
}

func (d *drama) joined(name string, req *kmsg.JoinGroupRequest) {
	d.t.Helper()
	resp := d.at(name).receive(req).(*kmsg.JoinGroupResponse)
	if resp.ErrorCode == 0 || resp.ErrorCode == 79 {
		d.ids[name] = resp.MemberID
	}
	if resp.ErrorCode != 0 {
		d.note("%s join: %d", name, resp.ErrorCode)
		return
	}
	d.note("%s join: generation %d, %s, leader %s, %d members, skip %v", name, resp.Generation, *resp.Protocol, d.mask(resp.LeaderID), len(resp.Members), resp.SkipAssignment)
}

// join joins, twice when it must; parks says that the answer comes later.
func (d *drama) join(name string, protocols ...string) {
	d.t.Helper()
	req := d.enter(name, protocols...)
	d.joined(name, req)
}

func (d *drama) enter(name string, protocols ...string) *kmsg.JoinGroupRequest {
	d.t.Helper()
	if len(protocols) == 0 {
		protocols = []string{"range", "other"}
	}
	req := d.joinRequest(name, "consumer", 10_000, protocols...)
	if req.MemberID == "" && req.Version >= 4 && req.InstanceID == nil {
		d.at(name).send(req)
		d.joined(name, req)
		req.MemberID = d.ids[name]
	}
	d.at(name).send(req)
	return req
}

func (d *drama) sync(name string, generation int32, assign ...string) {
	d.t.Helper()
	req := d.startSync(name, generation, assign...)
	d.synced(name, req)
}

func (d *drama) startSync(name string, generation int32, assign ...string) kmsg.Request {
	req := d.versioned(kmsg.NewPtrSyncGroupRequest()).(*kmsg.SyncGroupRequest)
	req.Group, req.MemberID, req.Generation = "g", d.id(name), generation
	if name == strings.ToUpper(name) && req.Version >= 3 {
		req.InstanceID = &name
	}
	if req.Version >= 5 {
		consumer, protocol := "consumer", "range"
		req.ProtocolType, req.Protocol = &consumer, &protocol
	}
	for _, a := range assign {
		req.GroupAssignment = append(req.GroupAssignment, kmsg.SyncGroupRequestGroupAssignment{MemberID: d.id(a), MemberAssignment: []byte("for " + a)})
	}
	d.at(name).send(req)
	return req
}

func (d *drama) synced(name string, req kmsg.Request) {
	d.t.Helper()
	resp := d.at(name).receive(req).(*kmsg.SyncGroupResponse)
	d.note("%s sync: %d %q", name, resp.ErrorCode, resp.MemberAssignment)
}

func (d *drama) heartbeat(name string, generation int32) {
	d.t.Helper()
	req := d.versioned(kmsg.NewPtrHeartbeatRequest()).(*kmsg.HeartbeatRequest)
	req.Group, req.MemberID, req.Generation = "g", d.id(name), generation
	d.note("%s heartbeat in %d: %d", name, generation, ask[*kmsg.HeartbeatResponse](d.at("tool"), req).ErrorCode)
}

func (d *drama) commit(name string, generation int32) {
	d.t.Helper()
	req := d.versioned(commitRequest(0, d.id(name), generation)).(*kmsg.OffsetCommitRequest)
	d.note("%q commit in %d: %d", name, generation, ask[*kmsg.OffsetCommitResponse](d.at("tool"), req).Topics[0].Partitions[0].ErrorCode)
}

func (d *drama) leave(names ...string) {
	d.t.Helper()
	req := d.versioned(kmsg.NewPtrLeaveGroupRequest()).(*kmsg.LeaveGroupRequest)
	req.Group = "g"
	if req.Version < 3 {
		req.MemberID = d.id(names[0])
	} else {
		for _, n := range names {
			req.Members = append(req.Members, kmsg.LeaveGroupRequestMember{MemberID: d.id(n)})
		}
	}
	resp := ask[*kmsg.LeaveGroupResponse](d.at("tool"), req)
	codes := []int16{resp.ErrorCode}
	for _, m := range resp.Members {
		codes = append(codes, m.ErrorCode)
	}
	d.note("%v leave: %v", names, codes)
}

// later does what 1.1.1 does in another way: there it is done and not written down. (In a generation without assignment 1.1.1 answers
// 27 to every heartbeat and commit; a refused join has generation 0 there.)
func (d *drama) later(do func()) {
	n := len(d.lines)
	if do(); d.top[11] < 5 {
		d.lines = d.lines[:n]
	}
}

func (d *drama) describe() {
	d.t.Helper()
	req := d.versioned(kmsg.NewPtrDescribeGroupsRequest()).(*kmsg.DescribeGroupsRequest)
	req.Groups = []string{"g"}
	g := ask[*kmsg.DescribeGroupsResponse](d.at("tool"), req).Groups[0]
	d.note("describe: %d %s %q %q", g.ErrorCode, g.State, g.ProtocolType, g.Protocol)
	var members []string
	for _, m := range g.Members {
		if g.State != "Stable" { // 4.4 still shows the assignment of the generation before, 1.1.1 and ours do not
			m.MemberAssignment = nil
		}
		members = append(members, fmt.Sprintf("  %s %s %x %q", m.ClientID, m.ClientHost, m.ProtocolMetadata, m.MemberAssignment))
	}
	slices.Sort(members)
	d.lines = append(d.lines, members...)
}

func (d *drama) remove() {
	d.t.Helper()
	d.note("delete: %d", deleteGroup(d.at("tool"), min(1, d.top[42]), "g"))
}

// play is the group's life. Kafka 1.1.1 has no static members and no deletion of offsets.
func (d *drama) play() {
	d.heartbeat("x", 1)
	d.commit("x", 1)
	d.leave("x")
	d.describe()
	d.remove()
	d.commit("", -1)
	d.describe()
	d.ids["x"] = "x"
	for _, req := range []*kmsg.JoinGroupRequest{d.joinRequest("x", "consumer", 10_000, "range"), d.joinRequest("y", "consumer", 1, "range"),
		d.joinRequest("y", "consumer", 10_000_000, "range"), d.joinRequest("y", "consumer", 10_000), d.joinRequest("y", "", 10_000, "range")} {
		d.at("tool").send(req)
		resp := d.at("tool").receive(req).(*kmsg.JoinGroupResponse)
		d.note("refused: %d, protocol %v, leader %q", resp.ErrorCode, resp.Protocol == nil, resp.LeaderID)
		d.later(func() { d.note("generation %d", resp.Generation) })
	}
	d.join("a")
	d.describe()
	d.commit("a", 1)
	d.later(func() {
		for _, generation := range []int32{0, 1, 2} {
			d.commit("a", generation)
			d.heartbeat("a", generation)
		}
	})
	d.sync("a", 0)
	d.sync("a", 1, "a")
	d.sync("a", 1, "a")
	d.sync("x", 1)
	d.describe()
	for _, who := range []string{"a", "x", ""} {
		for _, generation := range []int32{-1, 0, 1} {
			d.commit(who, generation)
		}
	}
	d.second()
	d.leave("x")
	d.leave("a")
	d.heartbeat("b", 2)
	d.join("b")
	d.sync("b", 3, "b")
	if d.top[11] >= 5 {
		d.statics()
	}
	d.leave("b")
	d.describe()
	d.heartbeat("b", 3)
	d.commit("b", 3)
	d.commit("", -1)
	d.remove()
	d.describe()
	d.remove()
}

// awaitRebalance returns when a member hears of a rebalance: then the join that was sent has arrived.
func (d *drama) awaitRebalance(name string, generation int32) {
	d.t.Helper()
	n := len(d.lines)
	waitFor(d.t, func() bool {
		d.lines = d.lines[:n]
		d.heartbeat(name, generation)
		return strings.HasSuffix(d.lines[n], ": 27")
	})
}

// second lets another member in.
func (d *drama) second() {
	b := d.enter("b", "range", "third")
	d.awaitRebalance("a", 1)
	d.commit("a", 1)
	d.sync("a", 1)
	d.describe()
	d.remove()
	d.join("a")
	d.joined("b", b)
	d.commit("b", 2)
	d.later(func() {
		d.commit("b", 1)
		d.heartbeat("b", 2)
	})
	d.join("b", "range", "third")
	wait := d.startSync("b", 2)
	d.sync("a", 2, "a", "b")
	d.synced("b", wait)
	d.join("b", "range", "third")
	d.describe()
	for _, req := range []*kmsg.JoinGroupRequest{d.joinRequest("y", "connect", 10_000, "range"), d.joinRequest("y", "consumer", 10_000, "none")} {
		d.at("tool").send(req)
		d.note("cannot agree: %d", d.at("tool").receive(req).(*kmsg.JoinGroupResponse).ErrorCode)
	}
	d.remove()
}

func (d *drama) statics() {
	c := d.enter("C")
	d.awaitRebalance("b", 3)
	d.join("b")
	d.joined("C", c)
	wait := d.startSync("C", 4)
	d.sync("b", 4, "b", "C")
	d.synced("C", wait)
	former := d.ids["C"]
	d.ids["C"] = ""
	d.join("C")
	d.sync("C", 4)
	d.ids["former"], d.ids["C"] = d.ids["C"], former
	d.sync("C", 4)
	d.heartbeat("C", 4)
	d.ids["C"] = d.ids["former"]
	delete(d.ids, "former")
	d.leave("C", "x")
	d.join("b")
	d.sync("b", 5, "b")
}

// The life of a group at a real Kafka and at ours reads the same.
func TestGroupsLikeKafka(t *testing.T) {
	for name, ref := range map[string]struct {
		start func(t *testing.T) string
		top   map[int16]int16
	}{
		"1.1.1": {
			start: func(t *testing.T) string {
				zk := reference.ZooKeeper(t)
				return reference.Kafka(t, testtool.Kafka111, zk.Addr, "broker.id=1", "group.initial.rebalance.delay.ms=0", "offsets.topic.replication.factor=1",
					"offsets.topic.num.partitions=1", "group.max.session.timeout.ms=1800000").Addr
			},
			top: map[int16]int16{8: 3, 11: 2, 12: 1, 13: 1, 14: 1, 15: 1, 42: 0},
		},
		"4.4": {
			start: func(t *testing.T) string {
				return reference.Kafka44(t, "group.initial.rebalance.delay.ms=0", "offsets.topic.replication.factor=1", "offsets.topic.num.partitions=1").Addr
			},
			top: map[int16]int16{8: 8, 11: 9, 12: 4, 13: 5, 14: 5, 15: 5, 42: 2},
		},
	} {
		t.Run(name, func(t *testing.T) {
			theirs := &drama{t: t, addr: ref.start(t), top: ref.top, conns: map[string]*client{}, ids: map[string]string{}}
			createTopic(theirs.at("tool"), 2, "t", 1, 1, nil)
			awaitTopics(theirs.at("tool"))
			waitFor(t, func() bool { // until the coordinator is loaded
				req := kmsg.NewPtrHeartbeatRequest()
				req.Group = "other"
				find := kmsg.NewPtrFindCoordinatorRequest()
				find.Version, find.CoordinatorKey = 1, "g"
				return ask[*kmsg.FindCoordinatorResponse](theirs.at("tool"), find).ErrorCode == 0 && ask[*kmsg.HeartbeatResponse](theirs.at("tool"), req).ErrorCode == 25
			})
			theirs.play()
			f := start(t, nil)
			ours := &drama{t: t, addr: f.addr, top: ref.top, conns: map[string]*client{}, ids: map[string]string{}}
			createTopic(ours.at("tool"), 2, "t", 1, 1, nil)
			ours.play()
			if a, b := strings.Join(theirs.lines, "\n"), strings.Join(ours.lines, "\n"); a != b {
				t.Errorf("Kafka %s:\n%s\n\nours:\n%s", name, a, b)
			}
		})
	}
}
