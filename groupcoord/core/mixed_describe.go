package core

import (
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/barnabas-mq/barnabas/raftmeta/state"
)

// describeZooKeeper adds the znode consumers of a group to an answer of ConsumerGroupDescribe, as members by an older protocol. Their
// epoch is the generation that they are shown.
func (c *Coordinator) describeZooKeeper(out *kmsg.ConsumerGroupDescribeResponseGroup) {
	row, _ := c.v.Legacy(out.Group)
	all := kmsg.NewDescribeGroupsResponseGroup()
	all.Group = out.Group
	c.legacyMembers(&all)
	for _, m := range all.Members {
		o := kmsg.NewConsumerGroupDescribeResponseGroupMember()
		o.MemberID, o.ClientID, o.ClientHost, o.MemberEpoch, o.MemberType = m.MemberID, m.ClientID, m.ClientHost, numberOf(row), 0
		o.SubscribedTopics = []string{}
		if z, ok := c.v.Znode("/consumers/" + out.Group + "/ids/" + m.MemberID); ok {
			if reg, ok := state.ParseRegistration(z.Data); ok {
				for _, t := range reg.Topics {
					o.SubscribedTopics = append(o.SubscribedTopics, t.Topic)
				}
			}
		}
		var a kmsg.ConsumerMemberAssignment
		owned := []kmsg.AssignmentTopicPartition{}
		if a.ReadFrom(m.MemberAssignment) == nil {
			for _, t := range a.Topics {
				row, ok := c.v.Topic(t.Topic)
				if !ok {
					continue
				}
				tp := kmsg.NewAssignmentTopicPartition()
				tp.TopicID, tp.Topic, tp.Partitions = row.ID, t.Topic, t.Partitions
				owned = append(owned, tp)
			}
		}
		o.Assignment.TopicPartitions, o.TargetAssignment.TopicPartitions = owned, owned
		out.Members = append(out.Members, o)
	}
}
