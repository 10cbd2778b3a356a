package zkconsumer

import (
	"fmt"
	"reflect"
	"sort"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func partitions(n int) []int32 {
	var out []int32
	for p := range n {
		out = append(out, int32(p))
	}
	return out
}

// shares writes what each thread gets as thread:{p,...}, threads in their order.
func shares(topic string, counts map[string]map[string]int, n int) string {
	threads := threadsOf(topic, counts)
	got := rangeAssign(threads, partitions(n))
	var out []string
	for _, t := range threads {
		out = append(out, strings.ReplaceAll(fmt.Sprintf("%s:%v", t, got[t]), " ", ","))
	}
	return strings.Join(out, " ")
}

// The worked examples were executed with Apache Kafka 0.8.2.2's own classes.
func TestRangeWorkedExamples(t *testing.T) {
	for _, c := range []struct {
		name, topic string
		counts      map[string]map[string]int
		n           int
		want        string
	}{
		{"five partitions, two members of two streams", "t", map[string]map[string]int{"h1": {"t": 2}, "h2": {"t": 2}}, 5,
			"h1-0:[0,1] h1-1:[2] h2-0:[3] h2-1:[4]"},
		{"thread -10 sorts between -1 and -2", "t", map[string]map[string]int{"h1": {"t": 11}, "h2": {"t": 1}}, 13,
			"h1-0:[0,1] h1-1:[2] h1-10:[3] h1-2:[4] h1-3:[5] h1-4:[6] h1-5:[7] h1-6:[8] h1-7:[9] h1-8:[10] h1-9:[11] h2-0:[12]"},
		{"three members of t", "t", map[string]map[string]int{"a": {"t": 1, "u": 1}, "b": {"t": 1}, "c": {"t": 1, "u": 1}}, 4,
			"a-0:[0,1] b-0:[2] c-0:[3]"},
		{"two of them of u", "u", map[string]map[string]int{"a": {"t": 1, "u": 1}, "b": {"t": 1}, "c": {"t": 1, "u": 1}}, 3,
			"a-0:[0,1] c-0:[2]"},
		{"more threads than partitions", "t", map[string]map[string]int{"a": {"t": 2}, "b": {"t": 2}}, 3, "a-0:[0] a-1:[1] b-0:[2] b-1:[]"},
	} {
		if got := shares(c.topic, c.counts, c.n); got != c.want {
			t.Errorf("%s:\n got  %s\n want %s", c.name, got, c.want)
		}
	}
}

// Range takes partitions by position: a hole in the ids does not leave anybody without.
func TestRangeByPosition(t *testing.T) {
	got := rangeAssign([]string{"a-0", "b-0"}, []int32{9, 1, 5})
	want := map[string][]int32{"a-0": {1, 5}, "b-0": {9}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestRangeGivesEveryPartitionToOneThread(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		counts := map[string]map[string]int{}
		for _, id := range rapid.SliceOfNDistinct(rapid.StringMatching(`[a-z]{1,3}(-[0-9]{1,2})?`), 1, 6, rapid.ID[string]).Draw(t, "ids") {
			counts[id] = map[string]int{"t": rapid.IntRange(1, 12).Draw(t, "streams")}
		}
		n := rapid.IntRange(0, 40).Draw(t, "partitions")
		owners := map[int32]string{}
		for id := range counts {
			claims, err := plan(id, counts, map[string][]int32{"t": partitions(n)})
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range claims {
				if other, twice := owners[c.Partition]; twice && other != id {
					t.Fatalf("partition %d goes to %s and %s", c.Partition, other, id)
				}
				owners[c.Partition] = id
			}
		}
		if len(owners) != n {
			t.Fatalf("%d of %d partitions have an owner", len(owners), n)
		}
	})
}

func TestPlanWithoutOneself(t *testing.T) {
	if _, err := plan("a", map[string]map[string]int{"b": {"t": 1}}, nil); err == nil {
		t.Error("a member that is not listed made a plan")
	}
}

func TestJavaOrder(t *testing.T) {
	in := []string{"b", "a-2", "a-10", "a-1", "a", "\U0001F600", "\uFFFD", "é"}
	sort.Slice(in, func(i, j int) bool { return javaLess(in[i], in[j]) })
	// A surrogate pair starts with 0xD83D, which is below 0xFFFD.
	want := []string{"a", "a-1", "a-10", "a-2", "b", "é", "\U0001F600", "\uFFFD"}
	if !reflect.DeepEqual(in, want) {
		t.Errorf("got %q, want %q", in, want)
	}
}

func TestRegistrations(t *testing.T) {
	topics := []string{"apple", "pear", offsetsTopic}
	for _, c := range []struct {
		data string
		want map[string]int
	}{
		{`{"version":1,"subscription":{"pear":2},"pattern":"static","timestamp":"1"}`, map[string]int{"pear": 2}},
		{`{"version":1,"subscription":{"a.*, x":3},"pattern":"white_list","timestamp":"1"}`, map[string]int{"apple": 3}},
		{`{"version":1,"subscription":{"ap":3},"pattern":"white_list","timestamp":"1"}`, map[string]int{}},
		{`{"pattern":"black_list","subscription":{"apple":1}}`, map[string]int{"pear": 1}},
	} {
		m, err := parseMember("m", []byte(c.data))
		if err != nil {
			t.Errorf("%s: %v", c.data, err)
			continue
		}
		if got, err := m.streams(topics); err != nil || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %v %v, want %v", c.data, got, err, c.want)
		}
	}
	for _, bad := range []string{"", "topic", "{}", `{"pattern":"static"}`, `{"pattern":"other","subscription":{}}`} {
		if _, err := parseMember("m", []byte(bad)); err == nil || !strings.Contains(err.Error(), "member m") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestBrokers(t *testing.T) {
	for data, want := range map[string]string{
		`{"jmx_port":-1,"timestamp":"1","endpoints":["SSL://h:1","PLAINTEXT://h:2"],"host":"h","version":2,"port":2}`:      "h:2",
		`{"listener_security_protocol_map":{"IN":"PLAINTEXT"},"endpoints":["IN://h:3"],"host":null,"port":-1,"version":4}`: "h:3",
		`{"version":1,"host":"h","port":9092,"jmx_port":-1,"timestamp":"1"}`:                                               "h:9092",
		`{"version":1,"host":"::1","port":9092}`:                                                                           "[::1]:9092",
	} {
		if got, err := parseBroker("1", []byte(data)); err != nil || got != want {
			t.Errorf("%s: %q %v", data, got, err)
		}
	}
	if _, err := parseBroker("1", []byte(`{"endpoints":["SSL://h:1"],"host":null,"port":-1}`)); err == nil {
		t.Error("a broker without a plain listener was accepted")
	}
}
