//go:build !linux

package testtool

import "os/exec"

// dieWithParent is Linux's alone: elsewhere a killed test binary leaves its children.
func dieWithParent(*exec.Cmd) {}
