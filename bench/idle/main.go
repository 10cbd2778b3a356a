// Command idle measures what barnabas costs when nobody uses it: the size of the binary, the time from the start of a
// three-node cluster to its first topic, and the CPU and memory of its idle processes, without topics and with one of 12
// partitions and three replicas. Linux only: it reads /proc. Run it by `make bench-idle`, on a machine that does nothing else.
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
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	topic      = "idle"
	partitions = 12
	replicas   = 3
	startLimit = 30 * time.Second
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "idle:", err)
		os.Exit(1)
	}
}

func run() error {
	bin := flag.String("bin", "bin/barnabas", "the barnabas binary")
	base := flag.Int("port", 23200, "first of 40 free ports")
	settle := flag.Duration("settle", 15*time.Second, "pause before a measurement")
	length := flag.Duration("time", 60*time.Second, "length of a measurement")
	flag.Parse()
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	st, err := os.Stat(*bin)
	if err != nil {
		return err
	}
	fmt.Printf("%-34s %.1f MB\n", "size of the binary", float64(st.Size())/1e6)
	dir, err := os.MkdirTemp("", "idle-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	began := time.Now()
	dev, err := start(*bin, dir, *base)
	if err != nil {
		return err
	}
	defer func() {
		_ = dev.Process.Signal(syscall.SIGTERM) // by pid: only what this program started
		_ = dev.Wait()
	}()
	if err := create(ctx, *base); err != nil {
		return err
	}
	fmt.Printf("%-34s %v (goal 2s)\n", "start to the first topic", time.Since(began).Round(10*time.Millisecond))
	if err := remove(ctx, *base); err != nil {
		return err
	}
	for _, with := range []string{"without topics", fmt.Sprintf("with %d partitions, RF %d", partitions, replicas)} {
		if strings.HasPrefix(with, "with ") {
			if err := create(ctx, *base); err != nil {
				return err
			}
		}
		nodes, err := nodePIDs(dir)
		if err != nil {
			return err
		}
		if err := idle(ctx, with, dev.Process.Pid, nodes, *settle, *length); err != nil {
			return err
		}
	}
	return nil
}

func start(bin, dir string, port int) (*exec.Cmd, error) {
	args := []string{"dev", "--nodes", "3", "--dir", filepath.Join(dir, "cluster")}
	for i, flag := range []string{"--kafka-port", "--zk-port", "--admin-port", "--cluster-port"} {
		args = append(args, flag, strconv.Itoa(port+10*i)) // dev says so when one is taken
	}
	dev := exec.Command(bin, args...)
	dev.Stdout, dev.Stderr = io.Discard, os.Stderr
	return dev, dev.Start()
}

// admin makes a client that is gone before anything is measured.
func admin(port int, do func(*kadm.Client) error) error {
	var seeds []string
	for n := range 3 {
		seeds = append(seeds, "127.0.0.1:"+strconv.Itoa(port+n))
	}
	c, err := kgo.NewClient(kgo.SeedBrokers(seeds...), kgo.RequestRetries(0))
	if err != nil {
		return err
	}
	defer c.Close()
	return do(kadm.NewClient(c))
}

// create makes the topic, as soon as a broker takes the request.
func create(ctx context.Context, port int) error {
	for end := time.Now().Add(startLimit); ; {
		err := admin(port, func(a *kadm.Client) error {
			ctx, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			r, err := a.CreateTopic(ctx, partitions, replicas, nil, topic)
			return errors.Join(err, r.Err)
		})
		if err == nil {
			return nil
		}
		if ctx.Err() != nil || time.Now().After(end) {
			return fmt.Errorf("no broker made the topic within %v: %w", startLimit, err)
		}
		time.Sleep(10 * time.Millisecond) // the ports are not open yet: there is no event to wait for
	}
}

func remove(ctx context.Context, port int) error {
	return admin(port, func(a *kadm.Client) error {
		r, err := a.DeleteTopic(ctx, topic)
		return errors.Join(err, r.Err)
	})
}

func nodePIDs(dir string) (pids []int, err error) {
	file := filepath.Join(dir, "cluster", "cluster.json")
	b, err := os.ReadFile(file)
	for end := time.Now().Add(startLimit); os.IsNotExist(err) && time.Now().Before(end); b, err = os.ReadFile(file) {
		time.Sleep(10 * time.Millisecond) // dev writes it when all nodes serve; the first topic needs fewer
	}
	if err != nil {
		return nil, err
	}
	var c struct {
		Nodes []struct {
			PID int `json:"pid"`
		} `json:"nodes"`
	}
	if err := json.Unmarshal(b, &c); err != nil {
		return nil, err
	}
	for _, n := range c.Nodes {
		pids = append(pids, n.PID)
	}
	return pids, nil
}

// idle prints the figures of one state of the cluster.
func idle(ctx context.Context, with string, dev int, nodes []int, settle, length time.Duration) error {
	pause := func(d time.Duration) error {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(d):
			return nil
		}
	}
	if err := pause(settle); err != nil {
		return err
	}
	all := append([]int{dev}, nodes...)
	before, at, err := usages(all)
	if err != nil {
		return err
	}
	if err := pause(length); err != nil {
		return err
	}
	after, end, err := usages(all)
	if err != nil {
		return err
	}
	took := end.Sub(at)
	var total usage
	var each []string
	for i := range all {
		u := usage{after[i].cpu - before[i].cpu, after[i].runs - before[i].runs}
		total.cpu, total.runs = total.cpu+u.cpu, total.runs+u.runs
		each = append(each, fmt.Sprintf("%.2f", 100*u.cpu.Seconds()/took.Seconds()))
	}
	fmt.Printf("%-34s %.2f %% of a core (goal 2; dev %s, nodes %s), threads scheduled %.0f times a second\n", "idle CPU "+with,
		100*total.cpu.Seconds()/took.Seconds(), each[0], strings.Join(each[1:], " "), float64(total.runs)/took.Seconds())
	var sizes []string
	for _, pid := range nodes {
		kb, err := resident(pid)
		if err != nil {
			return err
		}
		sizes = append(sizes, fmt.Sprintf("%.1f", float64(kb)/1000))
	}
	fmt.Printf("%-34s %s MB a node, resident (goal 40)\n", "idle memory "+with, strings.Join(sizes, " "))
	return nil
}

// usage is what a process has used: time on a CPU, and how often one of its threads was put on one.
type usage struct {
	cpu  time.Duration
	runs int64
}

func usages(pids []int) (us []usage, at time.Time, err error) {
	for _, pid := range pids {
		u, err := usageOf(pid)
		if err != nil {
			return nil, at, err
		}
		us = append(us, u)
	}
	return us, time.Now(), nil
}

// usageOf sums the threads. Those of Go's runtime stay, so none is lost between two readings.
func usageOf(pid int) (u usage, err error) {
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err != nil || len(files) == 0 {
		return u, fmt.Errorf("process %d is gone, or /proc has no schedstat: %w", pid, errors.Join(err, os.ErrNotExist))
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			return u, err
		}
		var on, waited, runs int64
		if _, err := fmt.Sscan(string(b), &on, &waited, &runs); err != nil {
			return u, fmt.Errorf("%s: %w", f, err)
		}
		u.cpu, u.runs = u.cpu+time.Duration(on), u.runs+runs
	}
	return u, nil
}

// resident is VmRSS in kB.
func resident(pid int) (int64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			return strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
		}
	}
	return 0, fmt.Errorf("process %d has no VmRSS: it has ended", pid)
}
