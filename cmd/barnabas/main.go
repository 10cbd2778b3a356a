// Command barnabas is the one binary: a broker, the supervisor of a local cluster, and their tools.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/barnabas-mq/barnabas/cli"
)

// version is set by the linker; cli falls back to what the Go tool recorded.
var version string

func main() { os.Exit(run(os.Args[1:])) }

// run is main without the exit: 0 for success, 1 for a failure, 2 for wrong usage or configuration, 130 when interrupted
// before the work was done.
func run(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	root := cli.New(cli.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}, version)
	root.AddCommand(serverCommand())
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	switch {
	case err == nil:
		return 0
	case errors.Is(err, context.Canceled) && ctx.Err() != nil:
		return 130
	}
	fmt.Fprintf(os.Stderr, "barnabas: %v\n", err)
	if errors.Is(err, cli.ErrUsage) || strings.HasPrefix(err.Error(), "unknown command ") { // cobra has no type for it
		return 2
	}
	return 1
}
