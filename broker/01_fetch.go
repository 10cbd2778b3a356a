package broker

import (
	"context"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/partition/record"
)

var fetchAPI = register(1, 12, (*Server).fetch).frames(listFrames)

// maxFetchWait bounds a long poll, so that whatever a client asks, a connection that is gone is noticed.
const maxFetchWait = time.Minute

// fetch reads, and converts for versions below 4: v0 and v1 get magic 0, v2 and v3 magic 1, later ones what is stored. There
// are no fetch sessions (KIP-227): every answer names session 0, so clients keep sending full requests.
func (s *Server) fetch(ctx context.Context, c *call, req *kmsg.FetchRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.FetchResponse)
	if req.SessionID != 0 {
		resp.ErrorCode = kerr.FetchSessionIDNotFound.Code
		return resp
	}
	fr := FetchRequest{
		From:     Fetcher{Conn: c.conn, ClientID: c.clientID, Host: c.host},
		MaxWait:  min(time.Duration(max(req.MaxWaitMillis, 0))*time.Millisecond, maxFetchWait),
		MinBytes: int(max(req.MinBytes, 0)), MaxBytes: s.cfg.FetchMaxBytes, ReadCommitted: req.IsolationLevel == 1,
		AnyCodec: req.Version >= 10 || req.Version < 4,
	}
	if req.Version >= 3 {
		fr.MaxBytes = min(fr.MaxBytes, int(max(req.MaxBytes, 0)))
	}
	for i := range req.Topics {
		for j := range req.Topics[i].Partitions {
			p := &req.Topics[i].Partitions[j]
			fr.Items = append(fr.Items, FetchItem{
				Topic: req.Topics[i].Topic, Partition: p.Partition, Offset: id.Offset(p.FetchOffset),
				Epoch: id.LeaderEpoch(p.CurrentLeaderEpoch), MaxBytes: int(max(p.PartitionMaxBytes, 0)),
			})
		}
	}
	results := s.deps.Partitions.Fetch(ctx, &fr)
	if req.Version < 4 {
		s.convertDown(ctx, req.Version, &fr, results)
	}
	next := 0
	for i := range req.Topics {
		t := kmsg.NewFetchResponseTopic()
		t.Topic = req.Topics[i].Topic
		for j := range req.Topics[i].Partitions {
			t.Partitions = append(t.Partitions, fetchedPartition(req, req.Topics[i].Partitions[j].Partition, &results[next]))
			next++
		}
		resp.Topics = append(resp.Topics, t)
	}
	return resp
}

func fetchedPartition(req *kmsg.FetchRequest, partition int32, r *FetchResult) kmsg.FetchResponseTopicPartition {
	p := kmsg.NewFetchResponseTopicPartition()
	p.Partition, p.ErrorCode = partition, oldCode(r.Code, req.Version < 6, true, req.Version < 11)
	p.HighWatermark, p.LastStableOffset, p.LogStartOffset = int64(r.HighWatermark), int64(r.LastStable), int64(r.LogStart)
	p.RecordBatches = r.Records
	if p.RecordBatches == nil {
		p.RecordBatches = []byte{} // null records kill old clients
	}
	if req.IsolationLevel == 1 {
		p.AbortedTransactions = []kmsg.FetchResponseTopicPartitionAbortedTransaction{}
		for _, a := range r.Aborted {
			t := kmsg.NewFetchResponseTopicPartitionAbortedTransaction()
			t.ProducerID, t.FirstOffset = a.ProducerID, int64(a.First)
			p.AbortedTransactions = append(p.AbortedTransactions, t)
		}
	}
	return p
}

var codecs = sync.Pool{New: func() any { return record.NewCodecs(0) }}

// convertDown turns the records of every result into message sets of the version's magic, within the request's bounds. Until v2 a
// client recognises by a message that is cut off that its fetch size is too small; in v3 the first message of an answer
// comes whole (KIP-74).
func (s *Server) convertDown(ctx context.Context, version int16, fr *FetchRequest, results []FetchResult) {
	cd := codecs.Get().(*record.Codecs)
	defer codecs.Put(cd)
	left, whole := fr.MaxBytes, version >= 3
	for i := range results {
		r := &results[i]
		if r.Code != 0 {
			continue
		}
		rules := record.DownRules{From: fr.Items[i].Offset, MaxBytes: min(left, fr.Items[i].MaxBytes), AtLeastOne: whole}
		if version >= 2 {
			rules.Magic = 1
		}
		set, err := s.messageSet(ctx, cd, fr, i, r, rules)
		if err != nil {
			s.log.Error("broker: stored records cannot be converted for an old client", "topic", fr.Items[i].Topic,
				"partition", fr.Items[i].Partition, "offset", fr.Items[i].Offset, "err", err)
			r.Code, r.Records = kerr.CorruptMessage.Code, nil
			continue
		}
		r.Records = set
		left -= min(left, len(set))
		whole = whole && len(set) == 0
	}
}

// messageSet converts one partition's records. Batches that hold nothing for an old client (control batches, holes of compaction) are
// passed over: such a client would ask for the same offset for ever. A partition that the bounds of the whole request left empty
// is read on its own: a stored batch may be larger than an old client's fetch size although its messages are not.
func (s *Server) messageSet(ctx context.Context, cd *record.Codecs, fr *FetchRequest, i int, r *FetchResult, rules record.DownRules) ([]byte, error) {
	if rules.MaxBytes <= 0 && !rules.AtLeastOne {
		return nil, nil
	}
	for {
		from := rules.From
		if len(r.Records) > 0 {
			down, err := cd.DownConvert(nil, r.Records, rules)
			if err != nil || len(down.Set) > 0 {
				return down.Set, err
			}
			from = down.Next
		}
		if len(r.Records) > 0 && from <= rules.From || from >= r.HighWatermark || ctx.Err() != nil {
			return nil, nil
		}
		rules.From = from
		one := *fr
		one.MaxWait, one.MinBytes = 0, 0
		item := fr.Items[i]
		item.Offset = from
		one.Items = []FetchItem{item}
		got := s.deps.Partitions.Fetch(ctx, &one)[0]
		if got.Code != 0 || len(got.Records) == 0 {
			return nil, nil
		}
		r.Records, r.HighWatermark = got.Records, max(r.HighWatermark, got.HighWatermark)
	}
}
