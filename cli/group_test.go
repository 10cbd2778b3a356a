package cli

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

func TestGroups(t *testing.T) {
	addr := fake(t)
	ok(t, "", "topic", "create", "t", "-p", "2", "-r", "1", "-b", addr)
	ok(t, "a\nb\nc\nd\n", "produce", "-t", "t", "-p", "1", "-b", addr)
	if got := ok(t, "", "group", "list", "-b", addr); got != "GROUP  TYPE  STATE  MEMBERS  LAG\n" {
		t.Errorf("%q", got)
	}
	reset := func(args ...string) string {
		return ok(t, "", append([]string{"group", "reset-offsets", "g", "-b", addr}, args...)...)
	}
	if got := reset("-t", "t:1", "--to", "1"); got != "TOPIC  PARTITION  OFFSET\nt      1          1\n" {
		t.Errorf("%q", got)
	}
	if got := reset("-t", "t", "--to", "latest", "--dry-run"); !strings.HasSuffix(got, "t      0          0\nt      1          4\n") {
		t.Errorf("%q", got)
	}
	if got := ok(t, "", "group", "describe", "g", "-b", addr); !strings.Contains(got, "Empty, 0 members, lag 3\n") || !strings.Contains(got, "t      1          1          4    3") {
		t.Errorf("%q", got)
	}
	for to, want := range map[string]string{"99": "4", "earliest": "0", "1h": "0", "2001-01-31T12:00:00Z": "0"} {
		if got := reset("-t", "t:1", "--to", to, "-o", "json"); !strings.Contains(got, `"offset": `+want) {
			t.Errorf("--to %s: %s", to, got)
		}
	}
	for _, bad := range [][]string{{"-t", "t"}, {"--to", "1"}, {"-t", "t:x", "--to", "1"}, {"-t", "t", "--to", "yesterday"}, {"-t", "t:9", "--to", "1"}, {"-t", "u", "--to", "1"}} {
		if r := run(t, "", append([]string{"group", "reset-offsets", "g", "-b", addr}, bad...)...); r.failure == nil {
			t.Errorf("%v: %q", bad, r.out)
		}
	}
	if r := run(t, "", "group", "describe", "nobody", "-b", addr); r.failure == nil || !strings.Contains(r.failure.Error(), "there is no group nobody") {
		t.Errorf("%+v", r)
	}

	reset("-t", "t", "--to", "earliest")
	cl, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(addr, ",")...), kgo.ConsumerGroup("g"), kgo.ConsumeTopics("t"), kgo.ClientID("reader"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	for cl.PollFetches(ctx).NumRecords() == 0 {
		if ctx.Err() != nil {
			t.Fatal(ctx.Err())
		}
	}
	if got := ok(t, "", "group", "describe", "g", "-b", addr); !strings.Contains(got, "g: classic, Stable") || !strings.Contains(got, "t(0,1)") {
		t.Errorf("%q", got)
	}
	if r := run(t, "", "group", "reset-offsets", "g", "-t", "t", "--to", "0", "-b", addr); r.failure == nil || !strings.Contains(r.failure.Error(), "stop them first") {
		t.Errorf("%+v", r)
	}
	if got := ok(t, "", "group", "move", "g", "--to", "new", "-b", addr); !strings.Contains(got, "group g: moved\n") {
		t.Errorf("%q", got)
	}
	if r := run(t, "", "group", "move", "g", "--to", "zookeeper", "--wait", "0s", "-b", addr); r.failure == nil || !strings.Contains(r.failure.Error(), "1 old members to stop; a new member to start") {
		t.Errorf("%+v", r)
	}
	if got := ok(t, "", "group", "move", "g", "--to", "zookeeper", "--check", "-o", "json", "-b", addr); !strings.Contains(got, `"done": false`) {
		t.Errorf("%q", got)
	}
	cl.LeaveGroup()
	cl.Close()
	if got := ok(t, "", "group", "delete", "g", "-b", addr); got != "deleted g\n" {
		t.Errorf("%q", got)
	}
	if r := run(t, "", "group", "delete", "g", "-b", addr); r.failure == nil {
		t.Errorf("%+v", r)
	}
}

func TestGroupExplain(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet || r.URL.EscapedPath() != "/v1/groups/my%20group/rebalances" {
			t.Errorf("%s %s", r.Method, r.URL.EscapedPath())
		}
		_, _ = w.Write([]byte(`{"group":"my group","generation":2,"rebalances":[{"time":"2026-01-31T12:00:00Z","generation":2,"cause":"leave",
			"why":"member a left","membersBefore":2,"membersAfter":1,"left":["a"],"waitedMs":1500,"waitedFor":"b","kind":"legacy",
			"holds":["2 claims, 1.2s"]}]}`))
	}))
	defer srv.Close()
	got := ok(t, "", "group", "explain", "my group", "-a", strings.TrimPrefix(srv.URL, "http://"))
	if !strings.Contains(got, "  legacy generation 2  leave: member a left\n    members 2 -> 1, waited 1.5s, last for b\n    left: a\n    held: 2 claims, 1.2s\n") {
		t.Errorf("%q", got)
	}
}

func TestMoveOfAGroup(t *testing.T) {
	at := func(n int64) *int64 { return &n }
	old := groupView{State: "Stable", Members: []memberView{{ID: "z", Kind: kindZooKeeper}}, Offsets: []offsetView{
		{Topic: "t", Partition: 0, Committed: at(5), Member: "z"}, {Topic: "t", Partition: 1, Committed: at(7), Member: "z"}}}
	if got := moveMissing(old, "new"); strings.Join(got, "; ") != "1 old members to stop; a new member to start" {
		t.Errorf("%q", got)
	}
	if got := moveMissing(old, "zookeeper"); len(got) != 0 {
		t.Errorf("%q", got)
	}
	mixed := groupView{State: "Stable", Members: []memberView{{ID: "z", Kind: kindZooKeeper}, {ID: "c", Kind: kindConsumer}}, Offsets: []offsetView{
		{Topic: "t", Partition: 0, Committed: at(9), Member: "z"}, {Topic: "t", Partition: 1, Committed: at(6)}}}
	if got := moveMissing(mixed, "new"); strings.Join(got, "; ") != "1 old members to stop; an owner of 1 partitions" {
		t.Errorf("%q", got)
	}
	if got := moveLine(mixed); got != "Stable, 1 consumer and 1 zookeeper, 1 of 2 partitions owned" {
		t.Errorf("%q", got)
	}
	if got := groupType(mixed.Members, "consumer", true); got != kindMixed {
		t.Errorf("%q", got)
	}
	if got := wentBack(compareMoves(old, mixed)); strings.Join(got, ",") != "t-1" {
		t.Errorf("%q", got)
	}
	for _, c := range []struct {
		members  []memberView
		protocol string
		consumer bool
		want     string
	}{{nil, "", false, "offsets only"}, {nil, "consumer", false, "classic"}, {nil, "consumer", true, "consumer"}, {nil, "connect", false, "connect"},
		{[]memberView{{Kind: kindClassic}}, "consumer", true, "consumer"}, {[]memberView{{Kind: kindZooKeeper}}, "consumer", false, "zookeeper"}} {
		if got := groupType(c.members, c.protocol, c.consumer); got != c.want {
			t.Errorf("%+v: %q", c, got)
		}
	}
}
