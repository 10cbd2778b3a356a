package broker

import (
	"context"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/partition"
	"github.com/barnabas-mq/barnabas/raftmeta/state"
)

var fetchAPI = register(1, 12, (*Server).fetch).frames(listFrames)

// maxFetchWait bounds a long poll, so that whatever a client asks, a connection that is gone is noticed.
const maxFetchWait = time.Minute

// fetch reads; the request's version decides the format of the records (v0 and v1 magic 0, v2 and v3 magic 1, later ones what is
// stored). There are no fetch sessions (KIP-227): every answer names session 0, so clients keep sending full requests.
func (s *Server) fetch(ctx context.Context, c *call, req *kmsg.FetchRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.FetchResponse)
	if req.SessionID != 0 {
		resp.ErrorCode = kerr.FetchSessionIDNotFound.Code
		return resp
	}
	fr := partition.FetchRequest{
		Version: req.Version, Client: partition.Client{Conn: c.conn, ClientID: state.ClientKey(text(c.clientID)), Host: c.host},
		MaxWait:  min(time.Duration(max(req.MaxWaitMillis, 0))*time.Millisecond, maxFetchWait),
		MinBytes: int(max(req.MinBytes, 0)), MaxBytes: s.cfg.FetchMaxBytes, Isolation: partition.Isolation(req.IsolationLevel),
	}
	withheld := 0
	if req.Version >= 3 {
		fr.MaxBytes = min(fr.MaxBytes, int(max(req.MaxBytes, 1)))
	}
	for i := range req.Topics {
		for j := range req.Topics[i].Partitions {
			p := &req.Topics[i].Partitions[j]
			if s.withheld(c, req.Topics[i].Topic, p.Partition) {
				withheld++
				continue
			}
			fr.Items = append(fr.Items, partition.FetchItem{
				Topic: req.Topics[i].Topic, Partition: p.Partition, Offset: id.Offset(p.FetchOffset),
				LeaderEpoch: id.LeaderEpoch(p.CurrentLeaderEpoch), MaxBytes: int(max(p.PartitionMaxBytes, 0)),
			})
		}
	}
	var results []partition.FetchResult
	switch {
	case len(fr.Items) > 0:
		results = s.deps.Partitions.Fetch(ctx, &fr)
	case withheld > 0: // it gets nothing, at the pace of one who waits for records
		wait := time.NewTimer(fr.MaxWait)
		defer wait.Stop()
		select {
		case <-ctx.Done():
		case <-wait.C:
		}
	default: // a client that gives up a session that it never had; there is nothing to wait for
		return resp
	}
	asked := fr.Items
	for i := range req.Topics {
		t := kmsg.NewFetchResponseTopic()
		t.Topic = req.Topics[i].Topic
		for j := range req.Topics[i].Partitions {
			p := &req.Topics[i].Partitions[j]
			r := partition.FetchResult{HighWatermark: id.Offset(p.FetchOffset), LastStable: id.Offset(p.FetchOffset)}
			if len(asked) > 0 && asked[0].Topic == t.Topic && asked[0].Partition == p.Partition {
				if !s.withheld(c, t.Topic, p.Partition) { // it may have been meanwhile
					r = results[0]
				}
				asked, results = asked[1:], results[1:]
			}
			t.Partitions = append(t.Partitions, fetchedPartition(req, p.Partition, &r))
		}
		resp.Topics = append(resp.Topics, t)
	}
	return resp
}

// withheld reports whether a connection gets nothing from a partition now; to its client it looks as if nothing came. It is fenced: it
// was of a znode consumer whose session expired, and the partition has a new owner (decisions.md 16). Or it fetches under the name of a
// group of znode consumers, as old JVM consumers do, whose members have just been told to release the partition: what it fetched now its
// client would throw away, but for what its iterator happens to hold when it commits, which the next owner would then read again.
func (s *Server) withheld(c *call, topic string, partition int32) bool {
	v := s.deps.Views.View()
	if v.GivesUp(c.clientID, topic, partition) && v.GateOn(c.clientID, state.GatePause) {
		s.paused.Add(1)
		return true
	}
	if !v.AnyFence() {
		return false
	}
	b, ok := v.Broker(s.cfg.ID)
	return ok && v.Fenced(s.cfg.ID, b.Epoch, c.conn, topic, partition)
}

// Paused counts the fetches of a partition that were answered without records because its owner was to release it.
func (s *Server) Paused() int64 { return s.paused.Load() }

func fetchedPartition(req *kmsg.FetchRequest, n int32, r *partition.FetchResult) kmsg.FetchResponseTopicPartition {
	p := kmsg.NewFetchResponseTopicPartition()
	p.Partition, p.ErrorCode = n, oldCode(codeOf(r.Err), req.Version, fetchCodes)
	p.HighWatermark, p.LastStableOffset, p.LogStartOffset = int64(r.HighWatermark), int64(r.LastStable), int64(r.LogStart)
	p.RecordBatches = r.Records
	if p.RecordBatches == nil {
		p.RecordBatches = []byte{} // null records kill old clients
	}
	if req.IsolationLevel == 1 {
		p.AbortedTransactions = []kmsg.FetchResponseTopicPartitionAbortedTransaction{} // null means read_uncommitted
	}
	return p
}
