package zkcompat_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/internal/testtool"
	"github.com/barnabas-mq/barnabas/raftmeta/state"
	"github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
	"github.com/barnabas-mq/barnabas/zkcompat"
	"github.com/barnabas-mq/barnabas/zkcompat/jute"
)

// holder is a coordinator that holds claims of names in hold until it is told to let them go.
type holder struct {
	n         *foldNode
	hold      string
	arrived   chan string
	letGo     chan struct{}
	cancelled atomic.Int32
}

func (h *holder) Do(ctx context.Context, c *statepb.Command) (*statepb.Result, error) {
	claim := c.GetClaimOwner()
	h.arrived <- claim.GetName()
	if claim.GetName() == h.hold {
		select {
		case <-h.letGo:
		case <-ctx.Done():
			h.cancelled.Add(1)
			return nil, ctx.Err()
		}
	}
	return h.n.Propose(ctx, c)
}

// A claim that the coordinator holds keeps only its own session waiting, and a hold ends with its session.
func TestHeldClaims(t *testing.T) {
	f := newFold(t, 1)
	n := f.node(t, 0)
	h := &holder{n: n, hold: "0", arrived: make(chan string, 8), letGo: make(chan struct{})}
	b, err := zkcompat.NewStateBackend(zkcompat.StateConfig{Proposer: n, Views: n, Coordinator: h})
	if err != nil {
		t.Fatal(err)
	}
	n.b = b
	_, addr := serve(t, b, nil)
	a, c := session(t, addr), session(t, addr)
	for _, p := range []string{"/consumers/g", "/consumers/g/owners", "/consumers/g/owners/t"} {
		a.create(p, "", 0)
	}
	held := a.send(jute.OpCreate, createReq("/consumers/g/owners/t/0", []byte("a"), jute.FlagEphemeral))
	behind := a.send(jute.OpGetChildren, &jute.PathWatch{Path: "/consumers/g/owners/t"})
	if got := <-h.arrived; got != "0" {
		t.Fatal(got)
	}
	c.create("/consumers/g/owners/t/1", "c", jute.FlagEphemeral)
	if got := <-h.arrived; got != "1" {
		t.Fatal(got)
	}
	a.sendXid(jute.XidPing, jute.OpPing, nil)
	if m := a.next(); m.Xid != jute.XidPing {
		t.Fatal(m)
	}
	h.letGo <- struct{}{}
	for _, xid := range []int32{held, behind} {
		if m := a.next(); m.Xid != xid || m.Err != jute.OK {
			t.Fatal(m)
		}
	}
	if m, _ := c.call(jute.OpCreate, createReq("/consumers/g/owners/t/1", []byte("c"), jute.FlagEphemeral)); m.Err != jute.NodeExists {
		t.Fatal(m)
	}
	<-h.arrived
	a.must(jute.OpDelete, &jute.PathVersion{Path: "/consumers/g/owners/t/0", Version: -1})

	// The hold's session expires: the claim is cancelled, the connection closed, and nothing was claimed.
	a.send(jute.OpCreate, createReq("/consumers/g/owners/t/0", []byte("a"), jute.FlagEphemeral))
	<-h.arrived
	s, _ := n.View().Session(id.SessionID(a.resp.SessionID))
	f.apply(&statepb.Command{Body: &statepb.Command_CloseSession{CloseSession: &statepb.CloseSession{
		Session: a.resp.SessionID, AttachEpoch: s.AttachEpoch}}})
	if closed, got := a.closed(20e9); !closed || len(got) > 0 {
		t.Fatal(closed, got)
	}
	if m, _ := c.call(jute.OpExists, &jute.PathWatch{Path: "/consumers/g/owners/t/0"}); m.Err != jute.NoNode {
		t.Fatal(m)
	}
	// And so it is when its connection breaks.
	a = session(t, addr)
	a.send(jute.OpCreate, createReq("/consumers/g/owners/t/0", []byte("a"), jute.FlagEphemeral))
	<-h.arrived
	_ = a.nc.Close()
	for h.cancelled.Load() < 2 {
		c.must(jute.OpExists, &jute.PathWatch{Path: "/"})
	}
}

