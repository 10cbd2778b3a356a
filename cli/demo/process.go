package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// process is a child of the demo. Its standard error goes to <dir>/<name>.log.
type process struct {
	name, log string
	cmd       *exec.Cmd
	done      chan struct{}
	err       error // once done is closed
	stopped   bool  // the demo asked for the end
}

// spawn starts cmd in a process group of its own (a Ctrl-C is for the demo alone) that dies with the demo.
func spawn(dir, name string, cmd *exec.Cmd) (*process, error) {
	p := &process{name: name, log: filepath.Join(dir, name+".log"), cmd: cmd, done: make(chan struct{})}
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd.Stderr = log
	if cmd.Stdout == nil {
		cmd.Stdout = log
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	return p, nil
}

// wait is called once, when everything that reads from the process's pipes has ended.
func (p *process) wait() {
	p.err = p.cmd.Wait()
	close(p.done)
}

func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// stop asks for the end and waits; after the limit it is killed.
func (p *process) stop(sig syscall.Signal, limit time.Duration) error {
	p.stopped = true
	_ = p.cmd.Process.Signal(sig) // it has ended already when this fails
	t := time.NewTimer(limit)
	defer t.Stop()
	select {
	case <-p.done:
		return p.err
	case <-t.C:
	}
	_ = p.cmd.Process.Kill()
	<-p.done
	return fmt.Errorf("%s did not stop within %s and was killed", p.name, limit)
}

// tail is the end of the log, for an error message.
func (p *process) tail() string {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimRight(string(text), "\n"), "\n")
	return "last lines of " + p.log + ":\n  " + strings.Join(lines[max(0, len(lines)-12):], "\n  ")
}
