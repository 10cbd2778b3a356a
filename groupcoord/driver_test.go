package groupcoord

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	"github.com/barnabas-mq/barnabas/cluster"
	"github.com/barnabas-mq/barnabas/groupcoord/core"
	"github.com/barnabas-mq/barnabas/internal/clock"
	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/raftmeta/state"
	pb "github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is one state, and drivers that lead in turn; it is Proposer, Views, Caller and Leaders for all of them.
type world struct {
	t  *testing.T
	mu sync.Mutex

	s        *state.State
	index    id.Index
	term     id.Term
	leader   id.DirectoryID
	changed  chan struct{}
	drivers  map[id.DirectoryID]*Driver
	loseNext bool // the next command is applied but its answer is lost
	stalled  bool // what is proposed comes to nothing
}

func newWorld(t *testing.T, mind func() core.Mind) *world {
	w := &world{t: t, s: state.New(), term: 1, changed: make(chan struct{}), drivers: map[id.DirectoryID]*Driver{}}
	for _, n := range []id.DirectoryID{"a", "b"} {
		w.drivers[n] = NewDriver(DriverConfig{Proposer: w, Views: w, Clock: clock.System{}, NewMind: mind})
	}
	w.apply(&pb.Command{Body: &pb.Command_Bootstrap{Bootstrap: &pb.Bootstrap{ClusterId: "c", Level: 1}}})
	for _, path := range []string{"/consumers/g", "/consumers/g/owners", "/consumers/g/owners/t"} {
		w.apply(&pb.Command{Body: &pb.Command_CreateZnode{CreateZnode: &pb.CreateZnode{Path: path}}})
	}
	return w
}

func (w *world) apply(c *pb.Command) *pb.Result {
	w.mu.Lock()
	defer w.mu.Unlock()
	c = proto.Clone(c).(*pb.Command)
	c.Version = state.CommandVersion
	b, err := proto.Marshal(&pb.Entry{Commands: []*pb.Command{c}})
	if err != nil {
		w.t.Error(err)
	}
	w.index++
	a := w.s.Apply(w.index, w.term, b)
	for _, d := range w.drivers {
		d.Applied(a.View, a.Changes)
	}
	return a.Settled[0].Result
}

func (w *world) View() *state.View {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.s.View()
}

func (w *world) WaitIndex(context.Context, id.Index) error { return nil }

func (w *world) ProposeAllInTerm(term id.Term, cs []*pb.Command, done func(from, to int, rs []state.Settled, err error)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stalled {
		return
	}
	go func() {
		for i, c := range cs {
			c = proto.Clone(c).(*pb.Command)
			c.Term = uint64(term)
			res := w.apply(c)
			w.mu.Lock()
			lose := w.loseNext
			w.loseNext = false
			w.mu.Unlock()
			if lose {
				done(i, i+1, nil, errors.New("leadership lost"))
			} else {
				done(i, i+1, []state.Settled{{Result: res}}, nil)
			}
		}
	}()
}

func (w *world) Leader() (id.DirectoryID, <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.leader, w.changed
}

func (w *world) Call(ctx context.Context, t cluster.Target, method string, payload []byte) ([]byte, error) {
	if method != Method {
		w.t.Errorf("method %s", method)
	}
	return w.drivers[t.Directory].Handle(ctx, cluster.Peer{}, payload)
}

// lead runs a driver until the returned function is called.
func (w *world) lead(n id.DirectoryID) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	w.mu.Lock()
	w.term++
	term := w.term
	w.mu.Unlock()
	go func() { defer close(done); w.drivers[n].Run(ctx, term) }()
	w.mu.Lock()
	w.leader = n
	close(w.changed)
	w.changed = make(chan struct{})
	w.mu.Unlock()
	return func() { cancel(); <-done }
}

func (w *world) client() *Client { return NewClient(ClientConfig{Caller: w, Leaders: w, Views: w}) }

