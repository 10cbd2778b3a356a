package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"
)

const (
	topic     = "demo"
	groupName = "demo"
)

// memberKind is how a member is run.
type memberKind struct {
	name    string
	command func(ctx context.Context, zookeeper string, id string) *exec.Cmd
}

// chooseMembers takes Apache Kafka 0.8.2.2's Java consumer when Java and its jars are there, else our own by the same rules.
func chooseMembers(bin, tools string) memberKind {
	jars := filepath.Join(tools, "kafka-0.8.2.2", "lib")
	classes := filepath.Join(tools, "classes")
	java, err := exec.LookPath("java")
	_, err2 := os.Stat(jars)
	_, err3 := os.Stat(filepath.Join(classes, "HighLevelConsumer082.class"))
	if err == nil && err2 == nil && err3 == nil {
		return memberKind{"Apache Kafka 0.8.2.2 high-level consumers (Java)", func(ctx context.Context, zookeeper, id string) *exec.Cmd {
			return exec.CommandContext(ctx, java, "-Xmx256m", "-XX:+UseSerialGC", "-cp", classes+string(os.PathListSeparator)+filepath.Join(jars, "*"),
				"HighLevelConsumer082", "--zookeeper", zookeeper, "--group", groupName, "--topic", topic, "--id", id,
				"--fetch-max-bytes", "4194304", "--auto-commit-ms", "1000", "--from", "smallest")
		}}
	}
	return memberKind{"barnabas consume --zookeeper (no Java here)", func(ctx context.Context, zookeeper, id string) *exec.Cmd {
		return exec.CommandContext(ctx, bin, "consume", "--zookeeper", zookeeper, "--group", groupName, "--topic", topic, "--consumer-id", id,
			"--fetch-max-bytes", "4194304", "--auto-commit-interval", "1s", "--from-beginning", "--format", "digest")
	}}
}

// startMembers starts n members and notes what they receive.
func (d *demo) startMembers(ctx context.Context, kind memberKind, n int) error {
	for i := range n {
		cmd := kind.command(ctx, d.zookeeper(), fmt.Sprintf("m%d", i+1))
		out, err := cmd.StdoutPipe()
		if err != nil {
			return err
		}
		p, err := d.spawn(fmt.Sprintf("member-%d", i+1), cmd)
		if err != nil {
			return err
		}
		d.members = append(d.members, p)
		d.wg.Go(func() {
			err := eachLine(out, func(line []byte) {
				if r, ok := parseRecord(line); ok {
					d.ledger.receive(i, r.partition, r.offset, r.key, r.digest)
				}
			})
			p.wait()
			if err != nil {
				d.note(fmt.Errorf("output of %s: %w", p.name, err))
			}
		})
	}
	return nil
}

// waitSettled returns when every partition has an owner and every member owns one.
func (d *demo) waitSettled(ctx context.Context, members int) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		shares, err := d.shares()
		total := 0
		for _, n := range shares {
			total += n
		}
		if err == nil && total == d.partitions && len(shares) == min(members, d.partitions) {
			return nil
		}
		if !d.pause(ctx, 200*time.Millisecond) {
			return fmt.Errorf("the group did not settle within a minute: owners %v, %v", shares, err)
		}
		if err := d.anyEnded(); err != nil {
			return err
		}
	}
}

// shares says how many partitions each member owns, by what stands in /consumers/<group>/owners.
func (d *demo) shares() (map[string]int, error) {
	dir := "/consumers/" + groupName + "/owners/" + topic
	out := map[string]int{}
	names, _, err := d.zk.Children(dir)
	if err == zk.ErrNoNode {
		return out, nil
	}
	if err != nil {
		return nil, err
	}
	for _, n := range names {
		owner, _, err := d.zk.Get(dir + "/" + n)
		if err == zk.ErrNoNode {
			continue
		}
		if err != nil {
			return nil, err
		}
		out[memberOf(string(owner))]++
	}
	return out, nil
}

// memberOf takes demo_m1-0 to m1.
func memberOf(owner string) string {
	owner = strings.TrimPrefix(owner, groupName+"_")
	if i := strings.LastIndexByte(owner, '-'); i > 0 {
		owner = owner[:i]
	}
	return owner
}

func sharesText(shares map[string]int, members int) string {
	names := make([]string, 0, len(shares))
	for n := range shares {
		names = append(names, n)
	}
	sort.Strings(names)
	var out []string
	for _, n := range names {
		out = append(out, fmt.Sprintf("%s:%d", n, shares[n]))
	}
	return strings.Join(out, " ")
}
