package harness

import (
	"testing"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/barnabas-mq/barnabas/integration/check"
)

// The load and the full read agree with each other on a fake broker, so that what they say of ours is about ours.
func TestLoadOnAFakeCluster(t *testing.T) {
	fake, err := kfake.NewCluster(kfake.NumBrokers(3))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(fake.Close)
	brokers := fake.ListenAddrs()
	CreateTopic(t, brokers, "t", 3, 1, nil)
	if leaders := Leaders(t, brokers, "t"); len(leaders) != 3 {
		t.Fatalf("leaders = %v, want three", leaders)
	}
	if c := Controller(t, brokers); c < 0 {
		t.Fatalf("controller = %d", c)
	}
	var h check.History
	p := Produce(t, brokers, "t", &h, ProducerOptions{})
	p.AwaitAcks(t, 200)
	if failed := p.Stop(t); len(failed) > 0 {
		t.Fatal(failed)
	}
	final := ReadAll(t, brokers, "t", "final")
	if len(final) != p.Acked() {
		t.Errorf("%d records acked, %d read", p.Acked(), len(final))
	}
	h.Fail(t, final, append(append(check.NoLoss(h.Acks(), final), check.NoDuplicate(final)...), check.OffsetUnique(h.Acks(), final)...))
}
