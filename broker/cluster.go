package broker

import (
	"context"
	"errors"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/raftmeta/state"
	"github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
)

// node is a broker as one listener's clients are to see it.
type node struct {
	id   id.BrokerID
	host string
	port int32
	rack *string
}

// node looks up a broker for clients of a listener. A broker without that listener shows its first one, so that a cluster whose
// nodes name their listeners differently still works.
func nodeOf(b *state.Broker, listener string) (node, bool) {
	e, ok := b.Endpoint(listener)
	if !ok {
		if len(b.Endpoints) == 0 {
			return node{}, false
		}
		e = b.Endpoints[0]
	}
	n := node{id: b.ID, host: e.Host, port: e.Port}
	if b.Rack != "" {
		n.rack = &b.Rack
	}
	return n, true
}

// usable says that clients may be sent to a broker: it is live and has its znode, so that Metadata and /brokers/ids agree.
func usable(b *state.Broker) bool { return b.Liveness == state.Live && b.Visible }

// nodes returns the brokers that clients may use, in ascending id. If there is none, it returns those that still have a znode: old
// clients loop without pause on an empty list.
func nodes(v *state.View, listener string) []node {
	var out, shown []node
	v.Brokers(func(b *state.Broker) bool {
		n, ok := nodeOf(b, listener)
		switch {
		case ok && usable(b):
			out = append(out, n)
		case ok && b.Visible:
			shown = append(shown, n)
		}
		return true
	})
	if len(out) == 0 {
		return shown
	}
	return out
}

// controller returns the broker whose minds decide, if clients can reach it.
func controller(v *state.View, listener string) (node, bool) {
	c, _ := v.Controller()
	b, ok := v.Broker(c)
	if !ok || !usable(b) {
		return node{id: id.NoBroker, port: -1}, false
	}
	return nodeOf(b, listener)
}

// Operations that Kafka reports for a resource when nothing is forbidden, as bits (KIP-430; AclOperation's codes).
const (
	notAsked         = -1 << 31
	topicOperations  = 1<<3 | 1<<4 | 1<<5 | 1<<6 | 1<<7 | 1<<8 | 1<<10 | 1<<11
	brokerOperations = 1<<5 | 1<<7 | 1<<8 | 1<<9 | 1<<10 | 1<<11 | 1<<12
)

func operations(asked bool, ops int32) int32 {
	if asked {
		return ops
	}
	return notAsked
}

// Bounds of what a client may ask a metadata command to take.
const (
	minCommandWait     = time.Second
	maxCommandWait     = time.Minute
	defaultCommandWait = 15 * time.Second
)

// propose puts a command into the log for a client that waits at most timeoutMs (0 or less: the default).
func (s *Server) propose(ctx context.Context, timeoutMs int32, cmd *statepb.Command) (*statepb.Result, error) {
	wait := defaultCommandWait
	if timeoutMs > 0 {
		wait = min(max(time.Duration(timeoutMs)*time.Millisecond, minCommandWait), maxCommandWait)
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	return s.deps.Proposer.Propose(ctx, cmd)
}

// fault is a Kafka error with words for people.
type fault struct {
	code int16
	text string
}

func (f *fault) Error() string { return f.text }

func (f *fault) message() *string {
	if f == nil || f.text == "" {
		return nil
	}
	return &f.text
}

func faultOf(e *kerr.Error, text string) *fault {
	if text == "" {
		text = e.Description
	}
	return &fault{e.Code, text}
}

// codes translates what a command came to. What is missing here is a fault of ours and becomes UNKNOWN_SERVER_ERROR.
var codes = map[statepb.Code]*kerr.Error{
	statepb.Code_INVALID:           kerr.InvalidRequest,
	statepb.Code_TOPIC_EXISTS:      kerr.TopicAlreadyExists,
	statepb.Code_UNKNOWN_TOPIC:     kerr.UnknownTopicOrPartition,
	statepb.Code_UNKNOWN_PARTITION: kerr.UnknownTopicOrPartition,
	statepb.Code_UNKNOWN_BROKER:    kerr.InvalidReplicaAssignment,
	statepb.Code_STALE:             kerr.InvalidRequest,
	statepb.Code_NOT_BOOTSTRAPPED:  kerr.NotController,
	statepb.Code_LANE_ENDED:        kerr.NotController,
	statepb.Code_LANE_GAP:          kerr.NotController,
	statepb.Code_STALE_TERM:        kerr.NotController,

	statepb.Code_UNKNOWN_GROUP:         kerr.GroupIDNotFound,
	statepb.Code_UNKNOWN_MEMBER:        kerr.UnknownMemberID,
	statepb.Code_ILLEGAL_GENERATION:    kerr.IllegalGeneration,
	statepb.Code_REBALANCE_IN_PROGRESS: kerr.RebalanceInProgress,
	statepb.Code_FENCED_INSTANCE:       kerr.FencedInstanceID,
	statepb.Code_STALE_EPOCH:           kerr.StaleMemberEpoch,
	statepb.Code_OLD_REQUEST:           kerr.UnsupportedVersion,
}

// settled turns the outcome of propose into a fault, nil for success. An error means that nobody knows: the client hears
// REQUEST_TIMED_OUT, which it may retry, never that it failed (P7).
func settled(r *statepb.Result, err error) *fault {
	if err != nil {
		why := "the cluster did not answer in time; the change may still happen"
		if !errors.Is(err, context.DeadlineExceeded) {
			why = "unknown whether the change happened: " + err.Error()
		}
		return &fault{kerr.RequestTimedOut.Code, why}
	}
	if r.GetCode() == statepb.Code_OK {
		return nil
	}
	e, ok := codes[r.Code]
	if !ok {
		e = kerr.UnknownServerError
	}
	return faultOf(e, r.Text)
}
