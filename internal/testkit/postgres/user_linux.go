package postgres

import (
	"os"
	"syscall"
)

// unprivileged returns as whom the server runs, which refuses to run as root, and gives
// that user the directory. A test process that is killed leaves no server.
func unprivileged(dir string) (*syscall.SysProcAttr, error) {
	as := &syscall.SysProcAttr{Pdeathsig: syscall.SIGQUIT}
	if os.Getuid() != 0 {
		return as, nil
	}
	const nobody = 65534
	as.Credential = &syscall.Credential{Uid: nobody, Gid: nobody}
	return as, os.Chown(dir, nobody, nobody)
}
