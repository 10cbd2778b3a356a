package integration

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kbin"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// rawConn is a connection on which a test says what no client would.
type rawConn struct {
	net.Conn
	t testing.TB
}

func rawDial(t testing.TB, addr string) *rawConn {
	t.Helper()
	c, err := net.DialTimeout("tcp", addr, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(2 * time.Minute))
	return &rawConn{c, t}
}

func (c *rawConn) send(b []byte) {
	c.t.Helper()
	if _, err := c.Write(b); err != nil && !closed(err) {
		c.t.Fatal(err)
	}
}

// frame reads one length-prefixed frame; io.EOF when the peer closed instead.
func (c *rawConn) frame() ([]byte, error) {
	var size [4]byte
	if _, err := io.ReadFull(c, size[:]); err != nil {
		return nil, err
	}
	b := make([]byte, binary.BigEndian.Uint32(size[:]))
	_, err := io.ReadFull(c, b)
	return b, err
}

// closed reports whether the error says that the peer closed or reset the connection.
func closed(err error) bool {
	var ne net.Error
	return err != nil && !(errors.As(err, &ne) && ne.Timeout())
}

// wantClosed fails the test unless the peer closes the connection, with at most an answer before.
func (c *rawConn) wantClosed(what string) {
	c.t.Helper()
	if _, err := io.Copy(io.Discard, c); err != nil && !closed(err) {
		c.t.Fatalf("%s: the connection stays open: %v", what, err)
	}
}

// ask sends one request and reads its response; header is how many bytes precede the body (4, or 5 for flexible versions).
func (c *rawConn) ask(request kmsg.Request, response kmsg.Response) error {
	c.send(kmsg.NewRequestFormatter(kmsg.FormatterClientID("raw")).AppendRequest(nil, request, 7))
	b, err := c.frame()
	if err != nil {
		return err
	}
	if len(b) < 4 || binary.BigEndian.Uint32(b) != 7 {
		return fmt.Errorf("response % x is not to our request", b[:min(8, len(b))])
	}
	b = b[4:]
	response.SetVersion(request.GetVersion())
	if response.IsFlexible() && request.Key() != 18 {
		b = b[1:]
	}
	return response.ReadFrom(b)
}

// batch encodes records as one batch of magic 2 without a producer id. change edits it before its checksum is made.
func batch(values [][]byte, change func(*kmsg.RecordBatch)) []byte {
	now := time.Now().UnixMilli()
	b := kmsg.RecordBatch{Magic: 2, PartitionLeaderEpoch: -1, LastOffsetDelta: int32(len(values) - 1), FirstTimestamp: now, MaxTimestamp: now,
		ProducerID: -1, ProducerEpoch: -1, FirstSequence: -1, NumRecords: int32(len(values))}
	for i, v := range values {
		body := kbin.AppendVarlong([]byte{0}, 0)         // attributes, timestamp delta
		body = kbin.AppendVarint(body, int32(i))         // offset delta
		body = kbin.AppendVarintBytes(body, []byte("k")) // key
		body = kbin.AppendVarintBytes(body, v)
		body = kbin.AppendVarint(body, 0) // headers
		b.Records = append(kbin.AppendVarint(b.Records, int32(len(body))), body...)
	}
	if change != nil {
		change(&b)
	}
	b.Length = int32(len(b.AppendTo(nil)) - 12)
	raw := b.AppendTo(nil)
	binary.BigEndian.PutUint32(raw[17:], crc32.Checksum(raw[21:], crc32.MakeTable(crc32.Castagnoli)))
	return raw
}

func produceRequest(topic string, partition int32, records []byte) *kmsg.ProduceRequest {
	r := kmsg.NewPtrProduceRequest()
	r.SetVersion(3)
	r.Acks, r.TimeoutMillis = -1, 10_000
	t := kmsg.NewProduceRequestTopic()
	t.Topic = topic
	p := kmsg.NewProduceRequestTopicPartition()
	p.Partition, p.Records = partition, records
	t.Partitions = append(t.Partitions, p)
	r.Topics = append(r.Topics, t)
	return r
}
