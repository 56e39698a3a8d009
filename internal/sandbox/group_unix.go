//go:build unix && !linux

package sandbox

import (
	"os/exec"
	"syscall"
)

// ownGroup starts cmd in a process group of its own.
func ownGroup(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

// endGroup signals the whole group, unless its leader has gone: its number may
// belong to somebody else by then.
func endGroup(cmd *exec.Cmd, kill bool) {
	if cmd.ProcessState != nil {
		return
	}
	sig := syscall.SIGTERM
	if kill {
		sig = syscall.SIGKILL
	}
	syscall.Kill(-cmd.Process.Pid, sig)
}
