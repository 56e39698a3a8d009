//go:build !linux

package sandbox

import (
	"errors"
	"fmt"
	"io"
	"os/exec"
	"time"

	"github.com/toolgate/toolgate/internal/guardian"
)

// IsGuardian reports false: outside Linux there are no guardians.
func IsGuardian([]string) bool { return false }

// Protect does nothing outside Linux.
func Protect() error { return nil }

type program struct{}

// try reports that nothing is supported.
func (h *Host) try() Support { return Support{Missing: "servers are confined on Linux only"} }

// command makes the command itself. Outside Linux only the process group, or where
// there is none the process, ends with us, and only when we end in an orderly way.
func (h *Host) command(s Server) (*exec.Cmd, io.Closer, error) {
	if s.NoNetwork || s.User != "" || len(s.Limits) > 0 {
		return nil, nil, fmt.Errorf("%w: network, user and limits need Linux", ErrUnsupported)
	}
	cmd := exec.Command(s.Path, s.Args...)
	ownGroup(cmd)
	return cmd, &killer{cmd: cmd}, nil
}

// Started does nothing outside Linux.
func Started(*exec.Cmd) {}

// Ended does nothing outside Linux.
func Ended(*exec.Cmd) {}

// findGroups finds none.
func (h *Host) findGroups() (string, error) {
	return "", errors.New("resources are limited on Linux only")
}

// limitsProcess says that file sizes and open files are not limited here.
const limitsProcess = false

// countsAlone reports false: there are no limits.
func (h *Host) countsAlone(Server) bool { return false }

// UserSockets returns nothing outside Linux.
func UserSockets() []string { return nil }

// killer ends a process after the grace times of its shutdown.
type killer struct{ cmd *exec.Cmd }

// Close begins the shutdown and does not wait for it.
func (k *killer) Close() error {
	if k.cmd.Process == nil {
		return nil
	}
	time.AfterFunc(guardian.StdinGrace, func() { endGroup(k.cmd, false) })
	time.AfterFunc(guardian.StdinGrace+guardian.TermGrace, func() { endGroup(k.cmd, true) })
	return nil
}
