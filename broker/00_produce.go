package broker

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/barnabas-mq/barnabas/partition"
	"github.com/barnabas-mq/barnabas/raftmeta/state"
)

const produceKey = 0

var produceAPI = registerEarly(produceKey, 9, (*Server).produce).frames(0).checked(checkProduce)

// produce appends when the request is read, so the order of a connection's requests is the order in the log, and waits for the
// acks in its turn. With acks=0 there is no response; as in Kafka, an error then ends the connection, which is all that such a
// producer can notice.
func (s *Server) produce(ctx context.Context, c *call, req *kmsg.ProduceRequest) turn {
	acks := req.Acks
	if acks > 1 {
		acks = -1 // old clients counted replicas; Kafka has since taken it for all
	}
	if f := refuseProduce(req); f != nil {
		results := make([]partition.AppendResult, countPartitions(req))
		for i := range results {
			results[i] = partition.AppendResult{Err: f, BaseOffset: -1, AppendTime: -1, LogStart: -1}
		}
		return turn{run: func(context.Context) kmsg.Response { return produced(c, req, results) }, ready: always}
	}
	items := make([]partition.AppendItem, 0, countPartitions(req))
	internal := 0
	for i := range req.Topics {
		t := &req.Topics[i]
		if state.InternalTopic(t.Topic) {
			internal++
			continue
		}
		for j := range t.Partitions {
			p := &t.Partitions[j]
			items = append(items, partition.AppendItem{Topic: t.Topic, Partition: p.Partition, Records: p.Records, Version: req.Version})
			p.Records = nil
		}
	}
	s.awaitOpen(ctx, items)
	pending := s.deps.Partitions.BeginAppend(items, acks)
	timeout := time.Duration(req.TimeoutMillis) * time.Millisecond
	return turn{ready: pending.Settled, run: func(ctx context.Context) kmsg.Response {
		results := pending.Wait(ctx, timeout)
		if internal > 0 {
			results = withInternal(req, results)
		}
		return produced(c, req, results)
	}}
}

// withInternal puts a refusal in the place of each partition of a topic that only the cluster writes, as Kafka does
// (ReplicaManager.appendRecords with internalTopicsAllowed false).
func withInternal(req *kmsg.ProduceRequest, results []partition.AppendResult) []partition.AppendResult {
	all := make([]partition.AppendResult, 0, countPartitions(req))
	for i := range req.Topics {
		t := &req.Topics[i]
		if !state.InternalTopic(t.Topic) {
			all, results = append(all, results[:len(t.Partitions)]...), results[len(t.Partitions):]
			continue
		}
		f := faultOf(kerr.InvalidTopicException, "Cannot append to internal topic "+t.Topic)
		for range t.Partitions {
			all = append(all, partition.AppendResult{Err: f, BaseOffset: -1, AppendTime: -1, LogStart: -1})
		}
	}
	return all
}

// How long a Produce waits for a partition that was just made: for its topic to reach this node's view, and for the log of a
// partition that this node leads to be open.
const (
	unknownWait = 100 * time.Millisecond
	openWait    = time.Second
	openLook    = 2 * time.Millisecond // doubled at each look
	openLookMax = 20 * time.Millisecond
)

// awaitOpen waits a little for partitions that are on their way here. The broker that made a topic answers as soon as it has applied
// it, and then clients are at the leader within the millisecond, before it has applied or opened what it leads. Their
// retries are few, and of some (sarama's idempotent producer) all at once. Nothing outside package partition tells when a log
// opens, so this looks again and again; it is the rare case.
func (s *Server) awaitOpen(ctx context.Context, items []partition.AppendItem) {
	begun, look := time.Now(), openLook
	for i := range items {
		for {
			wait := s.opensIn(&items[i])
			if wait == 0 || time.Since(begun) >= wait {
				break
			}
			select {
			case <-time.After(look):
				look = min(2*look, openLookMax)
			case <-ctx.Done():
				return
			}
		}
	}
}

// opensIn is how long it may be worth to wait for a partition; 0 when it can be answered now.
func (s *Server) opensIn(item *partition.AppendItem) time.Duration {
	_, err := s.deps.Partitions.ListOffset(item.Topic, item.Partition, partition.TimestampEarliest, -1, partition.ReadUncommitted)
	switch {
	case errors.Is(err, partition.ErrUnknownTopicOrPartition):
		return unknownWait
	case errors.Is(err, partition.ErrNotLeader):
		if p, ok := s.deps.Views.View().Partition(item.Topic, item.Partition); ok && p.Leader == s.cfg.ID {
			return openWait
		}
	}
	return 0
}

func always() bool { return true }

