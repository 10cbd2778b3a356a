package node

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/barnabas-mq/barnabas/groupcoord/export"
	"github.com/barnabas-mq/barnabas/internal/clock"
	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/partition"
	"github.com/barnabas-mq/barnabas/partition/record"
	"github.com/barnabas-mq/barnabas/raftmeta/state"
)

const (
	// indexHeader is the record header that tells which Raft index a record of __consumer_offsets covers. Kafka's own readers of the
	// topic do not look at headers.
	indexHeader = "barnabas.index"

	exportWait   = 10 * time.Second // for the replicas of an append
	exportFetch  = 12               // versions of Fetch and Produce whose rules hold: magic 2
	exportFormat = 9
	exportRead   = 4 << 20 // bytes at a time
)

// offsetsLog is the replicas of __consumer_offsets as groupcoord/export asks for them.
type offsetsLog struct {
	parts *partition.Manager
	clock clock.Clock
}

var _ export.Log = offsetsLog{}

func (l offsetsLog) Append(ctx context.Context, batches []export.Batch) []error {
	errs := make([]error, len(batches))
	items := make([]partition.AppendItem, len(batches))
	codecs := record.NewCodecs(0)
	now := l.clock.Now().UnixMilli()
	for i, b := range batches {
		records := make([]record.Record, len(b.Records))
		for j, r := range b.Records {
			records[j] = record.Record{Offset: id.Offset(j), Timestamp: now, Key: r.Key, Value: r.Value}
			records[j].SetHeaders([]record.Header{{Key: indexHeader, Value: binary.BigEndian.AppendUint64(nil, uint64(r.Index))}})
		}
		raw, err := codecs.Build(nil, record.PlainHeader(), records)
		errs[i] = err
		items[i] = partition.AppendItem{Topic: state.OffsetsTopic, Partition: b.Partition, Records: raw, Version: exportFormat}
	}
	for i, res := range l.parts.Append(ctx, items, -1, exportWait) {
		if errs[i] == nil {
			errs[i] = res.Err
		}
	}
	return errs
}

func (l offsetsLog) Read(ctx context.Context, p int32, fn func(export.Record)) error {
	start, err := l.parts.ListOffset(state.OffsetsTopic, p, partition.TimestampEarliest, -1, partition.ReadUncommitted)
	if err != nil {
		return err
	}
	codecs := record.NewCodecs(0)
	for at := start.Offset; ; {
		res := l.parts.Fetch(ctx, &partition.FetchRequest{Version: exportFetch, MaxBytes: exportRead,
			Items: []partition.FetchItem{{Topic: state.OffsetsTopic, Partition: p, Offset: at, LeaderEpoch: -1, MaxBytes: exportRead}}})[0]
		if err := errors.Join(res.Err, ctx.Err()); err != nil {
			return err
		}
		for rest := res.Records; len(rest) > 0; {
			b, after, err := record.Next(rest)
			if err != nil {
				return err
			}
			if err := eachExported(codecs, b, fn); err != nil {
				return err
			}
			at, rest = b.LastOffset()+1, after
		}
		switch {
		case at >= res.HighWatermark:
			return nil
		case len(res.Records) == 0:
			return fmt.Errorf("nothing is read at offset %d, below the high watermark %d", at, res.HighWatermark)
		}
	}
}

func eachExported(codecs *record.Codecs, b record.Batch, fn func(export.Record)) error {
	if b.IsControl() {
		return nil
	}
	records, err := codecs.Records(b)
	if err != nil {
		return err
	}
	var r record.Record
	for {
		ok, err := records.Next(&r)
		if !ok {
			return err
		}
		out := export.Record{Key: r.Key, Value: r.Value, Time: r.Timestamp}
		for _, h := range r.Headers() {
			if h.Key == indexHeader && len(h.Value) == 8 {
				out.Index = id.Index(binary.BigEndian.Uint64(h.Value))
			}
		}
		fn(out)
	}
}
