// Command znodes measures how fast small writes are ordered: znode creates through the ZooKeeper protocol at a real
// three-node ZooKeeper and at a three-node barnabas, by the same client, and commands proposed inside barnabas (three
// Raft nodes over their cluster ports in this process, answered after local apply) on the leader and on a follower. All in
// one run, one after the other at each step, so that the ratios stand when the machine's speed drifts. Run it by
// `make bench-znodes`.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/go-zookeeper/zk"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "znodes:", err)
		os.Exit(1)
	}
}

// system is one side of the comparison.
type system struct {
	name    string
	servers []string // host:port, one per node; nil for proposals
	propose func(ctx context.Context, path string, data []byte) error
	stop    func()
}

// options are the flags.
type options struct {
	bin, jars        string
	clients, systems string
	base, rounds     int
	slice            time.Duration
	warm             int
	profile          string
	verbose          bool
}

func flags() (o options) {
	flag.StringVar(&o.bin, "bin", "bin/barnabas", "the barnabas binary")
	flag.StringVar(&o.jars, "zookeeper", ".tools/zookeeper-3.9.5/lib", "folder with ZooKeeper's jars")
	flag.StringVar(&o.clients, "clients", "1,32,256", "concurrent clients, each with a connection of its own")
	flag.StringVar(&o.systems, "systems", "zookeeper,barnabas,leader,follower", "what to measure; ratios are to the first")
	flag.IntVar(&o.base, "port", 23100, "first of 40 free ports, for barnabas")
	flag.IntVar(&o.rounds, "rounds", 5, "how often each number of clients is measured at each system, in turn")
	flag.DurationVar(&o.slice, "time", 2*time.Second, "length of one measurement in a round")
	flag.IntVar(&o.warm, "warm", 3, "passes of 5 s with 32 clients before, for the JVMs")
	flag.StringVar(&o.profile, "profile", "", "folder for CPU, block and mutex profiles of this process (the proposals) per line")
	flag.BoolVar(&o.verbose, "v", false, "print every round")
	flag.Parse()
	return o
}

