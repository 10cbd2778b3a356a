package groups

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// again is a record that was received twice.
type again struct {
	phase         int
	first, second line
}

// told is one line of a timeline.
type told struct {
	at   time.Time
	text string
}

// of is the member that an event of a consumer's log is of: it begins with "[<group>_<member>], ".
func (l line) of() string {
	if l.Member != "" {
		return l.Member
	}
	name, _, _ := strings.Cut(strings.TrimPrefix(l.Message, "["), "]")
	return memberOf(name)
}

// What a consumer's log says of the steps of a rebalance.
const (
	saysCommits  = "Committing all offsets"
	saysReleases = "Releasing partition ownership"
)

// story is what is known of how a partition went from the member that first received a record to the next one.
type story struct {
	taken, gone, claimed time.Time // when the first owner had it, had it no more, and the next owner had it
	commits, releases    int64     // when the first owner began to, the last time before it was gone; ms
	committed            int64     // the last offset that ZooKeeper acknowledged to the first owner, or what it found; -1: none
	found                int64     // the offset's znode when the next owner claimed; -1: none
}

// storyOf finds out what happened to a partition after the first receipt of a record.
func storyOf(d again, all []line, history []moment) story {
	s := story{committed: -1, found: -1}
	for _, m := range history {
		switch {
		case m.partition != d.first.Partition:
		case m.what == "offset":
			if n, err := strconv.ParseInt(m.value, 10, 64); err == nil && (s.claimed.IsZero() || m.at.UnixMilli() <= d.first.At) {
				s.found = n
			}
		case m.what != "owner":
		case m.value == d.first.Member && m.at.UnixMilli() <= d.first.At:
			s = story{taken: m.at, committed: s.found, found: s.found}
		case s.taken.IsZero() || !s.claimed.IsZero():
		case s.gone.IsZero() && m.value != d.first.Member:
			s.gone = m.at
			if m.value != "" {
				s.claimed = m.at
			}
		case !s.gone.IsZero() && m.value != "" && m.at.UnixMilli() > d.first.At:
			s.claimed = m.at
		}
	}
	for _, l := range all {
		at := time.UnixMilli(l.At)
		switch {
		case l.of() != d.first.Member || at.Before(s.taken.Truncate(time.Millisecond)) || at.After(s.gone):
		case l.Event == "wrote" && l.Partition == d.first.Partition:
			s.committed = l.Offset
		case l.Event == "trace" && strings.Contains(l.Message, saysCommits):
			s.commits = l.At
		case l.Event == "trace" && strings.Contains(l.Message, saysReleases):
			s.releases = l.At
		}
	}
	return s
}

// own reports whether the first owner itself is the cause: it gave the partition up in good order, the offset that it committed last is
// what the next one found, and it gave the record to its application after it had begun that commit, which does not include it. A consumer
// of 0.8.2.2 clears its queues before it commits, but what its iterator has taken from them already it goes on to hand out.
func (s story) own(d again) bool {
	return s.commits > 0 && s.releases >= s.commits && d.first.At >= s.commits && s.committed == s.found && d.first.Offset >= s.committed
}

// tellDuplicates writes the story of each run of records that were received twice, and returns which of them are the clients' own.
func tellDuplicates(b *testing.B, twice []again, all []line, history []moment, began time.Time) []bool {
	own := make([]bool, len(twice))
	ms := func(at int64) string { return fmt.Sprintf("+%.3f", float64(at-began.UnixMilli())/1000) }
	type key struct {
		phase, partition int
		first, second    string
	}
	runs := map[key][]int{}
	var order []key
	for i, d := range twice {
		k := key{d.phase, int(d.first.Partition), d.first.Member, d.second.Member}
		if runs[k] == nil {
			order = append(order, k)
		}
		runs[k] = append(runs[k], i)
	}
	for _, k := range order {
		run := runs[k]
		owns := 0
		var s story
		for _, i := range run {
			s = storyOf(twice[i], all, history)
			if own[i] = s.own(twice[i]); own[i] {
				owns++
			}
		}
		first, last := twice[run[0]], twice[run[len(run)-1]]
		b.Logf("phase %d, partition %d, %d records from %d to %d: %s received them %s to %s, %s %s to %s; %s began to commit %s, to release %s, and committed %d; the next owner claimed %s and found %d; %d handed out after the client's own last commit",
			k.phase, k.partition, len(run), first.first.Offset, last.first.Offset, k.first, ms(first.first.At), ms(last.first.At), k.second, ms(first.second.At), ms(last.second.At),
			k.first, ms(s.commits), ms(s.releases), s.committed, ms(s.claimed.UnixMilli()), s.found, owns)
		if owns == len(run) || k.phase == 1 {
			continue
		}
		for _, t := range timeline(all, history, int32(k.partition), []string{k.first, k.second}, time.UnixMilli(first.first.At-1500), time.UnixMilli(last.second.At+500)) {
			b.Logf("    %s %s", ms(t.at.UnixMilli()), t.text)
		}
	}
	return own
}

