package deploy_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/toolgate/toolgate/internal/testkit/parts"
	"github.com/toolgate/toolgate/internal/testkit/program"
)

// releaseVar names the directory in which make -f .ci/Makefile release-check leaves the package.
const releaseVar = "TOOLGATE_RELEASE"

// installPackages returns a directory with the package in /root, and a later version with
// another mcp.json, which a host installs with dpkg.
func installPackages(t *testing.T) (root string) {
	t.Helper()
	dir := os.Getenv(releaseVar)
	if dir == "" {
		t.Skip("make -f .ci/Makefile release-check makes the package (" + releaseVar + ")")
	}
	root = filepath.Join(t.TempDir(), "install")
	install(t, root, "root/1.deb", filepath.Join(dir, "toolgate.deb"), 0o644)
	later, tree := filepath.Join(root, "root/2.deb"), filepath.Join(t.TempDir(), "later")
	for _, command := range [][]string{
		{"dpkg-deb", "--raw-extract", filepath.Join(root, "root/1.deb"), tree},
		{"sed", "-i", `s/^Version: .*/Version: 9999/`, filepath.Join(tree, "DEBIAN/control")},
		{"sed", "-i", "1i // later", filepath.Join(tree, "etc/toolgate/mcp.json")},
		{"dpkg-deb", "--build", "--root-owner-group", "-Znone", tree, later},
	} {
		if out, err := exec.Command(parts.Need(t, command[0]), command[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", strings.Join(command, " "), err, out)
		}
	}
	return root
}

// The package for Debian is installed, upgraded, removed and purged under a systemd. What
// people wrote stays until a purge, and the audit trail beyond it.
func TestPackage(t *testing.T) {
	t.Parallel()
	parts.Long(t, "deploys toolgate")
	agents, admin := program.FreeAddress(t), program.FreeAddress(t)
	h := boot(t, installPackages(t))
	h.run(t, "rm", "-f", "/usr/sbin/policy-rc.d") // with which the image of a container keeps services from starting
	t.Run("it is installed and not started", func(t *testing.T) {
		h.run(t, "dpkg", "--no-triggers", "--install", "/root/1.deb")
		if state, enabled := h.property(t, "ActiveState"), h.property(t, "UnitFileState"); state != "inactive" || enabled != "disabled" {
			t.Errorf("it is %s and %s", state, enabled)
		}
		if got := h.run(t, "stat", "--format", "%U:%G %a", "/etc/toolgate", "/etc/toolgate/mcp.json"); got != "root:toolgate 750\nroot:toolgate 640\n" {
			t.Errorf("its configuration belongs to %q", got)
		}
		h.run(t, "bash", "-n", "/usr/share/bash-completion/completions/toolgate")
	})
	t.Run("its configuration lets nobody in", func(t *testing.T) {
		out := h.run(t, "toolgate", "check", "--offline", "--config", "/etc/toolgate/mcp.json", "--state", "/tmp/state", "--keys", "/tmp/keys")
		if !strings.Contains(out, "nobody can come in over the network") || strings.Count(out, "warning: ") != 1 {
			t.Errorf("toolgate check: %s", out)
		}
	})
	edited := fmt.Sprintf(config, agents, admin, "require")
	h.run(t, "sh", "-c", `printf %s "$1" >/etc/toolgate/mcp.json && echo KEY=value >/etc/toolgate/secrets`, "sh", edited)
	h.run(t, "systemctl", "enable", "--now", "toolgate")
	serves(t, agents, admin)
	t.Run("an upgrade keeps the configuration and restarts the service", func(t *testing.T) {
		first := h.property(t, "MainPID")
		h.run(t, "dpkg", "--no-triggers", "--install", "--force-confold", "/root/2.deb")
		if now := h.property(t, "MainPID"); now == first || now == "0" {
			t.Errorf("its PID was %s and is %s", first, now)
		}
		serves(t, agents, admin)
		if got := h.run(t, "cat", "/etc/toolgate/mcp.json"); got != edited {
			t.Errorf("the configuration is %s", got)
		}
		if got := h.run(t, "stat", "--format", "%U:%G %a", "/etc/toolgate/mcp.json"); got != "root:toolgate 640\n" {
			t.Errorf("it belongs to %q", got)
		}
	})
	t.Run("a removal keeps configuration and state", func(t *testing.T) {
		h.run(t, "dpkg", "--no-triggers", "--remove", "toolgate")
		if state := h.property(t, "ActiveState"); state != "inactive" {
			t.Errorf("it is %s", state)
		}
		h.exist(t, "/etc/toolgate/mcp.json", "/etc/toolgate/secrets", "/var/lib/toolgate/state.db")
		h.missing(t, "/usr/bin/toolgate", "/usr/lib/systemd/system/toolgate.service")
	})
	t.Run("a purge keeps the trail and the keys", func(t *testing.T) {
		out := h.run(t, "dpkg", "--purge", "toolgate")
		if !strings.Contains(out, "/var/lib/toolgate is kept") {
			t.Errorf("dpkg says %s", out)
		}
		h.exist(t, "/var/lib/toolgate/state.db", "/var/lib/toolgate-keys")
		h.missing(t, "/etc/toolgate", "/etc/systemd/system/toolgate.service", "/etc/systemd/system/multi-user.target.wants/toolgate.service")
	})
}

// exist fails the test for each path that the host lacks.
func (h *host) exist(t testing.TB, paths ...string) {
	t.Helper()
	for _, p := range paths {
		if out, err := h.try("stat", p); err != nil {
			t.Errorf("%s: %s", p, out)
		}
	}
}

// missing fails the test for each path that the host has.
func (h *host) missing(t testing.TB, paths ...string) {
	t.Helper()
	for _, p := range paths {
		if out, err := h.try("stat", p); err == nil {
			t.Errorf("%s", out)
		}
	}
}
