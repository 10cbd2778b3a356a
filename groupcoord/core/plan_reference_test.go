package core

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/barnabas-mq/barnabas/internal/testtool"
	"github.com/barnabas-mq/barnabas/raftmeta/state"
)

// oldAssignors is a JVM that computes with the assignors of one release of the old consumer: integration/java/Assignments.java.
type oldAssignors struct {
	t   *testing.T
	in  io.Writer
	out *bufio.Scanner
}

func startAssignors(t *testing.T, jars testtool.Tool) *oldAssignors {
	cmd := testtool.ProgramCommand(t.Context(), t, jars, "Assignments")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	errs := new(strings.Builder)
	cmd.Stderr = errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait() // killed when the test's context ended
		if t.Failed() {
			t.Log(errs.String())
		}
	})
	return &oldAssignors{t, in, bufio.NewScanner(out)}
}

// member is a registration as it is written.
type member struct {
	id  string
	raw []byte
}

func read(t *testing.T, members []member, topics []string) ([]planMember, error) {
	var all []registered
	for _, m := range members {
		reg, ok := state.ParseRegistration(m.raw)
		if !ok {
			t.Fatalf("%s is not readable", m.raw)
		}
		all = append(all, registered{m.id, reg})
	}
	return planMembersOf(all, topics)
}

// shares is what all members say they would take; failed are members whose assignor throws.
func (a *oldAssignors) shares(kind string, members []member, partitions map[string][]int32) (all shares, failed int) {
	var ask strings.Builder
	ask.WriteString("clear\n")
	for topic, ps := range partitions {
		replicas := map[string][]int{}
		for _, p := range ps {
			replicas[fmt.Sprint(p)] = []int{1}
		}
		b, err := json.Marshal(map[string]any{"version": 1, "partitions": replicas})
		if err != nil {
			a.t.Fatal(err)
		}
		fmt.Fprintf(&ask, "topic\t%s\t%s\n", topic, b)
	}
	for _, m := range members {
		fmt.Fprintf(&ask, "member\t%s\t%s\n", m.id, m.raw)
	}
	fmt.Fprintf(&ask, "assign\t%s\n", kind)
	if _, err := io.WriteString(a.in, ask.String()); err != nil {
		a.t.Fatal(err)
	}
	all = shares{}
	for a.out.Scan() {
		word := strings.Split(a.out.Text(), "\t")
		switch {
		case word[0] == "done":
			return all, failed
		case word[1] == "error":
			failed++
			continue
		}
		p, ok := state.ParsePartition(word[2])
		if !ok || !strings.HasPrefix(word[3], word[0]+"-") {
			a.t.Fatalf("%q", word)
		}
		if all[word[1]] == nil {
			all[word[1]] = map[int32]string{}
		}
		if other, taken := all[word[1]][p]; taken {
			a.t.Fatalf("%s-%d is taken by %s and %s", word[1], p, other, word[3])
		}
		all[word[1]][p] = word[3]
	}
	a.t.Fatalf("the JVM ended: %v", a.out.Err())
	return nil, 0
}

