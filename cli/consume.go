package cli

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/barnabas-mq/barnabas/cli/zkconsumer"
)

const consumeHelp = `Print records, one a line.

Without a group it is a simple consumer: it reads one partition (--partition) or all of a topic, from an offset of your
choice, follows the leaders when they move, and stores nothing.

With --zookeeper and --group it is a member of an old consumer group: it shares the partitions with all members that
follow the rules of Kafka 0.8 to 1.1 in ZooKeeper (range assignment), and keeps its offsets there.`

// consumeOptions are the flags of `consume`.
type consumeOptions struct {
	brokers
	topic, offset, zookeeper, group, id, format string
	partition                                   int32
	count                                       int64
	exitAtEnd, fromBeginning, noCommit          bool
	streams                                     int
	fetchMax                                    int32
	commitEvery, sessionTimeout                 time.Duration
}

func (a *app) consumeCommand() *cobra.Command {
	var o consumeOptions
	cmd := &cobra.Command{Use: "consume --topic TOPIC", Short: "Print records", Long: consumeHelp, Args: cobra.NoArgs,
		Example: "  barnabas consume --topic greetings --offset earliest\n" +
			"  barnabas consume --topic logs --partition 3 --offset 1200 --count 10\n" +
			"  barnabas consume --topic logs --offset @2026-01-31T08:00:00Z --exit-at-end\n" +
			"  barnabas consume --topic logs --zookeeper localhost:2181 --group readers",
		RunE: func(cmd *cobra.Command, _ []string) error { return a.consume(cmd, o) }}
	o.flag(cmd)
	f := cmd.Flags()
	f.StringVarP(&o.topic, "topic", "t", "", "topic to read")
	f.StringVarP(&o.format, "format", "f", "value", "value, key-value, json, or digest (length and CRC32 of the value)")
	f.Int64VarP(&o.count, "count", "n", 0, "stop after this many records; 0: do not")
	f.Int32Var(&o.fetchMax, "fetch-max-bytes", 1<<20, "bytes per partition of a fetch")

	f.Int32VarP(&o.partition, "partition", "p", -1, "simple: read this partition; -1: all")
	f.StringVar(&o.offset, "offset", "latest", "simple: a number, earliest, latest, or @time (RFC 3339 or milliseconds)")
	f.BoolVarP(&o.exitAtEnd, "exit-at-end", "e", false, "simple: stop at what is the end when it starts")

	f.StringVarP(&o.zookeeper, "zookeeper", "z", "", "group: ZooKeeper servers, host:port,...[/chroot]")
	f.StringVarP(&o.group, "group", "g", "", "group: its name")
	f.BoolVar(&o.fromBeginning, "from-beginning", false, "group: read partitions without an offset from their start")
	f.IntVar(&o.streams, "streams", 1, "group: number of streams of this member")
	f.StringVar(&o.id, "consumer-id", "", "group: name of this member (default: host, time and random)")
	f.DurationVar(&o.commitEvery, "auto-commit-interval", time.Minute, "group: how often offsets are stored")
	f.BoolVar(&o.noCommit, "no-commit", false, "group: do not store offsets")
	f.DurationVar(&o.sessionTimeout, "session-timeout", 6*time.Second, "group: ZooKeeper session timeout")
	cmd.MarkFlagsRequiredTogether("zookeeper", "group")
	cmd.MarkFlagsMutuallyExclusive("zookeeper", "partition")
	cmd.MarkFlagsMutuallyExclusive("zookeeper", "offset")
	cmd.MarkFlagsMutuallyExclusive("zookeeper", "exit-at-end")
	_ = cmd.RegisterFlagCompletionFunc("format", cobra.FixedCompletions([]string{"value", "key-value", "json", "digest"}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// errEnough ends a consumer that has read what it was asked for.
var errEnough = errors.New("enough")

func (a *app) consume(cmd *cobra.Command, o consumeOptions) error {
	if o.topic == "" {
		return usagef("--topic is missing")
	}
	if a.output == "json" && !cmd.Flags().Changed("format") {
		o.format = "json"
	}
	print, err := newPrinter(a.Out, o.format, o.count)
	if err != nil {
		return err
	}
	if o.zookeeper != "" {
		err = a.consumeGroup(cmd.Context(), o, print)
	} else {
		err = a.consumeSimple(cmd.Context(), o, print)
	}
	if ferr := print.close(); err == nil || errors.Is(err, errEnough) {
		err = ferr
	}
	if errors.Is(err, context.Canceled) && cmd.Context().Err() != nil {
		return nil // Ctrl-C is how a consumer ends
	}
	return err
}

func (a *app) consumeGroup(ctx context.Context, o consumeOptions, print *printer) error {
	if o.streams < 1 {
		return usagef("--streams %d: at least 1", o.streams)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	c, err := zkconsumer.New(zkconsumer.Config{
		ZooKeeper: o.zookeeper, Group: o.group, Topics: map[string]int{o.topic: o.streams}, ID: o.id,
		SessionTimeout: o.sessionTimeout, AutoCommitInterval: o.commitEvery, DisableAutoCommit: o.noCommit,
		FromStart: o.fromBeginning, FetchMaxBytes: o.fetchMax,
		Handle: func(_ context.Context, _ int, r *kgo.Record) error {
			err := print.record(r)
			if print.enough() {
				cancel() // not an error: the last record counts as consumed
			}
			return err
		},
		Log: slog.New(slog.NewTextHandler(a.Err, nil)),
	})
	if err != nil {
		return Usage(err)
	}
	return c.Run(ctx)
}

// printer writes records in one of the formats. Lines are flushed ten times a second, and at once when it is closed.
type printer struct {
	mu     sync.Mutex
	w      *bufio.Writer
	write  func(w *bufio.Writer, r *kgo.Record) error
	left   int64 // records until errEnough; negative: no limit
	stop   chan struct{}
	done   sync.WaitGroup
	failed error
}

func newPrinter(w io.Writer, format string, count int64) (*printer, error) {
	formats := map[string]func(*bufio.Writer, *kgo.Record) error{
		"value": printValue, "key-value": printKeyValue, "json": printJSON, "digest": printDigest,
	}
	p := &printer{w: bufio.NewWriterSize(w, 64<<10), write: formats[format], left: count, stop: make(chan struct{})}
	if p.write == nil {
		return nil, usagef("--format %q: use value, key-value, json or digest", format)
	}
	if count < 0 {
		return nil, usagef("--count %d: use 0 or more", count)
	}
	if count == 0 {
		p.left = -1
	}
	p.done.Go(p.flushOften)
	return p, nil
}

func (p *printer) flushOften() {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-p.stop:
			return
		case <-tick.C:
			p.mu.Lock()
			if err := p.w.Flush(); p.failed == nil {
				p.failed = err
			}
			p.mu.Unlock()
		}
	}
}

// record prints r; it returns errEnough with the last one that is wanted, and for those after it.
func (p *printer) record(r *kgo.Record) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.failed != nil {
		return fmt.Errorf("write the output: %w", p.failed)
	}
	if p.left == 0 {
		return errEnough
	}
	if err := p.write(p.w, r); err != nil {
		return fmt.Errorf("write the output: %w", err)
	}
	p.left--
	return nil
}

// enough says whether the last wanted record was printed.
func (p *printer) enough() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.left == 0
}

