package zkcompat

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/raftmeta/state"
	"github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
	"github.com/barnabas-mq/barnabas/zkcompat/jute"
	"github.com/barnabas-mq/barnabas/zkcompat/ztree"
)

// Proposer puts commands into the metadata log through this node's lane. It returns after the local state has applied
// the command; an error means that the outcome is unknown.
type Proposer interface {
	Propose(ctx context.Context, c *statepb.Command) (*statepb.Result, error)
}

// Coordinator takes the requests that the group coordinator decides (groupcoord.Client). It may hold one for long, ends
// with ctx, and returns when the local state shows what the answer says; an error means that the outcome is unknown.
type Coordinator interface {
	Do(ctx context.Context, c *statepb.Command) (*statepb.Result, error)
}

// Views reads the local state.
type Views interface{ View() *state.View }

// StateConfig is what a StateBackend needs.
type StateConfig struct {
	Proposer    Proposer    // required
	Views       Views       // required
	Coordinator Coordinator // nil: claims are proposed like other writes
	// Broker returns this broker's id as it is registered now: sessions tell where their connection is.
	Broker func() id.BrokerID
	// KeepTopics refuses to delete topics (delete.topic.enable=false).
	KeepTopics bool
	// CheckSetting tells what is wrong with a topic's setting; nil when nothing is, or when it is no setting that brokers know: old
	// tools write what they know. It may be absent.
	CheckSetting func(name, value string) error
	Log          *slog.Logger // default: slog.Default
}

// StateBackend serves the metadata state. The node must call Applied and Reset for every entry; see there.
type StateBackend struct {
	cfg StateConfig

	view atomic.Pointer[state.View] // the newest that subscribers were or are being told of

	late, guarded atomic.Int64 // see GateCounts

	mu       sync.Mutex // held while subscribers run: they see entries in order
	subs     map[int]func(Update)
	next     int
	events   []ztree.Event // reused from entry to entry
	sessions []id.SessionID
}

var _ Backend = (*StateBackend)(nil)

// NewStateBackend starts nothing.
func NewStateBackend(cfg StateConfig) (*StateBackend, error) {
	if cfg.Proposer == nil || cfg.Views == nil {
		return nil, errors.New("zkcompat: StateConfig.Proposer and Views are required")
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	if cfg.Broker == nil {
		cfg.Broker = func() id.BrokerID { return id.NoBroker }
	}
	return &StateBackend{cfg: cfg, subs: make(map[int]func(Update))}, nil
}

// Applied tells of one applied entry. It must be called for each, in order, before the proposers of the entry return.
func (b *StateBackend) Applied(v *state.View, changes []state.Change) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if old := b.view.Load(); old != nil && v.Index() <= old.Index() {
		return // a subscriber began with a newer view
	}
	b.view.Store(v)
	if len(b.subs) == 0 {
		return
	}
	b.events, b.sessions = ztree.Events(v, changes, b.events[:0], b.sessions[:0])
	for _, f := range b.subs {
		f(Update{Tree: ztree.New(v), Events: b.events, Sessions: b.sessions})
	}
}

// Reset tells of a restored snapshot: v does not follow from the entry before. Called like Applied.
func (b *StateBackend) Reset(v *state.View) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.view.Store(v)
	for _, f := range b.subs {
		f(Update{Tree: ztree.New(v), Reset: true})
	}
}

// Subscribe is Backend's.
func (b *StateBackend) Subscribe(f func(Update)) (cancel func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.view.Load() == nil {
		b.view.Store(b.cfg.Views.View())
	}
	b.next++
	n := b.next
	b.subs[n] = f
	f(Update{Tree: ztree.New(b.view.Load()), Reset: true})
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.subs, n)
	}
}

func (b *StateBackend) propose(ctx context.Context, c *statepb.Command) (*statepb.Result, error) {
	c.Version, c.Level = state.CommandVersion, state.MinLevel
	r, err := b.cfg.Proposer.Propose(ctx, c)
	if err != nil {
		return nil, fmt.Errorf("metadata log: %w", err)
	}
	return settled(r)
}

// settled turns refusals that are about the envelope into errors: nothing was decided about the request itself, and the
// client must ask again, here or elsewhere.
func settled(r *statepb.Result) (*statepb.Result, error) {
	switch r.Code {
	case statepb.Code_STALE_TERM, statepb.Code_LANE_GAP, statepb.Code_LANE_ENDED, statepb.Code_LEVEL, statepb.Code_NOT_BOOTSTRAPPED:
		return nil, fmt.Errorf("zkcompat: not taken by the metadata log: %v: %s", r.Code, r.Text)
	}
	return r, nil
}

