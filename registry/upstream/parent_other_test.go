//go:build !linux

package upstream_test

import (
	"os"
	"syscall"
)

// parentVar is of use on Linux only.
const parentVar = "UPSTREAM_TEST_PARENT"

func beParent() {}

// alive reports whether a process exists.
func alive(pid int) bool {
	p, err := os.FindProcess(pid)
	return err == nil && p.Signal(syscall.Signal(0)) == nil
}
