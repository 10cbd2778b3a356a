// Package zkconsumer is a high-level consumer by the znode rules of Kafka 0.8.2's ZookeeperConsumerConnector: members meet
// in /consumers/<group>/ids, each plans for itself with the range assignor, claims its partitions in /owners, and keeps
// offsets in /offsets. It shares no code with barnabas's ZooKeeper port and runs as well against a real ZooKeeper and Kafka.
//
// It differs from the Java original only where that one is known to lose: an operation is not repeated in another session, a
// claim counts as one's own only if it is of the present session, a member that is cut off from ZooKeeper stops reading before
// its session can end, and failed rebalances are tried again until they succeed. Only range assignment is built: all
// members of a group must use it (the default of the Java consumer).
//
// One goroutine, Run's, does everything that writes to ZooKeeper; one reads from the brokers between two rebalances; one
// waits per armed watch. Run returns when all have ended.
package zkconsumer

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Config says what to consume. The zero value of a field takes the default of the Java consumer, named beside it.
type Config struct {
	ZooKeeper string         // host:port,...[/chroot]
	Group     string         // group.id
	Topics    map[string]int // topic: number of streams; at least one
	ID        string         // consumer.id; the member is <group>_<ID>. Empty: host, time and random hex

	SessionTimeout     time.Duration // zookeeper.session.timeout.ms, 6 s; at most 40 s, which is what servers grant
	RebalanceBackoff   time.Duration // rebalance.backoff.ms, 2 s
	RebalanceRetries   int           // rebalance.max.retries, 4: failures until one is logged as an error
	DisableAutoCommit  bool          // auto.commit.enable=false
	AutoCommitInterval time.Duration // auto.commit.interval.ms, 60 s
	FromStart          bool          // auto.offset.reset=smallest; else largest
	FetchMaxBytes      int32         // fetch.message.max.bytes, 1 MiB per partition
	FetchWait          time.Duration // fetch.wait.max.ms, 100 ms

	// Handle gets each record, in the order of its partition; records of different streams at the same time. The record
	// counts as consumed when it returns nil; an error ends Run. Required.
	Handle func(ctx context.Context, stream int, r *kgo.Record) error
	// Assigned is told what the member owns, after each rebalance and with nil before each. Optional.
	Assigned func(claims []Claim)
	Log      *slog.Logger
}

// Claim is one partition that the member owns, and the stream that reads it.
type Claim struct {
	Topic     string
	Partition int32
	Stream    int
}

func (c Claim) String() string { return c.Topic + "-" + strconv.Itoa(int(c.Partition)) }

var (
	errConflict    = errors.New("a partition still has another owner")
	errSessionLost = errors.New("the ZooKeeper session ended")
)

// Consumer is one member of a group. Make it with New, run it once with Run.
type Consumer struct {
	cfg     Config
	servers []string
	root    string // chroot, "" or /a/b
	self    string // member id

	conn     *zk.Conn
	state    *sessionState
	trigger  chan struct{} // a rebalance is wanted; never blocks
	failed   chan error    // the first error of Handle
	wg       sync.WaitGroup
	watching watchSet

	// Owned by Run's goroutine.
	registered int               // session generation that the registration belongs to
	claims     map[Claim]*holder // what this member created, or may have created, in owners
	reader     *reader
}

// holder is the state of one claimed partition.
type holder struct {
	written  int64 // the offset in the znode, -1 for none
	position position
}

// New checks the configuration. Nothing is dialled before Run.
func New(cfg Config) (*Consumer, error) {
	list, root, _ := strings.Cut(cfg.ZooKeeper, "/")
	c := &Consumer{cfg: cfg, trigger: make(chan struct{}, 1), failed: make(chan error, 1), claims: map[Claim]*holder{}, registered: -1}
	if root = strings.Trim(root, "/"); root != "" {
		c.root = "/" + root
	}
	for _, s := range strings.Split(list, ",") {
		if s = strings.TrimSpace(s); s != "" {
			c.servers = append(c.servers, s)
		}
	}
	if err := c.cfg.check(len(c.servers)); err != nil {
		return nil, err
	}
	c.cfg.fill()
	id := cfg.ID
	if id == "" {
		id = randomID()
	}
	c.self = cfg.Group + "_" + id
	return c, nil
}

func (cfg *Config) check(servers int) error {
	var faults []error
	if servers == 0 {
		faults = append(faults, errors.New("no ZooKeeper server is named"))
	}
	if cfg.Group == "" || strings.ContainsAny(cfg.Group, "/\x00") {
		faults = append(faults, fmt.Errorf("the group %q is empty or has a slash", cfg.Group))
	}
	if strings.ContainsAny(cfg.ID, "/\x00") {
		faults = append(faults, fmt.Errorf("the consumer id %q has a slash", cfg.ID))
	}
	if len(cfg.Topics) == 0 {
		faults = append(faults, errors.New("no topic is named"))
	}
	for t, n := range cfg.Topics {
		if t == "" || strings.Contains(t, "/") || n < 1 {
			faults = append(faults, fmt.Errorf("topic %q with %d streams: a name without slash and at least one stream are needed", t, n))
		}
	}
	if cfg.Handle == nil {
		faults = append(faults, errors.New("no handler is given"))
	}
	return errors.Join(faults...)
}

