package core

import (
	"testing"
	"time"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/raftmeta/state"
	pb "github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
)

// Who had a partition before an expired member, and gets it again, is not cut off from it with that one, though its connections are under the
// group's name too.
func TestNextOwnerIsNotFenced(t *testing.T) {
	p := twoMembers(t)
	p.frozen = map[uint64]time.Duration{}
	p.mind.cfg.Fetching = func(id.TopicPartition) []Fetcher { return p.fetches() }
	p.tellAll("claim b of=t/0", "fetches b conn=8", "freezes b conn=8")
	p.pass(5 * time.Second)
	p.tellAll("delete b of=t/0", "claim a of=t/0", "fetches a conn=7")
	p.pass(10 * time.Second)
	p.tellAll("freezes a conn=7")
	p.pass(8 * time.Second)
	p.tellAll("expire a")
	p.pass(time.Second)
	p.tellAll("claim b of=t/0")
	p.pass(8 * time.Second)
	if got := p.owners(); got != "t/0=b-0" {
		t.Fatal(got)
	}
	fenced := map[uint64]string{}
	p.s.View().Fences(func(f *state.Fence) bool { fenced[f.Conn] = f.Member; return true })
	if len(fenced) != 1 || fenced[7] != "a" {
		t.Errorf("cut off: %v, want a's connection 7", fenced)
	}
}

// A member's connection is settled on when reports have named it for a while, not by a single one.
func TestReaderIsSettledOn(t *testing.T) {
	p := twoMembers(t)
	var tells []Fetcher
	p.mind.cfg.Fetching = func(id.TopicPartition) []Fetcher { return tells }
	others := Fetcher{Broker: 1, Epoch: 1, Closed: true}
	one := func(conn uint64) []Fetcher {
		return []Fetcher{others, {Broker: 1, Epoch: 1, Conn: conn, ClientID: "mine", Host: "10.0.0.1"}}
	}
	p.tellAll("claim a of=t/0", "commit of=t/0 offset=10 by=mine@10.0.0.1")
	p.pass(10 * time.Second)
	tells = one(7)
	p.tellAll("expire a")
	reader := func() uint64 {
		if f := p.mind.legacyGroup("g").fetchers[id.TopicPartition{Topic: "t"}]; f != nil && f.reader != nil {
			return f.reader.Conn
		}
		return 0
	}
	p.advance(300 * time.Millisecond)
	tells = one(8)
	p.advance(400 * time.Millisecond)
	if got := reader(); got != 0 {
		t.Fatalf("settled on %d after 400 ms", got)
	}
	p.advance(400 * time.Millisecond)
	if got := reader(); got != 8 {
		t.Fatalf("settled on %d", got)
	}
}

// The join that has waited longest has its generation in time, though it came to this coordinator last.
func TestJoinsBoundIsOfTheOldest(t *testing.T) {
	p := twoMembers(t)
	p.tellAll("session c", "register c")
	p.pass(time.Second) // a generation that nobody claims
	for name, waited := range map[string]time.Duration{"d": time.Second, "e": 12500 * time.Millisecond} {
		p.tellAll("session " + name)
		p.ask(name, Request{Waited: waited, Repeat: true, Command: &pb.Command{Origin: p.origin(name), Body: &pb.Command_CreateZnode{CreateZnode: &pb.CreateZnode{
			Path: "/consumers/g/ids/" + name, Data: []byte(`{"version":1,"subscription":{"t":1},"pattern":"static","timestamp":"1"}`), Ephemeral: true}}}})
	}
	begun := p.now
	for len(p.mind.legacyGroup("g").joins) > 0 {
		if p.pass(100 * time.Millisecond); p.now-begun > time.Second {
			t.Fatalf("a join that had waited for 12.5 s waits for %v more", p.now-begun)
		}
	}
}
