package core

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/barnabas-mq/barnabas/raftmeta/state"
)

func jvm(id, topics string) planMember {
	m := planMember{id: id, streams: map[string]int{}}
	for _, f := range strings.Fields(topics) {
		topic, n, _ := strings.Cut(f, ":")
		m.streams[topic], _ = strconv.Atoi(n)
	}
	return m
}

func count(n int) []int32 {
	out := make([]int32, n)
	for i := range out {
		out[i] = int32(i)
	}
	return out
}

// text is "thread:topic[partitions] ..." in the order of threads and topics.
func (s shares) text() string {
	by := map[string]map[string][]int32{}
	for topic, ps := range s {
		for p, thread := range ps {
			if by[thread] == nil {
				by[thread] = map[string][]int32{}
			}
			by[thread][topic] = append(by[thread][topic], p)
		}
	}
	var out []string
	for _, thread := range slices.SortedFunc(maps.Keys(by), compareUTF16) {
		for _, topic := range sorted(by[thread]) {
			slices.Sort(by[thread][topic])
			out = append(out, fmt.Sprintf("%s:%s%v", thread, topic, by[thread][topic]))
		}
	}
	return strings.Join(out, " ")
}

// The examples of zk-paths.md 5.3, executed with Kafka's classes.
func TestSharesAsWorkedOut(t *testing.T) {
	for _, c := range []struct {
		name       string
		strategy   strategy
		members    []planMember
		partitions map[string][]int32
		want       string
	}{
		{"range 1", strategyRange, []planMember{jvm("h2", "t:2"), jvm("h1", "t:2")}, map[string][]int32{"t": count(5)},
			"h1-0:t[0 1] h1-1:t[2] h2-0:t[3] h2-1:t[4]"},
		{"range 2: -10 sorts before -2", strategyRange, []planMember{jvm("h1", "t:11"), jvm("h2", "t:1")}, map[string][]int32{"t": count(13)},
			"h1-0:t[0 1] h1-1:t[2] h1-10:t[3] h1-2:t[4] h1-3:t[5] h1-4:t[6] h1-5:t[7] h1-6:t[8] h1-7:t[9] h1-8:t[10] h1-9:t[11] h2-0:t[12]"},
		{"range 3", strategyRange, []planMember{jvm("a", "t:1 u:1"), jvm("b", "t:1"), jvm("c", "t:1 u:1")},
			map[string][]int32{"t": count(4), "u": count(3)}, "a-0:t[0 1] a-0:u[0 1] b-0:t[2] c-0:t[3] c-0:u[2]"},
		{"roundrobin 1", strategyHash011, []planMember{jvm("h1", "t:2"), jvm("h2", "t:2")}, map[string][]int32{"t": count(5)},
			"h1-0:t[0 4] h1-1:t[1] h2-0:t[2] h2-1:t[3]"},
		{"roundrobin 2", strategyHash011, []planMember{jvm("a", "orders:1 clicks:1"), jvm("b", "orders:1 clicks:1"), jvm("c", "orders:1 clicks:1")},
			map[string][]int32{"orders": count(4), "clicks": count(3)}, "a-0:clicks[2] a-0:orders[0 3] b-0:clicks[0] b-0:orders[1] c-0:clicks[1] c-0:orders[2]"},
		{"roundrobin 2 from 1.0", strategyHash10, []planMember{jvm("a", "orders:1 clicks:1"), jvm("b", "orders:1 clicks:1"), jvm("c", "orders:1 clicks:1")},
			map[string][]int32{"orders": count(4), "clicks": count(3)}, "a-0:clicks[0] a-0:orders[0 3] b-0:clicks[1] b-0:orders[1] c-0:clicks[2] c-0:orders[2]"},
		{"roundrobin 3", strategyHash011, []planMember{jvm("a", "orders:1 clicks:1"), jvm("b", "orders:1")},
			map[string][]int32{"orders": count(4), "clicks": count(3)}, "a-0:clicks[0 1 2] a-0:orders[0 2] b-0:orders[1 3]"},
		{"nobody", strategyHash10, nil, map[string][]int32{"t": count(2)}, ""},
	} {
		got, err := c.strategy.share(c.members, c.partitions)
		if err != nil || got.text() != c.want {
			t.Errorf("%s: %s, %v; want %s", c.name, got.text(), err, c.want)
		}
	}
	if _, err := strategyHash10.share([]planMember{jvm("a", "Aa:1 BB:1")}, map[string][]int32{"Aa": count(1), "BB": count(1)}); err == nil {
		t.Error("equal hashes have no order")
	}
	if strategyHash011.hash("t", 10) != -1581226645 || strategyHash011.hash("t", 0) != 87540032 {
		t.Error("hash")
	}
}

