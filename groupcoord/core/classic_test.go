package core

import (
	"bytes"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
	"google.golang.org/protobuf/proto"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/raftmeta/state"
	pb "github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
)

var update = flag.Bool("update", false, "write what the stories in testdata come to")

// stage drives a mind over a real state: what is proposed is applied at once, unless it is held.
type stage struct {
	t     testing.TB
	cfg   Config
	s     *state.State
	index id.Index
	term  id.Term
	mind  *Coordinator
	start time.Duration // of the term
	now   time.Duration

	next    RequestID
	nonces  int
	open    map[RequestID]Request
	names   map[RequestID]string
	asked   map[RequestID]time.Duration
	hold    bool
	lose    string // what becomes of the next proposal: applied or dropped, its outcome unknown
	held    []Action
	out     bytes.Buffer
	members map[string]string // id by name
	gens    map[string]int32  // newest generation that a name was told
	onReply func(name string, r Request, resp kmsg.Response, res *pb.Result)
	onApply func(*state.View, []state.Change)
	counted map[string]int // rebalances by kind and reason
	gates   map[state.Gate]holdSum
}

func newStage(t testing.TB, cfg Config) *stage {
	s := &stage{t: t, cfg: cfg, s: state.New(), term: 1, open: map[RequestID]Request{}, names: map[RequestID]string{}, asked: map[RequestID]time.Duration{},
		members: map[string]string{}, gens: map[string]int32{}, counted: map[string]int{}, gates: map[state.Gate]holdSum{}}
	s.apply(&pb.Command{Body: &pb.Command_Bootstrap{Bootstrap: &pb.Bootstrap{ClusterId: "c", Level: 1}}})
	s.mind = NewCoordinator(cfg)
	s.expire()
	return s
}

func (s *stage) apply(c *pb.Command) *pb.Result {
	c = proto.Clone(c).(*pb.Command)
	c.Version = state.CommandVersion
	b, err := proto.Marshal(&pb.Entry{Commands: []*pb.Command{c}})
	if err != nil {
		s.t.Fatal(err)
	}
	s.index++
	a := s.s.Apply(s.index, s.term, b)
	if s.onApply != nil {
		s.onApply(a.View, a.Changes)
	}
	if s.mind != nil {
		s.act(s.mind.Changed(a.View, a.Changes, s.now-s.start))
	}
	return a.Settled[0].Result
}

func (s *stage) row() *state.Group {
	g, _ := s.s.View().Group("g")
	return g
}

func (s *stage) act(acts []Action) {
	for _, a := range acts {
		if a.Count != nil && a.Count.Gate == "" {
			s.counted[a.Count.Kind+" "+a.Count.Reason]++
		} else if a.Count != nil {
			u := s.gates[state.Gate(a.Count.Gate)]
			s.gates[state.Gate(a.Count.Gate)] = holdSum{u.n + 1, u.total + a.Count.Held}
		}
		if a.Note != nil {
			fmt.Fprintf(&s.out, "> log: %s", a.Note.Message)
			for i := 0; i+1 < len(a.Note.Args); i += 2 {
				if k := a.Note.Args[i]; k != "group" {
					fmt.Fprintf(&s.out, " %v=%v", k, a.Note.Args[i+1])
				}
			}
			s.out.WriteByte('\n')
		}
		if a.Propose != nil {
			if s.hold {
				s.held = append(s.held, a)
			} else {
				s.settle(a)
			}
		}
		r, ok := s.open[a.Request]
		if !ok || a.Answer == nil && a.Reply == nil {
			continue
		}
		delete(s.open, a.Request)
		s.reply(s.names[a.Request], r, a)
	}
}

func (s *stage) settle(a Action) {
	res := &pb.Result{Code: pb.Code_STALE_TERM}
	mind := s.mind
	switch s.lose {
	case "dropped":
	case "applied":
		s.apply(a.Propose)
	default:
		res = s.apply(a.Propose)
	}
	s.lose = ""
	s.act(mind.Settled(s.s.View(), a.Request, res, s.now-s.start))
}

func (s *stage) release() {
	held := s.held
	s.hold, s.held = false, nil
	for _, a := range held {
		s.settle(a)
	}
}

func (s *stage) expire() {
	for range 100 {
		at, ok := s.mind.Deadline()
		if !ok || at > s.now-s.start {
			return
		}
		s.act(s.mind.Expire(s.s.View(), s.now-s.start))
	}
	panic("a deadline that never goes")
}

// advance moves the clock, with a stop at every deadline.
func (s *stage) advance(d time.Duration) {
	end := s.now + d
	for {
		at, ok := s.mind.Deadline()
		if !ok || at+s.start > end {
			s.now = end
			return
		}
		s.now = max(s.now, at+s.start)
		s.expire()
	}
}

