package deploy_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/toolgate/toolgate/internal/testkit/parts"
	"github.com/toolgate/toolgate/internal/testkit/program"
)

// host is a systemd with file systems and processes of its own. Its network is that of
// the test.
type host struct {
	init string // its PID here
}

// booted is locked while there is a host: the control groups of two would be the same.
var booted sync.Mutex

// boot starts a host over a copy of the root file system with the files of a
// directory. A test has one, and waits for that of another test to end.
func boot(t *testing.T, install string) *host {
	t.Helper()
	booted.Lock()
	t.Cleanup(booted.Unlock)
	for _, p := range []string{"unshare", "nsenter", "dbus-daemon", "/lib/systemd/systemd"} {
		parts.Need(t, p)
	}
	namespaces := []string{"--mount", "--pid", "--fork", "--kill-child", "--uts", "--ipc", "--cgroup"}
	requireNamespaces(t, namespaces)
	script, err := filepath.Abs("testdata/boot.sh")
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Dir(install)
	p := program.Launch(t, exec.Command("unshare", append(namespaces, "sh", script, dir)...))
	h := &host{}
	t.Cleanup(func() { _ = exec.Command("kill", "-KILL", h.init).Run() }) // unshare ignores TERM
	p.Await(t, "systemd starts", func() bool {
		h.init = firstInside(p)
		_, err := os.Stat(filepath.Join(dir, "booting"))
		return err == nil && h.init != ""
	})
	p.Await(t, "systemd answers", func() bool {
		_, err := h.try("systemctl", "list-jobs")
		return err == nil
	})
	return h
}

// requireNamespaces skips the test where unshare cannot make namespaces with these flags.
func requireNamespaces(t testing.TB, flags []string) {
	t.Helper()
	if out, err := exec.Command("unshare", append(flags[:len(flags):len(flags)], "true")...).CombinedOutput(); err != nil {
		parts.Missing(t, "this machine gives no namespaces: %s", out)
	}
}

// firstInside returns the PID of the process that is the first in the namespace of p, an
// unshare; "" = there is none yet.
func firstInside(p *program.Process) string {
	children, _ := os.ReadFile(fmt.Sprintf("/proc/%[1]d/task/%[1]d/children", p.Cmd.Process.Pid)) // nothing is read = there is none
	return strings.TrimSpace(string(children))
}

// try runs a command on the host.
func (h *host) try(command ...string) (string, error) {
	ctx, stop := context.WithTimeout(context.Background(), program.Timeout)
	defer stop()
	enter := append([]string{"--target", h.init, "--mount", "--pid", "--uts", "--ipc", "--cgroup", "--root", "--wd=/"}, command...)
	out, err := exec.CommandContext(ctx, "nsenter", enter...).CombinedOutput()
	return string(out), err
}

// run is try for a command that has to succeed.
func (h *host) run(t testing.TB, command ...string) string {
	t.Helper()
	out, err := h.try(command...)
	if err != nil {
		log, _ := h.try("journalctl", "--no-pager", "-n", "60", "-u", "toolgate")
		t.Fatalf("%s: %v\n%s\n%s", strings.Join(command, " "), err, out, log)
	}
	return out
}

// property returns a property of the unit toolgate.
func (h *host) property(t testing.TB, name string) string {
	t.Helper()
	return strings.TrimSpace(h.run(t, "systemctl", "show", "--value", "--property", name, "toolgate"))
}

// installUnit returns a directory with what a package of toolgate installs, and its
// addresses.
func installUnit(t *testing.T) (root, agents, admin string) {
	t.Helper()
	root, agents, admin = filepath.Join(t.TempDir(), "install"), program.FreeAddress(t), program.FreeAddress(t)
	install(t, root, "usr/bin/toolgate", static(t), 0o755)
	install(t, root, "etc/systemd/system/toolgate.service", deployed(t, "systemd/toolgate.service"), 0o644)
	install(t, root, "usr/lib/sysusers.d/toolgate.conf", deployed(t, "systemd/toolgate.sysusers"), 0o644)
	writeFile(t, filepath.Join(root, "etc/toolgate/mcp.json"), fmt.Appendf(nil, config, agents, admin, "require"), 0o644)
	return root, agents, admin
}

// config is what the unit and the container serve, with the addresses of the listeners
// and the sandbox.
const config = `{"mcpServers": {"standard": {"command": "/usr/bin/toolgate", "args": ["tools", "--dir", "/var/lib/toolgate-servers/tools"]}},
	"toolgate": {"listen": %q, "admin": %q, "sandbox": %q, "servers": {"standard": {"prefix": ""}},
		"identity": {"tokens": [{"subject": "agent", "person": "owner", "roles": ["researcher"], "sha256": "1e85597643745a860ddf8fa29ac9c6287331cb3e69435d56060df71a13709316"}]}}}`

