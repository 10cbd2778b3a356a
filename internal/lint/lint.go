// Package lint holds the house rules that a compiler does not check: which room may import which (arrows.go), what a pure
// room may not use (purity.go), and how large functions and files are (largest.go). Its tests apply them to this repository,
// so that `go test ./internal/lint` is the rule book in force. It reads source files and nothing else.
package lint

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"sort"
	"strconv"
	"strings"
)

// Module is the module path of this repository.
const Module = "github.com/barnabas-mq/barnabas"

// File is one parsed Go file.
type File struct {
	Path    string // relative to the root, with slashes
	Dir     string // the folder of Path; "." for the root
	Package string // the name in its package clause
	Test    bool   // a _test.go file
	AST     *ast.File
	Lines   int
}

// Tree is the Go source of a repository.
type Tree struct {
	Fset  *token.FileSet
	Files []File
}

// Load parses every Go file under root, except in folders that the go command ignores too (testdata, a name that starts with
// a dot or an underscore) and in modules of their own.
func Load(root fs.FS) (*Tree, error) {
	t := &Tree{Fset: token.NewFileSet()}
	err := fs.WalkDir(root, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			return t.enter(root, name)
		}
		if !strings.HasSuffix(name, ".go") {
			return nil
		}
		return t.add(root, name)
	})
	if err != nil {
		return nil, fmt.Errorf("cannot read the source tree: %w", err)
	}
	return t, nil
}

func (t *Tree) enter(root fs.FS, dir string) error {
	if dir == "." {
		return nil
	}
	base := path.Base(dir)
	if base == "testdata" || strings.HasPrefix(base, ".") || strings.HasPrefix(base, "_") {
		return fs.SkipDir
	}
	if _, err := fs.Stat(root, path.Join(dir, "go.mod")); err == nil {
		return fs.SkipDir
	}
	return nil
}

func (t *Tree) add(root fs.FS, name string) error {
	src, err := fs.ReadFile(root, name)
	if err != nil {
		return err
	}
	parsed, err := parser.ParseFile(t.Fset, name, src, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	t.Files = append(t.Files, File{
		Path: name, Dir: path.Dir(name), Package: parsed.Name.Name, Test: strings.HasSuffix(name, "_test.go"),
		AST: parsed, Lines: t.Fset.File(parsed.Pos()).LineCount(),
	})
	return nil
}

// Generated reports whether the file says that a program wrote it.
func (f File) Generated() bool { return ast.IsGenerated(f.AST) }

// imports calls visit with each import path of the file.
func (f File) imports(visit func(spec *ast.ImportSpec, path string)) {
	for _, spec := range f.AST.Imports {
		if p, err := strconv.Unquote(spec.Path.Value); err == nil {
			visit(spec, p)
		}
	}
}

// Fault is one place where a rule is broken.
type Fault struct {
	Where string // file:line
	What  string
}

func (f Fault) String() string { return f.Where + ": " + f.What }

func (t *Tree) fault(pos token.Pos, format string, args ...any) Fault {
	p := t.Fset.Position(pos)
	return Fault{Where: fmt.Sprintf("%s:%d", p.Filename, p.Line), What: fmt.Sprintf(format, args...)}
}

func sorted(faults []Fault) []Fault {
	sort.Slice(faults, func(i, j int) bool { return faults[i].String() < faults[j].String() })
	return faults
}

// within reports whether the folder is room or lies under it.
func within(dir, room string) bool { return dir == room || strings.HasPrefix(dir, room+"/") }

// local returns the folder of an import path of this module.
func local(importPath string) (dir string, ok bool) {
	if importPath == Module {
		return ".", true
	}
	return strings.CutPrefix(importPath, Module+"/")
}
