package core

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
)

// Legacy members compute for themselves who owns what. The plan is that same computation, so that the coordinator knows its
// outcome and can give the pool's part of it to modern members (groups.md, "Mixed groups").

// strategy is how the legacy members of a group share partitions out. A registration does not say which: it is learnt from claims.
type strategy int32

const (
	// strategyRange: per topic, contiguous runs (kafka.consumer.RangeAssignor of every release; kafka-node over ids).
	strategyRange strategy = iota
	// strategyHash011: kafka.consumer.RoundRobinAssignor up to 0.11, partitions in the order of "[topic,partition]".hashCode.
	strategyHash011
	// strategyHash10: the same from 1.0 on, by "topic-partition".hashCode.
	strategyHash10
)

func (s strategy) String() string {
	if s < strategyRange || s > strategyHash10 {
		return "unknown"
	}
	return [...]string{"range", "roundrobin (up to 0.11)", "roundrobin (from 1.0)"}[s]
}

// planMember is a legacy member as the others count it.
type planMember struct {
	id      string
	streams map[string]int // by topic, at least 1
	bare    bool           // kafka-node: the id stands for the one stream that it has of each topic
}

// threads are what a member counts as for a topic: what its claims say, and what the order is made of.
func (m *planMember) threads(topic string) []string {
	n := m.streams[topic]
	if n > 0 && m.bare {
		return []string{m.id}
	}
	ids := make([]string, n)
	for i := range ids {
		ids[i] = m.id + "-" + strconv.Itoa(i)
	}
	return ids
}

// shares tells which thread takes a partition, by topic.
type shares map[string]map[int32]string

// of are the partitions of a topic whose thread is one of those, in order.
func (s shares) of(topic string, thread func(string) bool) []int32 {
	out := []int32{}
	for p, t := range s[topic] {
		if thread(t) {
			out = append(out, p)
		}
	}
	slices.Sort(out)
	return out
}

// share is what the members will compute from a view with exactly these members and partitions (sorted, by topic). An error says
// why nobody can tell.
func (s strategy) share(members []planMember, partitions map[string][]int32) (shares, error) {
	topics := threadsByTopic(members)
	if s == strategyRange {
		out := shares{}
		for topic, threads := range topics {
			out[topic] = rangeOf(threads, partitions[topic])
		}
		return out, nil
	}
	return dealt(s, topics, partitions)
}

// threadsByTopic are the threads of each subscribed topic, sorted as Java and JavaScript sort strings.
func threadsByTopic(members []planMember) map[string][]string {
	out := map[string][]string{}
	for i := range members {
		for topic := range members[i].streams {
			out[topic] = append(out[topic], members[i].threads(topic)...)
		}
	}
	for _, threads := range out {
		slices.SortFunc(threads, compareUTF16)
	}
	return out
}

// compareUTF16 is String.compareTo of Java, and the order of JavaScript: by UTF-16 code units.
func compareUTF16(a, b string) int {
	i := 0
	for i < len(a) && i < len(b) && a[i] == b[i] {
		i++
	}
	if i == len(a) || i == len(b) || (a[i] < 0x80 && b[i] < 0x80) {
		return strings.Compare(a[i:], b[i:])
	}
	return slices.Compare(utf16.Encode([]rune(a)), utf16.Encode([]rune(b)))
}

// rangeOf gives each thread |P|/|C| contiguous partitions by position, the first |P| mod |C| threads one more.
func rangeOf(threads []string, partitions []int32) map[int32]string {
	out := make(map[int32]string, len(partitions))
	each, more := len(partitions)/len(threads), len(partitions)%len(threads)
	for i, thread := range threads {
		from := each*i + min(i, more)
		to := from + each
		if i < more {
			to++
		}
		for _, p := range partitions[from:to] {
			out[p] = thread
		}
	}
	return out
}

type hashedPartition struct {
	hash      int32
	topic     string
	partition int32
}

// dealt deals all partitions in the order of their hash to all threads in a circle, which skips threads without the topic. (Up to
// 0.10.1 members fail when topics differ in their threads; where they do not, later releases compute the same: see even.)
func dealt(s strategy, topics map[string][]string, partitions map[string][]int32) (shares, error) {
	var all []hashedPartition
	var circle []string
	out, subscribed := shares{}, map[string]map[string]bool{}
	for topic, threads := range topics {
		out[topic], subscribed[topic] = map[int32]string{}, map[string]bool{}
		for _, t := range threads {
			subscribed[topic][t] = true
		}
		circle = append(circle, threads...)
		for _, p := range partitions[topic] {
			all = append(all, hashedPartition{s.hash(topic, p), topic, p})
		}
	}
	slices.SortFunc(circle, compareUTF16)
	circle = slices.Compact(circle)
	slices.SortFunc(all, func(a, b hashedPartition) int { return cmp.Compare(a.hash, b.hash) })
	next := 0
	for i, p := range all {
		if i > 0 && all[i-1].hash == p.hash { // then the order is that of a Scala map
			return nil, fmt.Errorf("partitions %s-%d and %s-%d have the same hash: the order in which %s deals them is not defined",
				all[i-1].topic, all[i-1].partition, p.topic, p.partition, s)
		}
		for !subscribed[p.topic][circle[next]] {
			next = (next + 1) % len(circle)
		}
		out[p.topic][p.partition] = circle[next]
		next = (next + 1) % len(circle)
	}
	return out, nil
}

// hash is String.hashCode of TopicAndPartition.toString.
func (s strategy) hash(topic string, partition int32) int32 {
	text := topic + "-" + strconv.Itoa(int(partition))
	if s == strategyHash011 {
		text = "[" + topic + "," + strconv.Itoa(int(partition)) + "]"
	}
	h := int32(0)
	for _, c := range utf16.Encode([]rune(text)) {
		h = 31*h + int32(c)
	}
	return h
}

// even reports whether all topics have the same threads: what round-robin up to 0.10.1 insists on.
func even(members []planMember) bool {
	var first []string
	for _, threads := range threadsByTopic(members) {
		if first != nil && !slices.Equal(first, threads) {
			return false
		}
		first = threads
	}
	return true
}
