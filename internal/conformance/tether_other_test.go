//go:build !linux

package conformance_test

import "os/exec"

// tether does nothing outside Linux.
func tether(*exec.Cmd) {}
