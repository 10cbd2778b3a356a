package lint

import (
	"go/ast"
	"slices"
	"strings"
)

// Room is one room of the design with the arrows that may start there.
type Room struct {
	Dir     string   // its folder; the longest match is a package's room
	Imports []string // rooms it may import, besides itself and the common ones
	Any     bool     // may import every room but cmd and integration
}

// Common rooms may be imported by all.
var Common = []string{"internal/id", "internal/clock", "internal/lease"}

// Closed rooms are imported by nobody.
var Closed = []string{"cmd", "integration", "bench", "tools"}

// Rooms is the design's table of arrows. A package outside every room is a fault: give its room a row.
var Rooms = []Room{
	{Dir: "cmd", Imports: []string{"node", "node/config", "cli", "cli/zkconsumer", "cli/devcluster", "cli/demo"}},
	{Dir: "cli", Imports: []string{"cli/zkconsumer", "cli/devcluster", "cli/demo"}},
	{Dir: "cli/demo", Imports: []string{"cli/devcluster"}},
	{Dir: "cli/zkconsumer"},                                   // a client like any other: independent of our server's code
	{Dir: "cli/devcluster", Imports: []string{"node/config"}}, // writes the configuration files that node reads
	{Dir: "node", Any: true},                                  // the one assembler
	{Dir: "node/config"},
	{Dir: "broker", Imports: []string{"groupcoord", "partition", "raftmeta/state", "internal/loglimit"}},
	{Dir: "zkcompat", Imports: []string{"zkcompat/jute", "zkcompat/ztree", "groupcoord", "raftmeta/state", "internal/loglimit"}},
	{Dir: "zkcompat/jute"},
	{Dir: "zkcompat/ztree", Imports: []string{"raftmeta/state"}},
	{Dir: "groupcoord", Imports: []string{"groupcoord/core", "cluster", "raftmeta/state"}},
	{Dir: "groupcoord/core", Imports: []string{"raftmeta/state"}},
	{Dir: "groupcoord/export", Imports: []string{"raftmeta/state"}},
	{Dir: "partition", Imports: []string{"partition/log", "partition/record", "raftmeta/state", "internal/vfs", "internal/lease"}},
	{Dir: "partition/log", Imports: []string{"partition/record", "internal/vfs"}},
	{Dir: "partition/record"},
	{Dir: "raftmeta", Imports: []string{"raftmeta/state", "raftmeta/controller", "cluster", "internal/vfs"}},
	{Dir: "raftmeta/state"},
	{Dir: "raftmeta/controller", Imports: []string{"raftmeta/state", "internal/lease"}},
	{Dir: "cluster", Imports: []string{"internal/lease", "internal/loglimit"}},
	{Dir: "console", Imports: []string{"groupcoord", "raftmeta/state"}},
	{Dir: "internal/id"},
	{Dir: "internal/clock"},
	{Dir: "internal/lease"},
	{Dir: "internal/loglimit"},
	{Dir: "internal/vfs"},
	{Dir: "internal/lint"},
	{Dir: "internal/testtool"},
	{Dir: "integration", Any: true},
	{Dir: "bench", Any: true},
	{Dir: "tools", Any: true},
}

// Only names libraries that belong to few rooms, so that replacing one touches those alone.
var Only = map[string][]string{
	"github.com/spf13/viper":                            {"cmd"},
	"github.com/go-viper/encoding":                      {"cmd"},
	"github.com/hashicorp/go-hclog":                     {"raftmeta"},
	"github.com/hashicorp/raft":                         {"raftmeta", "cluster"}, // cluster fills in its stream layer
	"github.com/hashicorp/raft-wal":                     {"raftmeta"},
	"github.com/hashicorp/raft-boltdb":                  {"raftmeta"},
	"github.com/hashicorp/memberlist":                   {"cluster"},
	"github.com/tidwall/btree":                          {"raftmeta/state"},
	"github.com/go-zookeeper/zk":                        {"cli", "integration", "bench", "tools"},
	"github.com/twmb/franz-go/pkg/kgo":                  {"cli", "integration", "bench", "tools"},
	"github.com/twmb/franz-go/pkg/kadm":                 {"cli", "integration", "bench", "tools"},
	"github.com/barnabas-mq/barnabas/internal/testtool": {"internal/testtool", "integration", "bench", "tools"},
}

// Arrows returns each import of a file that is no test for which the table has no arrow, and each package in no room. Tests
// may import what they like, except a closed room.
func Arrows(t *Tree) []Fault {
	var faults []Fault
	for _, f := range t.Files {
		from, ok := roomOf(f.Dir)
		if !ok {
			faults = append(faults, t.fault(f.AST.Package, "package %s is in no room: add a row to internal/lint/arrows.go", f.Dir))
			continue
		}
		f.imports(func(spec *ast.ImportSpec, path string) {
			if what := forbidden(f, from, path); what != "" {
				faults = append(faults, t.fault(spec.Pos(), "%s", what))
			}
		})
	}
	return sorted(faults)
}

func forbidden(f File, from Room, path string) string {
	dir, ours := local(path)
	if ours {
		if closed := closedRoom(dir); closed != "" && !within(f.Dir, closed) {
			return "nobody imports " + closed
		}
	}
	if f.Test {
		return ""
	}
	if owners := ownersOf(path); owners != nil && !slices.ContainsFunc(owners, func(o string) bool { return within(f.Dir, o) }) {
		return path + " belongs to " + strings.Join(owners, ", ")
	}
	if !ours {
		return ""
	}
	to, ok := roomOf(dir)
	if !ok || to.Dir == from.Dir || from.Any || slices.Contains(Common, to.Dir) || slices.Contains(from.Imports, to.Dir) {
		return ""
	}
	return "no arrow " + from.Dir + " -> " + to.Dir + " in the design"
}

func ownersOf(path string) []string {
	for library, owners := range Only {
		if within(path, library) {
			return owners
		}
	}
	return nil
}

func closedRoom(dir string) string {
	for _, c := range Closed {
		if within(dir, c) {
			return c
		}
	}
	return ""
}

func roomOf(dir string) (Room, bool) {
	var best Room
	for _, r := range Rooms {
		if within(dir, r.Dir) && len(r.Dir) > len(best.Dir) {
			best = r
		}
	}
	return best, best.Dir != ""
}
