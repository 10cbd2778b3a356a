package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"strconv"
	"time"

	"github.com/barnabas-mq/barnabas/cluster"
	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/raftmeta"
	"github.com/barnabas-mq/barnabas/raftmeta/state"
	"github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
)

type peers struct{ c *cluster.Cluster }

func (p peers) Call(ctx context.Context, to id.DirectoryID, method string, payload []byte) ([]byte, error) {
	return p.c.Call(ctx, cluster.ToDirectory(to), method, payload)
}

// member is one Raft node with its cluster port, and nothing else of a broker.
type member struct {
	id    id.DirectoryID
	port  *cluster.Cluster
	raft  *raftmeta.Node
	begun bool
}

// startRaft runs three of them, and returns the proposers on the leader and on a follower. As three processes they would have a
// scheduler each: in one, two that sync at the same time would keep the processors of a two-core machine from the third.
func startRaft(ctx context.Context, dir string) (onLeader, onFollower system, err error) {
	p, err := ports(3)
	if err != nil {
		return onLeader, onFollower, err
	}
	runtime.GOMAXPROCS(3 * runtime.NumCPU())
	var voters []raftmeta.Server
	for n := range 3 {
		voters = append(voters, raftmeta.Server{ID: id.DirectoryID("directory" + strconv.Itoa(n+1)), Addr: "127.0.0.1:" + strconv.Itoa(p[n])})
	}
	var ms []*member
	stop := func() {
		for _, m := range ms {
			if m.begun {
				_ = m.raft.Stop()
			}
			m.port.Stop()
		}
	}
	for n := range 3 {
		m, err := newMember(filepath.Join(dir, strconv.Itoa(n+1)), voters, n)
		if err != nil {
			stop()
			return onLeader, onFollower, err
		}
		ms = append(ms, m)
		if err := m.start(); err != nil {
			stop()
			return onLeader, onFollower, err
		}
	}
	lead, follow, err := register(ctx, ms)
	if err != nil {
		stop()
		return onLeader, onFollower, err
	}
	return system{name: "proposed on leader", propose: lead.create, stop: stop}, system{name: "proposed on follower", propose: follow.create, stop: func() {}}, nil
}

func newMember(dir string, voters []raftmeta.Server, n int) (*member, error) {
	m := &member{id: voters[n].ID}
	var err error
	if m.port, err = cluster.New(cluster.Config{Listen: voters[n].Addr, Directory: m.id, ClusterID: "bench", Incarnation: uint64(n + 1), MinLevel: 1, MaxLevel: 1}); err != nil {
		return nil, err
	}
	for _, v := range voters {
		m.port.SetAddress(v.ID, v.Addr)
	}
	m.raft, err = raftmeta.New(raftmeta.Config{Dir: dir, ID: m.id, Bootstrap: voters, Stream: m.port.StreamLayer(), Addrs: m.port.AddressProvider(), Peers: peers{m.port}})
	if err != nil {
		return nil, err
	}
	for method, h := range m.raft.Handlers() {
		m.port.Handle(method, func(ctx context.Context, p cluster.Peer, payload []byte) ([]byte, error) {
			return h(ctx, p.Directory, payload)
		})
	}
	return m, nil
}

func (m *member) start() error {
	if err := m.port.Start(); err != nil {
		return err
	}
	m.begun = true
	return m.raft.Start()
}

// register founds the state and gives every member a lane.
func register(ctx context.Context, ms []*member) (lead, follow *member, err error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	found := &statepb.Command{Body: &statepb.Command_Bootstrap{Bootstrap: &statepb.Bootstrap{ClusterId: "bench", Level: state.MinLevel}}}
	if err := raw(ctx, ms[0], found, func(*statepb.Result) error { return nil }); err != nil {
		return nil, nil, err
	}
	for _, m := range ms {
		reg := &statepb.Command{Body: &statepb.Command_RegisterBroker{RegisterBroker: &statepb.RegisterBroker{
			DirectoryId: string(m.id), Nonce: "bench", WantedId: -1, MinLevel: state.MinLevel, MaxLevel: state.MaxLevel}}}
		if err := raw(ctx, m, reg, func(r *statepb.Result) error {
			return errors.Join(m.raft.WaitIndex(ctx, id.Index(r.Index)), m.raft.StartLane(id.BrokerEpoch(r.Epoch)))
		}); err != nil {
			return nil, nil, err
		}
	}
	leader := ms[0].raft.Leader().ID
	for _, m := range ms {
		if m.id == leader {
			lead = m
		} else {
			follow = m
		}
	}
	if lead == nil || follow == nil {
		return nil, nil, errors.New("the leader changed while the bench began: run it again")
	}
	return lead, follow, nil
}

// raw proposes a command without a lane until it is in the log.
func raw(ctx context.Context, m *member, c *statepb.Command, then func(*statepb.Result) error) error {
	for {
		res, err := m.raft.ProposeRaw(ctx, c)
		if err == nil && (res.Code == statepb.Code_OK || c.GetBootstrap() != nil) {
			return then(res)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("no leader took a command: %w", errors.Join(err, ctx.Err()))
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func (m *member) create(ctx context.Context, path string, data []byte) error {
	res, err := m.raft.Propose(ctx, &statepb.Command{Body: &statepb.Command_CreateZnode{CreateZnode: &statepb.CreateZnode{Path: path, Data: data}}})
	if err == nil && res.Code != statepb.Code_OK && res.Code != statepb.Code_NODE_EXISTS {
		err = errors.New(res.Text)
	}
	return err
}
