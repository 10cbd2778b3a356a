package integration

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/barnabas-mq/barnabas/integration/check"
	"github.com/barnabas-mq/barnabas/integration/harness"
	"github.com/barnabas-mq/barnabas/internal/testtool"
)

// receipts reads what the Java consumers wrote so far: whole lines alone.
func receipts(t *testing.T, files map[string]string, topic string) []check.Record {
	t.Helper()
	var all []check.Record
	for name, file := range files {
		data, err := os.ReadFile(file)
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		data = data[:bytes.LastIndexByte(data, '\n')+1]
		for line := range bytes.Lines(data) {
			var r struct {
				check.Record
				Event string `json:"event"`
			}
			if err := json.Unmarshal(line, &r); err != nil {
				t.Fatalf("%s: %q: %v", file, line, err)
			}
			if r.Event == "" {
				r.Client, r.Topic = name, topic
				all = append(all, r.Record)
			}
		}
	}
	return all
}

// observer notes, until it is stopped, who holds each partition by the owner znodes of a group, and when records appear in the
// members' files. One goroutine.
type observer struct {
	t        *testing.T
	zk       *zk.Conn
	owners   string // the path of the topic's owner znodes
	topic    string
	files    map[string]string
	read     map[string]int64 // bytes of each file seen so far
	current  map[int32]*check.Ownership
	owned    []check.Ownership
	receipts []check.Receipt
	stop     chan struct{}
	done     chan struct{}
}

func observe(t *testing.T, zookeeper, group, topic string, files map[string]string) *observer {
	t.Helper()
	conn, _, err := zk.Connect(strings.Split(zookeeper, ","), 20*time.Second, zk.WithLogger(quiet{}))
	if err != nil {
		t.Fatal(err)
	}
	o := &observer{t: t, zk: conn, owners: "/consumers/" + group + "/owners/" + topic, topic: topic, files: files, read: map[string]int64{},
		current: map[int32]*check.Ownership{}, stop: make(chan struct{}), done: make(chan struct{})}
	go o.run()
	return o
}

// quiet drops what the ZooKeeper client says of its connections.
type quiet struct{}

func (quiet) Printf(string, ...any) {}

func (o *observer) run() {
	defer close(o.done)
	defer o.zk.Close()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-o.stop:
			return
		case <-tick.C:
			o.lookAtOwners()
			o.lookAtFiles()
		}
	}
}

func (o *observer) lookAtOwners() {
	children, _, err := o.zk.Children(o.owners)
	if err != nil {
		return // not there yet, or a fail-over: intervals grow by what is seen
	}
	held := map[int32]bool{}
	for _, child := range children {
		data, _, err := o.zk.Get(o.owners + "/" + child)
		n, numErr := strconv.Atoi(child)
		if err != nil || numErr != nil {
			continue
		}
		p, now := int32(n), time.Now()
		owner := strings.TrimPrefix(string(data[:max(0, bytes.LastIndexByte(data, '-'))]), strings.Split(o.owners, "/")[2]+"_")
		held[p] = true
		if c := o.current[p]; c != nil && c.Owner == owner {
			c.To = now
			continue
		}
		o.end(p)
		o.current[p] = &check.Ownership{Owner: owner, Topic: o.topic, Partition: p, From: now, To: now}
	}
	for p := range o.current {
		if !held[p] {
			o.end(p)
		}
	}
}

func (o *observer) end(p int32) {
	if c := o.current[p]; c != nil {
		o.owned = append(o.owned, *c)
		delete(o.current, p)
	}
}

func (o *observer) lookAtFiles() {
	now := time.Now()
	for name, file := range o.files {
		f, err := os.Open(file)
		if err != nil {
			continue
		}
		data, err := io.ReadAll(io.NewSectionReader(f, o.read[name], 1<<30))
		f.Close()
		if err != nil {
			continue
		}
		data = data[:bytes.LastIndexByte(data, '\n')+1]
		o.read[name] += int64(len(data))
		seen := map[int32]bool{}
		for line := range bytes.Lines(data) {
			var r struct {
				Partition *int32 `json:"partition"`
			}
			if json.Unmarshal(line, &r) == nil && r.Partition != nil && !seen[*r.Partition] {
				seen[*r.Partition] = true
				owner, _, _ := strings.Cut(name, " ") // "a again" is member a in its second process
				o.receipts = append(o.receipts, check.Receipt{Owner: owner, Topic: o.topic, Partition: *r.Partition, At: now})
			}
		}
	}
}

// verify ends the observation and returns what was wrong. It logs how many partitions each member held at its best.
func (o *observer) verify(slack time.Duration) []check.Fault {
	o.t.Helper()
	close(o.stop)
	<-o.done
	for p := range o.current {
		o.end(p)
	}
	o.t.Logf("%d intervals of ownership, %d receipts", len(o.owned), len(o.receipts))
	if len(o.owned) == 0 || len(o.receipts) == 0 {
		o.t.Error("the observer saw nothing")
	}
	return append(check.OneOwner(o.owned, 0), check.ReadByOwner(o.receipts, o.owned, slack)...)
}

// awaitReceipts returns when each of the members has received something.
func awaitReceipts(t *testing.T, files map[string]string, members ...string) {
	t.Helper()
	testtool.Eventually(t, 2*harness.StartLimit, func() error {
		n := map[string]int{}
		for _, r := range receipts(t, files, "") {
			n[r.Client]++
		}
		for _, m := range members {
			if n[m] == 0 {
				return fmt.Errorf("%s received nothing; received so far: %v", m, n)
			}
		}
		return nil
	})
}