// OpenSession is Backend's. The password is 16 random bytes.
func (b *StateBackend) OpenSession(ctx context.Context, timeout time.Duration, host string) (Session, error) {
	s := Session{Password: make([]byte, 16), Timeout: timeout}
	_, _ = rand.Read(s.Password) // never fails (crypto/rand)
	r, err := b.propose(ctx, &statepb.Command{Body: &statepb.Command_CreateSession{CreateSession: &statepb.CreateSession{
		TimeoutMs: int32(timeout.Milliseconds()), Password: s.Password, Broker: int32(b.cfg.Broker()), Host: host}}})
	switch {
	case err != nil:
		return Session{}, err
	case r.Code != statepb.Code_OK:
		return Session{}, fmt.Errorf("zkcompat: a session was refused: %v: %s", r.Code, r.Text)
	}
	s.Session, s.AttachEpoch, s.Index = id.SessionID(r.Value), r.Epoch, id.Index(r.Index)
	return s, nil
}

// AttachSession is Backend's.
func (b *StateBackend) AttachSession(ctx context.Context, sid id.SessionID, password []byte, timeout time.Duration, host string) (Session, error) {
	r, err := b.propose(ctx, &statepb.Command{Body: &statepb.Command_AttachSession{AttachSession: &statepb.AttachSession{
		Session: int64(sid), Password: password, TimeoutMs: int32(timeout.Milliseconds()), Broker: int32(b.cfg.Broker()), Host: host}}})
	switch {
	case err != nil:
		return Session{}, err
	case r.Code == statepb.Code_SESSION_EXPIRED, r.Code == statepb.Code_NO_AUTH:
		return Session{}, ErrSessionGone
	case r.Code != statepb.Code_OK:
		return Session{}, fmt.Errorf("zkcompat: session 0x%x could not be attached: %v: %s", uint64(sid), r.Code, r.Text)
	}
	return Session{Caller: Caller{Session: sid, AttachEpoch: r.Epoch}, Password: password,
		Timeout: time.Duration(r.Value) * time.Millisecond, Index: id.Index(r.Index)}, nil
}

// CloseSession is Backend's.
func (b *StateBackend) CloseSession(ctx context.Context, c Caller) (Result, error) {
	r, err := b.propose(ctx, &statepb.Command{Body: &statepb.Command_CloseSession{CloseSession: &statepb.CloseSession{
		Session: int64(c.Session), AttachEpoch: c.AttachEpoch}}})
	switch {
	case err != nil:
		return Result{}, err
	case r.Code == statepb.Code_SESSION_EXPIRED:
		return Result{Index: id.Index(r.Index)}, nil // what the client wants is so already
	}
	return Result{Code: codeOf(r.Code), Index: id.Index(r.Index)}, nil
}

// Sync is Backend's: a command that changes nothing takes its place behind all that was answered before.
func (b *StateBackend) Sync(ctx context.Context) (id.Index, error) {
	r, err := b.propose(ctx, &statepb.Command{Body: &statepb.Command_Tick{Tick: &statepb.Tick{}}})
	if err != nil {
		return 0, err
	}
	if r.Code != statepb.Code_OK {
		return 0, fmt.Errorf("zkcompat: sync: %v: %s", r.Code, r.Text)
	}
	return id.Index(r.Index), nil
}

// maxReplans bounds how often a write is planned anew because rows moved under it.
const maxReplans = 10

// Write is Backend's. There must be a subscriber.
func (b *StateBackend) Write(ctx context.Context, c Caller, w Write) (Result, error) {
	topicID := make([]byte, 16)
	_, _ = rand.Read(topicID)
	for range maxReplans {
		v := ztree.New(b.view.Load()) // never older than what the session has seen
		plan := v.Plan(planned(w), topicID)
		if code, why := b.forbids(plan.Command); code != statepb.Code_OK {
			plan = ztree.Plan{Code: code, Text: why}
		}
		r := &statepb.Result{Code: plan.Code, Text: plan.Text, Index: uint64(v.Index())}
		if plan.Command != nil {
			var err error
			if r, err = b.carryOut(ctx, c, plan); err != nil {
				return Result{}, err
			}
			if r.Code == statepb.Code_STALE && plan.Moved {
				continue
			}
			b.audit(c, w, r)
			b.count(plan, r)
		}
		return result(plan, r), nil
	}
	return Result{}, fmt.Errorf("zkcompat: %s changes too fast to be written", w.Path)
}

