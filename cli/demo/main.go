// Command demo is the main job on real input, end to end: every line of the Go tool chain's sources goes through `barnabas
// produce` into a topic with twelve partitions and three replicas, while four members of one old consumer group read it; one
// broker is killed with SIGKILL at a third and started again at two thirds. It ends with an account of every line, and exits
// 1 when a line was lost, doubled or damaged.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/barnabas-mq/barnabas/cli/devcluster"
)

// options are the command line.
type options struct {
	bin, tools, dir                 string
	members, partitions             int
	limit                           int64
	kafkaPort, zkPort, admin, peers int
	kill                            int // the broker that is killed
	keep                            bool
	brokers, zookeeperAt            string // of a cluster that runs already
}

// demo is one run.
type demo struct {
	options
	cluster  devcluster.Cluster
	dev      *process
	members  []*process
	restart  *process // the broker that was killed, started again by hand
	children []*process
	ledger   *ledger
	zk       *zk.Conn
	wg       sync.WaitGroup

	mu     sync.Mutex
	faults []error
}

// result is what the table shows besides the account.
type result struct {
	account
	produced produceSummary
	kind     string
	took     time.Duration
	shares   string
	faults   []error
}

// produceSummary is what `barnabas produce -o json` prints.
type produceSummary struct {
	Read, Acked, Failed int64
	Seconds             float64
	LongestStallSeconds float64
}

func main() {
	var o options
	flag.StringVar(&o.bin, "bin", "bin/barnabas", "the barnabas binary")
	flag.StringVar(&o.tools, "tools", ".tools", "folder that `make tools` fills")
	flag.StringVar(&o.dir, "dir", "", "folder for the cluster and logs (default: a temporary one)")
	flag.IntVar(&o.members, "members", 4, "members of the group")
	flag.IntVar(&o.partitions, "partitions", 12, "partitions of the topic")
	flag.IntVar(&o.kill, "kill", 3, "the broker that is killed, 1 to 3")
	flag.Int64Var(&o.limit, "limit", 0, "lines to send; 0: all")
	flag.IntVar(&o.kafkaPort, "kafka-port", 19092, "first Kafka port")
	flag.IntVar(&o.zkPort, "zk-port", 12181, "first ZooKeeper port")
	flag.IntVar(&o.admin, "admin-port", 18080, "first admin port")
	flag.IntVar(&o.peers, "cluster-port", 17946, "first port between nodes")
	flag.StringVar(&o.brokers, "brokers", "", "use the cluster that runs there; nothing is killed (needs -zookeeper)")
	flag.StringVar(&o.zookeeperAt, "zookeeper", "", "ZooKeeper servers of that cluster, without chroot")
	flag.BoolVar(&o.keep, "keep", false, "keep the folder")
	flag.Parse()
	os.Exit(exit(o))
}

func exit(o options) int {
	if o.kill < 1 || o.kill > 3 || o.members < 1 || o.partitions < 1 {
		fmt.Fprintln(os.Stderr, "demo: -kill is 1 to 3, -members and -partitions at least 1")
		return 2
	}
	// Children die with the thread that started them; main's lives as long as the process.
	runtime.LockOSThread()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	r, dir, err := run(ctx, o)
	if err != nil {
		fmt.Fprintf(os.Stderr, "demo: %v\n", err)
		fmt.Fprintf(os.Stderr, "demo: logs are in %s\n", dir)
		return 1
	}
	r.print(os.Stdout)
	if r.bad() || len(r.faults) > 0 {
		fmt.Printf("FAILED. Logs are in %s\n", dir)
		return 1
	}
	if !o.keep && o.dir == "" {
		if err := os.RemoveAll(dir); err != nil {
			fmt.Fprintf(os.Stderr, "demo: %v\n", err)
		}
	}
	return 0
}

