//go:build unix

package recorder

import (
	"os/exec"
	"syscall"
)

// detach starts cmd in a new session, outside the process group.
func detach(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} }
