package broker

import (
	"context"
	"strconv"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/raftmeta/state"
)

var metadataAPI = register(3, 12, (*Server).metadata)

// metadata answers from this node's view. Which topics are asked depends on the version: in v0 an empty list means all, later
// a null one does and an empty one means none (kafka.server.KafkaApis.handleTopicMetadataRequest).
func (s *Server) metadata(ctx context.Context, c *call, req *kmsg.MetadataRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.MetadataResponse)
	all := req.Topics == nil || req.Version == 0 && len(req.Topics) == 0
	missing := map[string]*fault{}
	if !all {
		missing = s.autoCreate(ctx, req)
	}
	v := s.deps.Views.View()
	for _, n := range nodes(v, c.listener) {
		b := kmsg.NewMetadataResponseBroker()
		b.NodeID, b.Host, b.Port, b.Rack = int32(n.id), n.host, n.port, n.rack
		resp.Brokers = append(resp.Brokers, b)
	}
	if cid := v.ClusterID(); cid != "" {
		resp.ClusterID = &cid
	}
	ctl, _ := controller(v, c.listener)
	resp.ControllerID = int32(ctl.id)
	resp.AuthorizedOperations = operations(req.IncludeClusterAuthorizedOperations, brokerOperations)
	resp.Topics = []kmsg.MetadataResponseTopic{} // null is no answer to any version
	if all {
		v.Topics(func(t *state.Topic) bool {
			resp.Topics = append(resp.Topics, topicMetadata(v, c, req, t))
			return true
		})
		return resp
	}
	for i := range req.Topics {
		resp.Topics = append(resp.Topics, askedTopic(v, c, req, &req.Topics[i], missing))
	}
	return resp
}

func (s *Server) mayCreate(req *kmsg.MetadataRequest) bool {
	return !s.cfg.NoAutoCreate && (req.Version < 4 || req.AllowAutoTopicCreation)
}

// offsetsTopic is __consumer_offsets as it is to be made; nil: it is switched off. Kafka makes it whatever its settings of topics
// made on demand are, and so does this: asking for it is what begins the export.
func (s *Server) offsetsTopic(v *state.View) *topicWish {
	o := s.cfg.OffsetsTopic
	if o.Off {
		return nil
	}
	return &topicWish{name: state.OffsetsTopic, partitions: o.Partitions, replication: min(o.Replication, int16(max(1, len(v.LiveBrokers())))),
		configs: map[string]string{"cleanup.policy": "compact", "compression.type": "producer", "segment.bytes": strconv.Itoa(o.SegmentBytes)}}
}

// autoCreate makes the topics that are asked for by name and do not exist. It returns why some could not be made.
func (s *Server) autoCreate(ctx context.Context, req *kmsg.MetadataRequest) map[string]*fault {
	faults := map[string]*fault{}
	v := s.deps.Views.View()
	for i := range req.Topics {
		name := req.Topics[i].Topic
		if name == nil || state.ValidTopicName(*name) != "" || faults[*name] != nil {
			continue
		}
		if _, ok := v.Topic(*name); ok {
			continue
		}
		w := &topicWish{name: *name, partitions: -1, replication: -1}
		if state.InternalTopic(*name) {
			w = s.offsetsTopic(v)
		} else if !s.mayCreate(req) {
			w = nil
		}
		if w == nil {
			continue
		}
		plan, f := s.planTopic(v, w)
		if f == nil {
			f = settled(s.propose(ctx, 0, plan.command()))
		}
		switch {
		case f == nil || f.code == kerr.TopicAlreadyExists.Code: // somebody else was first
		case f.code == kerr.RequestTimedOut.Code || f.code == kerr.NotController.Code || f.code == kerr.InvalidReplicationFactor.Code:
			// Kafka's word for "is being made, ask again"; too few brokers may pass too.
			faults[*name] = faultOf(kerr.LeaderNotAvailable, f.text)
		default:
			faults[*name] = f
		}
		v = s.deps.Views.View()
	}
	return faults
}

func askedTopic(v *state.View, c *call, req *kmsg.MetadataRequest, asked *kmsg.MetadataRequestTopic, missing map[string]*fault) kmsg.MetadataResponseTopic {
	out := kmsg.NewMetadataResponseTopic()
	out.Topic, out.TopicID, out.Partitions = asked.Topic, asked.TopicID, []kmsg.MetadataResponseTopicPartition{}
	if asked.Topic == nil {
		t, ok := v.TopicByID(asked.TopicID)
		if ok {
			return topicMetadata(v, c, req, t)
		}
		out.ErrorCode = kerr.UnknownTopicID.Code
		return out
	}
	if t, ok := v.Topic(*asked.Topic); ok {
		return topicMetadata(v, c, req, t)
	}
	out.TopicID = [16]byte{}
	switch f := missing[*asked.Topic]; {
	case state.ValidTopicName(*asked.Topic) != "":
		out.ErrorCode = kerr.InvalidTopicException.Code
	case f != nil:
		out.ErrorCode = f.code
	default:
		out.ErrorCode = kerr.UnknownTopicOrPartition.Code
	}
	return out
}

func topicMetadata(v *state.View, c *call, req *kmsg.MetadataRequest, t *state.Topic) kmsg.MetadataResponseTopic {
	out := kmsg.NewMetadataResponseTopic()
	out.Topic, out.TopicID, out.IsInternal = &t.Name, t.ID, state.InternalTopic(t.Name)
	out.AuthorizedOperations = operations(req.IncludeTopicAuthorizedOperations, topicOperations)
	out.Partitions = make([]kmsg.MetadataResponseTopicPartition, 0, t.Partitions)
	v.Partitions(t.Name, func(n int32, p *state.Partition) bool {
		out.Partitions = append(out.Partitions, partitionMetadata(v, req.Version, n, p))
		return true
	})
	return out
}

// partitionMetadata shows one partition. Clients of version 0 look every id up in the list of brokers and break on one that is
// not there, so they see only usable replicas and error 9 when some are missing (MetadataCache.getPartitionMetadata).
func partitionMetadata(v *state.View, version int16, n int32, p *state.Partition) kmsg.MetadataResponseTopicPartition {
	out := kmsg.NewMetadataResponseTopicPartition()
	out.Partition, out.Leader, out.LeaderEpoch = n, int32(p.Leader), int32(p.LeaderEpoch)
	live := func(b id.BrokerID) bool {
		row, ok := v.Broker(b)
		return ok && usable(row)
	}
	out.Replicas, out.ISR, out.OfflineReplicas = []int32{}, []int32{}, []int32{}
	hidden := false
	for _, r := range p.Replicas {
		ok := live(r)
		if !ok {
			out.OfflineReplicas = append(out.OfflineReplicas, int32(r))
		}
		if ok || version > 0 {
			out.Replicas = append(out.Replicas, int32(r))
		} else {
			hidden = true
		}
	}
	for _, r := range p.ISR {
		if version > 0 || live(r) {
			out.ISR = append(out.ISR, int32(r))
		} else {
			hidden = true
		}
	}
	switch {
	case p.Leader == id.NoBroker || !live(p.Leader):
		out.Leader, out.ErrorCode = -1, kerr.LeaderNotAvailable.Code
	case hidden:
		out.ErrorCode = kerr.ReplicaNotAvailable.Code
	}
	return out
}