// at is the client of a node that has a driver.
func (w *world) at(n id.DirectoryID) *Client {
	return NewClient(ClientConfig{Caller: w, Leaders: w, Views: w, Local: w.drivers[n]})
}

func claim(session int64) *pb.Command {
	return &pb.Command{Origin: &pb.Origin{Session: session, AttachEpoch: 1}, Body: &pb.Command_ClaimOwner{ClaimOwner: &pb.ClaimOwner{
		Group: "g", Topic: "t", Name: "0", Data: []byte("me"), Ephemeral: true}}}
}

func (w *world) session() int64 {
	return w.apply(&pb.Command{Body: &pb.Command_CreateSession{CreateSession: &pb.CreateSession{TimeoutMs: 6000, Password: make([]byte, 16)}}}).Value
}

func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func TestClaimsHaveOneOwner(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func() core.Mind { return core.NewCoordinator(core.Config{}) })
	a, b := w.session(), w.session()
	defer w.lead("a")()
	res, err := w.client().Do(within(t), claim(a))
	if err != nil || res.Code != pb.Code_OK {
		t.Fatal(res, err)
	}
	for _, s := range []int64{a, b} { // a second claim of the same client is no repeat
		if res, err = w.client().Do(within(t), claim(s)); err != nil || res.Code != pb.Code_NODE_EXISTS {
			t.Fatal(res, err)
		}
	}
	if res, err = w.client().Do(within(t), &pb.Command{Body: &pb.Command_Tick{Tick: &pb.Tick{}}}); err != nil || res.Code != pb.Code_INVALID {
		t.Fatal(res, err)
	}
}

// The coordinator applies a claim and dies before it answers: the next one is asked again and must not call it taken.
func TestRepeatedClaimSucceeds(t *testing.T) {
	w := newWorld(t, func() core.Mind { return core.NewCoordinator(core.Config{}) })
	s := w.session()
	w.loseNext = true
	defer w.lead("a")()
	res, err := w.client().Do(within(t), claim(s))
	if err != nil || res.Code != pb.Code_OK || res.Path != "/consumers/g/owners/t/0" {
		t.Fatal(res, err)
	}
}

// told is what a parker was told of a commit, and where the view it was given has the offset.
type told struct {
	group, member string
	at            int64
}

// parker is a mind that holds every claim until the group's version moves, a second passes, or it is cancelled.
type parker struct {
	held      map[core.RequestID]time.Duration
	cancelled chan core.RequestID
	parked    chan core.RequestID
	committed chan told
	hold      time.Duration
	waited    time.Duration // of the last request, before it came
}

func (p *parker) Request(_ *state.View, r core.Request, now time.Duration) []core.Action {
	p.held[r.ID], p.waited = now+p.hold, r.Waited
	p.parked <- r.ID
	return nil
}

func (p *parker) Settled(_ *state.View, _ core.RequestID, _ *pb.Result, _ time.Duration) []core.Action {
	return nil
}

func (p *parker) Committed(v *state.View, group, member string, _ *pb.Result, _ time.Duration) []core.Action {
	at := int64(-1)
	if o, ok := v.Offset(group, "t", 0); ok {
		at = int64(o.Offset)
	}
	p.committed <- told{group, member, at}
	return nil
}

func (p *parker) release(code pb.Code, due func(time.Duration) bool) (acts []core.Action) {
	for r, at := range p.held {
		if due(at) {
			delete(p.held, r)
			acts = append(acts, core.Action{Request: r, Reply: &pb.Result{Code: code}})
		}
	}
	return acts
}

func (p *parker) Changed(_ *state.View, changes []state.Change, _ time.Duration) []core.Action {
	for _, c := range changes {
		if c.Kind == state.ZnodeData {
			return p.release(pb.Code_OK, func(time.Duration) bool { return true })
		}
	}
	return nil
}

func (p *parker) Cancel(_ *state.View, r core.RequestID, _ time.Duration) []core.Action {
	delete(p.held, r)
	p.cancelled <- r
	return nil
}

