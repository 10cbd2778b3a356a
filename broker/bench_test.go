package broker

import (
	"bytes"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// The broker's own share of a request: loopback, frame, decode, partitions in memory, encode.

func BenchmarkMetadata(b *testing.B) {
	f := start(b, nil)
	c := f.dial(b)
	createTopic(c, 5, "t", 100, 1, nil)
	name := "t"
	req := kmsg.NewPtrMetadataRequest()
	req.Version, req.Topics = 9, []kmsg.MetadataRequestTopic{{Topic: &name}}
	for b.Loop() {
		c.send(req)
		if _, _, err := c.frame(); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkFetchMegabyte(b *testing.B) {
	f := start(b, nil)
	c := f.dial(b)
	createTopic(c, 5, "t", 1, 1, nil)
	big := batch(b, strings.Repeat("x", 1000<<10))
	if got := produced1(c, produceOne(8, 1, "t", 0, bytes.Clone(big))); got.ErrorCode != 0 {
		b.Fatal(got)
	}
	req := fetchOne(11, "t", 0, 0, 1)
	b.SetBytes(int64(len(big)))
	for b.Loop() {
		c.send(req)
		if _, _, err := c.frame(); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkProduce16K(b *testing.B) {
	f := start(b, nil)
	c := f.dial(b)
	createTopic(c, 5, "t", 1, 1, nil)
	frame := frameOf(produceOne(8, 1, "t", 7, batch(b, strings.Repeat("x", 16<<10))), 1) // refused: the log must not grow
	b.SetBytes(int64(len(frame)))
	for b.Loop() {
		c.write(frame)
		if _, _, err := c.frame(); err != nil {
			b.Fatal(err)
		}
	}
}
