package core

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/barnabas-mq/barnabas/raftmeta/state"
)

// planMemberOf reads a registration as the other members do. topics are the children of /brokers/topics that they see: a pattern
// is matched against them. An error says why a group with this member cannot be computed.
func planMemberOf(id string, raw []byte, dialect state.Dialect, topics []string) (planMember, error) {
	m := planMember{id: id, streams: map[string]int{}, bare: dialect == state.DialectKafkaNode}
	if dialect != state.DialectJVM && dialect != state.DialectKafkaNode {
		return m, fmt.Errorf("member %s is of the dialect %s, whose share depends on where partition leaders are", clip(id), dialect)
	}
	var fields map[string]json.RawMessage // exact names, unlike a struct's
	var pattern string
	var subscription map[string]int
	err := json.Unmarshal(raw, &fields)
	if err == nil {
		err = errors.Join(json.Unmarshal(fields["pattern"], &pattern), json.Unmarshal(fields["subscription"], &subscription))
	}
	if err != nil {
		return m, fmt.Errorf("the registration of member %s is not readable: %w", clip(id), err)
	}
	for topic, n := range subscription {
		switch {
		case n < 1 || n > maxStreams:
			return m, fmt.Errorf("member %s asks for %d streams of %s", clip(id), n, clip(topic))
		case m.bare:
			m.streams[topic] = 1
		case pattern == "white_list" || pattern == "black_list":
			if len(subscription) > 1 {
				return m, fmt.Errorf("member %s has %d patterns, of which each client reads another one", clip(id), len(subscription))
			}
			matches, err := javaPattern(topic)
			if err != nil {
				return m, fmt.Errorf("the pattern of member %s: %w", clip(id), err)
			}
			for _, t := range topics {
				if matches(t) == (pattern == "white_list") {
					m.streams[t] = n
				}
			}
		default:
			m.streams[topic] = n
		}
	}
	return m, nil
}

// maxStreams bounds what one registration makes us compute; nobody has as many threads.
const maxStreams = 10_000

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

// planMembersOf reads all registrations of a group. Members of two dialects cannot be computed: each side reads the other's
// registrations differently.
func planMembersOf(registered []registration, topics []string) ([]planMember, error) {
	var out []planMember
	for _, r := range registered {
		m, err := planMemberOf(r.id, r.raw, r.dialect, topics)
		if err != nil {
			return nil, err
		}
		if len(out) > 0 && out[0].bare != m.bare {
			return nil, fmt.Errorf("members %s and %s are of different dialects and compute different shares", clip(out[0].id), clip(m.id))
		}
		out = append(out, m)
	}
	return out, nil
}

// registration is a child of /consumers/<group>/ids.
type registration struct {
	id      string
	raw     []byte
	dialect state.Dialect
}

// strategySet are the strategies that claims have not ruled out.
type strategySet uint8

const anyStrategy strategySet = 1<<strategies - 1

func (set strategySet) has(s strategy) bool { return set&(1<<s) != 0 }

// first is the one to plan with: range before the others, since it is what members do unless they are told otherwise.
func (set strategySet) first() (strategy, bool) {
	for s := range strategies {
		if set.has(s) {
			return s, true
		}
	}
	return 0, false
}

func (set strategySet) String() string {
	var names []string
	for s := range strategies {
		if set.has(s) {
			names = append(names, s.String())
		}
	}
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, " or ")
}

// claimed is an owner node, or the wish for one.
type claimed struct {
	topic     string
	partition int32
	thread    string
}

// learn rules out what does not lead to the claims of members that have computed from this view. members include the pool. The
// empty set means that the members do not agree with each other, or with anything that we know.
func (set strategySet) learn(members []planMember, partitions map[string][]int32, claims []claimed) strategySet {
	if slices.ContainsFunc(members, func(m planMember) bool { return m.bare }) {
		set &= 1 << strategyRange
	}
	for s := range strategies {
		if !set.has(s) {
			continue
		}
		all, err := s.share(members, partitions)
		if err != nil && len(claims) > 0 {
			set &^= 1 << s
		}
		for _, c := range claims {
			if err == nil && all[c.topic][c.partition] != c.thread {
				set &^= 1 << s
				break
			}
		}
	}
	return set
}
