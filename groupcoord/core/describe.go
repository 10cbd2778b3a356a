package core

import (
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/raftmeta/state"
)

const (
	notAsked        = -1 << 31
	groupOperations = 1<<3 | 1<<6 | 1<<8 // read, delete, describe: nothing is forbidden
)

// describe answers for groups of all kinds as Kafka's tools expect it (GroupMetadataManager.describeGroups). A group that does
// not exist is "Dead" before v6.
func (c *Coordinator) describe(r Request, req *kmsg.DescribeGroupsRequest) {
	resp := req.ResponseKind().(*kmsg.DescribeGroupsResponse)
	for _, name := range req.Groups {
		out := kmsg.NewDescribeGroupsResponseGroup()
		out.Group, out.Members = name, []kmsg.DescribeGroupsResponseGroupMember{}
		if out.AuthorizedOperations = notAsked; req.IncludeAuthorizedOperations {
			out.AuthorizedOperations = groupOperations
		}
		kind, st := c.kind(name)
		switch {
		case state.ValidGroupID(name) != "":
			out.ErrorCode = kerr.InvalidGroupID.Code
		case kind == kindNone:
			if out.State = "Dead"; req.Version >= 6 {
				why := "there is no group " + name
				out.ErrorCode, out.ErrorMessage = kerr.GroupIDNotFound.Code, &why
			}
		default:
			out.State = st
			switch kind {
			case kindConsumer:
				c.describeAsClassic(&out)
			case kindClassic:
				c.describeMembers(&out, st == "Stable")
			case kindLegacy:
				c.describeLegacy(&out)
			}
		}
		resp.Groups = append(resp.Groups, out)
	}
	c.do(Action{Request: r.ID, Answer: resp})
}

func (c *Coordinator) describeMembers(out *kmsg.DescribeGroupsResponseGroup, stable bool) {
	row, _ := c.v.Group(out.Group)
	members := []*state.Member(nil)
	if row != nil {
		out.ProtocolType, members = row.ProtocolType, row.Members
	}
	if g := c.groups[out.Group]; g != nil && g.reb != nil { // with those on the way in
		g.row = row
		out.ProtocolType, members = g.protocolType(), g.everyone()
	}
	if stable {
		out.Protocol = row.Protocol
	}
	for _, m := range members {
		o := kmsg.NewDescribeGroupsResponseGroupMember()
		o.MemberID, o.ClientID, o.ClientHost = m.ID, m.Client, "/"+m.Host
		o.ProtocolMetadata, o.MemberAssignment = []byte{}, []byte{}
		if m.Instance != "" {
			o.InstanceID = &m.Instance
		}
		if stable {
			o.ProtocolMetadata = append(o.ProtocolMetadata, metadata(m, row.Protocol)...)
			o.MemberAssignment = append(o.MemberAssignment, m.Assignment...)
		}
		out.Members = append(out.Members, o)
	}
}

// describeLegacy shows znode consumers as members, with the partitions whose owner znodes they hold.
func (c *Coordinator) describeLegacy(out *kmsg.DescribeGroupsResponseGroup) {
	out.ProtocolType, out.Protocol = "consumer", "zookeeper"
	c.legacyMembers(out)
}

// legacyMembers adds the znode consumers of a group.
func (c *Coordinator) legacyMembers(out *kmsg.DescribeGroupsResponseGroup) {
	owned := map[string]map[string][]int32{} // by member and topic
	c.v.GroupOwners(out.Group, func(topic, name string, z *state.Znode) {
		member := string(z.Data)
		if i := strings.LastIndexByte(member, '-'); i > 0 {
			if _, exact := c.v.Znode("/consumers/" + out.Group + "/ids/" + member); !exact {
				member = member[:i] // <id>-<thread>
			}
		}
		if n, ok := state.ParsePartition(name[strings.LastIndexByte(name, '-')+1:]); ok { // pykafka claims <leader>-<partition>
			if owned[member] == nil {
				owned[member] = map[string][]int32{}
			}
			owned[member][topic] = append(owned[member][topic], n)
		}
	})
	c.v.Members(out.Group, func(member string, z *state.Znode) bool {
		o := kmsg.NewDescribeGroupsResponseGroupMember()
		o.MemberID, o.ClientID, o.ClientHost = member, member, "zookeeper" // by which tools of ours tell its kind
		if s, ok := c.v.Session(id.SessionID(z.Stat.EphemeralOwner)); ok && s.Host != "" {
			o.ClientHost += "/" + s.Host
		}
		o.ProtocolMetadata = []byte{}
		a := kmsg.NewConsumerMemberAssignment()
		for topic, partitions := range owned[member] {
			t := kmsg.NewConsumerMemberAssignmentTopic()
			t.Topic, t.Partitions = topic, partitions
			slices.Sort(t.Partitions)
			a.Topics = append(a.Topics, t)
		}
		slices.SortFunc(a.Topics, func(x, y kmsg.ConsumerMemberAssignmentTopic) int { return strings.Compare(x.Topic, y.Topic) })
		o.MemberAssignment = a.AppendTo(nil)
		out.Members = append(out.Members, o)
		return true
	})
}

