package lint

import (
	"go/ast"
	"sort"
)

// Size is the length of a function or file in lines.
type Size struct {
	Name  string // file:line function, or file
	Lines int
}

// Largest returns the n longest functions and files, longest first; tests and generated files are left out. It is
// information, not a rule: past 70 lines a function, past 800 a file, the idea asks for another look.
func Largest(t *Tree, n int) (functions, files []Size) {
	for _, f := range t.Files {
		if f.Test || f.Generated() {
			continue
		}
		files = append(files, Size{Name: f.Path, Lines: f.Lines})
		for _, decl := range f.AST.Decls {
			if fn, ok := decl.(*ast.FuncDecl); ok {
				lines := t.Fset.Position(fn.End()).Line - t.Fset.Position(fn.Pos()).Line + 1
				functions = append(functions, Size{Name: t.fault(fn.Pos(), "%s", fn.Name.Name).String(), Lines: lines})
			}
		}
	}
	return longest(functions, n), longest(files, n)
}

func longest(sizes []Size, n int) []Size {
	sort.Slice(sizes, func(i, j int) bool {
		if sizes[i].Lines != sizes[j].Lines {
			return sizes[i].Lines > sizes[j].Lines
		}
		return sizes[i].Name < sizes[j].Name
	})
	return sizes[:min(n, len(sizes))]
}
