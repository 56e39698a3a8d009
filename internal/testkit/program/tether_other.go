//go:build !linux

package program

import "os/exec"

// Tether does nothing outside Linux.
func Tether(*exec.Cmd) {}
