package deploy_test

import (
	"strings"
	"testing"

	"github.com/toolgate/toolgate/internal/testkit/parts"
	"github.com/toolgate/toolgate/internal/testkit/program"
)

// TestServiceAtLogin holds that toolgate service install serves now and at the next login of its
// user, again after a kill, and that uninstall leaves nothing.
func TestServiceAtLogin(t *testing.T) {
	t.Parallel()
	parts.Long(t, "deploys toolgate")
	root, agents, admin := installUnit(t)
	h := boot(t, root)
	logIn := func() {
		h.run(t, "systemd-run", "--unit=session", "--collect", "--property=Delegate=yes", "--setenv=HOME=/root", "--setenv=XDG_RUNTIME_DIR=/run/login",
			"/lib/systemd/systemd", "--user", "--unit=default.target")
		program.Await(t, "the session answers", func() bool {
			_, err := h.try("env", "XDG_RUNTIME_DIR=/run/login", "systemctl", "--user", "list-jobs")
			return err == nil
		})
	}
	service := func(arguments ...string) string {
		t.Helper()
		return h.run(t, append([]string{"env", "HOME=/root", "XDG_CONFIG_HOME=", "XDG_RUNTIME_DIR=/run/login", "toolgate", "service"}, arguments...)...)
	}
	h.run(t, "sh", "-c", "umask 077 && mkdir -p /run/login /root/my-gate && sed 's/\"require\"/\"off\"/; s/\"identity\"/\"state\": \"\\/root\\/my-gate\\/state\", \"identity\"/' /etc/toolgate/mcp.json >/root/my-gate/mcp.json")
	logIn()
	service("install", "--config", "/root/my-gate/mcp.json")
	serves(t, agents, admin)
	if got := service("status", "-o", "json"); strings.Count(got, "true") != 3 || !strings.Contains(got, "/root/.config/systemd/user/toolgate.service") {
		t.Errorf("after install: %s", got)
	}
	main := func() string {
		return strings.TrimSpace(h.run(t, "env", "XDG_RUNTIME_DIR=/run/login", "systemctl", "--user", "show", "--value", "--property", "MainPID", "toolgate"))
	}
	first := main()
	h.run(t, "kill", "-KILL", first)
	program.Await(t, "it is started again", func() bool { now := main(); return now != first && now != "0" })
	serves(t, agents, admin)

	h.run(t, "systemctl", "stop", "session")
	program.Await(t, "it ends with the session", func() bool { return !program.Listens(admin) })
	logIn()
	serves(t, agents, admin)

	service("uninstall")
	program.Await(t, "uninstall ends it", func() bool { return !program.Listens(admin) })
	if got := service("status", "-o", "json"); strings.Contains(got, "true") {
		t.Errorf("after uninstall: %s", got)
	}
	if out := h.run(t, "find", "/root/.config/systemd/user", "-name", "toolgate*"); out != "" {
		t.Errorf("uninstall leaves %s", out)
	}
}
