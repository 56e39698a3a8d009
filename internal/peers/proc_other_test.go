//go:build !linux

package peers_test

import (
	"os/exec"
	"testing"
)

// tether does nothing outside Linux.
func tether(*exec.Cmd) {}

// offspring looks at nothing outside Linux.
func offspring(testing.TB, int) func() { return func() {} }
