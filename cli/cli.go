// Package cli holds the verbs of the barnabas command, except `server`, which cmd/barnabas adds. Verbs speak to brokers
// through franz-go and to the ZooKeeper port through go-zookeeper, as any client would; they share no code with the servers.
// Nothing here exits the process: errors are returned, and ErrUsage marks those that a different command line would avoid.
package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// ErrUsage marks an error of the command line or configuration, not of the work.
var ErrUsage = errors.New("usage")

// usageError keeps the text of its cause and matches ErrUsage.
type usageError struct{ error }

func (e usageError) Is(target error) bool { return target == ErrUsage }
func (e usageError) Unwrap() error        { return e.error }

// Usage marks err as ErrUsage.
func Usage(err error) error { return usageError{err} }

func usagef(format string, args ...any) error { return Usage(fmt.Errorf(format, args...)) }

// Streams are where the verbs read and write.
type Streams struct {
	In       io.Reader
	Out, Err io.Writer
}

// app is what the verbs share.
type app struct {
	Streams
	version string
	output  string // text or json
}

// New makes the root command. version may be empty: the build's own record is shown then.
func New(s Streams, version string) *cobra.Command {
	a := &app{Streams: s, version: version}
	root := &cobra.Command{
		Use:   "barnabas",
		Short: "A message broker that speaks Kafka's protocol and needs no ZooKeeper",
		Long: "barnabas is a message broker that speaks Kafka's protocol, from 0.8 to today's, and needs no ZooKeeper.\n" +
			"Clients that still talk to ZooKeeper find one on port 2181: it is barnabas itself.\n\n" +
			"Start with `barnabas dev`: a broker on this machine, with nothing to configure.",
		SilenceErrors: true, SilenceUsage: true,
		PersistentPreRunE: func(*cobra.Command, []string) error {
			if a.output != "text" && a.output != "json" {
				return usagef("-o %q: use text or json", a.output)
			}
			return nil
		},
	}
	root.SetIn(s.In)
	root.SetOut(s.Out)
	root.SetErr(s.Err)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usagef("%w (see %s --help)", err, cmd.CommandPath())
	})
	root.PersistentFlags().StringVarP(&a.output, "output", "o", "text", "text or json")
	_ = root.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"text", "json"}, cobra.ShellCompDirectiveNoFileComp))
	root.AddCommand(a.devCommand(), a.topicCommand(), a.produceCommand(), a.consumeCommand(), a.groupCommand(), a.clusterCommand(), a.zkCommand(),
		a.configCommand(), a.versionCommand())
	markArgErrors(root)
	return root
}

// markArgErrors makes wrong arguments usage errors, for every verb below cmd.
func markArgErrors(cmd *cobra.Command) {
	if check := cmd.Args; check != nil {
		cmd.Args = func(cmd *cobra.Command, args []string) error {
			if err := check(cmd, args); err != nil {
				return usagef("%w (see %s --help)", err, cmd.CommandPath())
			}
			return nil
		}
	}
	for _, sub := range cmd.Commands() {
		markArgErrors(sub)
	}
}

// group is a command that only holds others.
func group(use, short string, subs ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{Use: use, Short: short, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() }}
	cmd.AddCommand(subs...)
	return cmd
}

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{Use: "version", Short: "Print the version", Args: cobra.NoArgs, RunE: func(*cobra.Command, []string) error {
		v := struct {
			Version string `json:"version"`
			Go      string `json:"go"`
			OS      string `json:"os"`
			Arch    string `json:"arch"`
		}{BuildVersion(a.version), runtime.Version(), runtime.GOOS, runtime.GOARCH}
		if a.output == "json" {
			return a.json(v)
		}
		_, err := fmt.Fprintf(a.Out, "barnabas %s (%s, %s/%s)\n", v.Version, v.Go, v.OS, v.Arch)
		return err
	}}
}

// BuildVersion is the version set by the linker, or else what the Go tool recorded.
func BuildVersion(linked string) string {
	if linked != "" {
		return linked
	}
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" {
		return "unknown"
	}
	return info.Main.Version
}

// json writes v as one indented document.
func (a *app) json(v any) error {
	enc := json.NewEncoder(a.Out)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// table writes rows with aligned columns; the first row is the heading.
func (a *app) table(rows [][]string) error {
	w := tabwriter.NewWriter(a.Out, 0, 8, 2, ' ', 0)
	for _, r := range rows {
		fmt.Fprintln(w, strings.Join(r, "\t"))
	}
	return w.Flush()
}

// brokers is the flag that every verb with a Kafka client has.
type brokers struct{ list string }

func (b *brokers) flag(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&b.list, "bootstrap-server", "b", "localhost:9092", "brokers to start from, host:port,...")
}

// answerWait is how long a node that was asked may be silent, beyond what the request itself allows, before another is asked.
const answerWait = 3 * time.Second

// client prepares to speak to the brokers. Nothing is asked before the first request, but whether the seeds are awake.
func (b *brokers) client(opts ...kgo.Opt) (*kgo.Client, error) {
	seeds := splitList(b.list)
	if len(seeds) == 0 {
		return nil, usagef("--bootstrap-server names no broker")
	}
	cl, err := kgo.NewClient(append([]kgo.Opt{
		kgo.SeedBrokers(awake(seeds, answerWait)...), kgo.ClientID("barnabas-cli"), kgo.MetadataMinAge(250 * time.Millisecond),
		// A frozen broker accepts connections and answers nothing: another one is asked early.
		kgo.RequestTimeoutOverhead(answerWait), kgo.RetryTimeout(20 * time.Second),
	}, opts...)...)
	if err != nil {
		return nil, Usage(err)
	}
	return cl, nil
}

func (b *brokers) admin() (*kadm.Client, error) {
	cl, err := b.client()
	if err != nil {
		return nil, err
	}
	return kadm.NewClient(cl), nil
}

func splitList(v string) []string {
	var out []string
	for _, s := range strings.Split(v, ",") {
		if s = strings.TrimSpace(s); s != "" {
			out = append(out, s)
		}
	}
	return out
}
