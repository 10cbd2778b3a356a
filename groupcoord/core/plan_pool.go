package core

import (
	"fmt"
	"slices"
	"strings"
)

// poolInfix parts a group's name from the number of a pool registration: it sorts after the ids that old clients make.
const poolInfix = "_~barnabas-"

// maxPool bounds the registrations of a pool.
const maxPool = 999

// poolID is the consumer id of a pool registration, from 0.
func poolID(group string, n int) string { return fmt.Sprintf("%s%s%03d", group, poolInfix, n) }

// isPool reports whether a consumer or thread id is of the pool.
func isPool(group, consumer string) bool {
	rest, ok := strings.CutPrefix(consumer, group+poolInfix)
	return ok && len(rest) >= 3 && rest[0] >= '0' && rest[0] <= '9'
}

// pool are as many registrations as each topic is to have: one synthetic thread each.
func pool(group string, sizes map[string]int) []planMember {
	var out []planMember
	for topic, size := range sizes {
		for len(out) < size {
			out = append(out, planMember{id: poolID(group, len(out)), streams: map[string]int{}})
		}
		for i := range size {
			out[i].streams[topic] = 1
		}
	}
	return out
}

// poolSizes chooses the pool's registrations for each topic, such that a modern member counts as much as a legacy one: as many
// threads as those have on average. modern tells how many modern members subscribe to a topic. A topic that has members of
// one kind only needs no pool.
//
// With range the pool of a topic is its own. Round-robin deals all topics in one circle, up to 0.10.1 only when all have the
// same threads: there one pool has all topics of the legacy members, so each of them needs a modern member.
func poolSizes(s strategy, legacy []planMember, partitions map[string][]int32, modern map[string]int) (map[string]int, error) {
	sizes := map[string]int{}
	if s == strategyRange {
		for topic, threads := range threadsByTopic(legacy) {
			if modern[topic] > 0 {
				sizes[topic] = poolSize(modern[topic], len(threads), subscribers(legacy, topic), len(partitions[topic]))
			}
		}
		return sizes, nil
	}
	topics := threadsByTopic(legacy)
	most, all, threads := 0, 0, 0
	for topic := range topics {
		most, all = max(most, modern[topic]), all+len(partitions[topic])
	}
	if most == 0 {
		return sizes, nil
	}
	for i := range legacy {
		n := 0
		for topic := range legacy[i].streams {
			n = max(n, len(legacy[i].threads(topic)))
		}
		threads += n
	}
	size := poolSize(most, threads, len(legacy), all)
	for _, topic := range sorted(topics) {
		switch {
		case modern[topic] > 0:
			sizes[topic] = size
		case even(legacy):
			return nil, fmt.Errorf("%s deals all topics of a group to the same members: no modern member subscribes to %s", s, topic)
		}
	}
	return sizes, nil
}

// poolSize is modern*threads/legacy, rounded. More than there are partitions would get none.
func poolSize(modern, threads, legacy, partitions int) int {
	return max(1, min((2*modern*threads+legacy)/(2*legacy), partitions, maxPool))
}

func subscribers(members []planMember, topic string) (n int) {
	for i := range members {
		if members[i].streams[topic] > 0 {
			n++
		}
	}
	return n
}

// poolShare is what the members will leave to the pool, by topic, in the order of the partitions. legacy are without the pool.
func poolShare(s strategy, group string, legacy []planMember, partitions map[string][]int32, sizes map[string]int) (map[string][]int32, error) {
	all, err := s.share(append(slices.Clone(legacy), pool(group, sizes)...), partitions)
	if err != nil {
		return nil, err
	}
	out := map[string][]int32{}
	for topic := range sizes {
		out[topic] = all.of(topic, func(thread string) bool { return isPool(group, thread) })
	}
	return out, nil
}
