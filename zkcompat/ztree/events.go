package ztree

import (
	"strconv"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/raftmeta/state"
)

// Events appends what changes of one entry mean as znode events, in order. v is the view after the entry; the sessions
// are those that ended or were attached anew.
func Events(v *state.View, changes []state.Change, events []Event, sessions []id.SessionID) ([]Event, []id.SessionID) {
	for i := range changes {
		c := &changes[i]
		if topicKind(c.Kind) && state.InternalTopic(c.Topic) {
			continue // hidden
		}
		switch c.Kind {
		case state.ZnodeCreated:
			events = append(events, Event{Path: c.Path, Type: Created})
		case state.ZnodeDeleted:
			events = append(events, Event{Path: c.Path, Type: Deleted})
			if s, ok := left(c); ok {
				events = append(events, Event{Type: Left, Session: s})
			}
		case state.ZnodeData:
			events = append(events, Event{Path: c.Path, Type: Changed})
		case state.TopicCreated:
			events = topicCreated(v, c.Topic, events)
		case state.TopicDeleted:
			events = topicDeleted(c.Topic, c.Partition, events)
		case state.TopicGrown:
			events = append(events, Event{Path: topicsDir + c.Topic, Type: Changed})
			if t, ok := v.Topic(c.Topic); ok {
				events = partitionsCreated(c.Topic, c.Partition, t.Partitions, events)
			}
		case state.PartitionChanged:
			events = append(events, Event{Path: partitionPath(c.Topic, c.Partition) + "/state", Type: Changed})
		case state.ConfigCreated:
			events = append(events, Event{Path: configPath(c), Type: Created})
		case state.ConfigDeleted:
			events = append(events, Event{Path: configPath(c), Type: Deleted})
		case state.ConfigData:
			events = append(events, Event{Path: configPath(c), Type: Changed})
		case state.BrokerShown:
			events = append(events, Event{Path: brokerPath(c.Broker), Type: Created})
		case state.BrokerHidden:
			events = append(events, Event{Path: brokerPath(c.Broker), Type: Deleted})
		case state.OffsetCreated:
			events = append(events, Event{Path: offsetPath(c), Type: Created})
		case state.OffsetChanged:
			events = append(events, Event{Path: offsetPath(c), Type: Changed})
		case state.OffsetDeleted:
			events = append(events, Event{Path: offsetPath(c), Type: Deleted})
		case state.GenerationShown:
			events = append(events, Event{Path: c.Path, Type: Shown, Group: c.Group})
		case state.SessionEnded, state.SessionAttached:
			sessions = append(sessions, c.Session)
		case state.SessionCreated, state.BrokerRegistered, state.BrokerFenced, state.ControllerChanged:
			// no node of their own: the others say it
		}
	}
	return events, sessions
}

func topicKind(k state.ChangeKind) bool {
	return k == state.TopicCreated || k == state.TopicDeleted || k == state.TopicGrown || k == state.PartitionChanged
}

func partitionPath(topic string, p int32) string {
	return topicsDir + topic + "/partitions/" + strconv.Itoa(int(p))
}

func configPath(c *state.Change) string { return configDir + c.Type + "/" + c.Name }

func brokerPath(b id.BrokerID) string { return idsDir + strconv.Itoa(int(b)) }

func offsetPath(c *state.Change) string {
	return groupsDir + c.Group + "/offsets/" + c.Topic + "/" + strconv.Itoa(int(c.Partition))
}

func topicCreated(v *state.View, topic string, events []Event) []Event {
	events = append(events, Event{Path: topicsDir + topic, Type: Created}, Event{Path: topicsDir + topic + "/partitions", Type: Created})
	if t, ok := v.Topic(topic); ok { // it may be gone again within the entry
		events = partitionsCreated(topic, 0, t.Partitions, events)
	}
	return events
}

func partitionsCreated(topic string, from, to int32, events []Event) []Event {
	for p := from; p < to; p++ {
		path := partitionPath(topic, p)
		events = append(events, Event{Path: path, Type: Created}, Event{Path: path + "/state", Type: Created})
	}
	return events
}

func topicDeleted(topic string, partitions int32, events []Event) []Event {
	for p := range partitions {
		path := partitionPath(topic, p)
		events = append(events, Event{Path: path + "/state", Type: Deleted}, Event{Path: path, Type: Deleted})
	}
	return append(events, Event{Path: topicsDir + topic + "/partitions", Type: Deleted}, Event{Path: topicsDir + topic, Type: Deleted})
}
