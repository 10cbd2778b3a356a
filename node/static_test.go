package node

import (
	"testing"

	"github.com/barnabas-mq/barnabas/node/config"
)

// Only what differs from Kafka's defaults counts as set: tools list the rest of it as overrides of every topic.
func TestStaticShowsWhatWasSet(t *testing.T) {
	for want, given := range map[string]map[string]string{
		"":          {},
		"536870912": {"log.segment.bytes": "536870912"},
	} {
		c, err := config.Parse(given, "localhost")
		if err != nil {
			t.Fatal(err)
		}
		got := static(c)
		if got["log.segment.bytes"] != want || got["log.retention.bytes"] != "" {
			t.Errorf("%v: %v", given, got)
		}
	}
}
