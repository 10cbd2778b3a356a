package zkconsumer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sort"
	"strconv"
	"time"

	"github.com/go-zookeeper/zk"
)

func (c *Consumer) idsPath() string { return "/consumers/" + c.cfg.Group + "/ids" }
func (c *Consumer) ownerPath(cl Claim) string {
	return "/consumers/" + c.cfg.Group + "/owners/" + cl.Topic + "/" + strconv.Itoa(int(cl.Partition))
}
func (c *Consumer) offsetPath(cl Claim) string {
	return "/consumers/" + c.cfg.Group + "/offsets/" + cl.Topic + "/" + strconv.Itoa(int(cl.Partition))
}

// rebalance tries until one attempt succeeds. It returns an error only when ctx ended or Handle failed.
func (c *Consumer) rebalance(ctx context.Context) error {
	for failures := 1; ; failures++ {
		err := c.attempt(ctx)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, errSessionLost): // the next attempt begins a new session
			failures = 0
			continue
		}
		c.stopReading()
		select {
		case err := <-c.failed:
			return err
		default:
		}
		if failures%c.cfg.RebalanceRetries == 0 {
			c.cfg.Log.Error("rebalance fails", "group", c.cfg.Group, "member", c.self, "attempts", failures, "error", err)
		} else {
			c.cfg.Log.Info("rebalance will be tried again", "group", c.cfg.Group, "member", c.self, "attempt", failures, "error", err)
		}
		if !c.backoff(ctx) {
			return ctx.Err()
		}
	}
}

// backoff waits before the next attempt, or until something changes that it should see.
func (c *Consumer) backoff(ctx context.Context) bool {
	t := time.NewTimer(c.cfg.RebalanceBackoff)
	defer t.Stop()
	select {
	case <-t.C:
	case <-c.trigger:
	case <-ctx.Done():
		return false
	}
	return true
}

// attempt is one rebalance, in the order of 0.8.2: stop, commit, release, read, plan, read offsets, claim, start.
func (c *Consumer) attempt(ctx context.Context) error {
	gen, err := c.state.wait(ctx)
	if err != nil {
		return err
	}
	if err := c.register(ctx, gen); err != nil {
		return err
	}
	brokers, err := c.brokers(ctx, gen)
	if err != nil {
		return err
	}
	if len(brokers) == 0 {
		c.cfg.Log.Warn("no broker is registered; waiting for one", "group", c.cfg.Group)
		return nil // brokers() armed a watch
	}
	c.stopReading()
	if !c.cfg.DisableAutoCommit {
		if err := c.commit(ctx); err != nil {
			if errors.Is(err, errSessionLost) || ctx.Err() != nil {
				return err
			}
			c.cfg.Log.Warn("offsets were not committed before a rebalance", "group", c.cfg.Group, "error", err)
		}
	}
	c.cfg.Assigned(nil)
	if err := c.releaseAll(ctx, gen); err != nil {
		return err
	}
	claims, err := c.plan(ctx, gen)
	if err != nil {
		return err
	}
	offsets, err := c.readOffsets(ctx, gen, claims)
	if err != nil {
		return err
	}
	if err := c.claimAll(ctx, gen, claims, offsets); err != nil {
		return err
	}
	c.cfg.Assigned(claims)
	c.cfg.Log.Info("rebalanced", "group", c.cfg.Group, "member", c.self, "partitions", len(claims))
	return c.startReading(ctx, gen, brokers, claims)
}

// register makes the member's id node in this session. Claims of an older session are forgotten, without a commit: others
// may own those partitions already.
func (c *Consumer) register(ctx context.Context, gen int) error {
	if c.registered != gen {
		c.stopReading()
		for _, h := range c.claims {
			h.position.consumed.Store(-1)
		}
	}
	reg, err := json.Marshal(registration{Version: 1, Subscription: c.cfg.Topics, Pattern: patternStatic,
		Timestamp: strconv.FormatInt(time.Now().UnixMilli(), 10)})
	if err != nil {
		return err
	}
	p := c.idsPath() + "/" + c.self
	if c.registered == gen {
		_, err := c.get(ctx, gen, p)
		if !errors.Is(err, zk.ErrNoNode) {
			return err
		}
		c.cfg.Log.Warn("the registration was deleted; registering again", "group", c.cfg.Group, "member", c.self)
	}
	for {
		err := c.createDeep(ctx, gen, p, reg, zk.FlagEphemeral)
		if err == nil {
			c.registered = gen
			return nil
		}
		if !errors.Is(err, zk.ErrNodeExists) {
			return fmt.Errorf("register as %s: %w", p, err)
		}
		mine, err := c.mine(ctx, gen, p)
		if err != nil {
			return err
		}
		if mine {
			c.registered = gen
			return nil
		}
		// An older session of this id is still alive for the server; it will be expired.
		c.cfg.Log.Info("waiting until the member's older session has expired", "path", p)
		if err := c.waitGone(ctx, gen, p); err != nil {
			return err
		}
	}
}

