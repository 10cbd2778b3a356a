package cli

import (
	"context"
	"errors"
	"fmt"
	"sort"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// span is what a simple consumer reads of one partition: from from, and, when it is to stop at the end, until end.
type span struct{ from, end int64 }

// consumeSimple reads partitions directly. It returns errEnough when it has read what it was asked for.
func (a *app) consumeSimple(ctx context.Context, o consumeOptions, print *printer) error {
	at, err := parseOffset(o.offset)
	if err != nil {
		return err
	}
	spans, err := o.spans(ctx, at)
	if err != nil {
		return err
	}
	from := map[int32]kgo.Offset{}
	for p, s := range spans {
		if o.exitAtEnd && s.from >= s.end {
			delete(spans, p)
			continue
		}
		from[p] = kgo.NewOffset().At(s.from)
	}
	if o.exitAtEnd && len(spans) == 0 {
		return errEnough
	}
	cl, err := o.client(kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{o.topic: from}), kgo.ConsumeResetOffset(kgo.NoResetOffset()),
		kgo.FetchMaxPartitionBytes(o.fetchMax), kgo.FetchMaxBytes(max(o.fetchMax, 50<<20)), kgo.KeepControlRecords(), kgo.DisableFetchSessions())
	if err != nil {
		return err
	}
	defer cl.Close()
	for {
		fetches := cl.PollFetches(ctx)
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := fatalFetch(fetches); err != nil {
			return err
		}
		if err := o.take(fetches, spans, print); err != nil {
			return err
		}
	}
}

// take prints fetched records and ends with errEnough at the last one.
func (o consumeOptions) take(fetches kgo.Fetches, spans map[int32]span, print *printer) error {
	for it := fetches.RecordIter(); !it.Done(); {
		r := it.Next()
		s, wanted := spans[r.Partition]
		if !wanted || o.exitAtEnd && r.Offset >= s.end {
			continue
		}
		if !r.Attrs.IsControl() {
			if err := print.record(r); err != nil {
				return err
			}
			if print.enough() {
				return errEnough
			}
		}
		if o.exitAtEnd && r.Offset+1 >= s.end {
			delete(spans, r.Partition)
			if len(spans) == 0 {
				return errEnough
			}
		}
	}
	return nil
}

// fatalFetch returns an error that does not pass by waiting.
func fatalFetch(fetches kgo.Fetches) error {
	var fatal error
	fetches.EachError(func(topic string, p int32, err error) {
		if ke := (*kerr.Error)(nil); errors.As(err, &ke) && ke.Retriable || fatal != nil {
			return
		}
		fatal = fmt.Errorf("read %s-%d: %w", topic, p, err)
	})
	return fatal
}

// spans asks for the bounds of the partitions and where to begin.
func (o consumeOptions) spans(ctx context.Context, at startAt) (map[int32]span, error) {
	adm, err := o.admin()
	if err != nil {
		return nil, err
	}
	defer adm.Close()
	begin, err := listed(adm.ListStartOffsets(ctx, o.topic))
	if err != nil {
		return nil, fmt.Errorf("offsets of topic %s: %w", o.topic, err)
	}
	end, err := listed(adm.ListEndOffsets(ctx, o.topic))
	if err != nil {
		return nil, fmt.Errorf("offsets of topic %s: %w", o.topic, err)
	}
	var timed kadm.ListedOffsets
	if at.kind == 't' {
		if timed, err = listed(adm.ListOffsetsAfterMilli(ctx, at.value, o.topic)); err != nil {
			return nil, fmt.Errorf("offsets of topic %s by time: %w", o.topic, err)
		}
	}
	out := map[int32]span{}
	for p, b := range begin[o.topic] {
		if o.partition >= 0 && p != o.partition {
			continue
		}
		s := span{from: b.Offset, end: end[o.topic][p].Offset}
		switch at.kind {
		case 'l':
			s.from = s.end
		case 't':
			s.from = s.end // nothing is as new
			if t, ok := timed.Lookup(o.topic, p); ok && t.Offset >= 0 {
				s.from = t.Offset
			}
		case 'n':
			if at.value < b.Offset || at.value > s.end {
				return nil, fmt.Errorf("partition %d of %s has offsets %d to %d: %d is not among them", p, o.topic, b.Offset, s.end, at.value)
			}
			s.from = at.value
		}
		out[p] = s
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("topic %s has no partition %d; it has %s", o.topic, o.partition, partitionRange(begin[o.topic]))
	}
	return out, nil
}

func partitionRange(parts map[int32]kadm.ListedOffset) string {
	var ps []int
	for p := range parts {
		ps = append(ps, int(p))
	}
	sort.Ints(ps)
	if len(ps) == 0 {
		return "none"
	}
	return fmt.Sprintf("%d to %d", ps[0], ps[len(ps)-1])
}

// listed turns errors of single partitions into one.
func listed(l kadm.ListedOffsets, err error) (kadm.ListedOffsets, error) {
	if err == nil {
		err = l.Error()
	}
	return l, err
}
