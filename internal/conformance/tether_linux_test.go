package conformance_test

import (
	"os/exec"
	"syscall"
)

// tether ends cmd with the test binary, however that ends.
func tether(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