// randomGroup makes registrations as the JVM writes them. They are few: up to 0.11 every member parses every one with Scala's
// parser, a millisecond each.
func randomGroup(r *rand.Rand) ([]member, map[string][]int32) {
	partitions := map[string][]int32{}
	for _, topic := range []string{"t", "orders", "orders.eu", "clicks", "a_b-c"}[:1+r.IntN(3)] {
		partitions[topic] = count(1 + r.IntN(14))
	}
	ids := []string{"g_h1-1700000000000-0a1b2c3d", "g_h1-1700000000000-0a1b2c3", "g_h10-1700000000000-ffffffff", "g_h2-1-a", "g_a", "g_a-1", "g_a-1-1", "g_Z",
		"g_é", "g_\uffee", "g_😀", "g_~z", "g_a-10"}
	r.Shuffle(len(ids), func(i, j int) { ids[i], ids[j] = ids[j], ids[i] })
	few := func() int { // now and then more than ten: the order of numbers shows
		if r.IntN(5) == 0 {
			return 1 + r.IntN(12)
		}
		return 1 + r.IntN(3)
	}
	same, streams := r.IntN(2) == 0, few()
	all := map[string]int{}
	for topic := range partitions {
		all[topic] = streams
	}
	var out []member
	for _, id := range ids[:1+r.IntN(4)] {
		pattern, subscription := "static", all
		if !same {
			subscription = map[string]int{}
			for topic := range partitions {
				if r.IntN(3) > 0 {
					subscription[topic] = few()
				}
			}
			if r.IntN(3) == 0 {
				pattern = []string{"white_list", "black_list"}[r.IntN(2)]
				subscription = map[string]int{[]string{".*", "orders.*", "orders,clicks", "'[a-o].*'", "(?i)T|CLICKS", `.*\\.eu`, " t | a_b-c "}[r.IntN(7)]: few()}
			}
		}
		raw, err := json.Marshal(map[string]any{"version": 1, "subscription": subscription, "pattern": pattern, "timestamp": "1700000000000"})
		if err != nil {
			panic(err)
		}
		out = append(out, member{id, raw})
	}
	return out, partitions
}

// withPool adds the registrations of a pool for some modern members.
func withPool(r *rand.Rand, s strategy, all []member, legacy []planMember, partitions map[string][]int32) []member {
	modern := map[string]int{}
	for topic := range partitions {
		modern[topic] = r.IntN(3)
	}
	sizes, err := poolSizes(s, legacy, partitions, modern)
	if err != nil {
		return all
	}
	all = slices.Clone(all)
	for _, m := range pool("g", sizes) {
		raw, err := json.Marshal(map[string]any{"version": 1, "subscription": m.streams, "pattern": "static", "timestamp": "0"})
		if err != nil {
			panic(err)
		}
		all = append(all, member{m.id, raw})
	}
	return all
}

// Our computation beside the assignors of three releases: the same share for every member, pool and patterns included.
func TestSharesBesideTheRealAssignors(t *testing.T) {
	releases := []struct {
		jars     testtool.Tool
		dealt    strategy
		evenOnly bool // round-robin fails unless all topics have the same threads
	}{
		{testtool.Kafka082, strategyHash011, true},
		{testtool.Kafka0102, strategyHash011, false},
		{testtool.Kafka111, strategyHash10, false},
	}
	for i, release := range releases {
		t.Run(string(release.jars), func(t *testing.T) {
			real := startAssignors(t, release.jars)
			r := rand.New(rand.NewPCG(7, uint64(i)))
			compared := map[strategy]int{}
			for range 100 {
				registered, partitions := randomGroup(r)
				topics := sorted(partitions)
				legacy, err := read(t, registered, topics)
				if err != nil {
					t.Fatal(err)
				}
				s, kind := strategyRange, "range"
				if r.IntN(2) == 0 {
					s, kind = release.dealt, "roundrobin"
				}
				registered = withPool(r, s, registered, legacy, partitions)
				members, err := read(t, registered, topics)
				if err != nil {
					t.Fatal(err)
				}
				want, failed := real.shares(kind, registered, partitions)
				subscribed := len(threadsByTopic(members)) > 0
				if s != strategyRange && (!subscribed || release.evenOnly && !even(members)) {
					if release.evenOnly && subscribed && failed == 0 && len(threadsByTopic(members)) > 1 {
						t.Fatalf("%s: nobody fails with %v", kind, members)
					}
					continue
				}
				got, err := s.share(members, partitions)
				if err != nil || failed > 0 || got.text() != want.text() {
					t.Fatalf("%s of %+v, %v:\nours   %s (%v)\ntheirs %s (%d failed)", kind, members, partitions, got.text(), err, want.text(), failed)
				}
				compared[s]++
			}
			t.Logf("compared: %v", compared)
			if compared[strategyRange] < 30 || compared[release.dealt] < 20 {
				t.Error("too few")
			}
		})
	}
}
