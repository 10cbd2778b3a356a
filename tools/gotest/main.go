// Command gotest runs `go test` with the given arguments and prints go test's closing line of each package, the whole output of
// each test that failed, and the name of each test that was skipped with its reason. With CI=true a skipped test fails
// the run: green means that every test ran.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
)

// event is one line of `go test -json` (see `go doc test2json`).
type event struct {
	Action, Package, Test, Output, ImportPath string
}

type key struct{ pkg, test string }

// report collects the events of a run.
type report struct {
	out                     io.Writer
	output                  map[key][]string
	passed, failed, skipped int
	skips                   []string
}

func newReport(out io.Writer) *report { return &report{out: out, output: map[key][]string{}} }

// read takes the events until the end; a line that is no event is printed as it is.
func (r *report) read(in io.Reader) error {
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			var e event
			if json.Unmarshal(line, &e) != nil {
				fmt.Fprintf(r.out, "%s", line)
			} else {
				r.take(e)
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (r *report) take(e event) {
	k := key{e.Package, e.Test}
	switch e.Action {
	case "output":
		if e.Test == "" {
			r.packageLine(e.Output)
			return
		}
		r.output[k] = append(r.output[k], e.Output)
	case "build-output":
		fmt.Fprint(r.out, e.Output)
	case "pass":
		if e.Test != "" {
			r.passed++
		}
		delete(r.output, k)
	case "skip":
		if e.Test != "" {
			r.skipped++
			r.skips = append(r.skips, fmt.Sprintf("%s %s: %s", e.Package, e.Test, reason(r.output[k])))
		}
		delete(r.output, k)
	case "fail":
		if e.Test != "" {
			r.failed++
		}
		r.dump(k)
	}
}

// packageLine prints what a package itself said: its closing line, a panic, a data race; not the noise around it.
func (r *report) packageLine(line string) {
	if line != "PASS\n" && !strings.HasPrefix(line, "=== ") && !strings.Contains(line, "[no test files]") {
		fmt.Fprint(r.out, line)
	}
}

func (r *report) dump(k key) {
	for _, line := range r.output[k] {
		fmt.Fprint(r.out, line)
	}
	delete(r.output, k)
}

// reason returns what a skipped test said.
func reason(lines []string) string {
	for _, line := range lines {
		if line = strings.TrimSpace(line); !strings.HasPrefix(line, "===") && !strings.HasPrefix(line, "---") {
			return line
		}
	}
	return "no reason given"
}

// close prints what is left (of a test that never ended) and the count, and tells whether a skip fails the run.
func (r *report) close(strict bool) bool {
	for k := range r.output {
		fmt.Fprintf(r.out, "not ended: %s %s\n", k.pkg, k.test)
		r.dump(k)
	}
	for _, s := range r.skips {
		fmt.Fprintf(r.out, "skipped: %s\n", s)
	}
	fmt.Fprintf(r.out, "tests: %d passed, %d failed, %d skipped\n", r.passed, r.failed, r.skipped)
	if strict && r.skipped > 0 {
		fmt.Fprintln(r.out, "FAIL: with CI=true every test must run")
		return false
	}
	return true
}

func run(args []string) (int, error) {
	fmt.Printf("+ go test %s\n", brief(args))
	cmd := exec.Command("go", append([]string{"test", "-json"}, args...)...)
	cmd.Stderr = os.Stderr
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		return 0, err
	}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	r := newReport(os.Stdout)
	readErr := r.read(pipe)
	err = cmd.Wait()
	complete := r.close(os.Getenv("CI") == "true")
	switch {
	case readErr != nil:
		return 0, readErr
	case err != nil:
		return max(cmd.ProcessState.ExitCode(), 1), nil
	case !complete:
		return 1, nil
	}
	return 0, nil
}

// brief shortens a list of many packages.
func brief(args []string) string {
	if len(args) > 12 {
		args = append(append([]string{}, args[:8]...), fmt.Sprintf("... (%d more)", len(args)-8))
	}
	return strings.Join(args, " ")
}

func main() {
	code, err := run(os.Args[1:])
	if err != nil {
		fmt.Fprintf(os.Stderr, "gotest: cannot run go test: %v\n", err)
		code = 1
	}
	os.Exit(code)
}
