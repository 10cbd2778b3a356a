package broker

import (
	"crypto/rand"
	"fmt"
	"slices"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/raftmeta/state"
	"github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
)

// topicWish is a topic as a client asks for it.
type topicWish struct {
	name        string
	partitions  int32             // -1: the broker's default
	replication int16             // -1: the broker's default
	assignments map[int32][]int32 // by partition; empty: we place
	configs     map[string]string
}

// topicPlan is a topic ready to be made.
type topicPlan struct {
	name        string
	id          id.TopicID
	assignments []*statepb.Assignment
	configs     map[string]string
}

func (p *topicPlan) command() *statepb.Command {
	c := &statepb.CreateTopic{Name: p.name, TopicId: p.id[:], Assignments: p.assignments, Configs: protoEntries(p.configs)}
	return &statepb.Command{Body: &statepb.Command_CreateTopic{CreateTopic: c}}
}

// replication is the largest number of replicas that a partition gets.
func (p *topicPlan) replication() int16 {
	n := 0
	for _, a := range p.assignments {
		n = max(n, len(a.Replicas))
	}
	return int16(n)
}

// planTopic checks a wish against the view and places its replicas. The error codes are those of kafka.server.AdminManager.
func (s *Server) planTopic(v *state.View, w *topicWish) (*topicPlan, *fault) {
	if why := state.ValidTopicName(w.name); why != "" {
		return nil, faultOf(kerr.InvalidTopicException, why)
	}
	if _, ok := v.Topic(w.name); ok {
		return nil, faultOf(kerr.TopicAlreadyExists, fmt.Sprintf("Topic '%s' already exists.", w.name))
	}
	if f := checkTopicConfigs(w.configs); f != nil {
		return nil, f
	}
	p := &topicPlan{name: w.name, configs: w.configs}
	_, _ = rand.Read(p.id[:]) // never fails (crypto/rand)
	if len(w.assignments) > 0 {
		if w.partitions != -1 || w.replication != -1 {
			return nil, faultOf(kerr.InvalidRequest, "give replica assignments, or numbers of partitions and replicas, not both")
		}
		var f *fault
		p.assignments, f = given(v, w.assignments, 0)
		return p, f
	}
	n := w.partitions
	if n == -1 {
		n = s.cfg.NumPartitions
	}
	if n < 1 || n > state.MaxPartitions {
		return nil, faultOf(kerr.InvalidPartitions, fmt.Sprintf("a topic has 1 to %d partitions, not %d", state.MaxPartitions, n))
	}
	live := liveIDs(v)
	rf := int(w.replication)
	if rf == -1 {
		rf = s.defaultReplication(len(live))
	}
	if f := checkReplication(rf, len(live)); f != nil {
		return nil, f
	}
	start, shift := seeds(p.id)
	p.assignments = place(live, 0, n, rf, start, shift)
	return p, nil
}

func checkReplication(rf, live int) *fault {
	switch {
	case rf < 1:
		return faultOf(kerr.InvalidReplicationFactor, fmt.Sprintf("a replication factor of %d is below 1", rf))
	case rf > live:
		return faultOf(kerr.InvalidReplicationFactor, fmt.Sprintf("a replication factor of %d is more than the %d brokers that are live", rf, live))
	}
	return nil
}

// defaultReplication is what a topic gets that names no number.
func (s *Server) defaultReplication(live int) int {
	if s.cfg.ReplicationFactor > 0 {
		return int(s.cfg.ReplicationFactor)
	}
	return max(1, min(3, live))
}

func liveIDs(v *state.View) []id.BrokerID {
	var out []id.BrokerID
	for _, b := range v.LiveBrokers() {
		out = append(out, b.ID)
	}
	return out
}

// given checks replicas that a client assigned to partitions from, from+1, ...
func given(v *state.View, byPartition map[int32][]int32, from int32) ([]*statepb.Assignment, *fault) {
	out := make([]*statepb.Assignment, len(byPartition))
	for i := range out {
		n := from + int32(i)
		replicas, ok := byPartition[n]
		if !ok {
			return nil, faultOf(kerr.InvalidReplicaAssignment, fmt.Sprintf("partitions must be assigned one after the other from %d; %d is missing", from, n))
		}
		if len(replicas) == 0 || len(replicas) != len(byPartition[from]) {
			return nil, faultOf(kerr.InvalidReplicaAssignment, "all partitions must have the same number of replicas, at least one")
		}
		for j, r := range replicas {
			if _, ok := v.Broker(id.BrokerID(r)); !ok {
				return nil, faultOf(kerr.InvalidReplicaAssignment, fmt.Sprintf("broker %d is not known", r))
			}
			if slices.Contains(replicas[:j], r) {
				return nil, faultOf(kerr.InvalidReplicaAssignment, fmt.Sprintf("broker %d is twice in one partition", r))
			}
		}
		out[i] = &statepb.Assignment{Replicas: replicas}
	}
	return out, nil
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