// timeline is what happened to a partition and to members in a span of time.
func timeline(all []line, history []moment, partition int32, members []string, from, to time.Time) []told {
	var out []told
	for _, l := range all {
		at := time.UnixMilli(l.At)
		if l.Event == "" || at.Before(from) || at.After(to) || !slices.Contains(members, l.of()) {
			continue
		}
		switch {
		case l.Event == "wrote" && (l.Partition == partition || partition < 0):
			out = append(out, told{at, fmt.Sprintf("%s: %d is committed for partition %d", l.of(), l.Offset, l.Partition)})
		case l.Event != "wrote":
			out = append(out, told{at, l.of() + ": " + l.Event + " " + l.Message})
		}
	}
	for _, m := range history {
		if m.at.Before(from) || m.at.After(to) || m.what != "ids" && m.partition != partition && partition >= 0 {
			continue
		}
		out = append(out, told{m.at, fmt.Sprintf("znode: %s %d %q", m.what, m.partition, m.value)})
	}
	slices.SortStableFunc(out, func(a, b told) int { return a.at.Compare(b.at) })
	return out
}

// tellKill writes how the partitions of the killed members came to have owners again.
func tellKill(b *testing.B, s system, all []line, history []moment, killed, owned time.Time) {
	since := func(at time.Time) string { return fmt.Sprintf("+%.3f", at.Sub(killed).Seconds()) }
	end := owned.Add(2 * time.Second)
	out := s.serverLines(os.ReadFile, killed, end)
	before := ""
	type steps struct{ attempt, commits, releases, lastClaim time.Time }
	member := map[string]*steps{}
	step := func(name string) *steps {
		if member[name] == nil {
			member[name] = &steps{}
		}
		return member[name]
	}
	for _, m := range history {
		switch {
		case m.what == "ids" && m.at.After(killed) && m.at.Before(end):
			out = append(out, told{m.at, "ids are without " + missing(before, m.value) + " and with " + missing(m.value, before)})
		case m.what == "owner" && m.at.After(killed) && !m.at.After(owned) && m.value != "":
			step(m.value).lastClaim = m.at
		}
		if m.what == "ids" {
			before = m.value
		}
	}
	for _, l := range all {
		at := time.UnixMilli(l.At)
		if at.Before(killed) || at.After(owned) {
			continue
		}
		switch {
		case l.Event == "attempt":
			step(l.of()).attempt = at
		case strings.Contains(l.Message, saysCommits):
			step(l.of()).commits = at
		case strings.Contains(l.Message, saysReleases):
			step(l.of()).releases = at
		}
	}
	for name, m := range member {
		out = append(out, told{m.attempt, fmt.Sprintf("%s begins its last attempt; it commits %s, releases %s, has its last partition %s", name, since(m.commits),
			since(m.releases), since(m.lastClaim))})
	}
	out = append(out, told{owned, "all partitions are owned again"})
	slices.SortStableFunc(out, func(a, b told) int { return a.at.Compare(b.at) })
	b.Logf("five members were killed:")
	for _, t := range out {
		b.Logf("    %s %s", since(t.at), t.text)
	}
}

// missing lists the words of one text that the other has not.
func missing(from, of string) string {
	has := strings.Fields(of)
	return fmt.Sprint(slices.DeleteFunc(strings.Fields(from), func(w string) bool { return slices.Contains(has, w) }))
}
