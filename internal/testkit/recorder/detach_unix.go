//go:build unix

package recorder

import (
	"os/exec"
	"syscall"
)

// detach puts cmd into a session of its own, out of reach of its group.
func detach(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} }
