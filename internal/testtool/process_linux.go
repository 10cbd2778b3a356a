package testtool

import (
	"os/exec"
	"syscall"
)

// dieWithParent has the kernel kill the child when a test binary is killed and runs no cleanup.
func dieWithParent(cmd *exec.Cmd) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
}
