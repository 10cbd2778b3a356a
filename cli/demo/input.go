package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// input is the text of the demo: every line of every regular .go file below a folder, in the order of the names.
type input struct {
	files                        []string
	lines, bytes, longest, empty int64
}

// goSources finds GOROOT/src and counts its lines; limit > 0 stops after that many.
func goSources(ctx context.Context, limit int64) (*input, error) {
	out, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
	if err != nil {
		return nil, fmt.Errorf("go env GOROOT: %w", err)
	}
	root := filepath.Join(strings.TrimSpace(string(out)), "src")
	in := &input{}
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.Type().IsRegular() && strings.HasSuffix(path, ".go") {
			in.files = append(in.files, path)
		}
		return ctx.Err()
	})
	if err != nil {
		return nil, err
	}
	err = in.each(ctx, limit, func(line []byte) error {
		in.lines++
		in.bytes += int64(len(line)) + 1
		in.longest = max(in.longest, int64(len(line)))
		if len(line) == 0 {
			in.empty++
		}
		return nil
	})
	if err == nil && in.lines == 0 {
		err = fmt.Errorf("%s has no Go sources", root)
	}
	return in, err
}

// each calls fn for each line, without its newline; limit > 0 stops after that many.
func (in *input) each(ctx context.Context, limit int64, fn func(line []byte) error) error {
	n := int64(0)
	for _, file := range in.files {
		if err := ctx.Err(); err != nil || limit > 0 && n >= limit {
			return err
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		for len(text) > 0 && (limit <= 0 || n < limit) {
			line, rest, _ := bytes.Cut(text, []byte("\n"))
			if err := fn(line); err != nil {
				return err
			}
			text, n = rest, n+1
		}
	}
	return nil
}

// feed writes the lines into the producer's standard input and notes each before it goes out.
func (in *input) feed(ctx context.Context, limit int64, w io.Writer, l *ledger) error {
	var buf []byte
	err := in.each(ctx, limit, func(line []byte) error {
		l.send(line)
		buf = append(append(buf, line...), '\n')
		if len(buf) < 256<<10 {
			return nil
		}
		_, err := w.Write(buf)
		buf = buf[:0]
		return err
	})
	if err == nil {
		_, err = w.Write(buf)
	}
	return err
}