// The worked example of groups.md.
func TestPoolAsWorkedOut(t *testing.T) {
	legacy := []planMember{jvm("g_L1", "t:2"), jvm("g_L2", "t:2"), jvm("g_L3", "t:2")}
	partitions := map[string][]int32{"t": count(12)}
	for modern, want := range map[int]string{
		2: "g_L1-0:t[0 1] g_L1-1:t[2 3] g_L2-0:t[4] g_L2-1:t[5] g_L3-0:t[6] g_L3-1:t[7] | 4: [8 9 10 11]",
		3: "g_L1-0:t[0] g_L1-1:t[1] g_L2-0:t[2] g_L2-1:t[3] g_L3-0:t[4] g_L3-1:t[5] | 6: [6 7 8 9 10 11]",
	} {
		sizes, err := poolSizes(strategyRange, legacy, partitions, map[string]int{"t": modern})
		if err != nil {
			t.Fatal(err)
		}
		all, err := strategyRange.share(append(slices.Clone(legacy), pool("g", sizes)...), partitions)
		if err != nil {
			t.Fatal(err)
		}
		block, err := poolShare(strategyRange, "g", legacy, partitions, sizes)
		for p, thread := range all["t"] {
			if isPool("g", thread) {
				delete(all["t"], p)
			}
		}
		if got := fmt.Sprintf("%s | %d: %v", all.text(), sizes["t"], block["t"]); err != nil || got != want {
			t.Errorf("%d modern members: %s, %v; want %s", modern, got, err, want)
		}
	}
	ids := []string{}
	for _, m := range pool("g", map[string]int{"t": 2, "u": 1}) {
		ids = append(ids, fmt.Sprint(m.id, m.streams))
	}
	if got := strings.Join(ids, " "); got != "g_~barnabas-000map[t:1 u:1] g_~barnabas-001map[t:1]" {
		t.Error(got)
	}
}

func TestRegistrationsAsOthersReadThem(t *testing.T) {
	topics := []string{"orders", "orders.eu", "clicks"}
	for _, c := range []struct{ raw, want string }{
		{`{"version":1,"subscription":{"t":2,"u":1},"pattern":"static","timestamp":"1"}`, "map[t:2 u:1]"},
		{`{"version":1,"subscription":{"orders.*":2},"pattern":"white_list","timestamp":"1"}`, "map[orders:2 orders.eu:2]"},
		{`{"version":1,"subscription":{" \"orders , clicks\" ":3},"pattern":"white_list","timestamp":"1"}`, "map[clicks:3 orders:3]"},
		{`{"version":1,"subscription":{"orders":1},"pattern":"black_list","timestamp":"1"}`, "map[clicks:1 orders.eu:1]"},
		{`{"version":1,"subscription":{"t": 1},"pattern":"white_list","timestamp":"1"}`, "map[t:1]"},
		{`{"version":1,"subscription":{"[a-z&&[^o]]*":1},"pattern":"white_list"}`, "error"},
		{`{"version":1,"subscription":{"[[:alpha:]]*":1},"pattern":"white_list"}`, "error"},
		{`{"version":1,"subscription":{"(?=o).*":1},"pattern":"white_list"}`, "error"},
		{`{"version":1,"subscription":{"a":1,"b":1},"pattern":"white_list"}`, "error"},
		{`{"version":1,"subscription":{"a)(b":1},"pattern":"white_list"}`, "error"},
		{`{"version":1,"subscription":{"t":0},"pattern":"static"}`, "error"},
		{`t`, "error"},
		{`{"version":1,"subscription":{"t":1},"pattern":"static","timestamp":1}`, "error"},
	} {
		reg, ok := state.ParseRegistration([]byte(c.raw))
		if !ok {
			t.Fatalf("%s is not readable", c.raw)
		}
		m, err := planMemberOf("g_a", reg, topics)
		got := fmt.Sprint(m.streams)
		if err != nil {
			got = "error"
		}
		if got != c.want {
			t.Errorf("%s: %s (%v), want %s", c.raw, got, err, c.want)
		}
	}
	_, err := planMembersOf([]registered{
		{"g_a", state.Registration{Dialect: state.DialectJVM, Pattern: "static", Topics: []state.Subscription{{Topic: "t", Threads: 1}}}},
		{"g_b", state.Registration{Dialect: state.DialectKafkaNode, Pattern: "static", Topics: []state.Subscription{{Topic: "t", Threads: 1}}}}}, topics)
	if err == nil {
		t.Error("two dialects do not agree")
	}
}

