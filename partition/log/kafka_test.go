package log

import (
	"cmp"
	"flag"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/internal/vfs"
	"github.com/barnabas-mq/barnabas/partition/record"
)

var writeLog = flag.String("write-log", "", "directory to write a log to, for Kafka's tools")

// TestWriteLogForKafka writes a log on the real disk. Tried on 2026-11-29 with 400 batches of all codecs but zstd, in three segments:
//
//	go test -run TestWriteLogForKafka . -args -write-log /tmp/wl
//	kafka-dump-log.sh --deep-iteration --files (all .log, .index, .timeindex)     # org.apache.kafka.tools.DumpLogSegments 4.4.0
//
// Kafka 4.4.0 showed 1597 records in 400 batches, all valid, and found no fault in any index or time index. Kafka 1.1.1's tool
// (kafka.tools.DumpLogSegments) agreed on .log and .timeindex; of .index it says "Index offset: 615, log offset: 609", since until
// 1.1 an entry held a batch's first offset, and since 2.0 the last. We write the last; either broker looks up either kind rightly.
func TestWriteLogForKafka(t *testing.T) {
	dir := cmp.Or(*writeLog, t.TempDir()) // without the flag nobody looks at it
	l, _, err := Open(vfs.OS(), filepath.Join(dir, "t-0"), Config{SegmentBytes: 60_000, TopicID: id.TopicID{1, 2, 3}}, now)
	must(t, err)
	for i := range 400 {
		_, err := l.AppendAsLeader(batchAt(t, 1+i%7, 40+i%300, fmt.Sprint(i), now+int64(i*37%101), func(h *record.BatchHeader) {
			h.Codec = record.Codec(i % 4)
			if i%3 == 0 {
				h.ProducerID, h.ProducerEpoch, h.BaseSequence = int64(i), 0, 0
			}
		}), id.LeaderEpoch(i/100), now)
		must(t, err)
	}
	must(t, l.Close())
}