// describeAsClassic shows a consumer group to tools that know no others: its members with what they may own.
func (c *Coordinator) describeAsClassic(out *kmsg.DescribeGroupsResponseGroup) {
	row, _ := c.v.Group(out.Group)
	out.ProtocolType, out.Protocol = "consumer", row.Protocol
	if out.State == "Reconciling" { // older tools know no such state
		out.State = "PreparingRebalance"
	}
	for _, m := range row.Members {
		o := kmsg.NewDescribeGroupsResponseGroupMember()
		o.MemberID, o.ClientID, o.ClientHost = m.ID, m.Client, "/"+m.Host
		if m.Instance != "" {
			o.InstanceID = &m.Instance
		}
		meta := kmsg.NewConsumerMemberMetadata()
		meta.Topics = m.Consumer.Topics
		o.ProtocolMetadata, o.MemberAssignment = meta.AppendTo(nil), c.assignment(m, m.Consumer.Assigned)
		out.Members = append(out.Members, o)
	}
	c.legacyMembers(out) // of a mixed group
}

type kind int

const (
	kindNone     kind = iota
	kindSimple        // offsets alone
	kindClassic       // members came by JoinGroup
	kindConsumer      // the coordinator assigns
	kindLegacy        // znode consumers are live
)

// kind tells what a group is, and its state in Kafka's words.
func (c *Coordinator) kind(name string) (kind, string) {
	if g := c.groups[name]; g != nil && (g.reb != nil || len(g.joins) > 0) {
		g.row, _ = c.v.Group(name)
		return kindClassic, g.state()
	}
	row, ok := c.v.Group(name)
	switch {
	case !ok:
		return kindNone, "Dead"
	case row.Consumer && len(row.Members) > 0:
		st := (&group{row: row}).state()
		if st == "Stable" && legacy(c.v, name) && c.legacyState(name) != "Stable" {
			st = "Reconciling"
		}
		return kindConsumer, st
	case len(row.Members) > 0:
		return kindClassic, (&group{row: row}).state()
	case legacy(c.v, name):
		return kindLegacy, c.legacyState(name)
	case row.Consumer:
		return kindConsumer, "Empty"
	case row.Classic():
		return kindClassic, "Empty"
	}
	k := kindNone // directories alone are no group
	c.v.Offsets(name, func(string, *state.Offset) bool { k = kindSimple; return false })
	if k == kindNone {
		return k, "Dead"
	}
	return k, "Empty"
}

func (c *Coordinator) list(r Request, req *kmsg.ListGroupsRequest) {
	resp := req.ResponseKind().(*kmsg.ListGroupsResponse)
	resp.Groups = []kmsg.ListGroupsResponseGroup{}
	wanted := func(filter []string, is string) bool {
		return len(filter) == 0 || slices.ContainsFunc(filter, func(f string) bool { return strings.EqualFold(f, is) })
	}
	add := func(name, protocolType, st, typ string) {
		out := kmsg.NewListGroupsResponseGroup()
		out.Group, out.ProtocolType, out.GroupState, out.GroupType = name, protocolType, st, typ
		if wanted(req.StatesFilter, st) && wanted(req.TypesFilter, out.GroupType) {
			resp.Groups = append(resp.Groups, out)
		}
	}
	c.v.Groups(func(row *state.Group) bool {
		switch kind, st := c.kind(row.Name); kind {
		case kindClassic, kindSimple:
			add(row.Name, row.ProtocolType, st, "classic")
		case kindLegacy:
			add(row.Name, "consumer", st, "classic")
		case kindConsumer:
			add(row.Name, "consumer", st, "consumer")
		}
		return true
	})
	for _, name := range c.names() { // first members on their way in
		if g := c.groups[name]; g.reb != nil {
			if _, ok := c.v.Group(name); !ok {
				add(name, g.protocolType(), g.state(), "classic")
			}
		}
	}
	c.do(Action{Request: r.ID, Answer: resp})
}