func run(ctx context.Context, o options) (res result, dir string, err error) {
	if dir = o.dir; dir == "" {
		if dir, err = os.MkdirTemp("", "barnabas-demo-"); err != nil {
			return res, dir, err
		}
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return res, dir, err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return res, dir, err
	}
	o.dir = dir
	if o.bin, err = filepath.Abs(o.bin); err != nil {
		return res, dir, err
	}
	in, err := goSources(ctx, o.limit)
	if err != nil {
		return res, dir, err
	}
	fmt.Printf("input: %s lines in %s Go files, %.1f MB, the longest %s bytes, %s empty\n", comma(in.lines), comma(int64(len(in.files))),
		float64(in.bytes)/1e6, comma(in.longest), comma(in.empty))
	d := &demo{options: o, ledger: newLedger(o.partitions, o.members, int(in.lines))}
	ctx, cancel := context.WithCancel(ctx)
	defer func() {
		cancel()
		d.stopAll()
	}()
	res, err = d.play(ctx, in)
	return res, dir, err
}

// play is the run itself, from the start of the cluster to the account.
func (d *demo) play(ctx context.Context, in *input) (res result, err error) {
	begin := time.Now()
	if err := d.startCluster(ctx); err != nil {
		return res, err
	}
	kind := chooseMembers(d.bin, d.tools)
	res.kind = kind.name
	fmt.Printf("cluster: %s, ZooKeeper port %s; members: %d %s\n", d.kafka(), d.zookeeper(), d.options.members, kind.name)
	if err := d.startMembers(ctx, kind, d.options.members); err != nil {
		return res, err
	}
	if err := d.waitSettled(ctx, d.options.members); err != nil {
		return res, err
	}
	produced := make(chan error, 1)
	d.wg.Go(func() {
		var err error
		res.produced, err = d.produce(ctx, in)
		produced <- err
	})
	if err := d.watch(ctx, in.lines, produced); err != nil {
		return res, err
	}
	shares, err := d.shares()
	if err != nil {
		d.note(fmt.Errorf("read the owners: %w", err))
	}
	res.shares = sharesText(shares, d.options.members)
	d.stopMembers()
	res.account = d.ledger.total()
	res.took = time.Since(begin)
	d.mu.Lock()
	res.faults = d.faults
	d.mu.Unlock()
	return res, nil
}

func (d *demo) spawn(name string, cmd *exec.Cmd) (*process, error) {
	p, err := spawn(d.dir, name, cmd)
	if err == nil {
		d.children = append(d.children, p)
	}
	return p, err
}

// note keeps a fault that fails the run without ending it.
func (d *demo) note(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.faults = append(d.faults, err)
}

func (d *demo) zookeeper() string {
	if d.zookeeperAt != "" {
		return d.zookeeperAt
	}
	var out []string
	for _, n := range d.cluster.Nodes {
		out = append(out, n.ZooKeeper)
	}
	return strings.Join(out, ",")
}

func (d *demo) kafka() string {
	if d.brokers != "" {
		return d.brokers
	}
	var out []string
	for _, n := range d.cluster.Nodes {
		out = append(out, n.Kafka)
	}
	return strings.Join(out, ",")
}

func (d *demo) startCluster(ctx context.Context) error {
	replicas := 3
	if d.brokers == "" {
		if err := d.startDev(ctx); err != nil {
			return err
		}
	} else {
		replicas = min(3, strings.Count(d.brokers, ",")+1)
	}
	out, err := exec.CommandContext(ctx, d.bin, "topic", "create", topic, "-b", d.kafka(), "--partitions", strconv.Itoa(d.partitions),
		"--replication-factor", strconv.Itoa(replicas), "--config", "max.message.bytes=4194304").CombinedOutput()
	if err != nil {
		return fmt.Errorf("create the topic: %w: %s", err, out)
	}
	d.zk, _, err = zk.Connect(strings.Split(d.zookeeper(), ","), 20*time.Second, zk.WithLogInfo(false), zk.WithLogger(quiet{}))
	return err
}

// quiet drops the library's lines about the broker that the demo itself has killed; failures come back as errors.
type quiet struct{}