func TestStrategyIsLearnt(t *testing.T) {
	members := []planMember{jvm("a", "orders:1 clicks:1"), jvm("b", "orders:1 clicks:1"), jvm("c", "orders:1 clicks:1")}
	partitions := map[string][]int32{"orders": count(4), "clicks": count(3)}
	for _, s := range strategies {
		all, err := s.share(members, partitions)
		if err != nil {
			t.Fatal(err)
		}
		var claims []claimed
		for topic, ps := range all {
			for p, thread := range ps {
				claims = append(claims, claimed{topic, p, thread})
			}
		}
		for _, expected := range strategies {
			if got, fits := expected.learn(members, partitions, claims); got != s || !fits {
				t.Errorf("claims of %s are of %s, %v", s, got, fits)
			}
			if got, fits := expected.learn(members, partitions, nil); got != expected || !fits {
				t.Errorf("without claims: %s, %v", got, fits)
			}
		}
		claims[0].thread = "somebody"
		if got, fits := s.learn(members, partitions, claims); got != s || fits {
			t.Errorf("claims of nobody are of %s", got)
		}
	}
	members[0].bare, members[1].bare, members[2].bare = true, true, true
	if got, fits := strategyHash10.learn(members, partitions, nil); got != strategyRange || !fits {
		t.Errorf("kafka-node: %s", got)
	}
}

var strategies = []strategy{strategyRange, strategyHash011, strategyHash10}

// groupOf draws the legacy members of a group and its topics.
func groupOf(t *rapid.T) ([]planMember, map[string][]int32) {
	partitions := map[string][]int32{}
	for _, topic := range []string{"t", "orders", "clicks", "a-b_c.d"}[:rapid.IntRange(1, 4).Draw(t, "topics")] {
		partitions[topic] = count(rapid.IntRange(0, 40).Draw(t, "partitions"))
	}
	bare := rapid.IntRange(0, 3).Draw(t, "dialect") == 0
	same := rapid.Bool().Draw(t, "same topics and streams")
	n := rapid.IntRange(1, 12).Draw(t, "streams")
	members := make([]planMember, rapid.IntRange(1, 8).Draw(t, "members"))
	names := rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"a", "b", "a-1", "h1", "h10", "h2", "h1-1", "Z", "é", "\uffee", "😀", "~z", "h1-10", "zz"}),
		len(members), len(members), rapid.ID[string]).Draw(t, "ids")
	for i := range members {
		members[i] = planMember{id: "g_" + names[i], streams: map[string]int{}, bare: bare}
		for _, topic := range sorted(partitions) {
			streams := n
			if !same {
				streams = rapid.IntRange(0, 12).Draw(t, "streams")
			}
			if streams > 0 {
				members[i].streams[topic] = 1
				if !bare {
					members[i].streams[topic] = streams
				}
			}
		}
	}
	return members, partitions
}