func (cfg *Config) fill() {
	set := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	set(&cfg.SessionTimeout, 6*time.Second)
	cfg.SessionTimeout = min(cfg.SessionTimeout, 40*time.Second) // a shorter session than asked for would outlive our reading
	set(&cfg.RebalanceBackoff, 2*time.Second)
	set(&cfg.AutoCommitInterval, time.Minute)
	set(&cfg.FetchWait, 100*time.Millisecond)
	if cfg.RebalanceRetries <= 0 {
		cfg.RebalanceRetries = 4
	}
	if cfg.FetchMaxBytes <= 0 {
		cfg.FetchMaxBytes = 1 << 20
	}
	if cfg.Assigned == nil {
		cfg.Assigned = func([]Claim) {}
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
}

// randomID is <host>-<milliseconds>-<hex of 32 random bits>.
func randomID() string {
	host, err := os.Hostname()
	if err != nil {
		host = "localhost"
	}
	var b [4]byte
	rand.Read(b[:]) // never fails (crypto/rand)
	return fmt.Sprintf("%s-%d-%s", strings.ReplaceAll(host, "/", "_"), time.Now().UnixMilli(), hex.EncodeToString(b[:]))
}

// ID is the member's name in /consumers/<group>/ids.
func (c *Consumer) ID() string { return c.self }

// Run consumes until ctx ends (it then returns nil after a last commit), Handle fails, or ZooKeeper cannot be reached at the
// start. The session is closed in any case, which takes the member out of the group at once.
func (c *Consumer) Run(ctx context.Context) (err error) {
	c.state = newSessionState(c.cfg.SessionTimeout, c.poke)
	conn, _, err := zk.Connect(c.servers, c.cfg.SessionTimeout, zk.WithEventCallback(c.state.event), zk.WithLogInfo(false),
		zk.WithLogger(zkLog{c.cfg.Log}))
	if err != nil {
		return fmt.Errorf("zookeeper %s: %w", c.cfg.ZooKeeper, err)
	}
	c.conn = conn
	defer func() {
		c.state.close()
		conn.Close() // ends every watch and operation in flight
		c.wg.Wait()
	}()
	if err := c.firstSession(ctx); err != nil {
		return err
	}
	c.poke()
	err = c.loop(ctx)
	c.stopReading()
	if ferr := c.finalCommit(ctx); err == nil {
		err = ferr
	}
	c.cfg.Assigned(nil)
	return err
}

// poke asks for a rebalance. Several asks before the next one starts are one.
func (c *Consumer) poke() {
	select {
	case c.trigger <- struct{}{}:
	default:
	}
}

func (c *Consumer) firstSession(ctx context.Context) error {
	ctx2, cancel := context.WithTimeout(ctx, max(c.cfg.SessionTimeout, 6*time.Second))
	defer cancel()
	if _, err := c.state.wait(ctx2); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return fmt.Errorf("zookeeper %s: no session within %s", c.cfg.ZooKeeper, max(c.cfg.SessionTimeout, 6*time.Second))
	}
	return nil
}

// loop is the life of the member. It returns nil when ctx ends.
func (c *Consumer) loop(ctx context.Context) error {
	commit := time.NewTicker(c.cfg.AutoCommitInterval)
	defer commit.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-c.failed:
			return err
		case <-commit.C:
			if c.cfg.DisableAutoCommit {
				continue
			}
			if err := c.commit(ctx); err != nil && ctx.Err() == nil {
				c.cfg.Log.Warn("offsets were not committed", "group", c.cfg.Group, "error", err)
			}
		case <-c.trigger:
			if err := c.rebalance(ctx); err != nil {
				if ctx.Err() != nil {
					return nil
				}
				return err
			}
		}
	}
}

func (c *Consumer) finalCommit(ctx context.Context) error {
	if c.cfg.DisableAutoCommit || !c.dirty() {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if err := c.commit(ctx); err != nil {
		return fmt.Errorf("the last offsets were not committed, so their records will be read again: %w", err)
	}
	return nil
}

func joinHostPort(host string, port int) string { return net.JoinHostPort(host, strconv.Itoa(port)) }

// zkLog passes the library's lines on as debug lines.
type zkLog struct{ log *slog.Logger }

func (l zkLog) Printf(format string, args ...any) {
	l.log.Debug("zookeeper: " + fmt.Sprintf(format, args...))
}
