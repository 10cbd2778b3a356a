package check

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

// sound returns the history of a run without faults: n records on three partitions, each acked, and read by two readers.
func sound(n int) (acks, reads []Record) {
	for i := range n {
		key := []byte(fmt.Sprint(i))
		a := NewRecord("producer", "t", int32(i%3), int64(i/3), key, append([]byte("value "), key...))
		acks = append(acks, a)
		for _, reader := range []string{"a", "b"} {
			r := a
			r.Client = reader
			reads = append(reads, r)
		}
	}
	return acks, reads
}

// plant changes one record of the history in one way.
type plant func(acks, reads []Record) ([]Record, []Record)

func TestCheckersCatchPlantedFaults(t *testing.T) {
	all := func(acks, reads []Record) []Fault {
		return append(append(NoLoss(acks, reads), NoDuplicate(reads)...), OffsetUnique(acks, reads)...)
	}
	acks, reads := sound(300)
	if faults := all(acks, reads); len(faults) > 0 {
		t.Fatalf("a sound history has faults: %v", faults)
	}
	r := rand.New(rand.NewPCG(1, 2))
	without := func(reads []Record, p Place) (kept []Record) {
		for _, r := range reads {
			if r.Place() != p {
				kept = append(kept, r)
			}
		}
		return kept
	}
	for name, c := range map[string]struct {
		plant plant
		rules string // the rules that must speak, in this order
	}{
		"an acked record is gone": {func(a, rd []Record) ([]Record, []Record) {
			return a, without(rd, a[r.IntN(len(a))].Place())
		}, "lost"},
		"an acked record has another value": {func(a, rd []Record) ([]Record, []Record) {
			i := r.IntN(len(a))
			a[i].CRC ^= 1
			return a, rd
		}, "lost two values"},
		"an acked record was cut off and its offset used again": {func(a, rd []Record) ([]Record, []Record) {
			p := a[r.IntN(len(a))].Place()
			rd = append(without(rd, p), NewRecord("a", p.Topic, p.Partition, p.Offset, []byte("new"), []byte("x")))
			return a, rd
		}, "lost two values"},
		"a retry was appended again": {func(a, rd []Record) ([]Record, []Record) {
			again := a[r.IntN(len(a))]
			again.Offset = 1000
			return a, append(rd, again)
		}, "duplicate"},
		"two readers see two values": {func(a, rd []Record) ([]Record, []Record) {
			other := rd[0]
			other.Client, other.Key = "c", "unheard of"
			return a, append([]Record{other}, rd...)
		}, "two values"},
		"null became empty": {func(a, rd []Record) ([]Record, []Record) {
			for i := range a {
				a[i].Len, a[i].CRC = 0, 0
			}
			for i := range rd {
				rd[i].Len, rd[i].CRC = 0, 0
			}
			a[7].Len = -1
			return a, rd
		}, "lost two values"},
	} {
		a, rd := sound(300)
		a, rd = c.plant(a, rd)
		seen, rules := map[string]bool{}, []string{}
		for _, f := range all(a, rd) {
			if !seen[f.Rule] {
				seen[f.Rule] = true
				rules = append(rules, f.Rule)
			}
		}
		if got := strings.Join(rules, " "); got != c.rules {
			t.Errorf("%s: %q speak, want %q", name, got, c.rules)
		}
	}
}

func TestReadingOnePlaceTwiceIsNoDuplicate(t *testing.T) {
	_, reads := sound(10)
	if faults := NoDuplicate(append(reads, reads...)); len(faults) > 0 {
		t.Error(faults)
	}
}

func TestOneOwner(t *testing.T) {
	start := time.Unix(1000, 0)
	at := func(owner string, partition int32, from, to int) Ownership {
		return Ownership{Owner: owner, Topic: "t", Partition: partition, From: start.Add(time.Duration(from) * time.Second), To: start.Add(time.Duration(to) * time.Second)}
	}
	for _, c := range []struct {
		name  string
		owned []Ownership
		want  int
	}{
		{"one after the other", []Ownership{at("a", 0, 0, 5), at("b", 0, 5, 9), at("a", 1, 0, 9)}, 0},
		{"the same owner twice", []Ownership{at("a", 0, 0, 5), at("a", 0, 3, 9)}, 0},
		{"an overlap within the slack", []Ownership{at("a", 0, 0, 5), at("b", 0, 4, 9)}, 0},
		{"an overlap past the slack", []Ownership{at("a", 0, 0, 5), at("b", 0, 2, 9)}, 1},
		{"one inside the other", []Ownership{at("b", 0, 3, 6), at("a", 0, 0, 100)}, 1},
		{"three at once", []Ownership{at("a", 0, 0, 9), at("b", 0, 0, 9), at("c", 0, 0, 9)}, 3},
		{"not next to each other in order", []Ownership{at("a", 0, 0, 50), at("b", 0, 1, 2), at("c", 0, 10, 20)}, 1},
	} {
		if got := OneOwner(c.owned, time.Second); len(got) != c.want {
			t.Errorf("%s: %d faults %v, want %d", c.name, len(got), got, c.want)
		}
	}
}

