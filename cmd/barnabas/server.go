package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime/debug"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/barnabas-mq/barnabas/cli"
	"github.com/barnabas-mq/barnabas/cli/devcluster"
	"github.com/barnabas-mq/barnabas/node"
	"github.com/barnabas-mq/barnabas/node/config"
)

const serverHelp = `Run one broker until SIGINT or SIGTERM.

The configuration is Kafka's: a server.properties (or the same keys as YAML) is accepted unchanged. Every key is also an
environment variable (log.dirs is BARNABAS_LOG_DIRS) and a flag (--log.dirs); a flag wins over the environment, which
wins over the file. Durations may be written 500ms or 2h. Keys that cannot be honoured are named in one warning; wrong
values stop the start, all of them listed.

A first node is made ready with ` + "`barnabas cluster init`" + `, others join it with --join host:7946.`

// serverOptions are the flags of `server` that are not configuration keys.
type serverOptions struct {
	file, logLevel, logFormat string
	listKeys, check           bool
	overrides                 []string
}

func serverCommand() *cobra.Command {
	var o serverOptions
	cmd := &cobra.Command{
		Use: "server", Short: "Run one broker", Long: serverHelp, Args: cobra.NoArgs,
		Example: "  barnabas server --config /etc/kafka/server.properties\n" +
			"  barnabas server --log.dirs /var/lib/barnabas --join kafka1:7946\n" +
			"  barnabas server --config server.properties --check",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.listKeys {
				return listKeys(cmd.OutOrStdout())
			}
			return runServer(cmd, o)
		},
	}
	f := cmd.Flags()
	f.StringVarP(&o.file, "config", "c", os.Getenv("BARNABAS_CONFIG"), "configuration file (.properties or .yaml)")
	f.StringArrayVar(&o.overrides, "override", nil, "key=value, as kafka-server-start takes it; may be repeated")
	f.BoolVar(&o.check, "check", false, "check the configuration and exit")
	f.BoolVar(&o.listKeys, "list-keys", false, "print every key with its default and environment variable, and exit")
	f.StringVar(&o.logLevel, "log-level", envOr("BARNABAS_LOG_LEVEL", "info"), "debug, info, warn or error")
	f.StringVar(&o.logFormat, "log-format", envOr("BARNABAS_LOG_FORMAT", "text"), "text or json")
	addKeyFlags(f)
	return cmd
}

func envOr(name, otherwise string) string {
	if v := os.Getenv(name); v != "" {
		return v
	}
	return otherwise
}

func listKeys(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "KEY\tENVIRONMENT\tDEFAULT\tMEANING")
	for _, k := range config.Keys() {
		if k.Help != "" {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", k.Name, k.Env, k.Default, k.Help)
		}
	}
	return w.Flush()
}

func runServer(cmd *cobra.Command, o serverOptions) error {
	log, err := newLogger(cmd.ErrOrStderr(), o.logLevel, o.logFormat)
	if err != nil {
		return err
	}
	values, err := load(o.file, os.Environ(), cmd.Flags(), o.overrides)
	if err != nil {
		return cli.Usage(err)
	}
	hostname, err := os.Hostname()
	if err != nil {
		hostname = "localhost"
	}
	c, err := config.Parse(values, hostname)
	if err != nil {
		return cli.Usage(err)
	}
	c.Version = cli.BuildVersion(version)
	if len(c.Notes) > 0 {
		notes := make([]string, len(c.Notes))
		for i, n := range c.Notes {
			notes[i] = n.Key + " (" + n.Why + ")"
		}
		log.Warn("configuration keys without effect", "keys", strings.Join(notes, "; "))
	}
	if o.check {
		fmt.Fprintln(cmd.OutOrStdout(), "the configuration is valid")
		return nil
	}
	if err := devcluster.Announce(o.file, os.Getpid()); err != nil {
		log.Warn("the local cluster's description was not updated", "error", err)
	}
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	return serve(cmd.Context(), c, log)
}

// gcPercent lets garbage come to twice what lives: a busy node whose state is small is collected half as often, which is worth a twentieth of
// its work. It costs an idle one nothing. GOGC in the environment wins.
const gcPercent = 200

// serve runs the node; a stop that was asked for is a success.
func serve(ctx context.Context, c config.Config, log *slog.Logger) error {
	err := node.Run(ctx, c, log)
	if ctx.Err() != nil && (err == nil || err == ctx.Err()) {
		return nil
	}
	return err
}

func newLogger(out io.Writer, level, format string) (*slog.Logger, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, cli.Usage(fmt.Errorf("--log-level %q: use debug, info, warn or error", level))
	}
	opts := &slog.HandlerOptions{Level: l}
	switch format {
	case "text":
		return slog.New(slog.NewTextHandler(out, opts)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(out, opts)), nil
	}
	return nil, cli.Usage(fmt.Errorf("--log-format %q: use text or json", format))
}
