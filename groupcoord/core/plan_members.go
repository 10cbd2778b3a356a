package core

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/barnabas-mq/barnabas/raftmeta/state"
)

// planMemberOf counts a member as the other members do. topics are the children of /brokers/topics that they see: a pattern is
// matched against them. An error says why a group with this member cannot be computed.
func planMemberOf(id string, reg state.Registration, topics []string) (planMember, error) {
	m := planMember{id: id, streams: map[string]int{}, bare: reg.Dialect == state.DialectKafkaNode}
	if reg.Dialect != state.DialectJVM && !m.bare {
		return m, fmt.Errorf("member %s is of the dialect %s, whose shares depend on where partition leaders are", clip(id), reg.Dialect)
	}
	pattern := reg.Pattern == "white_list" || reg.Pattern == "black_list"
	if pattern && len(reg.Topics) > 1 {
		return m, fmt.Errorf("member %s has %d patterns, of which each client reads another one", clip(id), len(reg.Topics))
	}
	for _, t := range reg.Topics {
		switch {
		case t.Threads < 1 || t.Threads > maxStreams:
			return m, fmt.Errorf("member %s asks for %d streams of %s", clip(id), t.Threads, clip(t.Topic))
		case m.bare:
			m.streams[t.Topic] = 1
		case pattern:
			matches, err := javaPattern(t.Topic)
			if err != nil {
				return m, fmt.Errorf("the pattern of member %s: %w", clip(id), err)
			}
			for _, name := range topics {
				if matches(name) == (reg.Pattern == "white_list") {
					m.streams[name] = int(t.Threads)
				}
			}
		default:
			m.streams[t.Topic] = int(t.Threads)
		}
	}
	return m, nil
}

// maxStreams bounds what one registration makes us compute; nobody has as many threads.
const maxStreams = 10_000

// maxAllStreams bounds it for a group, over all topics.
const maxAllStreams = 200_000

// javaPattern is a topic filter as kafka.consumer.TopicFilter reads it: quotes and blanks are dropped, a comma is an alternative,
// and the whole name must match. What Java and Go read differently is refused.
func javaPattern(raw string) (func(topic string) bool, error) {
	p := strings.ReplaceAll(strings.ReplaceAll(strings.TrimSpace(raw), ",", "|"), " ", "")
	p = strings.TrimRight(strings.TrimLeft(p, `"'`), `"'`)
	if strings.Contains(p, "&&") || nestedClass(p) {
		return nil, fmt.Errorf("the set operations of %q are Java's own", clip(raw))
	}
	if _, err := regexp.Compile(p); err != nil {
		return nil, fmt.Errorf("%q is not understood here: %w", clip(raw), err)
	}
	re, err := regexp.Compile(`\A(?:` + p + `)\z`)
	if err != nil {
		return nil, fmt.Errorf("%q is not understood here: %w", clip(raw), err)
	}
	return re.MatchString, nil
}

// nestedClass reports a '[' inside a character class: a union in Java, a literal or a named class in Go.
func nestedClass(p string) bool {
	in := false
	for i := 0; i < len(p); i++ {
		switch p[i] {
		case '\\':
			i++
		case '[':
			if in {
				return true
			}
			in = true
			if rest := strings.TrimPrefix(p[i+1:], "^"); strings.HasPrefix(rest, "]") {
				return true // a literal ']' in Go, and for Java the class goes on
			}
		case ']':
			in = false
		}
	}
	return false
}

// registered is a child of /consumers/<group>/ids.
type registered struct {
	id  string
	reg state.Registration
}

// planMembersOf counts all members of a group. Those of two dialects cannot be computed: each side counts the other otherwise.
func planMembersOf(members []registered, topics []string) ([]planMember, error) {
	var out []planMember
	all := 0
	for _, r := range members {
		m, err := planMemberOf(r.id, r.reg, topics)
		if err != nil {
			return nil, err
		}
		for _, n := range m.streams {
			all += n
		}
		if all > maxAllStreams {
			return nil, fmt.Errorf("the group's members ask for more than %d streams in all", maxAllStreams)
		}
		if len(out) > 0 && out[0].bare != m.bare {
			return nil, fmt.Errorf("members %s and %s are of different dialects and compute different shares", clip(out[0].id), clip(m.id))
		}
		out = append(out, m)
	}
	return out, nil
}

// claimed is an owner node, or the wish for one.
type claimed struct {
	topic     string
	partition int32
	thread    string
}

// learn finds the strategy that leads to the claims of members that have computed from this view (members include the pool): the
// one that was expected, if it does, or else another one. fits is false when none does: the members do not agree with each other, or with
// anything that we know.
func (s strategy) learn(members []planMember, partitions map[string][]int32, claims []claimed) (found strategy, fits bool) {
	order := []strategy{s, strategyRange, strategyHash011, strategyHash10}
	if slices.ContainsFunc(members, func(m planMember) bool { return m.bare }) {
		order = []strategy{strategyRange}
	}
	if len(claims) == 0 {
		return order[0], true
	}
	for _, try := range order {
		all, err := try.share(members, partitions)
		if err == nil && !slices.ContainsFunc(claims, func(c claimed) bool { return all[c.topic][c.partition] != c.thread }) {
			return try, true
		}
	}
	return order[0], false
}