// failover begins a new term: the nodes repeat what is parked.
func (s *stage) failover() {
	s.hold, s.held = false, nil
	s.term++
	s.start = s.now
	s.mind = NewCoordinator(s.cfg)
	s.expire()
	ids := make([]RequestID, 0, len(s.open))
	for r := range s.open {
		ids = append(ids, r)
	}
	slices.Sort(ids)
	for _, old := range ids {
		r, name := s.open[old], s.names[old]
		delete(s.open, old)
		r.Repeat = true
		r.Waited += s.now - s.asked[old]
		s.ask(name, r)
	}
}

func (s *stage) ask(name string, r Request) RequestID {
	s.next++
	r.ID = s.next
	s.open[r.ID], s.names[r.ID], s.asked[r.ID] = r, name, s.now
	s.act(s.mind.Request(s.s.View(), r, s.now-s.start))
	return r.ID
}

// commitAs commits as a broker does, past the mind.
func (s *stage) commitAs(name string, c *pb.CommitOffsets) {
	r := Request{Command: &pb.Command{Term: uint64(s.term), Body: &pb.Command_CommitOffsets{CommitOffsets: c}}}
	res := s.apply(r.Command)
	s.act(s.mind.Committed(s.s.View(), c.Group, c.Member, res, s.now-s.start))
	s.reply(name, r, Action{Reply: res})
}

func (s *stage) kafka(name string, body kmsg.Request) RequestID {
	s.nonces++
	return s.ask(name, Request{Kafka: &KafkaRequest{Body: body, ClientID: name, Host: "h", Nonce: strconv.Itoa(s.nonces)}})
}

func errName(code int16) string {
	if code == 0 {
		return "ok"
	}
	return kerr.TypedErrorForCode(code).Message
}

func (s *stage) reply(name string, r Request, a Action) {
	if s.onReply != nil {
		s.onReply(name, r, a.Answer, a.Reply)
	}
	switch resp := a.Answer.(type) {
	case nil:
		fmt.Fprintf(&s.out, "> %s: %s\n", name, a.Reply.Code)
	case *kmsg.JoinGroupResponse:
		if resp.MemberID != "" && (resp.ErrorCode == 0 || resp.ErrorCode == kerr.MemberIDRequired.Code) {
			s.members[name] = resp.MemberID
		}
		if resp.ErrorCode != 0 {
			fmt.Fprintf(&s.out, "> %s join: %s %s\n", name, errName(resp.ErrorCode), resp.MemberID)
			return
		}
		s.gens[name] = resp.Generation
		fmt.Fprintf(&s.out, "> %s join: generation %d %s %s leader %s", resp.MemberID, resp.Generation, *resp.ProtocolType, *resp.Protocol, resp.LeaderID)
		for _, m := range resp.Members {
			fmt.Fprintf(&s.out, " %s=%s", m.MemberID, m.ProtocolMetadata)
		}
		if resp.SkipAssignment {
			s.out.WriteString(" skip")
		}
		s.out.WriteByte('\n')
	case *kmsg.SyncGroupResponse:
		fmt.Fprintf(&s.out, "> %s sync: %s %s\n", name, errName(resp.ErrorCode), resp.MemberAssignment)
	case *kmsg.HeartbeatResponse:
		fmt.Fprintf(&s.out, "> %s heartbeat: %s\n", name, errName(resp.ErrorCode))
	case *kmsg.LeaveGroupResponse:
		fmt.Fprintf(&s.out, "> %s leave: %s", name, errName(resp.ErrorCode))
		for _, m := range resp.Members {
			fmt.Fprintf(&s.out, " %s", errName(m.ErrorCode))
		}
		s.out.WriteByte('\n')
	case *kmsg.DescribeGroupsResponse:
		g := resp.Groups[0]
		fmt.Fprintf(&s.out, "> %s %q %q\n", g.State, g.ProtocolType, g.Protocol)
		for _, m := range g.Members {
			fmt.Fprintf(&s.out, ">   %s %s %s metadata %q assignment %q\n", m.MemberID, m.ClientID, m.ClientHost, m.ProtocolMetadata, m.MemberAssignment)
		}
	case *kmsg.ListGroupsResponse:
		for _, g := range resp.Groups {
			fmt.Fprintf(&s.out, "> %s %q %s\n", g.Group, g.ProtocolType, g.GroupState)
		}
	}
}

// line is one line of a story: a verb, a name, and key=value.
type line struct {
	verb, name string
	kv         map[string]string
}

func parse(text string) line {
	l := line{kv: map[string]string{}}
	for i, f := range strings.Fields(text) {
		switch k, v, ok := strings.Cut(f, "="); {
		case ok:
			l.kv[k] = v
		case i == 0:
			l.verb = f
		default:
			l.name = f
		}
	}
	return l
}