// Whatever the members, their threads and topics: what the legacy members take and the pool's share are each partition of a
// topic with legacy members exactly once.
func TestLegacySharesAndPoolCoverEveryPartitionOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		legacy, partitions := groupOf(t)
		s := rapid.SampledFrom(strategies).Draw(t, "strategy")
		modern := map[string]int{}
		for topic := range partitions {
			modern[topic] = rapid.IntRange(0, 9).Draw(t, "modern members")
		}
		sizes, err := poolSizes(s, legacy, partitions, modern)
		if err != nil {
			return // round-robin of unlike topics
		}
		all, err := s.share(append(slices.Clone(legacy), pool("g", sizes)...), partitions)
		if err != nil {
			t.Skip(err.Error())
		}
		block, err := poolShare(s, "g", legacy, partitions, sizes)
		if err != nil {
			t.Fatal(err)
		}
		for topic := range threadsByTopic(legacy) {
			owners := map[int32]int{}
			for i := range legacy {
				mine := all.of(topic, func(thread string) bool { return slices.Contains(legacy[i].threads(topic), thread) })
				for _, p := range mine {
					owners[p]++
				}
			}
			for _, p := range block[topic] {
				owners[p]++
			}
			for _, p := range partitions[topic] {
				if owners[p] != 1 {
					t.Fatalf("%s-%d has %d owners of %v, pool %v", topic, p, owners[p], legacy, block)
				}
			}
			if len(owners) != len(partitions[topic]) || sizes[topic] == 0 && len(block[topic]) > 0 {
				t.Fatalf("%s: %v", topic, owners)
			}
		}
		if s != strategyRange && even(legacy) && !even(append(slices.Clone(legacy), pool("g", sizes)...)) {
			t.Fatal("members up to 0.10.1 would fail")
		}
	})
}

// Range: the pool has the tail of a topic, its size is near the modern members' fair part, and when modern members come or go,
// or legacy ones, the block only grows or shrinks at its edge.
func TestPoolOfRangeIsATail(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		legacy, partitions := groupOf(t)
		for i := range legacy {
			legacy[i].id = strings.Map(func(r rune) rune { // ids as old clients make them, before '~'
				if r > 'z' {
					return 'x'
				}
				return r
			}, legacy[i].id) + fmt.Sprint("-", i)
		}
		for topic, threads := range threadsByTopic(legacy) {
			before := 0
			for modern := range 20 {
				sizes, err := poolSizes(strategyRange, legacy, partitions, map[string]int{topic: modern})
				if err != nil {
					t.Fatal(err)
				}
				block, err := poolShare(strategyRange, "g", legacy, partitions, sizes)
				if err != nil {
					t.Fatal(err)
				}
				all := partitions[topic]
				if got := block[topic]; len(got) < before || !slices.Equal(got, all[len(all)-len(got):]) {
					t.Fatalf("%s of %d: %v with %d modern members, %d before", topic, len(all), got, modern, before)
				}
				before = len(block[topic])
				if modern > 0 {
					n := sizes[topic]
					if most := n * (len(all)/(len(threads)+n) + 1); before > most || (len(all)-before) > len(threads)*(len(all)/(len(threads)+n)+1) {
						t.Fatalf("%d of %d for %d of %d threads", before, len(all), n, n+len(threads))
					}
				}
			}
		}
	})
}

// Java and JavaScript sort by UTF-16 units: what is beyond the first plane comes before U+FFFF, and behind it by bytes.
func TestThreadsAreSortedAsByTheirClients(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want int
	}{{"g_\uffee-0", "g_\U00010000-0", 1}, {"g_a-10", "g_a-2", -1}, {"g_a", "g_a-0", -1}, {"g_\u00e9", "g_z", 1}, {"g_a", "g_a", 0}} {
		if got := cmp.Compare(compareUTF16(c.a, c.b), 0); got != c.want {
			t.Errorf("%q and %q: %d, want %d", c.a, c.b, got, c.want)
		}
	}
}