// forbids refuses what this broker's configuration does not allow, and settings of a topic that no broker could follow: Kafka's
// tools check these before they write, its brokers only log them, and no longer start.
func (b *StateBackend) forbids(c *statepb.Command) (statepb.Code, string) {
	if b.cfg.KeepTopics && c.GetDeleteTopic() != nil {
		return statepb.Code_NO_AUTH, "topics are not deleted: delete.topic.enable is false"
	}
	set := c.GetSetConfig()
	if b.cfg.CheckSetting == nil || set.GetType() != "topics" {
		return statepb.Code_OK, ""
	}
	var wrong []error
	for _, e := range set.Entries {
		if err := b.cfg.CheckSetting(e.Name, e.Value); err != nil {
			wrong = append(wrong, err)
		}
	}
	if wrong == nil {
		return statepb.Code_OK, ""
	}
	return statepb.Code_INVALID, errors.Join(wrong...).Error()
}

// audit logs what tools change of the cluster itself: nobody else writes it down.
func (b *StateBackend) audit(c Caller, w Write, r *statepb.Result) {
	if r.Code == statepb.Code_OK && (strings.HasPrefix(w.Path, "/brokers/") || strings.HasPrefix(w.Path, "/config/") ||
		strings.HasPrefix(w.Path, "/admin/")) {
		b.cfg.Log.Info("zookeeper: a client changed the cluster", "op", w.Op, "path", w.Path,
			"session", fmt.Sprintf("0x%x", uint64(c.Session)))
	}
}

func (b *StateBackend) carryOut(ctx context.Context, c Caller, plan ztree.Plan) (*statepb.Result, error) {
	cmd := plan.Command
	cmd.Origin = &statepb.Origin{Session: int64(c.Session), AttachEpoch: c.AttachEpoch}
	if !plan.Coordinator || b.cfg.Coordinator == nil {
		return b.propose(ctx, cmd)
	}
	cmd.Version, cmd.Level = state.CommandVersion, state.MinLevel
	r, err := b.cfg.Coordinator.Do(ctx, cmd)
	if err != nil {
		return nil, fmt.Errorf("group coordinator: %w", err)
	}
	return settled(r)
}

func planned(w Write) ztree.Write {
	out := ztree.Write{Path: w.Path, Data: w.Data, Version: w.Version, Ephemeral: w.Ephemeral, Sequential: w.Sequential}
	switch w.Op {
	case jute.OpCreate:
		out.Op = ztree.OpCreate
	case jute.OpDelete:
		out.Op = ztree.OpDelete
	case jute.OpSetData:
		out.Op = ztree.OpSetData
	default:
		out.Op = ztree.OpSetACL
	}
	for _, a := range w.ACL {
		out.ACL = append(out.ACL, ztree.ACL(a))
	}
	return out
}

func result(plan ztree.Plan, r *statepb.Result) Result {
	res := Result{Code: codeOf(r.Code), Index: id.Index(r.Index), Path: r.Path}
	if r.Code == plan.Known {
		res.Code = jute.OK
	}
	if res.Path == "" {
		res.Path = plan.Path
	}
	switch {
	case r.Stat != nil:
		res.Stat = &ztree.Stat{Czxid: r.Stat.Czxid, Mzxid: r.Stat.Mzxid, Pzxid: r.Stat.Pzxid, Ctime: r.Stat.Ctime,
			Mtime: r.Stat.Mtime, Version: r.Stat.Version, Cversion: r.Stat.Cversion, Aversion: r.Stat.Aversion,
			EphemeralOwner: r.Stat.EphemeralOwner, DataLength: r.Stat.DataLength, NumChildren: r.Stat.NumChildren}
	case res.Code == jute.NoAuth, res.Code == jute.BadArguments, res.Code == jute.SystemError:
		res.Reason = r.Text
	}
	if r.Code == statepb.Code_OK {
		res.Reason = r.Text // answered so that old clients go on, and not done
	}
	return res
}

// codeOf is the ZooKeeper error of a refusal.
func codeOf(c statepb.Code) jute.Code {
	switch c {
	case statepb.Code_OK:
		return jute.OK
	case statepb.Code_NO_NODE, statepb.Code_UNKNOWN_TOPIC, statepb.Code_UNKNOWN_PARTITION:
		return jute.NoNode
	case statepb.Code_NODE_EXISTS, statepb.Code_TOPIC_EXISTS:
		return jute.NodeExists
	case statepb.Code_BAD_VERSION:
		return jute.BadVersion
	case statepb.Code_NOT_EMPTY:
		return jute.NotEmpty
	case statepb.Code_NO_CHILDREN_FOR_EPHEMERALS:
		return jute.NoChildrenForEphemerals
	case statepb.Code_SESSION_EXPIRED:
		return jute.SessionExpired
	case statepb.Code_SESSION_MOVED:
		return jute.SessionMoved
	case statepb.Code_NO_AUTH:
		return jute.NoAuth
	case statepb.Code_INVALID, statepb.Code_UNKNOWN_BROKER:
		return jute.BadArguments
	}
	return jute.SystemError
}
