package cli

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

const produceHelp = `Send each line of the files, or of standard input, as one record.

Lines end with a newline, which is not sent; the last one may end without. An empty line is a record with an empty value.
Records are written by an idempotent producer that waits for all in-sync replicas and repeats what got lost on the way:
each line is in the topic once. It exits 1 when a line could not be written, and stops reading when no other line could be either,
as when the topic was deleted.

--key number gives each record its running number as key, --key split takes what is before the first separator.
--acks-file writes one line "partition offset key" for each record that the broker has confirmed.`

// produceOptions are the flags of `produce`.
type produceOptions struct {
	brokers
	topic, key, separator, acks, compression, acksFile string
	partition, first                                   int64
	maxMessage, batch                                  int32
	linger, timeout                                    time.Duration
}

func (a *app) produceCommand() *cobra.Command {
	var o produceOptions
	cmd := &cobra.Command{Use: "produce --topic TOPIC [FILE...]", Short: "Send lines as records", Long: produceHelp,
		Example: "  echo hello | barnabas produce --topic greetings\n" +
			"  barnabas produce --topic logs --key number --compression zstd /var/log/*.log",
		RunE: func(cmd *cobra.Command, files []string) error { return a.produce(cmd.Context(), o, files) }}
	o.flag(cmd)
	f := cmd.Flags()
	f.StringVarP(&o.topic, "topic", "t", "", "topic to write to")
	f.StringVarP(&o.key, "key", "k", "none", "none, number or split")
	f.StringVar(&o.separator, "key-separator", "\t", "what --key split splits at")
	f.Int64Var(&o.first, "first-number", 1, "the first key of --key number")
	f.Int64VarP(&o.partition, "partition", "p", -1, "write to this partition; -1: by key, or spread")
	f.StringVar(&o.acks, "acks", "all", "all, 1 or 0; with 1 and 0 lines can be lost or doubled")
	f.StringVar(&o.compression, "compression", "none", "none, gzip, snappy, lz4 or zstd")
	f.Int32Var(&o.maxMessage, "max-message-bytes", 1000000, "largest batch; raise it for long lines, with the topic's max.message.bytes")
	f.Int32Var(&o.batch, "buffer-records", 50000, "how many records may wait for their acks")
	f.DurationVar(&o.linger, "linger", 5*time.Millisecond, "how long to wait for more lines before a batch is sent")
	f.DurationVar(&o.timeout, "timeout", 0, "give a line up after this time; 0: never")
	f.StringVar(&o.acksFile, "acks-file", "", "write a line \"partition offset key\" for each confirmed record")
	_ = cmd.RegisterFlagCompletionFunc("key", cobra.FixedCompletions([]string{"none", "number", "split"}, cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("compression", cobra.FixedCompletions([]string{"none", "gzip", "snappy", "lz4", "zstd"}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// options turns the flags into the client's.
func (o produceOptions) options() ([]kgo.Opt, error) {
	if o.topic == "" {
		return nil, usagef("--topic is missing")
	}
	opts := []kgo.Opt{kgo.DefaultProduceTopic(o.topic), kgo.AllowAutoTopicCreation(), kgo.ProducerLinger(o.linger),
		kgo.ProducerBatchMaxBytes(o.maxMessage), kgo.MaxBufferedRecords(int(max(o.batch, 1))), kgo.MaxBufferedBytes(256 << 20), kgo.MetadataMinAge(50 * time.Millisecond)}
	switch o.acks {
	case "all", "-1":
	case "1":
		opts = append(opts, kgo.RequiredAcks(kgo.LeaderAck()), kgo.DisableIdempotentWrite())
	case "0":
		opts = append(opts, kgo.RequiredAcks(kgo.NoAck()), kgo.DisableIdempotentWrite())
	default:
		return nil, usagef("--acks %q: use all, 1 or 0", o.acks)
	}
	codecs := map[string]kgo.CompressionCodec{"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(),
		"snappy": kgo.SnappyCompression(), "lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression()}
	codec, ok := codecs[o.compression]
	if !ok {
		return nil, usagef("--compression %q: use none, gzip, snappy, lz4 or zstd", o.compression)
	}
	opts = append(opts, kgo.ProducerBatchCompression(codec))
	if o.partition >= 0 {
		opts = append(opts, kgo.RecordPartitioner(kgo.ManualPartitioner()))
	}
	if o.timeout > 0 {
		opts = append(opts, kgo.RecordDeliveryTimeout(o.timeout))
	}
	switch o.key {
	case "none", "number":
	case "split":
		if o.separator == "" {
			return nil, usagef("--key-separator is empty")
		}
	default:
		return nil, usagef("--key %q: use none, number or split", o.key)
	}
	return opts, nil
}

// produceSummary is the result of `produce`.
type produceSummary struct {
	Read         int64   `json:"read"`
	Acked        int64   `json:"acked"`
	Failed       int64   `json:"failed"`
	Bytes        int64   `json:"bytes"`
	Seconds      float64 `json:"seconds"`
	LongestStall float64 `json:"longestStallSeconds"` // the longest time without an ack while one was due
}

func (a *app) produce(ctx context.Context, o produceOptions, files []string) error {
	opts, err := o.options()
	if err != nil {
		return err
	}
	in, total, closeAll, err := a.openInputs(files)
	if err != nil {
		return err
	}
	defer closeAll()
	acks, err := openAcks(o.acksFile)
	if err != nil {
		return err
	}
	cl, err := o.client(opts...)
	if err != nil {
		return err
	}
	defer cl.Close()
	if err := cl.Ping(ctx); err != nil { // after this, lines wait for brokers for as long as it takes
		return fmt.Errorf("no broker answers: %w", err)
	}
	run := &producing{o: o, client: cl, acks: acks, begin: time.Now(), hopeless: make(chan struct{})}
	p := newProgress(a.Err, func(d time.Duration) string { return run.line(d, total) })
	err = run.all(ctx, in)
	p.close()
	if cerr := acks.close(); err == nil {
		err = cerr
	}
	s := run.summary()
	if a.output == "json" {
		if jerr := a.json(s); err == nil {
			err = jerr
		}
	} else {
		fmt.Fprintf(a.Err, "%s lines written, %s failed, %.1f s, longest wait for an ack %.3f s\n",
			thousands(s.Acked), thousands(s.Failed), s.Seconds, s.LongestStall)
	}
	if err == nil && run.firstErr != nil {
		err = fmt.Errorf("%d lines were not written, the first because: %w", s.Failed, run.firstErr)
		if run.given() {
			err = fmt.Errorf("stopped, %d lines were not written and no other could be: %w", s.Failed, run.firstErr)
		}
	}
	return err
}

// openInputs opens all files before the first line is sent; without files it is standard input. total is -1 when unknown.
// A file that does not end with a newline does not run into the next one.
func (a *app) openInputs(files []string) (in []io.Reader, total int64, closeAll func(), err error) {
	if len(files) == 0 {
		return []io.Reader{a.In}, -1, func() {}, nil
	}
	var open []*os.File
	closeAll = func() {
		for _, f := range open {
			f.Close()
		}
	}
	for _, name := range files {
		if name == "-" {
			in, total = append(in, a.In), -1
			continue
		}
		f, err := os.Open(name)
		if err != nil {
			closeAll()
			return nil, 0, nil, err
		}
		open, in = append(open, f), append(in, f)
		info, err := f.Stat()
		if err != nil || info.IsDir() {
			closeAll()
			if err == nil {
				err = fmt.Errorf("%s is a directory", name)
			}
			return nil, 0, nil, err
		}
		if total >= 0 && info.Mode().IsRegular() {
			total += info.Size()
		} else {
			total = -1
		}
	}
	return in, total, closeAll, nil
}

// producing is one run. The fields below mu belong to the client's callbacks.
type producing struct {
	o      produceOptions
	client *kgo.Client
	acks   *ackLog
	begin  time.Time

	read, bytes, acked, failed atomic.Int64

	mu       sync.Mutex
	lastAck  time.Time
	stall    time.Duration
	firstErr error
	hopeless chan struct{} // closed when a line failed for what holds for every other too
}

// given says whether the rest was given up.
func (p *producing) given() bool {
	select {
	case <-p.hopeless:
		return true
	default:
		return false
	}
}

// ofTheLine says whether an error is about one line only. Whatever passes by itself, the client has waited out already.
func ofTheLine(err error) bool {
	for _, of := range []error{kerr.MessageTooLarge, kerr.RecordListTooLarge, kerr.InvalidRecord, kerr.InvalidTimestamp, kerr.CorruptMessage,
		kgo.ErrRecordTimeout, kgo.ErrRecordRetries, context.Canceled, context.DeadlineExceeded} {
		if errors.Is(err, of) {
			return true
		}
	}
	return false
}

// all sends every line and waits until each is confirmed or given up. When ctx ends, it stops reading and gives the lines
// under way ten seconds; when the rest is hopeless, it stops reading too.
func (p *producing) all(ctx context.Context, in []io.Reader) error {
	// The client's context is not ctx: a line that was read is not given up because of a Ctrl-C.
	send, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(10*time.Second, cancel) })()
	reading, stop := context.WithCancel(ctx)
	defer stop()
	lines := make(chan [][]byte, 8)
	var readErr error
	go func() { // ends with the input; one that blocks in a read of a terminal ends with the process
		defer close(lines)
		for _, r := range in {
			if readErr = readLines(reading, r, lines); readErr != nil {
				return
			}
		}
	}()
	interrupted := false
	for !interrupted && !p.given() {
		var batch [][]byte
		var ok bool
		select {
		case batch, ok = <-lines:
		case <-ctx.Done():
			interrupted = true
		case <-p.hopeless:
		}
		if !ok {
			break
		}
		for _, line := range batch {
			p.send(send, line)
		}
	}
	if err := p.client.Flush(send); err != nil {
		return fmt.Errorf("interrupted before all lines were confirmed: %w", ctx.Err())
	}
	if interrupted {
		return ctx.Err()
	}
	if p.given() {
		return nil // firstErr says why
	}
	if readErr != nil && ctx.Err() == nil {
		return fmt.Errorf("read the input: %w", readErr)
	}
	return nil
}

// readLines sends the lines of r in batches. The lines are copies.
func readLines(ctx context.Context, r io.Reader, out chan<- [][]byte) error {
	br := bufio.NewReaderSize(r, 1<<20)
	var batch [][]byte
	size := 0
	flush := func() error {
		if len(batch) == 0 {
			return nil
		}
		select {
		case out <- batch:
			batch, size = nil, 0
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	for {
		line, err := br.ReadBytes('\n')
		if len(line) > 0 {
			line = bytes.TrimSuffix(line, []byte("\n"))
			batch = append(batch, line)
			size += len(line)
			if len(batch) >= 1000 || size > 1<<20 || br.Buffered() == 0 { // a person's line goes at once
				if err := flush(); err != nil {
					return err
				}
			}
		}
		if err != nil {
			if err == io.EOF {
				err = nil
			}
			return errors.Join(flush(), err)
		}
	}
}

// send hands one line to the client; it blocks while too many lines wait.
func (p *producing) send(ctx context.Context, line []byte) {
	n := p.read.Add(1)
	p.bytes.Add(int64(len(line)) + 1)
	r := &kgo.Record{Value: line, Timestamp: time.Now()}
	switch p.o.key {
	case "number":
		r.Key = strconv.AppendInt(nil, p.o.first+n-1, 10)
	case "split":
		if key, value, ok := bytes.Cut(line, []byte(p.o.separator)); ok {
			r.Key, r.Value = key, value
		}
	}
	if p.o.partition >= 0 {
		r.Partition = int32(p.o.partition)
	}
	p.client.Produce(ctx, r, p.done)
}

// done is called by the client for each record, one at a time.
func (p *producing) done(r *kgo.Record, err error) {
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		p.failed.Add(1)
		if p.firstErr == nil {
			p.firstErr = err
		}
		if !ofTheLine(err) && !p.given() {
			close(p.hopeless)
		}
		return
	}
	p.acked.Add(1)
	due := r.Timestamp
	if due.Before(p.lastAck) {
		due = p.lastAck
	}
	p.stall = max(p.stall, now.Sub(due))
	p.lastAck = now
	p.acks.add(r)
}

func (p *producing) summary() produceSummary {
	p.mu.Lock()
	defer p.mu.Unlock()
	return produceSummary{Read: p.read.Load(), Acked: p.acked.Load(), Failed: p.failed.Load(), Bytes: p.bytes.Load(),
		Seconds: time.Since(p.begin).Seconds(), LongestStall: p.stall.Seconds()}
}

func (p *producing) line(elapsed time.Duration, total int64) string {
	n, size := p.acked.Load(), p.bytes.Load()
	s := fmt.Sprintf("%s lines, %s/s", thousands(n), thousands(int64(float64(n)/elapsed.Seconds())))
	if total > 0 {
		share := float64(size) / float64(total)
		s = fmt.Sprintf("%s %3.0f %% %s", bar(share), min(share, 1)*100, s)
	}
	return s
}

// ackLog writes the confirmed records. Methods of a nil ackLog do nothing. The first error is kept until close.
type ackLog struct {
	mu   sync.Mutex
	f    *os.File
	w    *bufio.Writer
	err  error
	stop chan struct{}
	done sync.WaitGroup
}

func openAcks(name string) (*ackLog, error) {
	if name == "" {
		return nil, nil
	}
	f, err := os.Create(name)
	if err != nil {
		return nil, fmt.Errorf("--acks-file: %w", err)
	}
	l := &ackLog{f: f, w: bufio.NewWriterSize(f, 64<<10), stop: make(chan struct{})}
	l.done.Go(l.flushOften)
	return l, nil
}

// flushOften lets one who follows the file be at most 100 ms behind.
func (l *ackLog) flushOften() {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-l.stop:
			return
		case <-tick.C:
			l.mu.Lock()
			l.keep(l.w.Flush())
			l.mu.Unlock()
		}
	}
}

func (l *ackLog) keep(err error) {
	if l.err == nil {
		l.err = err
	}
}

func (l *ackLog) add(r *kgo.Record) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	var b [64]byte
	line := strconv.AppendInt(b[:0], int64(r.Partition), 10)
	line = append(line, ' ')
	line = strconv.AppendInt(line, r.Offset, 10)
	line = append(line, ' ')
	line = append(line, ackKey(r.Key)...)
	_, err := l.w.Write(append(line, '\n'))
	l.keep(err)
}

// ackKey is the key as it is, quoted when it would not be one plain word, and - for none.
func ackKey(key []byte) string {
	if key == nil {
		return "-"
	}
	s := string(key)
	if s == "" || s == "-" || strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r == '"' || r == 0x7f || r == 0xFFFD }) {
		return strconv.Quote(s)
	}
	return s
}

func (l *ackLog) close() error {
	if l == nil {
		return nil
	}
	close(l.stop)
	l.done.Wait()
	l.keep(l.w.Flush())
	l.keep(l.f.Close())
	if l.err != nil {
		return fmt.Errorf("the acks file is not complete: %w", l.err)
	}
	return nil
}
