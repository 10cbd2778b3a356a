package controller

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/internal/lease"
	"github.com/barnabas-mq/barnabas/raftmeta/state"
	"github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
)

// fixture is a state and the controller of one term over it. Commands that Decide returns are applied at once unless held.
type fixture struct {
	t     interface{ Fatalf(string, ...any) }
	st    *state.State
	v     *state.View
	index uint64
	now   time.Duration
	c     *Controller
	epoch map[id.BrokerID]id.BrokerEpoch
}

const second = time.Second

func newFixture(t interface{ Fatalf(string, ...any) }, brokers int) *fixture {
	f := &fixture{t: t, st: state.New(), now: 1000 * second, epoch: map[id.BrokerID]id.BrokerEpoch{}}
	f.apply(&statepb.Command{Body: &statepb.Command_Bootstrap{Bootstrap: &statepb.Bootstrap{ClusterId: "c", Level: 1}}})
	f.apply(&statepb.Command{Body: &statepb.Command_TermStarted{TermStarted: &statepb.TermStarted{Broker: 1}}})
	for b := 1; b <= brokers; b++ {
		f.register(id.BrokerID(b), "first")
	}
	return f
}

func (f *fixture) apply(c *statepb.Command) *statepb.Result {
	c.Version, c.Level = state.CommandVersion, 1
	data, err := proto.Marshal(&statepb.Entry{Commands: []*statepb.Command{c}})
	if err != nil {
		f.t.Fatalf("%v", err)
	}
	f.index++
	a := f.st.Apply(id.Index(f.index), 1, data)
	f.v = a.View
	if f.c != nil {
		f.c.Applied(a.View, a.Changes, f.now)
	}
	return a.Settled[0].Result
}

func (f *fixture) register(b id.BrokerID, nonce string) {
	r := f.apply(&statepb.Command{Body: &statepb.Command_RegisterBroker{RegisterBroker: &statepb.RegisterBroker{
		DirectoryId: fmt.Sprint("d", b), Nonce: nonce, WantedId: int32(b), MinLevel: 1, MaxLevel: 1}}})
	if r.Code != statepb.Code_OK {
		f.t.Fatalf("register %d: %v", b, r)
	}
	f.epoch[b] = id.BrokerEpoch(r.Epoch)
}

func (f *fixture) topic(name string, replicas ...int32) {
	r := f.apply(&statepb.Command{Body: &statepb.Command_CreateTopic{CreateTopic: &statepb.CreateTopic{
		Name: name, TopicId: []byte(fmt.Sprintf("%-16s", name)), Assignments: []*statepb.Assignment{{Replicas: replicas}}}}})
	if r.Code != statepb.Code_OK {
		f.t.Fatalf("topic %s: %v", name, r)
	}
}

func (f *fixture) session(timeout time.Duration) id.SessionID {
	r := f.apply(&statepb.Command{Body: &statepb.Command_CreateSession{CreateSession: &statepb.CreateSession{
		TimeoutMs: int32(timeout.Milliseconds()), Password: make([]byte, 16), Broker: 1}}})
	return id.SessionID(r.Value)
}

func (f *fixture) begin(youngest time.Duration) {
	f.c = New(f.v, f.now, youngest, id.Index(f.index))
}

// run passes time in steps, with reports of the brokers named, until d has passed; it applies what is decided and
// returns that.
func (f *fixture) run(d time.Duration, reporting ...id.BrokerID) (decided []*statepb.Command) {
	for end := f.now + d; f.now < end; {
		for _, b := range reporting {
			f.c.Heard(b, f.epoch[b], f.v.Index(), nil, f.now)
		}
		decided = append(decided, f.decide()...)
		f.now += lease.ReportEvery / 2
	}
	return decided
}

