//go:build unix

package cli

import (
	"net"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/command"
	"github.com/toolgate/toolgate/internal/testkit/parts"
	"github.com/toolgate/toolgate/internal/testkit/program"
)

// A service manager hears that serve is ready once calls are served, and that it stops
// as soon as it was asked to.
func TestServiceManager(t *testing.T) {
	t.Parallel()
	parts.Long(t, "needs a service manager")
	dir := t.TempDir()
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(dir, "notify"), Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	hears := func(want string) {
		t.Helper()
		_ = socket.SetReadDeadline(time.Now().Add(patience))
		var buf [64]byte
		n, err := socket.Read(buf[:])
		if got := string(buf[:n]); err != nil || got != want {
			t.Fatalf("the service manager got %q, %v, want %q", got, err, want)
		}
	}
	write(t, dir, map[string]string{"mcp.json": `{"mcpServers": {}}`})
	agents := program.FreeAddress(t)
	serve := exec.Command("env", "NOTIFY_SOCKET="+socket.LocalAddr().String(), "toolgate", "serve", "--listen", agents, "--admin", program.FreeAddress(t))
	p := startCommand(t, dir, serve)
	hears("READY=1")
	if code, out := toolgate(t, dir, "tool", "list", "--addr", "http://"+agents); code != command.ExitOK {
		t.Errorf("a list once it is ready: exit %d\n%s", code, out)
	}
	p.signal(syscall.SIGTERM)
	hears("STOPPING=1")
	p.ends(command.ExitOK)
}

// A service manager that is gone does not keep toolgate from serving.
func TestServiceManagerThatIsGone(t *testing.T) {
	t.Parallel()
	parts.Long(t, "needs a service manager")
	dir, admin := t.TempDir(), program.FreeAddress(t)
	write(t, dir, map[string]string{"mcp.json": `{"mcpServers": {}}`})
	serve := exec.Command("env", "NOTIFY_SOCKET="+filepath.Join(dir, "nobody"), "toolgate", "serve", "--listen", program.FreeAddress(t), "--admin", admin)
	p := startCommand(t, dir, serve)
	p.says("reaching the service manager")
	ready(t, admin)
	p.signal(syscall.SIGTERM)
	p.ends(command.ExitOK)
}
