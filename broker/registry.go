package broker

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// api is one API key as it is served: versions 0 to max.
type api struct {
	key, max int16
	name     string
	// maxBytes is the largest frame; 0 means the server's RequestMaxBytes.
	maxBytes int
	// check looks over a raw body before it is decoded; it bounds what decoding allocates. May be nil.
	check func(version int16, body []byte) error
	// start runs when the request has been read, on the connection's reader, and must not block for long. What it returns runs when
	// the request's turn has come.
	start func(ctx context.Context, s *Server, c *call, req kmsg.Request) turn
}

// turn answers one request, on the connection's writer.
type turn struct {
	// run returns the response, nil for none. It may wait until ctx ends, which it does when the peer is gone.
	run func(ctx context.Context) kmsg.Response
	// ready says that run will not wait, so that responses before this one need not be flushed first. Nil means unknown.
	ready func() bool
}

// call is one request's envelope.
type call struct {
	api      *api
	version  int16
	corr     int32
	clientID string
	listener string // name of the listener that the client came through
	addr     string // host:port of the client
	host     string // host of the client
	conn     uint64 // number of the connection, from 1, unique in this process
	arrived  time.Time
	hangUp   string // why the connection is closed in place of an answer; set by the turn
}

// Frame caps. Only Produce carries much; the others are lists of names and numbers, for which this is tens of thousands.
const (
	smallFrame  = 64 << 10 // below it, no budget is asked
	adminFrames = 1 << 20
	listFrames  = 4 << 20 // lists of partitions that a large cluster's clients really send
)

// register declares that an API is served from version 0 to max. The handler runs when all earlier requests of its connection
// have been answered, and may wait.
func register[R kmsg.Request](key, max int16, h func(s *Server, ctx context.Context, c *call, req R) kmsg.Response) api {
	a := declare(key, max)
	a.start = func(_ context.Context, s *Server, c *call, req kmsg.Request) turn {
		r := req.(R)
		return turn{run: func(ctx context.Context) kmsg.Response { return h(s, ctx, c, r) }}
	}
	return a
}

// registerEarly declares an API whose handler acts when the request is read.
func registerEarly[R kmsg.Request](key, max int16, h func(s *Server, ctx context.Context, c *call, req R) turn) api {
	a := declare(key, max)
	a.start = func(ctx context.Context, s *Server, c *call, req kmsg.Request) turn { return h(s, ctx, c, req.(R)) }
	return a
}

func declare(key, max int16) api {
	req := kmsg.RequestForKey(key)
	if req == nil || max < 0 || max > req.MaxVersion() {
		panic(fmt.Sprintf("broker: API %d cannot be served up to version %d", key, max))
	}
	return api{key: key, max: max, name: kmsg.NameForKey(key), maxBytes: adminFrames}
}

func (a api) frames(maxBytes int) api { a.maxBytes = maxBytes; return a }

func (a api) checked(check func(int16, []byte) error) api { a.check = check; return a }

// served lists every API, in order of key.
func served() []api {
	all := []api{
		produceAPI, fetchAPI, listOffsetsAPI, metadataAPI, offsetCommitAPI, offsetFetchAPI, findCoordinatorAPI, apiVersionsAPI,
		createTopicsAPI, deleteTopicsAPI, initProducerIDAPI, offsetForLeaderEpochAPI, describeConfigsAPI, alterConfigsAPI,
		createPartitionsAPI, incrementalAlterConfigsAPI, describeClusterAPI, joinGroupAPI, heartbeatAPI, leaveGroupAPI, syncGroupAPI,
		describeGroupsAPI, listGroupsAPI, deleteGroupsAPI, offsetDeleteAPI, consumerGroupHeartbeatAPI, consumerGroupDescribeAPI,
	}
	slices.SortFunc(all, func(a, b api) int { return int(a.key) - int(b.key) })
	return all
}

// newRequest makes an empty request of a version.
func (a *api) newRequest(version int16) kmsg.Request {
	req := kmsg.RequestForKey(a.key)
	req.SetVersion(version)
	return req
}