func (p *printer) close() error {
	close(p.stop)
	p.done.Wait()
	return p.w.Flush()
}

func printValue(w *bufio.Writer, r *kgo.Record) error {
	if _, err := w.Write(r.Value); err != nil {
		return err
	}
	return w.WriteByte('\n')
}

func printKeyValue(w *bufio.Writer, r *kgo.Record) error {
	if r.Key != nil {
		if _, err := w.Write(r.Key); err != nil {
			return err
		}
	}
	if err := w.WriteByte('\t'); err != nil {
		return err
	}
	return printValue(w, r)
}

// printJSON writes key and value as strings; bytes that are not UTF-8 become U+FFFD. null is null.
func printJSON(w *bufio.Writer, r *kgo.Record) error {
	type header struct {
		Key   string  `json:"key"`
		Value *string `json:"value"`
	}
	v := struct {
		Topic     string   `json:"topic"`
		Partition int32    `json:"partition"`
		Offset    int64    `json:"offset"`
		Timestamp int64    `json:"timestamp"` // milliseconds
		Key       *string  `json:"key"`
		Value     *string  `json:"value"`
		Headers   []header `json:"headers,omitempty"`
	}{Topic: r.Topic, Partition: r.Partition, Offset: r.Offset, Timestamp: r.Timestamp.UnixMilli(), Key: text(r.Key), Value: text(r.Value)}
	for _, h := range r.Headers {
		v.Headers = append(v.Headers, header{h.Key, text(h.Value)})
	}
	line, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = w.Write(append(line, '\n'))
	return err
}

func text(b []byte) *string {
	if b == nil {
		return nil
	}
	s := string(b)
	return &s
}

// printDigest writes what proves that a record arrived whole, without its value; a null value has length -1.
func printDigest(w *bufio.Writer, r *kgo.Record) error {
	key := []byte("null")
	if r.Key != nil {
		var err error
		if key, err = json.Marshal(string(r.Key)); err != nil {
			return err
		}
	}
	n := len(r.Value)
	if r.Value == nil {
		n = -1
	}
	_, err := fmt.Fprintf(w, "{\"partition\":%d,\"offset\":%d,\"key\":%s,\"len\":%d,\"crc\":%d}\n", r.Partition, r.Offset, key, n, crc32.ChecksumIEEE(r.Value))
	return err
}

// startAt is a parsed --offset.
type startAt struct {
	kind  byte  // 'n' number, 'e' earliest, 'l' latest, 't' time
	value int64 // the offset, or milliseconds since 1970
}

func parseOffset(v string) (startAt, error) {
	switch v {
	case "earliest", "smallest", "beginning":
		return startAt{kind: 'e'}, nil
	case "latest", "largest", "end":
		return startAt{kind: 'l'}, nil
	}
	if at, ok := strings.CutPrefix(v, "@"); ok {
		if ms, err := strconv.ParseInt(at, 10, 64); err == nil {
			return startAt{'t', ms}, nil
		}
		for _, layout := range []string{time.RFC3339Nano, "2006-01-02T15:04:05", "2006-01-02 15:04:05", "2006-01-02"} {
			if t, err := time.ParseInLocation(layout, at, time.Local); err == nil {
				return startAt{'t', t.UnixMilli()}, nil
			}
		}
		return startAt{}, usagef("--offset %q: the time is neither milliseconds nor RFC 3339 such as @2026-01-31T08:00:00Z", v)
	}
	n, err := strconv.ParseInt(v, 10, 64)
	if err != nil || n < 0 {
		return startAt{}, usagef("--offset %q: use a number, earliest, latest or @time", v)
	}
	return startAt{'n', n}, nil
}