func run() error {
	o := flags()
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	dir, err := os.MkdirTemp("", "znodes-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	all, stop, err := start(ctx, o, dir)
	defer stop()
	if err != nil {
		return err
	}
	for pass := range o.warm { // the JVMs get warm; so do we, to be fair
		for _, s := range all {
			if _, err := measure(ctx, s, 32, 5*time.Second, fmt.Sprintf("warm%d", pass)); err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
		}
	}
	fmt.Printf("%-22s %8s %12s %10s %10s %10s %10s  %s\n", "system", "clients", "creates/s", "p50", "p99", "max", "ratio", "rounds, creates/s")
	for _, n := range strings.Split(o.clients, ",") {
		c, err := strconv.Atoi(n)
		if err != nil || c < 1 {
			return fmt.Errorf("-clients %q: numbers above 0", o.clients)
		}
		if err := line(ctx, o, all, c); err != nil {
			return err
		}
	}
	return nil
}

// start starts the systems asked for, in the order asked.
func start(ctx context.Context, o options, dir string) (all []system, stop func(), err error) {
	stop = func() {
		for _, s := range all {
			s.stop()
		}
	}
	var onLeader, onFollower system
	for _, name := range strings.Split(o.systems, ",") {
		var s system
		switch name {
		case "zookeeper":
			s, err = startZooKeeper(ctx, o.jars, filepath.Join(dir, name))
		case "barnabas":
			s, err = startBarnabas(ctx, o.bin, filepath.Join(dir, name), o.base)
		case "leader", "follower":
			if onLeader.propose == nil {
				if onLeader, onFollower, err = startRaft(ctx, filepath.Join(dir, "raft")); err != nil {
					return all, stop, err
				}
			}
			if s = onLeader; name == "follower" {
				s = onFollower
			}
		default:
			err = fmt.Errorf("-systems %q: zookeeper, barnabas, leader, follower", o.systems)
		}
		if err != nil {
			return all, stop, err
		}
		all = append(all, s)
	}
	return all, stop, nil
}

// line measures one number of clients at all systems. They take turns, round by round, and their rates and latencies are those of
// the median round: a machine or disk that is busy for a while spoils a round of each, not the figure of one.
func line(ctx context.Context, o options, all []system, clients int) error {
	rounds := make([][]result, len(all))
	for round := range o.rounds {
		for i, s := range all {
			stop, err := profile(o.profile, fmt.Sprintf("%s-%d-%d", strings.ReplaceAll(s.name, " ", "-"), clients, round))
			if err != nil {
				return err
			}
			r, err := measure(ctx, s, clients, o.slice, fmt.Sprintf("round%d", round))
			if err = errors.Join(err, stop()); err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
			if o.verbose {
				fmt.Printf("%-22s %8d %12.0f %10v %10v %10v\n", s.name, clients, r.rate, shown(r.p50), shown(r.p99), shown(r.max))
			}
			rounds[i] = append(rounds[i], r)
		}
	}
	base := 0.0
	for i, s := range all {
		m, rates := median(rounds[i])
		if i == 0 {
			base = m.rate
		}
		fmt.Printf("%-22s %8d %12.0f %10v %10v %10v %9.2fx  %.0f\n", s.name, clients, m.rate, shown(m.p50), shown(m.p99), shown(m.max), m.rate/base, rates)
	}
	return nil
}

func shown(d time.Duration) time.Duration { return d.Round(10 * time.Microsecond) }

// median takes each figure's median, but the worst of the latencies that are a worst case; and the rates in the order measured.
func median(rs []result) (m result, rates []float64) {
	var p50, p99 []time.Duration
	for _, r := range rs {
		rates, p50, p99, m.max = append(rates, r.rate), append(p50, r.p50), append(p99, r.p99), max(m.max, r.max)
	}
	slices.Sort(p50)
	slices.Sort(p99)
	sorted := slices.Sorted(slices.Values(rates))
	m.rate, m.p50, m.p99 = sorted[len(sorted)/2], p50[len(p50)/2], p99[len(p99)/2]
	return m, rates
}

// profile writes what this process does until stop is called; nothing without a folder.
func profile(dir, name string) (stop func() error, err error) {
	if dir == "" {
		return func() error { return nil }, nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	f, err := os.Create(filepath.Join(dir, name+".cpu"))
	if err != nil {
		return nil, err
	}
	runtime.SetBlockProfileRate(10_000) // the profiles of blocks and of mutexes go on from line to line: pprof -base takes differences
	runtime.SetMutexProfileFraction(10)
	if err := pprof.StartCPUProfile(f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() error {
		pprof.StopCPUProfile()
		err := f.Close()
		for _, kind := range []string{"block", "mutex"} {
			p, e := os.Create(filepath.Join(dir, name+"."+kind))
			if err = errors.Join(err, e); e == nil {
				err = errors.Join(err, pprof.Lookup(kind).WriteTo(p, 0), p.Close())
			}
		}
		return err
	}, nil
}

type result struct {
	rate          float64
	p50, p99, max time.Duration
}

// measure lets clients create nodes of 100 bytes, one after the other each, spread over the servers.
func measure(ctx context.Context, s system, clients int, length time.Duration, name string) (result, error) {
	root := "/znodes-" + strings.ReplaceAll(s.name, " ", "") + "-" + name + "-" + strconv.Itoa(clients)
	ctx, cancel := context.WithTimeout(ctx, length+30*time.Second)
	defer cancel()
	creates, closeAll, err := clientsOf(ctx, s, clients, root)
	if err != nil {
		return result{}, err
	}
	defer closeAll()
	data := make([]byte, 100)
	var wg sync.WaitGroup
	took := make([][]time.Duration, clients)
	errs := make([]error, clients)
	start := time.Now()
	for i, create := range creates {
		wg.Go(func() {
			for n := 0; time.Since(start) < length; n++ {
				at := time.Now()
				if err := create(fmt.Sprintf("%s/c%d-%d", root, i, n), data); err != nil {
					errs[i] = err
					return
				}
				took[i] = append(took[i], time.Since(at))
			}
		})
	}
	wg.Wait()
	all := slices.Concat(took...)
	if err := errors.Join(errs...); err != nil {
		return result{}, err
	}
	slices.Sort(all)
	return result{rate: float64(len(all)) / time.Since(start).Seconds(), p50: all[len(all)/2], p99: all[len(all)*99/100], max: all[len(all)-1]}, nil
}

// clientsOf makes the clients of a measurement, and the node below which they create.
func clientsOf(ctx context.Context, s system, clients int, root string) (creates []func(string, []byte) error, closeAll func(), err error) {
	if s.propose != nil {
		for range clients {
			creates = append(creates, func(path string, data []byte) error { return s.propose(ctx, path, data) })
		}
		return creates, func() {}, s.propose(ctx, root, nil)
	}
	var conns []*zk.Conn
	closeAll = func() {
		for _, c := range conns {
			c.Close()
		}
	}
	for i := range clients {
		c, err := dial(ctx, s.servers[i%len(s.servers)])
		if err != nil {
			closeAll()
			return nil, nil, err
		}
		conns = append(conns, c)
		creates = append(creates, func(path string, data []byte) error {
			_, err := c.Create(path, data, 0, zk.WorldACL(zk.PermAll))
			return err
		})
	}
	if err := creates[0](root, nil); err != nil && !errors.Is(err, zk.ErrNodeExists) {
		closeAll()
		return nil, nil, err
	}
	for _, c := range conns { // every server shows the root before the clock starts
		if _, err := c.Sync(root); err != nil {
			closeAll()
			return nil, nil, err
		}
	}
	return creates, closeAll, nil
}

type quiet struct{}

func (quiet) Printf(string, ...any) {}

func dial(ctx context.Context, server string) (*zk.Conn, error) {
	c, events, err := zk.Connect([]string{server}, 20*time.Second, zk.WithLogger(quiet{}))
	if err != nil {
		return nil, err
	}
	for {
		select {
		case e := <-events:
			if e.State == zk.StateHasSession {
				return c, nil
			}
		case <-ctx.Done():
			c.Close()
			return nil, fmt.Errorf("no session with %s: %w", server, ctx.Err())
		}
	}
}

// ports reserves n free loopback ports for a moment; a program of ours takes them next.
func ports(n int) ([]int, error) {
	var out []int
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close()
		out = append(out, l.Addr().(*net.TCPAddr).Port)
	}
	return out, nil
}

func startZooKeeper(ctx context.Context, jars, dir string) (system, error) {
	p, err := ports(9)
	if err != nil {
		return system{}, err
	}
	s := system{name: "zookeeper"}
	var cmds []*exec.Cmd
	s.stop = func() { end(cmds) }
	for n := range 3 {
		home := filepath.Join(dir, strconv.Itoa(n+1))
		if err := os.MkdirAll(home, 0o755); err != nil {
			return s, err
		}
		cfg := fmt.Sprintf("tickTime=2000\ninitLimit=10\nsyncLimit=5\ndataDir=%s\nclientPort=%d\nclientPortAddress=127.0.0.1\nadmin.enableServer=false\nmaxClientCnxns=0\n", home, p[n])
		for m := range 3 {
			cfg += fmt.Sprintf("server.%d=127.0.0.1:%d:%d\n", m+1, p[3+m], p[6+m])
		}
		if err := errors.Join(os.WriteFile(filepath.Join(home, "zoo.cfg"), []byte(cfg), 0o644),
			os.WriteFile(filepath.Join(home, "myid"), []byte(strconv.Itoa(n+1)), 0o644)); err != nil {
			s.stop()
			return s, err
		}
		cmd := exec.Command("java", "-Xmx512m", "-cp", filepath.Join(jars, "*"), "org.apache.zookeeper.server.quorum.QuorumPeerMain", filepath.Join(home, "zoo.cfg"))
		cmd.Stdout, cmd.Stderr = io.Discard, io.Discard
		if err := cmd.Start(); err != nil {
			s.stop()
			return s, err
		}
		cmds = append(cmds, cmd)
		s.servers = append(s.servers, "127.0.0.1:"+strconv.Itoa(p[n]))
	}
	for _, a := range s.servers {
		c, err := dial(ctx, a)
		if err != nil {
			s.stop()
			return s, err
		}
		c.Close()
	}
	return s, nil
}

func startBarnabas(ctx context.Context, bin, dir string, port int) (system, error) {
	s := system{name: "barnabas"}
	args := []string{"dev", "--nodes", "3", "--dir", dir}
	for i, flag := range []string{"--kafka-port", "--zk-port", "--admin-port", "--cluster-port"} {
		args = append(args, flag, strconv.Itoa(port+10*i)) // dev says so when one is taken
	}
	cmd := exec.Command(bin, args...)
	cmd.Stdout, cmd.Stderr = io.Discard, os.Stderr
	if err := cmd.Start(); err != nil {
		return s, err
	}
	s.stop = func() { end([]*exec.Cmd{cmd}) }
	for n := range 3 {
		s.servers = append(s.servers, "127.0.0.1:"+strconv.Itoa(port+10+n))
	}
	for _, a := range s.servers {
		c, err := dial(ctx, a)
		if err != nil {
			s.stop()
			return s, err
		}
		c.Close()
	}
	return s, nil
}

// end stops processes that this program started, by pid, and waits for them.
func end(cmds []*exec.Cmd) {
	for _, c := range cmds {
		_ = c.Process.Signal(syscall.SIGTERM)
	}
	for _, c := range cmds {
		_ = c.Wait()
	}
}