func (quiet) Printf(string, ...any) {}

// startDev starts three brokers and returns when they serve.
func (d *demo) startDev(ctx context.Context) error {
	dir := filepath.Join(d.dir, "cluster")
	cmd := exec.Command(d.bin, "dev", "--nodes", "3", "--dir", dir, "--kafka-port", strconv.Itoa(d.kafkaPort), "--zk-port", strconv.Itoa(d.zkPort),
		"--admin-port", strconv.Itoa(d.admin), "--cluster-port", strconv.Itoa(d.peers))
	var err error
	if d.dev, err = d.spawn("dev", cmd); err != nil {
		return err
	}
	d.wg.Go(d.dev.wait)
	for {
		if d.cluster, err = devcluster.Read(dir); err == nil {
			return nil
		}
		if !errors.Is(err, os.ErrNotExist) {
			return err
		}
		if err := d.anyEnded(); err != nil {
			return err
		}
		if !d.pause(ctx, 50*time.Millisecond) {
			return ctx.Err()
		}
	}
}

// produce runs `barnabas produce` and notes its acks.
func (d *demo) produce(ctx context.Context, in *input) (s produceSummary, err error) {
	acksR, acksW, err := os.Pipe()
	if err != nil {
		return s, err
	}
	cmd := exec.Command(d.bin, "produce", "-b", d.kafka(), "--topic", topic, "--key", "number", "--max-message-bytes", "2097152",
		"--acks-file", "/dev/fd/3", "-o", "json")
	cmd.ExtraFiles = []*os.File{acksW}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return s, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return s, err
	}
	p, err := d.spawnLocked("produce", cmd)
	acksW.Close()
	if err != nil {
		acksR.Close()
		return s, err
	}
	stop := context.AfterFunc(ctx, func() { _ = p.cmd.Process.Signal(syscall.SIGTERM) })
	defer stop()
	var readers sync.WaitGroup
	var ackErr, outErr error
	var text []byte
	readers.Go(func() {
		defer acksR.Close()
		ackErr = eachLine(acksR, func(line []byte) {
			if partition, offset, key, ok := parseAck(line); ok {
				d.ledger.ack(partition, offset, key)
			} else {
				d.note(fmt.Errorf("an ack that cannot be read: %q", line))
			}
		})
	})
	readers.Go(func() { text, outErr = io.ReadAll(stdout) })
	feedErr := in.feed(ctx, d.limit, stdin, d.ledger)
	stdin.Close()
	readers.Wait()
	p.wait()
	if err := errors.Join(ackErr, outErr); err != nil {
		return s, err
	}
	if p.err != nil {
		return s, fmt.Errorf("produce: %w (%v)\n%s", p.err, feedErr, p.tail())
	}
	if feedErr != nil {
		return s, fmt.Errorf("feed produce: %w", feedErr)
	}
	return s, json.Unmarshal(text, &s)
}

