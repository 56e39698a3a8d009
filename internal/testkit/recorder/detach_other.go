//go:build !unix

package recorder

import "os/exec"

// detach does nothing on systems without sessions.
func detach(*exec.Cmd) {}
