package console

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	"github.com/barnabas-mq/barnabas/raftmeta/state"
	pb "github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type fakeNode struct {
	unready, unhealthy []Reason
	initErr            error
}

func (f *fakeNode) Unready() []Reason   { return f.unready }
func (f *fakeNode) Unhealthy() []Reason { return f.unhealthy }
func (f *fakeNode) Status() any         { return map[string]int{"index": 7} }
func (f *fakeNode) InitCluster(context.Context) (string, error) {
	return "abc", f.initErr
}

func (f *fakeNode) RaiseLevel(_ context.Context, level uint32) (uint32, error) {
	if level == 9 {
		return 0, errors.New("broker 3 serves levels 1 to 1")
	}
	return max(level, 1), nil
}

func TestConsole(t *testing.T) {
	s := state.New()
	e, err := proto.Marshal(&pb.Entry{Commands: []*pb.Command{
		{Version: 1, Body: &pb.Command_Bootstrap{Bootstrap: &pb.Bootstrap{ClusterId: "c", Level: 1}}},
		{Version: 1, Body: &pb.Command_RegisterBroker{RegisterBroker: &pb.RegisterBroker{DirectoryId: "d", Nonce: "n", WantedId: 1, MinLevel: 1, MaxLevel: 1}}},
		{Version: 1, Body: &pb.Command_CreateTopic{CreateTopic: &pb.CreateTopic{Name: "t", TopicId: make([]byte, 16), Assignments: []*pb.Assignment{{Replicas: []int32{1}}}}}},
		{Version: 1, Body: &pb.Command_CommitOffsets{CommitOffsets: &pb.CommitOffsets{Group: "g", Generation: -1, Items: []*pb.OffsetItem{{Topic: "t", Offset: 5}}}}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	s.Apply(1, 1, e)
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(StateMetrics{View: s.View})
	n := &fakeNode{unready: []Reason{{"raft", "no leader"}}}
	c := New(Config{Listen: "127.0.0.1:0", Node: n, Metrics: reg})
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer c.Stop(context.Background())
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	ask := func(method, path string, code int, want string) {
		t.Helper()
		req, err := http.NewRequest(method, "http://"+c.Addr().String()+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		res, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		b, err := io.ReadAll(res.Body)
		if err != nil || res.StatusCode != code || !strings.Contains(string(b), want) {
			t.Errorf("%s %s: %d %s (%v), want %d with %q", method, path, res.StatusCode, b, err, code, want)
		}
	}
	ask("GET", "/livez", 200, "alive")
	ask("GET", "/readyz", 503, "no leader")
	ask("GET", "/healthz", 503, `"healthy":false`)
	n.unready = nil
	ask("GET", "/readyz", 200, `"ready":true`)
	ask("GET", "/healthz?verbose", 200, `"reasons":[]`)
	n.unhealthy = []Reason{{"disk", "full"}}
	ask("GET", "/readyz", 200, `"ready":true`)
	ask("GET", "/healthz?verbose", 503, "full")
	ask("GET", "/v1/status", 200, `"index":7`)
	ask("POST", "/v1/cluster/init", 200, "abc")
	n.initErr = errors.New("already founded")
	ask("POST", "/v1/cluster/init", 409, "already founded")
	ask("GET", "/v1/cluster/init", 405, "")
	ask("POST", "/v1/cluster/level", 200, `"level":1`)
	ask("POST", "/v1/cluster/level?level=2", 200, `"level":2`)
	ask("POST", "/v1/cluster/level?level=9", 409, "broker 3")
	ask("POST", "/v1/cluster/level?level=x", 400, "number")
	for _, line := range []string{"kafka_brokers 1", `kafka_topic_partition_leader{partition="0",topic="t"} 1`,
		`kafka_consumergroup_current_offset{consumergroup="g",partition="0",topic="t"} 5`} {
		ask("GET", "/metrics", 200, line)
	}
}
