//go:build !linux

package upstream

import (
	"io"
	"os/exec"
	"time"
)

// IsChild reports false: outside Linux no supervisor process is used.
func IsChild([]string) bool { return false }

// ChildMain does nothing outside Linux.
func ChildMain([]string) int { return 1 }

// command makes the command itself. Outside Linux only the process group, or
// where there is none the process, is ended with us, and only when we end in
// an orderly way.
func command(_, path string, args []string) (*exec.Cmd, io.Closer, error) {
	cmd := exec.Command(path, args...)
	ownGroup(cmd)
	return cmd, &killer{cmd: cmd}, nil
}

// started does nothing.
func started(*exec.Cmd) {}

// killer ends a process after the grace times of its shutdown.
type killer struct{ cmd *exec.Cmd }

// Close begins the shutdown and does not wait for it.
func (k *killer) Close() error {
	if k.cmd.Process == nil {
		return nil
	}
	time.AfterFunc(stdinGrace, func() { endGroup(k.cmd, false) })
	time.AfterFunc(stdinGrace+termGrace, func() { endGroup(k.cmd, true) })
	return nil
}
