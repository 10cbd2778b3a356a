// Package groups compares groups of old and new members with Apache Kafka's, both in one run: `make bench-groups`.
//
// Legacy: 20 unmodified high-level consumers of 0.8.2.2 join one by one, 5 are killed, 5 join again, under load, on a real Kafka
// 1.1.1 with a real ZooKeeper and on three barnabas nodes. Modern: 30 franz-go members start at once over 60 partitions, by
// the classic and by the KIP-848 protocol, on a real Kafka 4.4 and on barnabas.
package groups

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"text/tabwriter"
	"time"
)

func BenchmarkLegacy(b *testing.B) {
	var names []string
	var all []outcome
	for _, start := range []func(*testing.B) system{kafka111, barnabas} {
		b.Run("", func(b *testing.B) {
			s := start(b)
			names, all = append(names, s.name), append(all, legacy(b, s))
		})
	}
	if len(all) > 0 { // one, when a pattern has left the other out
		table(names, all)
	}
}

func table(names []string, all []outcome) {
	out := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	defer out.Flush()
	fmt.Fprintf(out, "\n\t%s\t\n", strings.Join(names, "\t"))
	row := func(what string, value func(outcome) any) {
		fmt.Fprintf(out, "%s\t", what)
		for _, o := range all {
			fmt.Fprintf(out, "%v\t", value(o))
		}
		fmt.Fprintln(out)
	}
	for phase, name := range []string{"20 join", "5 killed", "5 join again"} {
		row(name+": rebalance rounds", func(o outcome) any { return o.rounds[phase] })
		row("failed attempts", func(o outcome) any { return o.failed[phase] })
		row("ConsumerRebalanceFailedException", func(o outcome) any { return o.gaveUp[phase] })
		row("records received twice", func(o outcome) any { return o.duplicates[phase] })
		row("of them handed out by the client after its own last commit", func(o outcome) any { return o.own[phase] })
		row("last change after its begin", func(o outcome) any { return o.settled[phase].Round(10 * time.Millisecond) })
	}
	row("all partitions owned again after the kill", func(o outcome) any { return o.ownedAfterKill.Round(10 * time.Millisecond) })
	row("records sent", func(o outcome) any { return o.sent })
	row("records lost", func(o outcome) any { return o.lost })
}
