package cli

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/command"
	"github.com/toolgate/toolgate/internal/testkit/program"
)

// served starts a toolgate whose one upstream plays config, in a directory of
// its own.
func served(t *testing.T, config string) (dir, agents, admin string, p *process) {
	t.Helper()
	dir, agents, admin = t.TempDir(), program.FreeAddress(t), program.FreeAddress(t)
	write(t, dir, map[string]string{
		"policy/p.rego": allowAll, "up.json": config,
		"mcp.json": `{"mcpServers": {"up": {"command": "recorder", "args": ["up.json", "record"]}},
			"toolgate": {"policy": {"path": "policy", "timeout": "10s"}, "limits": {"default": "off"}, "servers": {"up": {"isolation": "shared"}}}}`,
	})
	p = start(t, dir, "serve", "--listen", agents, "--admin", admin)
	ready(t, admin)
	return dir, agents, admin, p
}

// await polls until a file contains a text.
func await(t *testing.T, path, text string) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(patience); time.Now().Before(end); <-tick.C {
		if data, err := os.ReadFile(path); err == nil && strings.Contains(string(data), text) {
			return
		}
	}
	t.Fatalf("%s never contains %q", path, text)
}

// listen opens a session with its event stream, as clients do that want to hear of
// changes.
func listen(t *testing.T, base string) {
	t.Helper()
	e := &command.Env{Addr: base}
	a, err := e.Agent(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.Close)
}

// SIGTERM lets the call that is under way finish, refuses new ones, does not
// wait for listeners, and ends with success; the trail is whole and says how
// the call ended.
func TestDrain(t *testing.T) {
	t.Parallel()
	dir, agents, _, p := served(t, `{"Tools": [{"Name": "slow", "Does": "late", "Delay": 1500000000}]}`)
	listen(t, "http://"+agents)
	call := start(t, dir, "tool", "call", "up__slow", "--args", `{"n":1}`, "--addr", "http://"+agents, "-o", "json")
	await(t, filepath.Join(dir, "record"), "tools/call")
	p.signal(syscall.SIGTERM)
	p.says("draining")
	if code, out := toolgate(t, dir, "tool", "call", "up__slow", "--addr", "http://"+agents); code != command.ExitUnreachable {
		t.Errorf("a call while draining: exit %d, want %d\n%s", code, command.ExitUnreachable, out)
	}
	call.ends(command.ExitOK)
	call.says(`"n": 1`)
	p.ends(command.ExitOK)
	if code, out := toolgate(t, dir, "audit", "verify"); code != command.ExitOK || strings.Contains(out, "unfinished") {
		t.Errorf("exit %d: %s", code, out)
	}
}

// A second signal does not wait for anything.
func TestSecondSignalEndsAtOnce(t *testing.T) {
	t.Parallel()
	dir, agents, _, p := served(t, `{"Tools": [{"Name": "hang", "Does": "hang"}]}`)
	call := start(t, dir, "tool", "call", "up__hang", "--addr", "http://"+agents)
	await(t, filepath.Join(dir, "record"), "tools/call")
	p.signal(syscall.SIGINT)
	p.says("draining")
	for ended := false; !ended; { // the first may still be under way
		p.signal(syscall.SIGTERM) // a program that a script starts in the background may ignore INT
		select {
		case <-p.done:
			ended = true
		case <-time.After(20 * time.Millisecond):
		}
	}
	p.ends(-1)
	call.ends(command.ExitUnreachable)
}

// An interrupted call is cancelled, not left to run for nobody.
func TestInterruptedCallIsCancelled(t *testing.T) {
	t.Parallel()
	dir, agents, _, _ := served(t, `{"Tools": [{"Name": "hang", "Does": "hang"}]}`)
	call := start(t, dir, "tool", "call", "up__hang", "--addr", "http://"+agents)
	await(t, filepath.Join(dir, "record"), "tools/call")
	call.signal(syscall.SIGINT)
	call.ends(command.ExitUnexpected)
	call.says("interrupted")
	await(t, filepath.Join(dir, "record"), "notifications/cancelled")
}

// SIGHUP reloads even when no file has changed: what a policy at an address says
// may have.
func TestHangup(t *testing.T) {
	t.Parallel()
	_, _, _, p := served(t, `{}`)
	p.signal(syscall.SIGHUP)
	p.says("reloaded: ")
}

// Both ways to follow the trail print records as they are written, and end
// cleanly when they are interrupted.
func TestFollow(t *testing.T) {
	t.Parallel()
	dir, agents, admin := t.TempDir(), program.FreeAddress(t), program.FreeAddress(t)
	shipped := filepath.Join(repository(t), "mcp.json")
	state := filepath.Join(dir, "state")
	start(t, dir, "serve", "--config", shipped, "--state", state, "--listen", agents, "--admin", admin)
	ready(t, admin)
	search := func(query string) {
		t.Helper()
		if code, out := toolgate(t, dir, "tool", "call", "search_internet", "--args", `{"query":"`+query+`"}`,
			"--addr", "http://"+agents, "--token", "demo-researcher"); code != command.ExitOK {
			t.Fatalf("exit %d: %s", code, out)
		}
	}
	search("before")
	followers := []*process{
		start(t, dir, "audit", "tail", "--state", state, "-n", "5", "--follow", "-o", "json"),
		start(t, dir, "audit", "tail", "--addr", "http://"+admin, "--token", "demo-auditor", "-n", "5", "--follow", "-o", "json"),
	}
	for _, f := range followers {
		f.says(`"arguments":\{"query":"before"\}`)
	}
	search("after")
	for _, f := range followers {
		f.says(`"arguments":\{"query":"after"\}`)
		f.signal(syscall.SIGINT)
		f.ends(command.ExitOK)
	}
}
