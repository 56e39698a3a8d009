package program

import (
	"os/exec"
	"syscall"
)

// Tether ends cmd with the process that starts it, however that ends. Call it
// before Start; it takes the place of other SysProcAttr.
func Tether(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
