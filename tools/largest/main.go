// Command largest lists the longest functions and files of the repository in the working directory: information for `make
// lint`, not a rule.
package main

import (
	"fmt"
	"os"

	"github.com/barnabas-mq/barnabas/internal/lint"
)

func main() {
	tree, err := lint.Load(os.DirFS("."))
	if err != nil {
		fmt.Fprintf(os.Stderr, "largest: %v\n", err)
		os.Exit(1)
	}
	functions, files := lint.Largest(tree, 10)
	fmt.Println("longest functions (past 70 lines: look at the idea again)")
	show(functions)
	fmt.Println("longest files (past 800)")
	show(files)
}

func show(sizes []lint.Size) {
	for _, s := range sizes {
		fmt.Printf("%6d  %s\n", s.Lines, s.Name)
	}
}
