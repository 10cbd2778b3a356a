package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/node/config"
	"github.com/barnabas-mq/barnabas/raftmeta"
	"github.com/barnabas-mq/barnabas/raftmeta/state"
	"github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
)

// registerPause is between attempts while no leader takes the registration.
const registerPause = 50 * time.Millisecond

// register keeps this node registered: a new incarnation at the start, and another whenever the former was fenced. A broker
// that the cluster knows opens its logs first: from its registration on it may be given leaderships.
func (n *node) register(ctx context.Context) error {
	if err := n.openKnown(ctx); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	for first := true; ; first = false {
		r, err := n.registerOnce(ctx)
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		if err := n.raft.StartLane(r.Epoch); err != nil {
			return err
		}
		n.self.Store(r)
		n.cluster.SetRegistration(r.Broker, r.Epoch)
		n.parts.SelfChanged()
		n.log.Info("registered", "broker", r.Broker, "epoch", r.Epoch)
		if first {
			n.mayOpen()
			close(n.registered)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-n.raft.LaneEnded():
			n.log.Warn("this broker was fenced and registers again", "broker", r.Broker, "epoch", r.Epoch)
		}
	}
}

// openKnown waits until the view holds everything that was committed before now, and, if this directory is a broker's
// already, until its replicas are open.
func (n *node) openKnown(ctx context.Context) error {
	res, err := n.raw(ctx, &statepb.Command{Body: &statepb.Command_Tick{Tick: &statepb.Tick{}}})
	if err != nil {
		return err
	}
	if err := n.raft.WaitIndex(ctx, id.Index(res.Index)); err != nil {
		return err
	}
	b, known := n.raft.View().BrokerByDirectory(n.dir.Directory)
	if !known {
		return nil
	}
	n.self.Store(&registration{Broker: b.ID})
	n.mayOpen()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-n.parts.Ready():
		return nil
	}
}

// mayOpen lets the partitions run.
func (n *node) mayOpen() { n.openOnce.Do(func() { close(n.open) }) }

// registerOnce proposes one incarnation until its outcome is known: repeats carry the same nonce.
func (n *node) registerOnce(ctx context.Context) (*registration, error) {
	cmd, err := n.registration()
	if err != nil {
		return nil, err
	}
	res, err := n.raw(ctx, cmd)
	switch {
	case err != nil:
		return nil, err
	case res.Code != statepb.Code_OK:
		return nil, fmt.Errorf("this broker cannot join the cluster: %s", res.Text)
	}
	if err := n.raft.WaitIndex(ctx, id.Index(res.Index)); err != nil {
		return nil, err
	}
	if err := n.dir.joined(n.raft.View().ClusterID()); err != nil {
		return nil, err
	}
	n.cluster.SetClusterID(n.dir.ClusterID)
	return &registration{id.BrokerID(res.Value), id.BrokerEpoch(res.Epoch)}, nil
}

// raw proposes an idempotent command without a lane until a leader of a founded cluster has settled it.
func (n *node) raw(ctx context.Context, cmd *statepb.Command) (*statepb.Result, error) {
	for {
		res, err := n.raft.ProposeRaw(ctx, cmd)
		if errors.Is(err, raftmeta.ErrStopped) || err == nil && res.Code != statepb.Code_NOT_BOOTSTRAPPED {
			return res, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(registerPause):
		}
	}
}

func (n *node) registration() (*statepb.Command, error) {
	r := &statepb.RegisterBroker{
		DirectoryId: string(n.dir.Directory), Nonce: newUUID(), WantedId: int32(n.cfg.NodeID), MinLevel: state.MinLevel, MaxLevel: state.MaxLevel,
		Build: n.cfg.Version, KeepsLog: n.dir.keepsLog,
	}
	for _, l := range orderedListeners(n.cfg) {
		r.Endpoints = append(r.Endpoints, &statepb.Endpoint{Listener: l.Name, Host: l.Host, Port: int32(l.Port)})
	}
	var err error
	if r.Cluster, err = endpointOf(n.advertised(), ""); err != nil {
		return nil, err
	}
	host := r.Cluster.Host
	if n.cfg.ZooKeeperListen != "" {
		if r.Zookeeper, err = endpointOf(n.cfg.ZooKeeperListen, host); err != nil {
			return nil, err
		}
	}
	if n.cfg.AdminListen != "" {
		if r.Admin, err = endpointOf(n.cfg.AdminListen, host); err != nil {
			return nil, err
		}
	}
	return &statepb.Command{Body: &statepb.Command_RegisterBroker{RegisterBroker: r}}, nil
}

// orderedListeners puts the inter-broker listener first: /brokers/ids shows the first PLAINTEXT endpoint's host and port.
func orderedListeners(c config.Config) []config.Listener {
	out := make([]config.Listener, 0, len(c.Advertised))
	for _, l := range c.Advertised {
		if l.Name == c.InterBrokerListener {
			out = append([]config.Listener{l}, out...)
		} else {
			out = append(out, l)
		}
	}
	return out
}

// endpointOf splits host:port; an address without a host of its own (it binds every interface) is advertised as host.
func endpointOf(addr, host string) (*statepb.Endpoint, error) {
	h, p, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, fmt.Errorf("address %q: %w", addr, err)
	}
	port, err := strconv.Atoi(p)
	if err != nil {
		return nil, fmt.Errorf("address %q: %w", addr, err)
	}
	if ip := net.ParseIP(h); host != "" && (h == "" || ip != nil && ip.IsUnspecified()) {
		h = host
	}
	return &statepb.Endpoint{Host: h, Port: int32(port)}, nil
}

func hostPort(p state.Endpoint) string { return net.JoinHostPort(p.Host, strconv.Itoa(int(p.Port))) }

// advertised is the address of the cluster port that other nodes dial.
func (n *node) advertised() string {
	if n.cfg.ClusterAdvertise != "" {
		return n.cfg.ClusterAdvertise
	}
	return n.cluster.Addr().String()
}