func (f *fixture) decide() (cmds []*statepb.Command) {
	for range 100 {
		ds, next := f.c.Decide(f.now)
		if next < f.now || next > f.now+DecideEvery {
			f.t.Fatalf("asks to be called at %v, now %v", next, f.now)
		}
		if len(ds) == 0 {
			return cmds
		}
		for _, d := range ds {
			cmds = append(cmds, d.Command)
			f.c.Settled(d.ID, f.apply(d.Command), f.now)
		}
	}
	f.t.Fatalf("decides for ever: %v", cmds[len(cmds)-1])
	return nil
}

func (f *fixture) row(b id.BrokerID) *state.Broker {
	r, ok := f.v.Broker(b)
	if !ok {
		f.t.Fatalf("no broker %d", b)
	}
	return r
}

func (f *fixture) part(topic string) *state.Partition {
	p, ok := f.v.Partition(topic, 0)
	if !ok {
		f.t.Fatalf("no partition")
	}
	return p
}

func TestSilentBrokerIsFencedWhenItsLeaseHasEnded(t *testing.T) {
	f := newFixture(t, 3)
	f.topic("t", 2, 1, 3)
	f.begin(0)
	if cmds := f.run(10*second, 1, 2, 3); len(cmds) != 0 {
		t.Fatal("something to do among healthy brokers", cmds)
	}
	start := f.now
	for f.row(2).Liveness == state.Live {
		f.run(lease.ReportEvery/2, 1, 3)
	}
	if took := f.now - start; took < lease.Duration || took > lease.FenceAfter+lease.ReportEvery {
		t.Fatalf("fenced after %v", took)
	}
	if p := f.part("t"); p.Leader != 1 || !p.GraceNeeded || slices.Contains(p.ISR, 2) {
		t.Fatalf("%+v", p)
	}
	if !f.row(2).Visible {
		t.Fatal("hidden at once")
	}
	fenced := f.now
	for f.row(2).Visible {
		f.run(lease.ReportEvery/2, 1, 3)
	}
	if took := f.now - fenced; took < HideAfter-second/5 || took > HideAfter+second {
		t.Fatalf("hidden after %v", took)
	}
}

func TestProofFencesAtOnce(t *testing.T) {
	f := newFixture(t, 3)
	f.topic("t", 2, 1, 3)
	f.begin(0)
	f.run(second, 1, 2, 3)
	f.c.Dead(2, f.epoch[2]-1) // of an older incarnation: nothing new
	if cmds := f.decide(); len(cmds) != 0 {
		t.Fatal(cmds)
	}
	f.c.Dead(2, f.epoch[2])
	if f.c.MayGrant(2, f.epoch[2], f.v.Index()) {
		t.Fatal("a lease for the dead")
	}
	f.decide()
	if p := f.part("t"); f.row(2).Liveness != state.Fenced || p.Leader != 1 || p.GraceNeeded {
		t.Fatalf("%+v %+v", f.row(2), p)
	}
	f.register(2, "second")
	if cmds := f.run(second, 1, 2, 3); len(cmds) != 0 || f.row(2).Liveness != state.Live {
		t.Fatal("the next incarnation is not dead", cmds)
	}
}

func TestGoodbyeHidesAtOnceButNotTheLast(t *testing.T) {
	f := newFixture(t, 2)
	f.begin(0)
	f.run(second, 1, 2)
	if f.c.Goodbye(2, f.epoch[2]-1) || !f.c.Goodbye(2, f.epoch[2]) {
		t.Fatal("goodbye of the wrong incarnation")
	}
	f.decide()
	if r := f.row(2); r.Liveness != state.Left || r.Visible {
		t.Fatalf("%+v", r)
	}
	f.c.Goodbye(1, f.epoch[1])
	f.run(20 * second)
	if r := f.row(1); r.Liveness != state.Left || !r.Visible {
		t.Fatalf("the last one: %+v", r)
	}
	f.register(2, "second")
	f.run(second, 2)
	if f.row(1).Visible {
		t.Fatal("still shown beside a live one")
	}
}