// mine says whether the node exists and belongs to the present session.
func (c *Consumer) mine(ctx context.Context, gen int, p string) (bool, error) {
	n, err := c.get(ctx, gen, p)
	if errors.Is(err, zk.ErrNoNode) {
		return false, nil
	}
	return err == nil && n.stat.EphemeralOwner == c.conn.SessionID(), err
}

// waitGone returns when the node does not exist (any more).
func (c *Consumer) waitGone(ctx context.Context, gen int, p string) error {
	type watched struct {
		exists bool
		events <-chan zk.Event
	}
	w, err := do(ctx, c, gen, func() (watched, error) {
		ok, _, events, err := c.conn.ExistsW(c.root + p)
		return watched{ok, events}, err
	})
	if err != nil || !w.exists {
		return err
	}
	select {
	case <-w.events:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// brokers returns the addresses of all brokers; when there are none, it asks to be woken by the first.
func (c *Consumer) brokers(ctx context.Context, gen int) ([]string, error) {
	const dir = "/brokers/ids"
	ids, err := c.children(ctx, gen, dir)
	if err != nil {
		return nil, fmt.Errorf("list brokers: %w", err)
	}
	if len(ids) == 0 {
		if ids, err = c.childrenWatched(ctx, gen, dir); err != nil {
			return nil, fmt.Errorf("list brokers: %w", err)
		}
	}
	var out []string
	for _, id := range ids {
		n, err := c.get(ctx, gen, dir+"/"+id)
		if errors.Is(err, zk.ErrNoNode) {
			continue // it left in between
		}
		if err != nil {
			return nil, fmt.Errorf("read broker %s: %w", id, err)
		}
		addr, err := parseBroker(id, n.data)
		if err != nil {
			c.cfg.Log.Warn("a broker is left out", "error", err)
			continue
		}
		out = append(out, addr)
	}
	sort.Strings(out)
	return out, nil
}

// releaseAll deletes the owner nodes that this session holds. Nodes of others, also of an older session of ours, are left.
func (c *Consumer) releaseAll(ctx context.Context, gen int) error {
	for cl := range c.claims {
		p := c.ownerPath(cl)
		mine, err := c.mine(ctx, gen, p)
		if err != nil {
			return fmt.Errorf("release %s: %w", cl, err)
		}
		if mine {
			if err := c.delete(ctx, gen, p, -1); err != nil && !errors.Is(err, zk.ErrNoNode) {
				return fmt.Errorf("release %s: %w", cl, err)
			}
		}
		delete(c.claims, cl)
	}
	return nil
}

// plan reads the group and the topics and computes what this member gets.
func (c *Consumer) plan(ctx context.Context, gen int) ([]Claim, error) {
	parts := map[string][]int32{}
	for t := range c.cfg.Topics {
		data, err := c.getWatched(ctx, gen, "/brokers/topics/"+t)
		if errors.Is(err, zk.ErrNoNode) {
			continue // it has no partitions yet; the watch tells when it is made
		}
		if err != nil {
			return nil, fmt.Errorf("read topic %s: %w", t, err)
		}
		if parts[t], err = parsePartitions(t, data); err != nil {
			return nil, err
		}
	}
	ids, err := c.childrenWatched(ctx, gen, c.idsPath())
	if err != nil {
		return nil, fmt.Errorf("list members: %w", err)
	}
	counts := map[string]map[string]int{}
	var allTopics []string
	for _, id := range ids {
		n, err := c.get(ctx, gen, c.idsPath()+"/"+id)
		if errors.Is(err, zk.ErrNoNode) {
			continue // it left in between; the watch tells of it
		}
		if err != nil {
			return nil, fmt.Errorf("read member %s: %w", id, err)
		}
		m, err := parseMember(id, n.data)
		if err != nil {
			return nil, err
		}
		if m.reg.Pattern != patternStatic && allTopics == nil {
			if allTopics, err = c.children(ctx, gen, "/brokers/topics"); err != nil {
				return nil, fmt.Errorf("list topics: %w", err)
			}
		}
		if counts[id], err = m.streams(allTopics); err != nil {
			return nil, err
		}
	}
	return plan(c.self, counts, parts)
}

// readOffsets returns the committed offset of each claim, -1 for none.
func (c *Consumer) readOffsets(ctx context.Context, gen int, claims []Claim) (map[Claim]int64, error) {
	out := make(map[Claim]int64, len(claims))
	for _, cl := range claims {
		n, err := c.get(ctx, gen, c.offsetPath(cl))
		if errors.Is(err, zk.ErrNoNode) {
			out[cl] = -1
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read offset of %s: %w", cl, err)
		}
		if out[cl], err = strconv.ParseInt(string(n.data), 10, 64); err != nil {
			return nil, fmt.Errorf("offset of %s is %q, which is not a number: write the offset to read next into %s", cl, n.data, c.offsetPath(cl))
		}
	}
	return out, nil
}

// claimAll creates the owner nodes. When one belongs to another, those created here are deleted again.
func (c *Consumer) claimAll(ctx context.Context, gen int, claims []Claim, offsets map[Claim]int64) error {
	for _, cl := range claims {
		// Remembered before the create: its reply may be lost with the connection, and releaseAll looks at what is there.
		c.claims[cl] = &holder{written: offsets[cl]}
		c.claims[cl].position.consumed.Store(offsets[cl])
		err := c.claim(ctx, gen, cl)
		if err == nil {
			continue
		}
		if rerr := c.releaseAll(ctx, gen); rerr != nil {
			return errors.Join(err, rerr)
		}
		return fmt.Errorf("claim %s: %w", cl, err)
	}
	return nil
}

// claim creates one owner node. When another has it, it asks to be woken as soon as that one lets go, which is mostly sooner
// than the backoff ends, and returns errConflict.
func (c *Consumer) claim(ctx context.Context, gen int, cl Claim) error {
	const tries = 3 // a node that is there and then is not was released in between
	for range tries {
		err := c.createDeep(ctx, gen, c.ownerPath(cl), []byte(threadID(c.self, cl.Stream)), zk.FlagEphemeral)
		if !errors.Is(err, zk.ErrNodeExists) {
			return err
		}
		if mine, err := c.mine(ctx, gen, c.ownerPath(cl)); err != nil || mine {
			return err
		}
		owner, err := c.getWatched(ctx, gen, c.ownerPath(cl))
		if !errors.Is(err, zk.ErrNoNode) {
			if err == nil {
				err = fmt.Errorf("%w: %s", errConflict, owner)
			}
			return err
		}
	}
	return fmt.Errorf("%w: it changes hands", errConflict)
}

// dirty says whether a commit would write something.
func (c *Consumer) dirty() bool {
	for _, h := range c.claims {
		if n := h.position.consumed.Load(); n >= 0 && n != h.written {
			return true
		}
	}
	return false
}

// commit writes the offset of each owned partition that moved since it was last written or read. Offsets of another
// session's claims are never written.
func (c *Consumer) commit(ctx context.Context) error {
	if !c.dirty() {
		return nil
	}
	gen, err := c.state.wait(ctx)
	if err != nil {
		return err
	}
	if gen != c.registered {
		return errSessionLost
	}
	var faults []error
	for cl, h := range c.claims {
		n := h.position.consumed.Load()
		if n < 0 || n == h.written {
			continue
		}
		if err := c.commitOne(ctx, gen, c.offsetPath(cl), []byte(strconv.FormatInt(n, 10))); err != nil {
			faults = append(faults, fmt.Errorf("%s: %w", cl, err))
			continue
		}
		h.written = n
	}
	return errors.Join(faults...)
}

func (c *Consumer) commitOne(ctx context.Context, gen int, p string, data []byte) error {
	err := c.set(ctx, gen, p, data)
	if !errors.Is(err, zk.ErrNoNode) {
		return err
	}
	if err = c.createDeep(ctx, gen, p, data, 0); errors.Is(err, zk.ErrNodeExists) {
		err = c.set(ctx, gen, p, data)
	}
	return err
}