func (l line) num(key string, def int) int {
	if v, ok := l.kv[key]; ok {
		n, _ := strconv.Atoi(v)
		return n
	}
	return def
}

func (l line) str(key, def string) string {
	if v, ok := l.kv[key]; ok {
		return v
	}
	return def
}

func (l line) instance() *string {
	if v, ok := l.kv["as"]; ok {
		return &v
	}
	return nil
}

func (s *stage) member(l line) string {
	if v, ok := l.kv["id"]; ok {
		return strings.TrimPrefix(v, "-")
	}
	return s.members[l.name]
}

func (s *stage) generation(l line) int32 { return int32(l.num("gen", int(s.gens[l.name]))) }

func (s *stage) tell(l line) {
	switch l.verb {
	case "join":
		req := kmsg.NewPtrJoinGroupRequest()
		req.Version = int16(l.num("v", 5))
		req.Group, req.MemberID, req.InstanceID = l.str("group", "g"), s.member(l), l.instance()
		req.ProtocolType = l.str("type", "consumer")
		req.SessionTimeoutMillis, req.RebalanceTimeoutMillis = int32(l.num("session", 10)*1000), int32(l.num("rebalance", 60)*1000)
		if why, ok := l.kv["reason"]; ok {
			req.Reason = &why
		}
		for _, p := range strings.Split(l.str("protocols", "range"), ",") {
			if p != "" {
				req.Protocols = append(req.Protocols, kmsg.JoinGroupRequestProtocol{Name: p, Metadata: []byte(l.str("meta", "t"))})
			}
		}
		s.kafka(l.name, req)
	case "sync":
		req := kmsg.NewPtrSyncGroupRequest()
		req.Version = 5
		req.Group, req.MemberID, req.InstanceID, req.Generation = "g", s.member(l), l.instance(), s.generation(l)
		for _, a := range strings.Split(l.kv["assign"], ",") {
			if who, what, ok := strings.Cut(a, ":"); ok {
				req.GroupAssignment = append(req.GroupAssignment, kmsg.SyncGroupRequestGroupAssignment{MemberID: s.members[who], MemberAssignment: []byte(what)})
			}
		}
		if v, ok := l.kv["protocol"]; ok {
			req.Protocol = &v
		}
		s.kafka(l.name, req)
	case "heartbeat":
		req := kmsg.NewPtrHeartbeatRequest()
		req.Version = 4
		req.Group, req.MemberID, req.InstanceID, req.Generation = "g", s.member(l), l.instance(), s.generation(l)
		s.kafka(l.name, req)
	case "leave":
		req := kmsg.NewPtrLeaveGroupRequest()
		req.Version = int16(l.num("v", 3))
		req.Group, req.MemberID = "g", s.member(l)
		for _, n := range strings.Split(l.name, ",") {
			if req.Version < 3 {
				break
			}
			m := kmsg.NewLeaveGroupRequestMember()
			m.MemberID, m.InstanceID = s.members[n], l.instance()
			if m.InstanceID != nil {
				m.MemberID = s.member(line{kv: l.kv})
			}
			req.Members = append(req.Members, m)
		}
		s.kafka(l.name, req)
	case "commit":
		s.commitAs(l.name, &pb.CommitOffsets{Group: "g", Member: s.member(l),
			Generation: s.generation(l), From: pb.OffsetOrigin_ORIGIN_KAFKA, Items: []*pb.OffsetItem{{Topic: "t", Offset: int64(l.num("offset", 1))}}})
	case "delete":
		s.ask("delete", Request{Command: &pb.Command{Body: &pb.Command_DeleteGroup{DeleteGroup: &pb.DeleteGroup{Group: "g"}}}})
	case "znode":
		s.apply(&pb.Command{Body: &pb.Command_CreateZnode{CreateZnode: &pb.CreateZnode{Path: l.name, Data: []byte(l.kv["data"])}}})
	case "describe":
		req := kmsg.NewPtrDescribeGroupsRequest()
		req.Groups = []string{l.str("group", "g")}
		s.kafka("", req)
	case "list":
		req := kmsg.NewPtrListGroupsRequest()
		req.Version = 5
		if f := l.kv["states"]; f != "" {
			req.StatesFilter = strings.Split(f, ",")
		}
		s.kafka("", req)
	case "offset":
		o, ok := s.s.View().Offset("g", "t", 0)
		if !ok {
			o = &state.Offset{Offset: -1}
		}
		fmt.Fprintf(&s.out, "> %d\n", o.Offset)
	case "explain":
		row := s.row()
		if row == nil {
			row = &state.Group{}
		}
		for _, r := range row.Rebalances {
			fmt.Fprintf(&s.out, "> %d %s: %s; %d -> %d, +%v -%v, waited %dms for %s\n", r.Generation, r.Cause, r.Text, r.Before, r.After, r.Joined, r.Left, r.WaitedMs, r.WaitedFor)
		}
	case "advance":
		d, err := time.ParseDuration(l.name)
		if err != nil {
			s.t.Fatal(err)
		}
		s.advance(d)
	case "freeze": // the process stands still
		d, _ := time.ParseDuration(l.name)
		s.now += d
	case "wake":
		s.expire()
	case "cancel":
		for r, n := range s.names {
			if _, open := s.open[r]; open && n == l.name {
				delete(s.open, r)
				s.act(s.mind.Cancel(s.s.View(), r, s.now-s.start))
			}
		}
	case "failover":
		s.failover()
	case "hold":
		s.hold = true
	case "release":
		s.release()
	case "lose":
		s.lose = l.name
	case "forget":
		delete(s.members, l.name)
	default:
		s.t.Fatalf("unknown verb %q", l.verb)
	}
}

