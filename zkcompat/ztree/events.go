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
			events = append(events, Event{c.Path, Created})
		case state.ZnodeDeleted:
			events = append(events, Event{c.Path, Deleted})
		case state.ZnodeData:
			events = append(events, Event{c.Path, Changed})
		case state.TopicCreated:
			events = topicCreated(v, c.Topic, events)
		case state.TopicDeleted:
			events = topicDeleted(c.Topic, c.Partition, events)
		case state.TopicGrown:
			events = append(events, Event{topicsDir + c.Topic, Changed})
			if t, ok := v.Topic(c.Topic); ok {
				events = partitionsCreated(c.Topic, c.Partition, t.Partitions, events)
			}
		case state.PartitionChanged:
			events = append(events, Event{partitionPath(c.Topic, c.Partition) + "/state", Changed})
		case state.ConfigCreated:
			events = append(events, Event{configPath(c), Created})
		case state.ConfigDeleted:
			events = append(events, Event{configPath(c), Deleted})
		case state.ConfigData:
			events = append(events, Event{configPath(c), Changed})
		case state.BrokerShown:
			events = append(events, Event{brokerPath(c.Broker), Created})
		case state.BrokerHidden:
			events = append(events, Event{brokerPath(c.Broker), Deleted})
		case state.OffsetCreated:
			events = append(events, Event{offsetPath(c), Created})
		case state.OffsetChanged:
			events = append(events, Event{offsetPath(c), Changed})
		case state.OffsetDeleted:
			events = append(events, Event{offsetPath(c), Deleted})
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
	events = append(events, Event{topicsDir + topic, Created}, Event{topicsDir + topic + "/partitions", Created})
	if t, ok := v.Topic(topic); ok { // it may be gone again within the entry
		events = partitionsCreated(topic, 0, t.Partitions, events)
	}
	return events
}

func partitionsCreated(topic string, from, to int32, events []Event) []Event {
	for p := from; p < to; p++ {
		path := partitionPath(topic, p)
		events = append(events, Event{path, Created}, Event{path + "/state", Created})
	}
	return events
}

func topicDeleted(topic string, partitions int32, events []Event) []Event {
	for p := range partitions {
		path := partitionPath(topic, p)
		events = append(events, Event{path + "/state", Deleted}, Event{path, Deleted})
	}
	return append(events, Event{topicsDir + topic + "/partitions", Deleted}, Event{topicsDir + topic, Deleted})
}