// Members of all kinds are one group: a partition that one has by a znode and another by its assignment, a record that both get, is
// caught by what was seen of either.
func TestSightingsOfAllKinds(t *testing.T) {
	start := time.Unix(1000, 0)
	second := func(n int) time.Time { return start.Add(time.Duration(n) * time.Second) }
	for _, c := range []struct {
		name            string
		seen            []map[int32][]string // a second apart
		reads           map[int]string       // who received from partition 0, by second
		owners, readers int                  // faults
	}{
		{"handed over", []map[int32][]string{{0: {"zookeeper"}, 1: {"consumer"}}, {0: {"zookeeper"}}, {}, {0: {"consumer"}}, {0: {"consumer"}}, {0: {"consumer"}}},
			map[int]string{0: "zookeeper", 2: "zookeeper", 4: "consumer", 5: "consumer"}, 0, 0},
		{"there and back", []map[int32][]string{{0: {"zookeeper"}}, {0: {"consumer"}}, {0: {"zookeeper"}}}, nil, 0, 0},
		{"two at one moment", []map[int32][]string{{0: {"zookeeper"}}, {0: {"zookeeper", "consumer"}}, {0: {"consumer"}}}, nil, 1, 0},
		{"two from the beginning", []map[int32][]string{{0: {"classic", "consumer"}}}, nil, 1, 0},
		{"three", []map[int32][]string{{0: {"classic", "consumer", "zookeeper"}}, {0: {"classic", "consumer", "zookeeper"}}}, nil, 3, 0},
		{"who lost it reads on", []map[int32][]string{{0: {"zookeeper"}}, {0: {"consumer"}}, {0: {"consumer"}}, {0: {"consumer"}}, {0: {"consumer"}}},
			map[int]string{2: "consumer", 4: "zookeeper"}, 0, 1},
	} {
		s := Sightings{Topic: "t"}
		var receipts []Receipt
		for i, holders := range c.seen {
			s.Saw(second(i), holders)
			if who := c.reads[i]; who != "" {
				receipts = append(receipts, Receipt{Owner: who, Topic: "t", Partition: 0, At: second(i)})
			}
		}
		if got := OneOwner(s.Owned(), -1); len(got) != c.owners {
			t.Errorf("%s: %v, want %d faults", c.name, got, c.owners)
		}
		if got := ReadByOwner(receipts, s.Owned(), 2*time.Second); len(got) != c.readers {
			t.Errorf("%s: %v, want %d faults", c.name, got, c.readers)
		}
	}
}

func TestReadByOwner(t *testing.T) {
	start := time.Unix(1000, 0)
	second := func(n float64) time.Time { return start.Add(time.Duration(n * float64(time.Second))) }
	owned := []Ownership{
		{Owner: "a", Topic: "t", Partition: 0, From: second(0), To: second(10)},
		{Owner: "b", Topic: "t", Partition: 0, From: second(11), To: second(30)},
	}
	for _, c := range []struct {
		name  string
		owner string
		at    float64
		want  int
	}{
		{"the owner", "a", 5, 0},
		{"a buffered record after the release", "a", 10.5, 0},
		{"a late notice within the slack", "a", 12, 0},
		{"a zombie", "a", 15, 1},
		{"before its claim", "b", 5, 1},
		{"between owners", "b", 10.5, 0},
		{"a stranger", "c", 20, 1},
	} {
		receipts := []Receipt{{Owner: c.owner, Topic: "t", Partition: 0, At: second(c.at)}, {Owner: c.owner, Topic: "t", Partition: 1, At: second(c.at)}}
		if got := ReadByOwner(append(receipts, receipts...), owned, 2*time.Second); len(got) != c.want {
			t.Errorf("%s: %v, want %d faults", c.name, got, c.want)
		}
	}
}

func TestSeedIsReplayed(t *testing.T) {
	t.Setenv("BARNABAS_SEED", "42")
	if a, b := Rand(t).Uint64(), Rand(t).Uint64(); a != b {
		t.Errorf("two sources of seed 42 begin with %d and %d", a, b)
	}
}
