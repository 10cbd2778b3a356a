package broker

import (
	"context"
	"log/slog"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
)

var initProducerIDAPI = register(22, 5, (*Server).initProducerID)

// producerBlock is how many ids one command takes; those left at a restart are never used.
const producerBlock = 1000

// producerIDs hands out this broker's block. held is a lock that can be waited for with a context; who has it may use the
// other fields.
type producerIDs struct {
	held      chan struct{}
	next, end int64
}

func newProducerIDs() producerIDs {
	return producerIDs{held: make(chan struct{}, 1)}
}

// initProducerID gives an idempotent producer an id that nobody had before. The version 3 fields with which a producer asks to keep
// its id are for transactions only (TransactionCoordinator.handleInitProducerId).
func (s *Server) initProducerID(ctx context.Context, c *call, req *kmsg.InitProducerIDRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.InitProducerIDResponse)
	resp.ProducerID, resp.ProducerEpoch = -1, -1
	if req.TransactionalID != nil {
		// Retrying would not help, and no code says "not built": this one is fatal to every client and reads as it is meant.
		resp.ErrorCode = kerr.UnsupportedVersion.Code
		s.lines.Log(s.log, slog.LevelWarn, lineKind{c.host, "transaction", c.api.key, c.version}, time.Now(), "broker: transactions are not served yet",
			"client", c.clientID, "address", c.addr, "api", c.api.name, "version", c.version, "transactional.id", clip(*req.TransactionalID))
		return resp
	}
	pid, f := s.producerID(ctx)
	if f != nil {
		resp.ErrorCode = kerr.CoordinatorLoadInProgress.Code // retriable for every client
		return resp
	}
	resp.ProducerID, resp.ProducerEpoch = pid, 0
	return resp
}

func (s *Server) producerID(ctx context.Context) (int64, *fault) {
	select {
	case s.pids.held <- struct{}{}:
		defer func() { <-s.pids.held }()
	case <-ctx.Done():
		return 0, settled(nil, context.Cause(ctx))
	}
	if s.pids.next == s.pids.end {
		cmd := &statepb.AllocateProducerIds{Broker: int32(s.cfg.ID), Count: producerBlock}
		r, err := s.propose(ctx, 0, &statepb.Command{Body: &statepb.Command_AllocateProducerIds{AllocateProducerIds: cmd}})
		if f := settled(r, err); f != nil {
			return 0, f
		}
		s.pids.next, s.pids.end = r.Value, r.Value+producerBlock
	}
	pid := s.pids.next
	s.pids.next++
	return pid, nil
}