func TestNewTermWaitsForFormerLeases(t *testing.T) {
	f := newFixture(t, 3)
	for youngest, want := range map[time.Duration]time.Duration{0: lease.FenceAfter, second: second, time.Hour: lease.Settle} {
		f.begin(youngest)
		f.c.lastRun = f.now + want - 1 // it was not stopped, it only heard nothing
		if ds, _ := f.c.Decide(f.now + want - 1); len(ds) != 0 {
			t.Errorf("youngest proof %v ago: fences before %v", youngest, want)
		}
		if ds, _ := f.c.Decide(f.now + want); len(ds) != 3 {
			t.Errorf("youngest proof %v ago: %d commands after %v", youngest, len(ds), want)
		}
	}
}

func TestStoppedLeaderBlamesNobody(t *testing.T) {
	f := newFixture(t, 3)
	s := f.session(4 * second)
	f.begin(0)
	f.run(second, 1, 2, 3)
	f.now += time.Hour
	if cmds := f.decide(); len(cmds) != 0 {
		t.Fatal(cmds)
	}
	if cmds := f.run(3*second, 1, 2, 3); len(cmds) != 0 {
		t.Fatal(cmds)
	}
	f.run(2*second, 1, 2, 3)
	if _, ok := f.v.Session(s); ok {
		t.Fatal("the session lives on without touches")
	}
}

func TestGrantsNeedTheInformed(t *testing.T) {
	f := newFixture(t, 3)
	f.topic("t", 2, 1, 3)
	f.begin(0)
	f.run(second, 1, 2, 3)
	if !f.c.MayGrant(2, f.epoch[2], f.v.Index()) || f.c.MayGrant(2, f.epoch[2], 1) || f.c.MayGrant(2, f.epoch[2]-1, f.v.Index()) {
		t.Fatal("grants")
	}
	if err := f.c.Move(id.TopicPartition{Topic: "t"}, 3); err != nil {
		t.Fatal(err)
	}
	ds, _ := f.c.Decide(f.now)
	before := f.v.Index()
	if len(ds) != 1 || f.c.MayGrant(2, f.epoch[2], before) || !f.c.MayGrant(1, f.epoch[1], before) {
		t.Fatal("a lease while the leader is being moved", ds)
	}
	f.c.Settled(ds[0].ID, nil, f.now) // unknown: the hold stays
	if f.c.MayGrant(2, f.epoch[2], before+10) {
		t.Fatal("a lease while the outcome is unknown")
	}
	f.c.Move(id.TopicPartition{Topic: "t"}, 3)
	f.decide()
	if p := f.part("t"); p.Leader != 3 || !p.GraceNeeded {
		t.Fatalf("%+v", p)
	}
	if f.c.MayGrant(2, f.epoch[2], before) || !f.c.MayGrant(2, f.epoch[2], f.v.Index()) {
		t.Fatal("after the move")
	}
}

func TestElectionsByOthersStopLeasesToo(t *testing.T) {
	f := newFixture(t, 3)
	f.topic("t", 2, 1, 3)
	f.begin(0)
	f.run(second, 1, 2, 3)
	before := f.v.Index()
	r := f.apply(&statepb.Command{Body: &statepb.Command_ElectLeaders{ElectLeaders: &statepb.ElectLeaders{Elections: []*statepb.Election{
		{TopicId: []byte(fmt.Sprintf("%-16s", "t")), PartitionEpoch: int32(f.part("t").Epoch), Leader: 3}}}}})
	if r.Parts[0].Code != statepb.Code_OK || f.part("t").Leader != 3 {
		t.Fatal(r)
	}
	if f.c.MayGrant(2, f.epoch[2], before) || !f.c.MayGrant(2, f.epoch[2], f.v.Index()) || !f.c.MayGrant(1, f.epoch[1], before) {
		t.Fatal("leases after an election that was proposed elsewhere")
	}
}

