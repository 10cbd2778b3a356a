package harness

import (
	"bytes"
	"context"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/barnabas-mq/barnabas/internal/testtool"
)

// toolLimit is how long one run of a command line tool may take.
const toolLimit = 4 * time.Minute

// Tool runs a class of a Java tool with the input given and returns its standard output; the test fails when it exits with
// another code than 0.
func Tool(t testing.TB, lib testtool.Tool, class, input string, args ...string) string {
	t.Helper()
	out, err := TryTool(t, lib, class, input, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TryTool is Tool for a run that may fail: the error holds what the tool said.
func TryTool(t testing.TB, lib testtool.Tool, class, input string, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), toolLimit)
	defer cancel()
	return run(testtool.JavaCommand(ctx, t, lib, class, args...), input)
}

// Kcat runs kcat with the input given and returns its standard output; the test fails when it fails.
func Kcat(t testing.TB, input string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), toolLimit)
	defer cancel()
	out, err := run(exec.CommandContext(ctx, testtool.Need(t, testtool.Kcat), args...), input)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// failure is a command that failed, with what it said.
type failure struct {
	cmd    *exec.Cmd
	err    error
	output string
}

func (f *failure) Error() string {
	args := f.cmd.Args
	for i, a := range args {
		if a == "-cp" && i+1 < len(args) { // the class path is long and says nothing
			args = append([]string{"java"}, args[i+2:]...)
			break
		}
	}
	return strings.Join(args, " ") + ": " + f.err.Error() + "\n" + f.output
}

func (f *failure) Unwrap() error { return f.err }

func run(cmd *exec.Cmd, input string) (string, error) {
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), &failure{cmd, err, stdout.String() + stderr.String()}
	}
	return stdout.String(), nil
}
