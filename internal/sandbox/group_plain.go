//go:build !unix

package sandbox

import "os/exec"

// ownGroup does nothing where there are no process groups.
func ownGroup(*exec.Cmd) {}

// endGroup kills the process.
func endGroup(cmd *exec.Cmd, kill bool) {
	if kill {
		cmd.Process.Kill()
	}
}