func TestMoves(t *testing.T) {
	f := newFixture(t, 3)
	f.topic("t", 2, 1, 3)
	f.begin(0)
	f.run(second, 1, 2, 3)
	tp := id.TopicPartition{Topic: "t"}
	if err := f.c.Move(id.TopicPartition{Topic: "u"}, 1); !errors.Is(err, ErrUnknown) {
		t.Error(err)
	}
	if err := f.c.Move(tp, 9); !errors.Is(err, ErrUnknown) {
		t.Error(err)
	}
	f.c.Dead(1, f.epoch[1])
	if err := f.c.Move(tp, 1); !errors.Is(err, ErrNotReady) {
		t.Error(err)
	}
	f.decide()
	if err := f.c.Move(tp, 3); err != nil {
		t.Error(err)
	}
	f.decide()
	if err := f.c.Move(tp, id.NoBroker); err != nil {
		t.Error(err)
	}
	f.decide()
	if p := f.part("t"); p.Leader != 2 {
		t.Errorf("preferred leader: %+v", p)
	}
}

func TestHeadlessPartitionWaitsForItsISR(t *testing.T) {
	f := newFixture(t, 3)
	f.topic("t", 2, 3)
	f.begin(0)
	f.run(second, 1, 2, 3)
	f.c.Dead(3, f.epoch[3])
	f.decide()
	f.c.Dead(2, f.epoch[2])
	f.decide()
	if p := f.part("t"); p.Leader != id.NoBroker || !slices.Equal(p.ISR, []id.BrokerID{2}) {
		t.Fatalf("%+v", p)
	}
	f.register(3, "second")
	f.run(3*second, 1, 3)
	if p := f.part("t"); p.Leader != id.NoBroker {
		t.Fatalf("an unclean leader: %+v", p)
	}
	f.register(2, "second")
	f.run(second, 1, 2, 3)
	if p := f.part("t"); p.Leader != 2 {
		t.Fatalf("%+v", p)
	}
}

func TestSessionsExpireByTouches(t *testing.T) {
	f := newFixture(t, 1)
	a, b := f.session(4*second), f.session(6*second)
	f.begin(0)
	for range 100 {
		f.c.Heard(1, f.epoch[1], f.v.Index(), []id.SessionID{a, 999}, f.now)
		f.decide()
		f.now += lease.ReportEvery / 2
	}
	if _, ok := f.v.Session(a); !ok {
		t.Fatal("a touched session expired")
	}
	if _, ok := f.v.Session(b); ok {
		t.Fatal("an untouched session lives")
	}
	// Attached elsewhere between decision and apply: the command meets another attach epoch, the session lives on.
	f.now += 5 * second
	f.c.lastRun = f.now
	f.c.Heard(1, f.epoch[1], f.v.Index(), nil, f.now)
	ds, _ := f.c.Decide(f.now)
	if len(ds) != 1 {
		t.Fatal(ds)
	}
	f.apply(&statepb.Command{Body: &statepb.Command_AttachSession{AttachSession: &statepb.AttachSession{Session: int64(a), Password: make([]byte, 16), Broker: 1}}})
	f.c.Settled(ds[0].ID, f.apply(ds[0].Command), f.now)
	if _, ok := f.v.Session(a); !ok {
		t.Fatal("the session of a client that came back")
	}
	if cmds := f.run(3*second, 1); len(cmds) != 0 {
		t.Fatal(cmds)
	}
}

func TestQuietNamesWhoIsWorthAProbe(t *testing.T) {
	f := newFixture(t, 2)
	f.begin(0)
	f.run(second, 1)
	if q := f.c.Quiet(f.now); !slices.Equal(q, []id.BrokerID{2}) {
		t.Fatal(q)
	}
}

