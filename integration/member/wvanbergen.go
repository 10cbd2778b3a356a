package member

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/twmb/franz-go/pkg/kgo"
)

// wvanbergen is a member that asks ZooKeeper what wvanbergen/kafka's consumergroup on kazoo-go asks, in its order: ids watched,
// partitions sorted by (leader, partition) and cut into runs, claims after a second and again every second, deletes by
// version 0, offsets written with the version that was read. It stops everything at each change of the ids and starts over.
func wvanbergen(ctx context.Context, o Options, out *lines) error {
	conn, _, err := zk.Connect(o.ZooKeeper, o.Session, zk.WithLogger(quiet{})) // its own default is 1 s, which servers raise to 4
	if err != nil {
		return err
	}
	defer conn.Close()
	w := &oldMember{Options: o, conn: conn, out: out, id: o.Group + "-host:" + o.Name, offsets: map[int32]*zkOffset{}}
	for started := false; ctx.Err() == nil; {
		var err error
		if !started {
			err = w.start()
			started = err == nil
		}
		if err == nil {
			err = w.generation(ctx)
		}
		if err != nil && ctx.Err() == nil {
			out.event("error", err)
			select {
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
		}
	}
	return conn.Delete(w.path("ids", w.id), 0)
}

type quiet struct{}

func (quiet) Printf(string, ...any) {}

type oldMember struct {
	Options
	conn *zk.Conn
	out  *lines
	id   string

	mu      sync.Mutex
	offsets map[int32]*zkOffset
}

// zkOffset is what the member knows of the offset of a partition: next is where it reads on.
type zkOffset struct{ next, written int64 }

var everyone = zk.WorldACL(zk.PermAll)

func (w *oldMember) path(parts ...string) string {
	return path.Join(append([]string{"/consumers", w.Group}, parts...)...)
}

// start is what it does once.
func (w *oldMember) start() error {
	if err := w.brokers(); err != nil {
		return err
	}
	return w.mkdir("/consumers/" + w.Group)
}

// brokers reads the brokers as kazoo-go does when it connects.
func (w *oldMember) brokers() error {
	ids, _, err := w.conn.Children("/brokers/ids")
	if err != nil {
		return err
	}
	for _, id := range ids {
		if _, _, err := w.conn.Get("/brokers/ids/" + id); err != nil {
			return err
		}
	}
	return nil
}

// mkdir makes a node and what is above it, asking for each level first.
func (w *oldMember) mkdir(node string) error {
	if node == "/" {
		return nil
	}
	there, _, err := w.conn.Exists(node)
	if err != nil || there {
		return err
	}
	if err := w.mkdir(path.Dir(node)); err != nil {
		return err
	}
	if _, err := w.conn.Create(node, nil, 0, everyone); err != nil && !errors.Is(err, zk.ErrNodeExists) {
		return err
	}
	return nil
}

func (w *oldMember) register() error {
	data, err := json.Marshal(map[string]any{"pattern": "static", "subscription": map[string]int{w.Topic: 1}, "timestamp": time.Now().Unix(), "version": 1})
	if err != nil {
		return err
	}
	if err := w.mkdir(w.path("ids")); err != nil {
		return err
	}
	if _, err := w.conn.Create(w.path("ids", w.id), data, zk.FlagEphemeral, everyone); err != nil {
		return fmt.Errorf("register: %w", err)
	}
	return nil
}

// generation reads the ids, consumes its share until they change, and gives it back.
func (w *oldMember) generation(ctx context.Context) error {
	there, _, err := w.conn.Exists(w.path("ids", w.id))
	if err == nil && !there {
		err = w.register()
	}
	if err != nil {
		return err
	}
	ids, _, changed, err := w.conn.ChildrenW(w.path("ids"))
	if err != nil {
		return err
	}
	share, err := w.share(ids)
	if err != nil {
		return err
	}
	stopped, stop := context.WithCancel(ctx)
	defer stop()
	var working sync.WaitGroup
	for _, p := range share {
		working.Go(func() { w.partition(stopped, p) })
	}
	select {
	case <-ctx.Done():
	case <-changed:
	}
	stop()
	working.Wait()
	return nil
}

// share is the member's run of the partitions, sorted by leader and number.
func (w *oldMember) share(ids []string) ([]int32, error) {
	data, _, err := w.conn.Get("/brokers/topics/" + w.Topic)
	if err != nil {
		return nil, err
	}
	var topic struct{ Partitions map[string][]int32 }
	if err := json.Unmarshal(data, &topic); err != nil {
		return nil, err
	}
	type led struct{ partition, leader int32 }
	var all []led
	for name := range topic.Partitions {
		n, err := strconv.ParseInt(name, 10, 32)
		if err != nil {
			return nil, err
		}
		data, _, err := w.conn.Get("/brokers/topics/" + w.Topic + "/partitions/" + name + "/state")
		if err != nil {
			return nil, err
		}
		var state struct{ Leader int32 }
		if err := json.Unmarshal(data, &state); err != nil {
			return nil, err
		}
		all = append(all, led{int32(n), state.Leader})
	}
	slices.SortFunc(all, func(a, b led) int {
		if a.leader != b.leader {
			return int(a.leader - b.leader)
		}
		return int(a.partition - b.partition)
	})
	slices.Sort(ids)
	i := slices.Index(ids, w.id)
	if i < 0 {
		return nil, fmt.Errorf("%s is not among %v", w.id, ids)
	}
	q, r := len(all)/len(ids), len(all)%len(ids)
	from, n := q*i+min(i, r), q
	if i < r {
		n++
	}
	var share []int32
	for _, l := range all[from : from+n] {
		share = append(share, l.partition)
	}
	return share, nil
}

// partition claims, reads, commits and releases one partition.
func (w *oldMember) partition(ctx context.Context, p int32) {
	owner := w.path("owners", w.Topic, strconv.Itoa(int(p)))
	if !w.claim(ctx, owner) {
		return
	}
	defer func() {
		if data, _, err := w.conn.Get(owner); err == nil && string(data) == w.id {
			_ = w.conn.Delete(owner, 0) // as the original: whatever becomes of it
		}
	}()
	if err := w.read(ctx, p); err != nil && ctx.Err() == nil {
		w.out.event("error", err)
	}
	if err := w.commit(p); err != nil {
		w.out.event("error", err)
	}
}

func (w *oldMember) claim(ctx context.Context, owner string) bool {
	for range 62 {
		select {
		case <-ctx.Done():
			return false
		case <-time.After(time.Second):
		}
		if err := w.mkdir(path.Dir(owner)); err != nil {
			w.out.event("error", err)
			continue
		}
		_, err := w.conn.Create(owner, []byte(w.id), zk.FlagEphemeral, everyone)
		if errors.Is(err, zk.ErrNodeExists) {
			data, _, getErr := w.conn.Get(owner)
			if getErr == nil && string(data) == w.id {
				return true
			}
			w.out.event("claimed by other", owner)
			continue
		}
		if err == nil {
			return true
		}
		w.out.event("error", err)
	}
	return false
}

// read reads the partition from its offset, and commits as it goes, until it is told to stop.
func (w *oldMember) read(ctx context.Context, p int32) error {
	at := kgo.NewOffset().AtStart()
	state := &zkOffset{next: -1, written: -1}
	if data, _, err := w.conn.Get(w.offset(p)); err == nil {
		n, err := strconv.ParseInt(string(data), 10, 64)
		if err != nil {
			return err
		}
		at, state = at.At(n), &zkOffset{next: n, written: n}
	} else if !errors.Is(err, zk.ErrNoNode) {
		return err
	}
	w.mu.Lock()
	w.offsets[p] = state
	w.mu.Unlock()
	client, err := kgo.NewClient(kgo.SeedBrokers(w.Brokers...), kgo.MetadataMinAge(50*time.Millisecond),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{w.Topic: {p: at}}))
	if err != nil {
		return err
	}
	defer client.Close()
	for ctx.Err() == nil {
		polled, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
		client.PollFetches(polled).EachRecord(func(r *kgo.Record) {
			w.out.record(r.Partition, r.Offset)
			state.next = r.Offset + 1
		})
		cancel()
		if err := w.commit(p); err != nil {
			return err
		}
	}
	return nil
}

func (w *oldMember) offset(p int32) string {
	return w.path("offsets", w.Topic, strconv.Itoa(int(p)))
}

// commit writes the offset with the version that it reads just before, or creates the node.
func (w *oldMember) commit(p int32) error {
	w.mu.Lock()
	state := w.offsets[p]
	w.mu.Unlock()
	if state == nil || state.next == state.written {
		return nil
	}
	next := state.next
	text := []byte(strconv.FormatInt(next, 10))
	_, stat, err := w.conn.Get(w.offset(p))
	switch {
	case errors.Is(err, zk.ErrNoNode):
		if err = w.mkdir(path.Dir(w.offset(p))); err == nil {
			_, err = w.conn.Create(w.offset(p), text, 0, everyone)
		}
	case err == nil:
		_, err = w.conn.Set(w.offset(p), text, stat.Version)
	}
	if err == nil {
		state.written = next
	}
	return err
}