// serves waits until toolgate and its server are ready, and makes a governed call.
func serves(t testing.TB, agents, admin string) {
	t.Helper()
	g := program.Gate{Admin: "http://" + admin}
	program.Await(t, "the server is ready", func() bool { return program.Listens(admin) && g.State(t, "standard") == "ready" })
	ctx, stop := context.WithTimeout(context.Background(), program.Timeout)
	defer stop()
	call := exec.CommandContext(ctx, static(t), "tool", "call", "search_internet", "--args", `{"query": "policy"}`, "--addr", "http://"+agents, "--token", "demo-researcher")
	if out, err := call.CombinedOutput(); err != nil || !strings.Contains(string(out), `"results"`) {
		t.Fatalf("the call is not answered: %v\n%s", err, out)
	}
}

// The unit of docs/deploy serves, confines its servers, survives a kill and a bad
// configuration, and stops in order.
func TestUnit(t *testing.T) {
	t.Parallel()
	parts.Long(t, "deploys toolgate")
	root, agents, admin := installUnit(t)
	h := boot(t, root)
	h.run(t, "systemd-sysusers")
	h.run(t, "chgrp", "toolgate", "/etc/toolgate/mcp.json")
	h.run(t, "chmod", "0640", "/etc/toolgate/mcp.json")
	h.run(t, "systemctl", "start", "toolgate") // returns when toolgate says that it is ready
	serves(t, agents, admin)
	t.Run("nothing is left to warn of", func(t *testing.T) {
		res := program.Get(t, "http://"+admin+"/readyz?verbose", "")
		defer res.Body.Close()
		text, err := io.ReadAll(res.Body)
		if err != nil || !strings.Contains(string(text), "sandbox whole") || strings.Count(string(text), "warning: ") > 1 || !strings.Contains(string(text), "a demo token") {
			t.Errorf("more is wrong than a demo token: %v\n%s", err, text)
		}
	})
	t.Run("its files are its own", func(t *testing.T) {
		if got := strings.Fields(h.run(t, "stat", "--format", "%U %a", "/var/lib/toolgate", "/var/lib/toolgate-keys")); strings.Join(got, " ") != "toolgate 700 toolgate 700" {
			t.Errorf("its directories belong to %q", got)
		}
	})
	t.Run("a kill is survived", func(t *testing.T) {
		first := h.property(t, "MainPID")
		h.run(t, "kill", "-KILL", first)
		program.Await(t, "systemd starts it again", func() bool {
			now := h.property(t, "MainPID")
			return now != first && now != "0" && h.property(t, "ActiveState") == "active"
		})
		serves(t, agents, admin)
	})
	t.Run("a bad configuration changes nothing", func(t *testing.T) {
		h.run(t, "sh", "-c", "cp /etc/toolgate/mcp.json /root/good && echo '{' >/etc/toolgate/mcp.json")
		h.run(t, "systemctl", "reload", "toolgate")
		program.Await(t, "the log says so", func() bool {
			return strings.Contains(h.run(t, "journalctl", "--no-pager", "-u", "toolgate"), "reload failed")
		})
		serves(t, agents, admin)
		h.run(t, "cp", "/root/good", "/etc/toolgate/mcp.json")
	})
	t.Run("it stops in order", func(t *testing.T) {
		h.run(t, "systemctl", "stop", "toolgate")
		if result, code := h.property(t, "Result"), h.property(t, "ExecMainStatus"); result != "success" || code != "0" {
			t.Errorf("it ended with %s, exit code %s", result, code)
		}
		h.run(t, "toolgate", "audit", "verify", "--config", "/etc/toolgate/mcp.json", "--state", "/var/lib/toolgate", "--keys", "/var/lib/toolgate-keys")
	})
}

// systemd's own judgement of the unit: 0 is best, 10 worst.
func TestUnitIsHardened(t *testing.T) {
	parts.Long(t, "deploys toolgate")
	parts.Need(t, "systemd-analyze")
	out, err := exec.Command("systemd-analyze", "security", "--offline=true", "--no-pager", deployed(t, "systemd/toolgate.service")).CombinedOutput()
	m := regexp.MustCompile(`Overall exposure level for toolgate.service: ([\d.]+)`).FindSubmatch(out)
	if m == nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if level, err := strconv.ParseFloat(string(m[1]), 64); err != nil || level >= 3 {
		t.Errorf("exposure %s, want below 3\n%s", m[1], out)
	}
}