// Whatever reports arrive and whatever proposals come to: no broker is fenced without proof while it may hold a lease, no
// session expires within its timeout, nobody is elected outside the ISR, the last broker stays shown, and no decision is
// made twice for nothing.
func TestControllerProperties(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		f := newFixture(rt, 3)
		f.topic("t", 1, 2, 3)
		f.topic("u", 2, 3)
		f.begin(time.Duration(rapid.Int64Range(0, int64(5*second)).Draw(rt, "youngest")))
		leased := map[id.BrokerID]time.Duration{} // until when a lease may be held
		touched := map[id.SessionID]time.Duration{}
		dead := map[id.BrokerID]bool{}
		nonce := 0
		for range rapid.IntRange(1, 150).Draw(rt, "steps") {
			f.now += time.Duration(rapid.Int64Range(0, int64(450*time.Millisecond)).Draw(rt, "dt"))
			b := id.BrokerID(rapid.IntRange(1, 3).Draw(rt, "broker"))
			switch rapid.IntRange(0, 9).Draw(rt, "event") {
			case 0, 1, 2, 3:
				if !dead[b] && f.c.Heard(b, f.epoch[b], f.v.Index(), nil, f.now) && f.c.MayGrant(b, f.epoch[b], f.v.Index()) {
					leased[b] = f.now + lease.Duration
				}
			case 4:
				s := f.session(time.Duration(rapid.IntRange(4, 8).Draw(rt, "timeout")) * second)
				touched[s] = f.now
			case 5:
				for s := range touched {
					touched[s] = f.now
					f.c.Heard(b, f.epoch[b], f.v.Index(), []id.SessionID{s}, f.now)
					if r := f.row(b); r.Liveness != state.Live {
						touched[s] = 0
					}
					break
				}
			case 6:
				dead[b] = true
				f.c.Dead(b, f.epoch[b])
			case 7:
				if f.row(b).Liveness != state.Live {
					nonce++
					dead[b] = false
					f.register(b, fmt.Sprint("n", nonce))
				}
			case 8:
				_ = f.c.Move(id.TopicPartition{Topic: "t"}, b)
			}
			f.step(rt, leased, touched, dead)
		}
	})
}

// step decides, checks the decisions, and applies, loses or delays them.
func (f *fixture) step(rt *rapid.T, leased map[id.BrokerID]time.Duration, touched map[id.SessionID]time.Duration, dead map[id.BrokerID]bool) {
	ds, _ := f.c.Decide(f.now)
	for _, d := range ds {
		switch body := d.Command.Body.(type) {
		case *statepb.Command_FenceBroker:
			b := id.BrokerID(body.FenceBroker.Broker)
			if !body.FenceBroker.Proven && f.now < leased[b] {
				rt.Fatalf("broker %d fenced at %v, its lease lasts until %v", b, f.now, leased[b])
			}
			if body.FenceBroker.Proven && !dead[b] {
				rt.Fatalf("broker %d fenced with a proof that nobody gave", b)
			}
		case *statepb.Command_ExpireSessions:
			for _, s := range body.ExpireSessions.Sessions {
				row, ok := f.v.Session(id.SessionID(s.Session))
				if at := touched[id.SessionID(s.Session)]; ok && f.now < at+time.Duration(row.TimeoutMs)*time.Millisecond {
					rt.Fatalf("session %d expired at %v, touched at %v", s.Session, f.now, at)
				}
			}
		case *statepb.Command_ElectLeaders:
			for _, e := range body.ElectLeaders.Elections {
				if dead[id.BrokerID(e.Leader)] {
					rt.Fatalf("a dead leader: %v", e)
				}
			}
		}
		switch rapid.IntRange(0, 4).Draw(rt, "fate") {
		case 0: // unknown, and not applied
			f.c.Settled(d.ID, nil, f.now)
		case 1: // unknown, but applied
			f.apply(d.Command)
			f.c.Settled(d.ID, nil, f.now)
		default:
			res := f.apply(d.Command)
			if res.Code != statepb.Code_OK && res.Code != statepb.Code_STALE {
				rt.Fatalf("refused: %v %v", d.Command, res)
			}
			for _, part := range res.Parts {
				if part.Code == statepb.Code_INVALID {
					rt.Fatalf("refused: %v %v", d.Command, part)
				}
			}
			f.c.Settled(d.ID, res, f.now)
		}
	}
	shown := 0
	f.v.Brokers(func(b *state.Broker) bool {
		if b.Visible {
			shown++
		}
		return true
	})
	if shown == 0 {
		rt.Fatalf("/brokers/ids is empty")
	}
}