func refuseProduce(req *kmsg.ProduceRequest) *fault {
	switch {
	case req.Acks < -1:
		return faultOf(kerr.InvalidRequiredAcks, "")
	case req.TransactionID != nil:
		return faultOf(kerr.InvalidTxnState, "transactions are not served yet")
	}
	return nil
}

func countPartitions(req *kmsg.ProduceRequest) int {
	n := 0
	for i := range req.Topics {
		n += len(req.Topics[i].Partitions)
	}
	return n
}

func produced(c *call, req *kmsg.ProduceRequest, results []partition.AppendResult) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.ProduceResponse)
	var failed error
	next := 0
	for i := range req.Topics {
		t := kmsg.NewProduceResponseTopic()
		t.Topic = req.Topics[i].Topic
		for j := range req.Topics[i].Partitions {
			r := &results[next]
			next++
			if failed == nil {
				failed = r.Err
			}
			t.Partitions = append(t.Partitions, producedPartition(req.Version, req.Topics[i].Partitions[j].Partition, r))
		}
		resp.Topics = append(resp.Topics, t)
	}
	if req.Acks != 0 {
		return resp
	}
	if failed != nil {
		c.hangUp = fmt.Sprintf("a produce with acks=0 failed: %v", failed)
	}
	return nil
}

func producedPartition(version int16, n int32, r *partition.AppendResult) kmsg.ProduceResponseTopicPartition {
	p := kmsg.NewProduceResponseTopicPartition()
	p.Partition, p.BaseOffset, p.LogAppendTime, p.LogStartOffset = n, int64(r.BaseOffset), r.AppendTime, int64(r.LogStart)
	if r.Err == nil {
		return p
	}
	text := r.Err.Error()
	p.ErrorMessage = &text
	var f *fault
	if errors.As(r.Err, &f) {
		p.ErrorCode = f.code
	} else {
		p.ErrorCode = oldCode(codeOf(r.Err), version, produceCodes)
	}
	return p
}

// maxProduceParts bounds the topics and partitions of one Produce: a frame of 100 MiB could hold millions of empty ones, each many
// times larger decoded than sent.
const maxProduceParts = 100_000

var errProduceShape = errors.New("cut off")

// checkProduce walks a Produce body without allocating and counts its topics and partitions.
func checkProduce(version int16, body []byte) error {
	w := walker{b: body, flexible: version >= 9}
	if version >= 3 {
		w.str()
	}
	w.skip(2 + 4)
	parts := 0
	for range w.array() {
		w.str()
		for range w.array() {
			w.skip(4)
			w.bytes()
			w.tags()
			if parts++; parts > maxProduceParts {
				return fmt.Errorf("more than %d partitions in one request", maxProduceParts)
			}
			if w.bad {
				return errProduceShape
			}
		}
		w.tags()
		if parts++; parts > maxProduceParts {
			return fmt.Errorf("more than %d topics in one request", maxProduceParts)
		}
		if w.bad {
			return errProduceShape
		}
	}
	w.tags()
	if w.bad {
		return errProduceShape
	}
	return nil
}

// walker steps over the fields of a request. Once a field does not fit it is bad, and every step does nothing.
type walker struct {
	b        []byte
	flexible bool
	bad      bool
}

func (w *walker) skip(n int) {
	if n < 0 || n > len(w.b) {
		w.bad, w.b = true, nil
		return
	}
	w.b = w.b[n:]
}

// length reads a length in either encoding; null is 0.
func (w *walker) length(size int) int {
	if w.flexible {
		n, rest, ok := uvarint(w.b)
		if !ok {
			w.skip(-1)
			return 0
		}
		w.b = rest
		return max(0, int(n)-1)
	}
	if len(w.b) < size {
		w.skip(-1)
		return 0
	}
	var n int
	if size == 2 {
		n = int(int16(binary.BigEndian.Uint16(w.b)))
	} else {
		n = int(int32(binary.BigEndian.Uint32(w.b)))
	}
	w.b = w.b[size:]
	return max(0, n)
}

func (w *walker) str()   { w.skip(w.length(2)) }
func (w *walker) bytes() { w.skip(w.length(4)) }

// array returns a count that is never more than the bytes that remain.
func (w *walker) array() int {
	n := w.length(4)
	if n > len(w.b) {
		w.skip(-1)
		return 0
	}
	return n
}

func (w *walker) tags() {
	if !w.flexible {
		return
	}
	n, rest, ok := uvarint(w.b)
	if !ok || int64(n) > int64(len(rest)) {
		w.skip(-1)
		return
	}
	w.b = rest
	for range n {
		_, rest, ok := uvarint(w.b)
		if !ok {
			w.skip(-1)
			return
		}
		size, rest, ok := uvarint(rest)
		if !ok {
			w.skip(-1)
			return
		}
		w.b = rest
		w.skip(int(size))
	}
}
