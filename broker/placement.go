package broker

import (
	"encoding/binary"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
)

// place assigns replicas to n partitions, the first of which is number from, over brokers in ascending id: leaders go round
// robin, and each further replica is shifted more with every round, so that the partitions of a broker that dies are spread over
// all others (kafka.admin.AdminUtils.assignReplicasToBrokersRackUnaware). start chooses the broker of partition 0, shift the
// distance of its second replica; rf must be within 1 to len(brokers). It is a pure function.
func place(brokers []id.BrokerID, from, n int32, rf int, start, shift uint32) []*statepb.Assignment {
	count := uint32(len(brokers))
	out := make([]*statepb.Assignment, 0, n)
	for p := uint32(from); p < uint32(from)+uint32(n); p++ {
		first := (p + start) % count
		a := &statepb.Assignment{Replicas: make([]int32, 0, rf)}
		a.Replicas = append(a.Replicas, int32(brokers[first]))
		for j := uint32(0); j < uint32(rf)-1; j++ {
			distance := 1 + (shift%count+p/count+j)%(count-1)
			a.Replicas = append(a.Replicas, int32(brokers[(first+distance)%count]))
		}
		out = append(out, a)
	}
	return out
}

// seeds takes a placement's start and shift from a topic's random id: topics of one partition spread too.
func seeds(t id.TopicID) (start, shift uint32) {
	return binary.BigEndian.Uint32(t[0:]), binary.BigEndian.Uint32(t[4:]) >> 8
}
