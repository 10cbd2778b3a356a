package zkconsumer

import (
	"encoding/json"
	"fmt"
	"regexp"
	"sort"
	"strconv"
	"strings"
	"unicode/utf16"
)

// registration is the JSON of /consumers/<group>/ids/<id> (kafka.consumer.TopicCount). The timestamp is a string: old
// readers turn every number into a signed 32-bit one.
type registration struct {
	Version      int            `json:"version"`
	Subscription map[string]int `json:"subscription"`
	Pattern      string         `json:"pattern"`
	Timestamp    string         `json:"timestamp"`
}

// Values of registration.Pattern.
const (
	patternStatic = "static"
	patternWhite  = "white_list"
	patternBlack  = "black_list"
)

// offsetsTopic is left out of filters (exclude.internal.topics).
const offsetsTopic = "__consumer_offsets"

// member is one entry of the ids directory.
type member struct {
	id  string
	reg registration
}

// parseMember reads a registration. An unreadable one is an error: every JVM member refuses to plan with it, so a plan made
// without it would disagree with theirs.
func parseMember(id string, data []byte) (member, error) {
	m := member{id: id}
	if err := json.Unmarshal(data, &m.reg); err != nil {
		return m, fmt.Errorf("registration of member %s is not JSON of a consumer: %w", id, err)
	}
	switch m.reg.Pattern {
	case patternStatic, patternWhite, patternBlack:
	default:
		return m, fmt.Errorf("registration of member %s has the unknown pattern %q", id, m.reg.Pattern)
	}
	if m.reg.Subscription == nil {
		return m, fmt.Errorf("registration of member %s has no subscription", id)
	}
	return m, nil
}

// streams is the member's number of streams per topic, filters applied to all topics of the cluster.
func (m member) streams(allTopics []string) (map[string]int, error) {
	if m.reg.Pattern == patternStatic {
		return m.reg.Subscription, nil
	}
	out := map[string]int{}
	for filter, n := range m.reg.Subscription {
		re, err := regexp.Compile(filterRegex(filter))
		if err != nil {
			return nil, fmt.Errorf("member %s has a topic filter that cannot be read: %w", m.id, err)
		}
		for _, t := range allTopics {
			if t != offsetsTopic && re.MatchString(t) == (m.reg.Pattern == patternWhite) {
				out[t] = n
			}
		}
	}
	return out, nil
}

// filterRegex is kafka.consumer.TopicFilter's reading of its argument: commas mean "or", and the whole name must match.
func filterRegex(filter string) string {
	f := strings.ReplaceAll(strings.TrimSpace(filter), ",", "|")
	f = strings.ReplaceAll(f, " ", "")
	f = strings.Trim(f, `"'`)
	return "^(?:" + f + ")$"
}

// threadID names one stream of a member: <member>-<n>.
func threadID(memberID string, n int) string { return memberID + "-" + strconv.Itoa(n) }

// threadsOf lists the sorted threads of all members subscribed to the topic. counts[m][t] is a number of streams.
func threadsOf(topic string, counts map[string]map[string]int) []string {
	var out []string
	for id, topics := range counts {
		for n := range topics[topic] {
			out = append(out, threadID(id, n))
		}
	}
	sort.Slice(out, func(i, j int) bool { return javaLess(out[i], out[j]) })
	return out
}

// javaLess orders like String.compareTo: by UTF-16 code units. So thread -10 is between -1 and -2.
func javaLess(a, b string) bool {
	for i := 0; i < len(a) && i < len(b); i++ {
		if a[i] != b[i] {
			if a[i] < 0x80 && b[i] < 0x80 {
				return a[i] < b[i]
			}
			break // not ASCII here: compare code units
		}
	}
	x, y := utf16.Encode([]rune(a)), utf16.Encode([]rune(b))
	for i := 0; i < len(x) && i < len(y); i++ {
		if x[i] != y[i] {
			return x[i] < y[i]
		}
	}
	return len(x) < len(y)
}

// rangeAssign is kafka.consumer.RangeAssignor for one topic: threads in their order get runs of the partitions, which are
// taken by position in their sorted order; the first |P| mod |T| threads get one more.
func rangeAssign(threads []string, partitions []int32) map[string][]int32 {
	out := make(map[string][]int32, len(threads))
	if len(threads) == 0 {
		return out
	}
	ps := append([]int32(nil), partitions...)
	sort.Slice(ps, func(i, j int) bool { return ps[i] < ps[j] })
	q, r := len(ps)/len(threads), len(ps)%len(threads)
	for i, t := range threads {
		from := q*i + min(i, r)
		n := q
		if i < r {
			n++
		}
		out[t] = ps[from : from+n : from+n]
	}
	return out
}

// plan returns what each thread of member self gets of its topics.
func plan(self string, counts map[string]map[string]int, partitions map[string][]int32) ([]Claim, error) {
	own, ok := counts[self]
	if !ok {
		return nil, fmt.Errorf("member %s is not in the list of its group", self)
	}
	var claims []Claim
	for topic, streams := range own {
		shares := rangeAssign(threadsOf(topic, counts), partitions[topic])
		for n := range streams {
			for _, p := range shares[threadID(self, n)] {
				claims = append(claims, Claim{Topic: topic, Partition: p, Stream: n})
			}
		}
	}
	sort.Slice(claims, func(i, j int) bool {
		a, b := claims[i], claims[j]
		return a.Topic < b.Topic || a.Topic == b.Topic && a.Partition < b.Partition
	})
	return claims, nil
}

// parsePartitions reads /brokers/topics/<t>: {"version":1,"partitions":{"0":[1,2]}}.
func parsePartitions(topic string, data []byte) ([]int32, error) {
	var doc struct {
		Partitions map[string][]int32 `json:"partitions"`
	}
	if err := json.Unmarshal(data, &doc); err != nil {
		return nil, fmt.Errorf("partitions of topic %s: %w", topic, err)
	}
	var out []int32
	for k := range doc.Partitions {
		n, err := strconv.ParseInt(k, 10, 32)
		if err != nil || n < 0 {
			return nil, fmt.Errorf("partitions of topic %s: %q is not a partition", topic, k)
		}
		out = append(out, int32(n))
	}
	sort.Slice(out, func(i, j int) bool { return out[i] < out[j] })
	return out, nil
}

// parseBroker reads /brokers/ids/<n> and returns the address of its first plain listener.
func parseBroker(id string, data []byte) (string, error) {
	var doc struct {
		Host      string            `json:"host"`
		Port      int               `json:"port"`
		Endpoints []string          `json:"endpoints"`
		Protocols map[string]string `json:"listener_security_protocol_map"`
	}
	if err := json.Unmarshal(data, &doc); err != nil {
		return "", fmt.Errorf("registration of broker %s: %w", id, err)
	}
	for _, e := range doc.Endpoints {
		name, addr, ok := strings.Cut(e, "://")
		if ok && (name == "PLAINTEXT" || doc.Protocols[name] == "PLAINTEXT") {
			return addr, nil
		}
	}
	if doc.Host == "" || doc.Port <= 0 {
		return "", fmt.Errorf("broker %s has no plain listener", id)
	}
	return joinHostPort(doc.Host, doc.Port), nil
}
