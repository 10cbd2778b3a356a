package core

import (
	"strings"
	"testing"
	"time"

	"github.com/barnabas-mq/barnabas/internal/id"
	pb "github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
)

// two sessions that are members of a complete generation.
func twoMembers(t *testing.T) *teller {
	t.Helper()
	p := &teller{park: newPark(t), raw: map[string]int64{}}
	p.topic("t", 2)
	for _, text := range []string{"session a", "session b", "register a", "register b"} {
		p.tell(parse(text))
	}
	p.pass(12 * time.Second)
	p.out.Reset()
	return p
}

// A claim that comes while another one of the same partition is being carried out waits for its outcome, and then for its release: a
// refusal at once would cost an attempt.
func TestClaimBehindAClaimUnderWay(t *testing.T) {
	p := twoMembers(t)
	p.hold = true
	p.tell(parse("claim a of=t/0"))
	p.tell(parse("claim b of=t/0"))
	if out := p.out.String(); strings.Contains(out, "NODE_EXISTS") {
		t.Fatal(out)
	}
	p.release()
	p.pass(time.Second)
	if out := p.out.String(); strings.Contains(out, "NODE_EXISTS") || !strings.Contains(out, "a: OK") {
		t.Fatal(out)
	}
	p.apply(&pb.Command{Origin: p.origin("a"), Body: &pb.Command_DeleteZnode{DeleteZnode: &pb.DeleteZnode{Path: "/consumers/g/owners/t/0", Version: -1}}})
	if out := p.out.String(); !strings.Contains(out, "b: OK") {
		t.Fatal(out)
	}
}

// The connections of an expired member get nothing more from the moment on at which its partition has a new owner.
func TestFenceComesWithTheNewOwner(t *testing.T) {
	p := twoMembers(t)
	p.mind.cfg.Fetching = func(id.TopicPartition) []Fetcher { return p.fetching }
	p.tell(parse("claim a of=t/0"))
	p.tell(parse("fetches a conn=7"))
	p.tell(parse("expire a"))
	p.pass(500 * time.Millisecond)
	p.tell(parse("claim b of=t/0"))
	for end := p.now + 10*time.Second; p.owners() != "t/0=b-0"; p.advance(10 * time.Millisecond) {
		if p.now > end {
			t.Fatal("the reservation never ends", p.out.String())
		}
	}
	p.advance(10 * time.Millisecond)
	if !p.s.View().AnyFence() {
		t.Fatal("the connection still gets records, and the partition has another owner\n", p.out.String())
	}
}