// stories runs the files of a folder: lines that say what happens, and after each one, after >, what comes of it. begin sets the
// stage by the whole text; what it returns does what a line says and tells what came of it.
func stories(t *testing.T, pattern string, begin func(t *testing.T, text string) func(line) string) {
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			tell := begin(t, string(want))
			var got strings.Builder
			for _, text := range strings.Split(strings.TrimSuffix(string(want), "\n"), "\n") {
				if strings.HasPrefix(text, ">") {
					continue
				}
				got.WriteString(text + "\n")
				if text != "" && text[0] != '#' {
					got.WriteString(tell(parse(text)))
				}
			}
			if *update {
				if err := os.WriteFile(file, []byte(got.String()), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if got.String() != string(want) {
				t.Errorf("%s came to\n%s", file, got.String())
			}
		})
	}
}

// said is what was written since it was asked last.
func (s *stage) said() string {
	defer s.out.Reset()
	return s.out.String()
}

func TestStories(t *testing.T) {
	stories(t, "testdata/classic/*.txt", func(t *testing.T, text string) func(line) string {
		cfg := Config{InitialDelay: -1}
		if strings.Contains(text, "# initial delay") {
			cfg.InitialDelay = 3 * time.Second
		}
		if strings.Contains(text, "# at most two members") {
			cfg.MaxSize = 2
		}
		s := newStage(t, cfg)
		return func(l line) string { s.tell(l); return s.said() }
	})
}

// Who brings more metadata than the group's row can hold is refused, with the reason; the others go on.
func TestMembersThatTellTooMuch(t *testing.T) {
	s := newStage(t, Config{InitialDelay: -1})
	join := func(name string, kib int) {
		req := kmsg.NewPtrJoinGroupRequest()
		req.Version, req.Group, req.MemberID, req.ProtocolType = 2, "g", s.members[name], "consumer"
		req.SessionTimeoutMillis, req.RebalanceTimeoutMillis = 10_000, 60_000
		req.Protocols = []kmsg.JoinGroupRequestProtocol{{Name: "range", Metadata: make([]byte, kib<<10)}}
		s.kafka(name, req)
	}
	join("huge", 769)
	join("a", 300)
	s.tell(parse("sync a assign=a:0"))
	join("b", 300)
	join("c", 300)
	join("a", 300)
	join("a", 600) // a member too
	s.tell(parse("sync a assign=a:0,b:1"))
	said := s.said()
	for _, name := range []string{"huge", "c", "a"} {
		if !strings.Contains(said, "> "+name+" join: GROUP_MAX_SIZE_REACHED") {
			t.Errorf("%s was not refused", name)
		}
	}
	if row := s.row(); len(row.Members) != 2 || row.State != state.GroupStable {
		t.Errorf("%d members, %v", len(row.Members), row.State)
	}
	if all := s.row().Rebalances; !slices.ContainsFunc(all, func(r *state.Rebalance) bool { return strings.Contains(r.Text, "metadata would be") }) {
		t.Errorf("not explained: %+v", all)
	}
}

// Each rebalance is counted once, by whose members it was and why.
func TestRebalancesAreCounted(t *testing.T) {
	s := newStory(t, Config{InitialDelay: -1, Settle: -1})
	s.grow("t", 2)
	for _, text := range []string{"enter d", "enter d", "sync d", "beat c reads=t", "enter d", "sync d", "beat c", "beat c epoch=-1", "enter d", "sync d", "leave d"} {
		s.tell(parse(text))
	}
	want := map[string]int{"classic join": 1, "consumer join": 1, "classic leave": 2}
	if !maps.Equal(s.counted, want) {
		t.Errorf("%v, want %v\n%s", s.counted, want, s.said())
	}
}
