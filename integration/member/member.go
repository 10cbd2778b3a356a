// Package member has the group members that are written in Go and run as processes of their own, so that a test can freeze and
// kill them: a test binary starts itself again with Env set (Command), and its TestMain calls Run. Each writes a line of JSON
// {"partition":p,"offset":o} for each record that it received. It joins when a line comes on its standard input, and leaves when that
// ends.
package member

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"
)

// Env, when set, makes a process a member: its value is the kind.
const Env = "BARNABAS_MEMBER"

// Options say what a member joins. They travel as JSON in an argument.
type Options struct {
	Brokers   []string
	ZooKeeper []string
	Group     string
	Topic     string
	Name      string
	Session   time.Duration // timeout
	Balancer  string        // franz: "range", "sticky" or "cooperative"; "consumer" is KIP-848
	Careful   bool          // franz: commit whatever was read before a partition is given up
	Zombie    bool          // franz: after it stood still, commit offset 0 first with what it knew before
}

// kinds are the members by the value of Env.
var kinds = map[string]func(ctx context.Context, o Options, out *lines) error{
	"franz":      franz,
	"wvanbergen": wvanbergen,
}

// Command returns this test binary as a member of the kind; its standard output is the member's lines.
func Command(t testing.TB, kind string, o Options) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	args, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, string(args))
	cmd.Env = append(os.Environ(), Env+"="+kind)
	return cmd
}

// Run is the whole of a member's process when Env is set: it returns its exit code, and false when this is no member.
func Run() (code int, is bool) {
	kind := os.Getenv(Env)
	if kind == "" {
		return 0, false
	}
	if err := run(kind); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", kind, err)
		return 1, true
	}
	return 0, true
}

func run(kind string) error {
	var o Options
	if len(os.Args) != 2 {
		return fmt.Errorf("%d arguments, want 1", len(os.Args)-1)
	}
	if err := json.Unmarshal([]byte(os.Args[1]), &o); err != nil {
		return err
	}
	member, ok := kinds[kind]
	if !ok {
		return fmt.Errorf("no such kind of member")
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	out := &lines{to: os.Stdout}
	out.event("ready", "")
	in := bufio.NewReader(os.Stdin)
	if _, err := in.ReadString('\n'); err != nil { // the word to join
		return err
	}
	go func() {
		_, _ = io.Copy(io.Discard, in)
		cancel()
	}()
	return member(ctx, o, out)
}

// lines writes whole lines from several goroutines.
type lines struct {
	mu sync.Mutex
	to io.Writer
}

func (l *lines) record(partition int32, offset int64) {
	l.write(fmt.Sprintf("{\"partition\":%d,\"offset\":%d}", partition, offset))
}

// event writes {"event":what, "message":...}.
func (l *lines) event(what string, message any) {
	text, err := json.Marshal(map[string]string{"event": what, "message": strings.TrimSpace(fmt.Sprint(message))})
	if err == nil {
		l.write(string(text))
	}
}

func (l *lines) write(text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, _ = io.WriteString(l.to, text+"\n") // a reader that is gone has killed us already
}
