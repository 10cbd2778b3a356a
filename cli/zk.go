package cli

import (
	"context"
	"fmt"
	"net"
	"path"
	"sort"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/spf13/cobra"
)

func (a *app) zkCommand() *cobra.Command {
	return group("zk", "Look at the znodes that ZooKeeper clients see", a.zkLs(), a.zkGet(), a.zkStat())
}

// zkServers is the flag that names ZooKeeper servers, with an optional chroot.
type zkServers struct{ list string }

func (z *zkServers) flag(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&z.list, "zookeeper", "z", "localhost:2181", "ZooKeeper servers, host:port,...[/chroot]")
}

// with opens a session, calls fn and closes the session. It fails when no session begins within ten seconds.
func (z *zkServers) with(ctx context.Context, fn func(conn *zk.Conn, chroot string) error) error {
	list, chroot, _ := strings.Cut(z.list, "/")
	if chroot = strings.Trim(chroot, "/"); chroot != "" {
		chroot = "/" + chroot
	}
	servers := splitList(list)
	if len(servers) == 0 {
		return usagef("--zookeeper names no server")
	}
	conn, events, err := zk.Connect(servers, 10*time.Second, zk.WithLogInfo(false), zk.WithLogger(quiet{}),
		zk.WithDialer(func(network, addr string, timeout time.Duration) (net.Conn, error) {
			return (&net.Dialer{Timeout: timeout}).DialContext(ctx, network, addr)
		}))
	if err != nil {
		return Usage(err)
	}
	defer conn.Close()
	timeout := time.NewTimer(10 * time.Second)
	defer timeout.Stop()
	for {
		select {
		case ev := <-events:
			if ev.State == zk.StateHasSession {
				return fn(conn, chroot)
			}
		case <-ctx.Done():
			return ctx.Err()
		case <-timeout.C:
			return fmt.Errorf("no ZooKeeper session with %s within 10 s: is the port open there?", strings.Join(servers, ","))
		}
	}
}

// quiet drops the library's log lines: failures come back as errors.
type quiet struct{}

func (quiet) Printf(string, ...any) {}

// znodePath makes an absolute path below the chroot.
func znodePath(chroot string, args []string) string {
	p := "/"
	if len(args) > 0 {
		p = args[0]
	}
	return path.Join("/", chroot, p)
}

func (a *app) zkLs() *cobra.Command {
	var z zkServers
	var recursive bool
	cmd := &cobra.Command{Use: "ls [PATH]", Short: "List children", Args: cobra.MaximumNArgs(1),
		Example: "  barnabas zk ls /brokers/ids\n  barnabas zk ls -R /consumers",
		RunE: func(cmd *cobra.Command, args []string) error {
			return z.with(cmd.Context(), func(conn *zk.Conn, chroot string) error {
				var out []string
				err := listChildren(cmd.Context(), conn, znodePath(chroot, args), recursive, func(p string) { out = append(out, p) })
				if err != nil {
					return err
				}
				if a.output == "json" {
					return a.json(append([]string{}, out...))
				}
				for _, p := range out {
					fmt.Fprintln(a.Out, p)
				}
				return nil
			})
		}}
	z.flag(cmd)
	cmd.Flags().BoolVarP(&recursive, "recursive", "R", false, "list everything below")
	return cmd
}

// listChildren calls found with the names of the children, or with the full paths of all descendants in order.
func listChildren(ctx context.Context, conn *zk.Conn, p string, recursive bool, found func(string)) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	children, _, err := conn.Children(p)
	if err != nil {
		return fmt.Errorf("%s: %w", p, err)
	}
	sort.Strings(children)
	for _, c := range children {
		if !recursive {
			found(c)
			continue
		}
		full := path.Join(p, c)
		found(full)
		if err := listChildren(ctx, conn, full, true, found); err != nil {
			return err
		}
	}
	return nil
}

func (a *app) zkGet() *cobra.Command {
	var z zkServers
	cmd := &cobra.Command{Use: "get PATH", Short: "Print the data of a znode", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return z.with(cmd.Context(), func(conn *zk.Conn, chroot string) error {
				p := znodePath(chroot, args)
				data, stat, err := conn.Get(p)
				if err != nil {
					return fmt.Errorf("%s: %w", p, err)
				}
				if a.output == "json" {
					return a.json(struct {
						Path string  `json:"path"`
						Data string  `json:"data"`
						Stat zk.Stat `json:"stat"`
					}{p, string(data), *stat})
				}
				_, err = fmt.Fprintf(a.Out, "%s\n", data)
				return err
			})
		}}
	z.flag(cmd)
	return cmd
}

func (a *app) zkStat() *cobra.Command {
	var z zkServers
	cmd := &cobra.Command{Use: "stat PATH", Short: "Print the Stat of a znode", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return z.with(cmd.Context(), func(conn *zk.Conn, chroot string) error {
				p := znodePath(chroot, args)
				ok, s, err := conn.Exists(p)
				if err == nil && !ok {
					err = zk.ErrNoNode
				}
				if err != nil {
					return fmt.Errorf("%s: %w", p, err)
				}
				if a.output == "json" {
					return a.json(s)
				}
				return a.printStat(s)
			})
		}}
	z.flag(cmd)
	return cmd
}

func (a *app) printStat(s *zk.Stat) error {
	stamp := func(ms int64) string { return time.UnixMilli(ms).UTC().Format(time.RFC3339Nano) }
	rows := [][]string{
		{"czxid", fmt.Sprintf("0x%x", s.Czxid)}, {"mzxid", fmt.Sprintf("0x%x", s.Mzxid)}, {"pzxid", fmt.Sprintf("0x%x", s.Pzxid)},
		{"ctime", stamp(s.Ctime)}, {"mtime", stamp(s.Mtime)},
		{"version", fmt.Sprint(s.Version)}, {"cversion", fmt.Sprint(s.Cversion)}, {"aversion", fmt.Sprint(s.Aversion)},
		{"ephemeralOwner", fmt.Sprintf("0x%x", s.EphemeralOwner)}, {"dataLength", fmt.Sprint(s.DataLength)},
		{"numChildren", fmt.Sprint(s.NumChildren)},
	}
	return a.table(rows)
}