// watch shows progress, kills a broker at a third, starts it again at two thirds, and returns when everything that was acked
// has arrived, or when nothing arrives any more.
func (d *demo) watch(ctx context.Context, lines int64, produced <-chan error) error {
	show := newShow(lines)
	defer show.end()
	var victim devcluster.Node
	killed, restarted, finished := false, false, false
	if d.dev == nil {
		killed, restarted = true, true // not ours to kill
	} else {
		victim = d.cluster.Nodes[d.kill-1]
	}
	last, lastChange := int64(0), time.Now()
	const patience = time.Minute
	for {
		select {
		case err := <-produced:
			if err != nil {
				return err
			}
			finished = true
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
		if err := d.anyEnded(); err != nil {
			return err
		}
		sent, acked, received := d.ledger.counts()
		if !killed && acked >= lines/3 {
			killed = true
			show.event("SIGKILL to broker %d (pid %d)", victim.ID, victim.PID)
			if err := syscall.Kill(victim.PID, syscall.SIGKILL); err != nil {
				return fmt.Errorf("kill broker %d: %w", victim.ID, err)
			}
		}
		if killed && !restarted && acked >= 2*lines/3 {
			restarted = true
			show.event("broker %d starts again", victim.ID)
			if err := d.restartBroker(victim); err != nil {
				return err
			}
		}
		show.update(sent, acked, received)
		if n := acked + received; n != last {
			last, lastChange = n, time.Now()
		}
		if finished && received >= acked || time.Since(lastChange) > patience {
			if !finished {
				return fmt.Errorf("nothing was acked or received for %s: %s acked, %s received", patience, comma(acked), comma(received))
			}
			return nil
		}
	}
}

func (d *demo) restartBroker(n devcluster.Node) error {
	p, err := d.spawn(fmt.Sprintf("broker-%d-again", n.ID), exec.Command(d.bin, "server", "--config", n.Config))
	if err != nil {
		return err
	}
	d.restart = p
	d.wg.Go(p.wait)
	return nil
}

// spawnLocked is spawn for another goroutine than play's: the thread must outlive the child.
func (d *demo) spawnLocked(name string, cmd *exec.Cmd) (*process, error) {
	runtime.LockOSThread() // produce's goroutine returns only after the child's end
	return spawn(d.dir, name, cmd)
}

// anyEnded reports a child that ended without having been asked to.
func (d *demo) anyEnded() error {
	for _, p := range d.children {
		if p.ended() && !p.stopped {
			return fmt.Errorf("%s ended: %v\n%s", p.name, p.err, p.tail())
		}
	}
	return nil
}

func (d *demo) pause(ctx context.Context, t time.Duration) bool {
	timer := time.NewTimer(t)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func (d *demo) stopMembers() {
	var wg sync.WaitGroup
	for _, p := range d.members {
		wg.Go(func() {
			if err := p.stop(syscall.SIGTERM, 30*time.Second); err != nil {
				d.note(fmt.Errorf("%s: %w\n%s", p.name, err, p.tail()))
			}
		})
	}
	wg.Wait()
	d.members = nil
}

// stopAll ends what still runs, members first.
func (d *demo) stopAll() {
	d.stopMembers()
	if d.zk != nil {
		d.zk.Close()
	}
	if d.restart != nil {
		_ = d.restart.stop(syscall.SIGTERM, 30*time.Second)
	}
	if d.dev != nil {
		_ = d.dev.stop(syscall.SIGTERM, 60*time.Second)
	}
	d.wg.Wait()
}

func (r result) print(out io.Writer) {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', tabwriter.AlignRight)
	row := func(name string, value any, note string) { fmt.Fprintf(w, "%s\t%v\t\n", name+note, value) }
	fmt.Fprintln(out)
	row("lines sent", comma(r.sent), "")
	row("lines acked", comma(r.acked), "")
	row("lines received", comma(r.received), "")
	row("lost", comma(r.lost), " (acked and not received)")
	row("keys at two offsets", comma(r.keysTwice), "")
	row("damaged or never sent", comma(r.corrupt+r.strangers+r.contradictory), "")
	row("delivered again", comma(r.redelivered), " (same offset)")
	row("longest produce stall", fmt.Sprintf("%.3f s", r.produced.LongestStallSeconds), "")
	row("produce", fmt.Sprintf("%.1f s, %s lines/s", r.produced.Seconds, comma(int64(float64(r.produced.Acked)/max(r.produced.Seconds, 0.001)))), "")
	for i, n := range r.members {
		row(fmt.Sprintf("received by m%d", i+1), comma(n), "")
	}
	row("partitions per member", r.shares, "")
	row("whole run", r.took.Round(100*time.Millisecond), "")
	w.Flush()
	if r.firstFault != "" {
		fmt.Fprintf(out, "first fault: %s\n", r.firstFault)
	}
	for _, err := range r.faults {
		fmt.Fprintf(out, "fault: %v\n", err)
	}
}