func (p *parker) Deadline() (at time.Duration, ok bool) {
	for _, d := range p.held {
		if !ok || d < at {
			at, ok = d, true
		}
	}
	return at, ok
}

func (p *parker) Expire(_ *state.View, now time.Duration) []core.Action {
	return p.release(pb.Code_NODE_EXISTS, func(at time.Duration) bool { return at <= now })
}

func newParker(hold time.Duration) *parker {
	return &parker{held: map[core.RequestID]time.Duration{}, cancelled: make(chan core.RequestID, 9), parked: make(chan core.RequestID, 9),
		committed: make(chan told, 9), hold: hold}
}

func TestParkedRequestIsReleasedByAChange(t *testing.T) {
	p := newParker(time.Hour)
	w := newWorld(t, func() core.Mind { return p })
	defer w.lead("a")()
	got := make(chan *pb.Result, 1)
	go func() { res, _ := w.client().Do(within(t), claim(1)); got <- res }()
	<-p.parked
	select {
	case res := <-got:
		t.Fatalf("answered while held: %v", res)
	default:
	}
	w.apply(&pb.Command{Body: &pb.Command_SetZnode{SetZnode: &pb.SetZnode{Path: "/consumers/g", Version: -1}}})
	if res := <-got; res.GetCode() != pb.Code_OK {
		t.Fatal(res)
	}
}

func TestParkedRequestEndsAtItsDeadline(t *testing.T) {
	p := newParker(30 * time.Millisecond)
	w := newWorld(t, func() core.Mind { return p })
	defer w.lead("a")()
	res, err := w.client().Do(within(t), claim(1))
	if err != nil || res.Code != pb.Code_NODE_EXISTS {
		t.Fatal(res, err)
	}
}

func TestParkedRequestIsCancelledWithItsClient(t *testing.T) {
	p := newParker(time.Hour)
	w := newWorld(t, func() core.Mind { return p })
	defer w.lead("a")()
	p.leaves(t, func(ctx context.Context) error { _, err := w.client().Do(ctx, claim(1)); return err })
}

// leaves has a client go while its request is parked: the request ends, and the mind is told.
func (p *parker) leaves(t *testing.T, ask func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	got := make(chan error, 1)
	go func() { got <- ask(ctx) }()
	r := <-p.parked
	cancel()
	if err := <-got; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if c := <-p.cancelled; c != r {
		t.Fatalf("cancelled %d, parked was %d", c, r)
	}
}

// The coordinator of a parked request is frozen: it neither answers nor ends. The request goes to the next one at once.
func TestParkedRequestMovesToTheNextCoordinator(t *testing.T) {
	for name, frozen := range map[string]bool{"ended": false, "frozen": true} {
		t.Run(name, func(t *testing.T) {
			p := newParker(time.Hour)
			w := newWorld(t, func() core.Mind { return p })
			stopA := w.lead("a")
			got := make(chan *pb.Result, 1)
			go func() { res, _ := w.client().Do(within(t), claim(1)); got <- res }()
			<-p.parked
			begun := time.Now()
			if !frozen {
				stopA()
			} else {
				defer stopA()
			}
			<-time.After(20 * time.Millisecond) // for so long it waits
			waited := time.Since(begun)
			q := newParker(time.Hour)
			w.drivers["b"].cfg.NewMind = func() core.Mind { return q }
			defer w.lead("b")()
			<-q.parked
			if q.waited < p.waited+waited-time.Millisecond {
				t.Errorf("told to have waited %v, %v later %v", p.waited, waited, q.waited)
			}
			w.apply(&pb.Command{Body: &pb.Command_SetZnode{SetZnode: &pb.SetZnode{Path: "/consumers/g", Version: -1}}})
			if res := <-got; res.GetCode() != pb.Code_OK {
				t.Fatal(res)
			}
		})
	}
}
