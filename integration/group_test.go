package integration

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"testing"

	"github.com/barnabas-mq/barnabas/integration/check"
	"github.com/barnabas-mq/barnabas/integration/harness"
	"github.com/barnabas-mq/barnabas/internal/testtool"
)

// receipts reads what the Java consumers wrote so far: whole lines alone.
func receipts(t *testing.T, files map[string]string, topic string) []check.Record {
	t.Helper()
	var all []check.Record
	for name, file := range files {
		data, err := os.ReadFile(file)
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		data = data[:bytes.LastIndexByte(data, '\n')+1]
		for line := range bytes.Lines(data) {
			var r struct {
				check.Record
				Event string `json:"event"`
			}
			if err := json.Unmarshal(line, &r); err != nil {
				t.Fatalf("%s: %q: %v", file, line, err)
			}
			if r.Event == "" {
				r.Client, r.Topic = name, topic
				all = append(all, r.Record)
			}
		}
	}
	return all
}

// awaitReceipts returns when each of the members has received something.
func awaitReceipts(t *testing.T, files map[string]string, members ...string) {
	t.Helper()
	testtool.Eventually(t, 2*harness.StartLimit, func() error {
		n := map[string]int{}
		for _, r := range receipts(t, files, "") {
			n[r.Client]++
		}
		for _, m := range members {
			if n[m] == 0 {
				return fmt.Errorf("%s received nothing; received so far: %v", m, n)
			}
		}
		return nil
	})
}
