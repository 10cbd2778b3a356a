package groups

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/barnabas-mq/barnabas/internal/testtool"
)

// What the commits part does.
const (
	commitTopic  = "commits"
	commitLength = 10 * time.Second
)

// BenchmarkCommits has groups commit one partition's offset in each request, one after the other, as fast as they are answered: 64
// groups, then one alone.
func BenchmarkCommits(b *testing.B) {
	type result struct {
		rate     float64
		p50, p99 time.Duration
	}
	var names []string
	results := map[string]map[int]result{}
	for _, start := range []func(*testing.B) system{kafka44, kafka44x3, barnabas} {
		b.Run("", func(b *testing.B) {
			s := start(b)
			s.topic(b, commitTopic, 1)
			names, results[s.name] = append(names, s.name), map[int]result{}
			s.commits(b, 64, commitLength/2) // the JVM gets warm
			for _, groups := range []int{64, 1} {
				took := s.commits(b, groups, commitLength)
				slices.Sort(took)
				results[s.name][groups] = result{float64(len(took)) / commitLength.Seconds(), took[len(took)/2], took[len(took)*99/100]}
			}
		})
	}
	out := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	defer out.Flush()
	fmt.Fprintf(out, "\none commit a request\tgroups\tcommits/s\tp50\tp99\t\n")
	for _, groups := range []int{64, 1} {
		for _, n := range names {
			r := results[n][groups]
			fmt.Fprintf(out, "%s\t%d\t%.0f\t%v\t%v\t\n", n, groups, r.rate, r.p50.Round(10*time.Microsecond), r.p99.Round(10*time.Microsecond))
		}
	}
}

// commits returns how long each commit took.
func (s system) commits(b *testing.B, groups int, length time.Duration) []time.Duration {
	b.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), length+startLimit)
	defer cancel()
	admin := kadm.NewClient(s.client(b))
	all := make([]*committer, groups)
	for g := range all {
		all[g] = dialCommitter(ctx, b, admin, fmt.Sprint("committer-", g))
	}
	took := make([][]time.Duration, groups)
	errs := make([]error, groups)
	begun := time.Now()
	var wg sync.WaitGroup
	for g, c := range all {
		wg.Go(func() {
			for n := int64(0); time.Since(begun) < length && errs[g] == nil; n++ {
				at := time.Now()
				errs[g] = c.commit(n)
				took[g] = append(took[g], time.Since(at))
			}
		})
	}
	wg.Wait()
	for g, err := range errs {
		if err != nil {
			b.Fatalf("group %d: %v", g, err)
		}
	}
	return slices.Concat(took...)
}

// committer is a connection to a group's coordinator. It shares the machine with the servers: a client library costs twice as much
// for a request as this does, and would take a quarter of what is measured.
type committer struct {
	conn    net.Conn
	form    *kmsg.RequestFormatter
	request *kmsg.OffsetCommitRequest
	out, in []byte
}

func dialCommitter(ctx context.Context, b *testing.B, admin *kadm.Client, group string) *committer {
	b.Helper()
	c := &committer{form: kmsg.NewRequestFormatter(kmsg.FormatterClientID(group)), request: kmsg.NewPtrOffsetCommitRequest()}
	c.request.Version = 7 // the last one without tags, of which a response's header has one more
	c.request.Group = group
	topic, partition := kmsg.NewOffsetCommitRequestTopic(), kmsg.NewOffsetCommitRequestTopicPartition()
	topic.Topic = commitTopic
	topic.Partitions = append(topic.Partitions, partition)
	c.request.Topics = append(c.request.Topics, topic)
	testtool.Eventually(b, startLimit, func() error { // Kafka makes its offsets topic first
		found := admin.FindGroupCoordinators(ctx, group)[group]
		if found.Err != nil {
			return found.Err
		}
		conn, err := net.Dial("tcp", net.JoinHostPort(found.Host, fmt.Sprint(found.Port)))
		if err != nil {
			return err
		}
		c.conn = conn
		if err := errors.Join(conn.SetDeadline(time.Now().Add(startLimit)), c.commit(0)); err != nil {
			return errors.Join(err, conn.Close())
		}
		return nil
	})
	b.Cleanup(func() { _ = c.conn.Close() })
	return c
}

// commit returns when the commit is answered; an error is the answer's, or the connection's.
func (c *committer) commit(offset int64) error {
	c.request.Topics[0].Partitions[0].Offset = offset
	c.out = c.form.AppendRequest(c.out[:0], c.request, int32(offset))
	if _, err := c.conn.Write(c.out); err != nil {
		return err
	}
	c.in = slices.Grow(c.in[:0], 4096)[:4096]
	n, err := io.ReadAtLeast(c.conn, c.in, 8)
	if err != nil {
		return err
	}
	size := 4 + int(binary.BigEndian.Uint32(c.in))
	if id := int32(binary.BigEndian.Uint32(c.in[4:])); size > len(c.in) || id != int32(offset) {
		return fmt.Errorf("an answer of %d bytes to request %d, after request %d", size, id, int32(offset))
	}
	if n < size {
		if _, err := io.ReadFull(c.conn, c.in[n:size]); err != nil {
			return err
		}
	}
	response := kmsg.NewPtrOffsetCommitResponse()
	response.Version = c.request.Version
	if err := response.ReadFrom(c.in[8:size]); err != nil {
		return err
	}
	return kerr.ErrorForCode(response.Topics[0].Partitions[0].ErrorCode)
}
