//go:build !linux

package program

import "os/exec"

// Tether does nothing outside Linux.
func Tether(*exec.Cmd) {}

// TetherSelf does nothing outside Linux.
func TetherSelf() error { return nil }

// Guard calls run and returns its exit code. It finds survivors on Linux only.
func Guard(run func() int) int { return run() }
