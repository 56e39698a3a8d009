package cli

import (
	"io"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/command"
)

// TERM ends a command that waits for input, where no context reaches it.
func TestSignalEndsEveryCommand(t *testing.T) {
	t.Parallel()
	cmd := exec.Command("toolgate", "tool", "call", "x", "--args", "-")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	p := startCommand(t, t.TempDir(), cmd)
	// More than the pipe holds: the command reads. It waits for more when it gets the signal.
	if _, err := io.WriteString(stdin, strings.Repeat(" ", 1<<20)); err != nil {
		t.Fatal(err)
	}
	p.signal(syscall.SIGTERM)
	p.ends(command.ExitUnexpected)
}