// delete.topic.enable=false is kept on this port too.
func TestKeepTopics(t *testing.T) {
	f := newFold(t, 1)
	n := f.node(t, 0)
	b, err := zkcompat.NewStateBackend(zkcompat.StateConfig{Proposer: n, Views: n, KeepTopics: true})
	if err != nil {
		t.Fatal(err)
	}
	_, addr := serve(t, b, nil)
	n.b = b
	a := session(t, addr)
	a.create("/brokers/topics/t", `{"version":1,"partitions":{"0":[1]}}`, 0)
	if m, _ := a.call(jute.OpCreate, createReq("/admin/delete_topics/t", nil, 0)); m.Err != jute.NoAuth {
		t.Fatal(m)
	}
	a.must(jute.OpExists, &jute.PathWatch{Path: "/brokers/topics/t/partitions/0/state"})
}

// A value that no broker could follow is refused by this port too, with the reason in the log; names that are no settings are kept.
func TestWrongSettingsAreRefused(t *testing.T) {
	f := newFold(t, 1)
	n := f.node(t, 0)
	b, err := zkcompat.NewStateBackend(zkcompat.StateConfig{Proposer: n, Views: n, CheckSetting: func(name, value string) error {
		if name == "retention.ms" && value != "1000" {
			return fmt.Errorf("%s is no time", value)
		}
		return nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	var log testtool.Log
	_, addr := serve(t, b, func(c *zkcompat.Config) { c.Log = slog.New(slog.NewTextHandler(&log, nil)) })
	n.b = b
	a := session(t, addr)
	doc := func(ms string) []byte {
		return []byte(`{"version":1,"config":{"retention.ms":"` + ms + `","flux":"high"}}`)
	}
	if m, _ := a.call(jute.OpCreate, createReq("/config/topics/t", doc("soon"), 0)); m.Err != jute.BadArguments {
		t.Errorf("created: %v", m)
	}
	if n := strings.Count(log.String(), "soon is no time"); n != 1 {
		t.Errorf("%d lines say why", n)
	}
	a.create("/config/topics/t", string(doc("1000")), 0)
	if m, _ := a.call(jute.OpSetData, &jute.SetDataRequest{Path: "/config/topics/t", Data: doc("never"), Version: -1}); m.Err != jute.BadArguments {
		t.Errorf("written: %v", m)
	}
	if row, ok := n.View().Config("topics", "t"); !ok || !slices.Equal(row.Entries, []state.KV{{Name: "flux", Value: "high"}, {Name: "retention.ms", Value: "1000"}}) {
		t.Errorf("%+v", row)
	}
	a.create("/config/clients/c", string(doc("soon")), 0) // not a topic's
}

// mute is a metadata log without a leader.
type mute struct{ *foldNode }

func (m mute) Propose(ctx context.Context, _ *statepb.Command) (*statepb.Result, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// Without a leader nobody is told that a session is over, nor given one: the connection is closed, soon.
func TestNoLeader(t *testing.T) {
	n := newFold(t, 1).node(t, 0)
	b, err := zkcompat.NewStateBackend(zkcompat.StateConfig{Proposer: mute{n}, Views: n})
	if err != nil {
		t.Fatal(err)
	}
	n.b = b
	_, addr := serve(t, b, func(c *zkcompat.Config) { c.ConnectTimeout = 200 * time.Millisecond })
	for _, session := range []int64{0, 0x1234} {
		c := dialRaw(t, addr)
		if err := c.handshake(jute.ConnectRequest{TimeoutMs: 6000, SessionID: session, Password: make([]byte, 16)}); err == nil {
			t.Fatalf("session 0x%x: answered %+v", session, c.resp)
		}
	}
}
