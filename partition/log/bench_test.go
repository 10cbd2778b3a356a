package log

import (
	"bytes"
	"testing"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/internal/vfs"
	"github.com/barnabas-mq/barnabas/partition/record"
)

// The load of `make demo`, about 90 MB in 2.85 million records of 32 bytes: prepared, appended in batches of 500, read back.
func BenchmarkDemoLoad(b *testing.B) {
	payload := batch(b, 500, 32, "x", nil)
	b.SetBytes(5700 * int64(len(payload)))
	for b.Loop() {
		l, _, err := Open(vfs.OS(), b.TempDir(), Config{}, now)
		must(b, err)
		codecs := record.NewCodecs(0)
		work := bytes.Clone(payload)
		for range 5700 {
			p, err := codecs.PrepareProduce(work, record.ProduceRules{Version: 7, MaxBatchBytes: 1 << 20})
			must(b, err)
			_, err = l.AppendAsLeader(p.Batches, 0, now)
			must(b, err)
		}
		_, err = l.Sync()
		must(b, err)
		buf := make([]byte, 1<<20)
		for offset := id.Offset(0); offset < l.LogEnd(); {
			data, err := l.Read(Fetch{Offset: offset, MaxBytes: 1 << 20, UpTo: All, Buf: buf})
			must(b, err)
			for len(data) > 0 {
				var one record.Batch
				one, data, _ = record.Next(data)
				offset = one.LastOffset() + 1
			}
		}
		must(b, l.Close())
	}
}

func BenchmarkAppendSmall(b *testing.B) {
	l, _, err := Open(vfs.OS(), b.TempDir(), Config{}, now)
	must(b, err)
	payload := batch(b, 1, 100, "x", nil)
	b.ReportAllocs()
	for b.Loop() {
		_, err := l.AppendAsLeader(payload, 0, now)
		must(b, err)
	}
	must(b, l.Close())
}
