package postgres

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
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

// memory returns a directory in memory with 8 GiB to spare, where databases are made in a tenth of
// the time; "" = none. It removes there what processes left that were killed.
func memory() string {
	const shm = "/dev/shm"
	left, _ := filepath.Glob(shm + "/pg-*-*")
	for _, dir := range left {
		if _, err := os.Stat("/proc/" + strings.Split(dir, "-")[1]); errors.Is(err, fs.ErrNotExist) {
			_ = os.RemoveAll(dir) // the next process tries again
		}
	}
	var disk syscall.Statfs_t
	if err := syscall.Statfs(shm, &disk); err != nil || disk.Bavail*uint64(disk.Bsize) < 8<<30 {
		return ""
	}
	return shm
}
