package partition

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/barnabas-mq/barnabas/internal/id"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestOneNodeServes(t *testing.T) { synctest.Test(t, testOneNodeServes) }

func testOneNodeServes(t *testing.T) {
	c := newCluster(t, 1, Config{})
	c.createTopic("t", 1, []int32{1})
	b := c.leader("t", 0)
	for i := range 3 {
		res := b.produce("t", 0, -1, 5*time.Second, batchOf(t, "a", "b"))
		if res.Err != nil || res.BaseOffset != id.Offset(2*i) || res.LogStart != 0 || res.AppendTime != -1 {
			t.Fatalf("append %d: %+v", i, res)
		}
	}
	got, err := b.read("t", 0, 1)
	if err != nil || len(got) != 5 || got[1] != "b" || got[4] != "a" {
		t.Fatalf("read %v, %v", got, err)
	}
	if res := b.fetch("t", 0, 7); !errors.Is(res.Err, ErrOffsetOutOfRange) {
		t.Errorf("fetch above the end: %v", res.Err)
	}
	if res := b.fetch("t", 1, 0); !errors.Is(res.Err, ErrUnknownTopicOrPartition) {
		t.Errorf("fetch of no partition: %v", res.Err)
	}
	latest, err := b.m.ListOffset("t", 0, TimestampLatest, -1, ReadUncommitted)
	if err != nil || latest.Offset != 6 {
		t.Errorf("latest %+v, %v", latest, err)
	}
	byTime, err := b.m.ListOffset("t", 0, 1001, -1, ReadUncommitted)
	if err != nil || byTime.Offset != 1 || byTime.Timestamp != 1001 {
		t.Errorf("by time %+v, %v", byTime, err)
	}
	v0, err := b.m.ListOffsetsV0("t", 0, TimestampLatest, 10)
	if err != nil || len(v0) != 2 || v0[0] != 6 || v0[1] != 0 {
		t.Errorf("v0 list %v, %v", v0, err)
	}
	// A restart keeps it all.
	b.stop()
	b.start()
	b = c.leader("t", 0)
	if got, err := b.read("t", 0, 0); err != nil || len(got) != 6 {
		t.Fatalf("after restart read %v, %v", got, err)
	}
	c.deleteTopic("t")
	eventually(t, "the directory to go", func() bool {
		names, _ := b.disk.ReadDir("data")
		return len(names) == 0
	})
	if res := b.fetch("t", 0, 0); !errors.Is(res.Err, ErrUnknownTopicOrPartition) {
		t.Errorf("fetch of a deleted topic: %v", res.Err)
	}
}
