package lint

import (
	"go/ast"
	"path"
)

// Pure rooms decide and do nothing: equal arguments give equal results, on every node and in every test.
var Pure = []string{"raftmeta/state", "raftmeta/controller", "groupcoord/core", "zkcompat/ztree", "zkcompat/jute", "partition/record", "internal/lease"}

// PureExempt lies inside pure rooms: generated code and its generator.
var PureExempt = []string{"raftmeta/state/statepb"}

// impure packages, with all below them.
var impure = []string{"net", "os", "sync", "math/rand", "crypto/rand", "syscall", "golang.org/x/sys", "log", "hash/maphash",
	Module + "/internal/vfs", Module + "/internal/clock"}

// clockReads are the functions of package time that read or wait for a clock.
var clockReads = map[string]bool{"Now": true, "Since": true, "Until": true, "Sleep": true, "After": true, "AfterFunc": true,
	"Tick": true, "NewTimer": true, "NewTicker": true}

// Purity returns each import, clock read, goroutine and channel of a pure room. Tests are exempt.
func Purity(t *Tree) []Fault {
	var faults []Fault
	for _, f := range t.Files {
		if !pure(f) {
			continue
		}
		timeName := ""
		f.imports(func(spec *ast.ImportSpec, imported string) {
			for _, bad := range impure {
				if within(imported, bad) {
					faults = append(faults, t.fault(spec.Pos(), "a pure room imports %s", imported))
				}
			}
			if imported == "time" {
				timeName = path.Base(imported)
				if spec.Name != nil {
					timeName = spec.Name.Name
				}
				if timeName == "." {
					faults = append(faults, t.fault(spec.Pos(), "a pure room imports time without its name: its clock reads cannot be told"))
				}
			}
		})
		ast.Inspect(f.AST, func(n ast.Node) bool {
			if what := impurity(n, timeName); what != "" {
				faults = append(faults, t.fault(n.Pos(), "a pure room %s", what))
			}
			return true
		})
	}
	return sorted(faults)
}

func impurity(n ast.Node, timeName string) string {
	switch n := n.(type) {
	case *ast.GoStmt:
		return "starts a goroutine"
	case *ast.ChanType:
		return "uses a channel"
	case *ast.SelectorExpr:
		if x, ok := n.X.(*ast.Ident); ok && timeName != "" && x.Name == timeName && clockReads[n.Sel.Name] {
			return "reads the clock: time." + n.Sel.Name
		}
	}
	return ""
}

func pure(f File) bool {
	if f.Test {
		return false
	}
	for _, exempt := range PureExempt {
		if within(f.Dir, exempt) {
			return false
		}
	}
	for _, room := range Pure {
		if within(f.Dir, room) {
			return true
		}
	}
	return false
}

// Exits returns each os.Exit outside package main (a library returns its error), tests exempt.
func Exits(t *Tree) []Fault {
	var faults []Fault
	for _, f := range t.Files {
		if f.Test || f.Package == "main" {
			continue
		}
		ast.Inspect(f.AST, func(n ast.Node) bool {
			if s, ok := n.(*ast.SelectorExpr); ok && s.Sel.Name == "Exit" {
				if x, ok := s.X.(*ast.Ident); ok && x.Name == "os" {
					faults = append(faults, t.fault(n.Pos(), "os.Exit outside package main"))
				}
			}
			return true
		})
	}
	return sorted(faults)
}
