package sandbox_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/toolgate/toolgate/internal/sandbox"
	"github.com/toolgate/toolgate/internal/testkit/parts"
)

var resources = sandbox.Resources{Memory: 64 << 20, Processes: 40, CPUWeight: 7, FileSize: 4096, Files: 50}

// Without a control group, limits of each process hold, and Unlimited names the others. Limits
// take precedence over Resources.
func TestResourcesWithoutGroup(t *testing.T) {
	none := t.TempDir()
	h := sandbox.New(sandbox.Options{Cgroups: none})
	names, why := h.Unlimited(sandbox.Server{Mode: sandbox.Off, Resources: resources})
	if want := []string{"memory", "processes", "cpu_weight"}; why == nil || !slices.Equal(names, want) {
		t.Errorf("unlimited %v, %v, want %v", names, why, want)
	}
	if names, _ := h.Unlimited(sandbox.Server{Limits: map[string]uint64{"nproc": 9}, Resources: sandbox.Resources{Processes: 4}}); len(names) > 0 {
		t.Errorf("unlimited %v, where rlimits says how many processes", names)
	}
	if names, _ := h.Unlimited(sandbox.Server{}); len(names) > 0 {
		t.Errorf("unlimited %v, where nothing is to be limited", names)
	}
	const script = `ulimit -Hn; ulimit -f; (head -c 9000 /dev/zero >written) 2>/dev/null; wc -c <written`
	if got := shell(t, sandbox.Server{Resources: resources}, "exec 2>/dev/null; cd $(mktemp -d) && "+script); got != "50\n8\n4096" {
		t.Errorf("files and file size: %q", got)
	}
	if got := shell(t, sandbox.Server{Resources: resources, Limits: map[string]uint64{"nofile": 20}}, "ulimit -Hn"); got != "20" {
		t.Errorf("files with rlimits: %q", got)
	}
	if got := shell(t, sandbox.Server{}, "ulimit -f"); got != "unlimited" {
		t.Errorf("file size without a limit: %q", got)
	}
}

// In a user namespace of its own, a server can start as many processes as it may, whatever
// else its user runs.
func TestProcessesWithoutGroup(t *testing.T) {
	if os.Getuid() == 0 { // whose processes the kernel does not count
		cmd := exec.Command(hostProgram(t), "-test.run=^TestProcessesWithoutGroup$", "-test.v")
		cmd.Dir, cmd.Env = "/tmp", os.Environ()
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(out), "--- PASS") && !strings.Contains(string(out), "--- SKIP") {
			t.Errorf("%v: %s", err, out)
		}
		return
	}
	h := sandbox.New(sandbox.Options{Cgroups: t.TempDir()})
	s := sandbox.Server{Resources: resources}
	if names, why := h.Unlimited(s); slices.Contains(names, "processes") {
		parts.Missing(t, "processes cannot be counted here: %s", why.Error())
	}
	const script = `(i=0; while [ $i -lt %; do sleep 60 >/dev/null & i=$((i+1)); done; echo all) 2>/dev/null; echo end`
	for many, want := range map[string]string{"5 ]": "all\nend", "60 ]": "end"} {
		if got := shell(t, s, strings.Replace(script, "%", many, 1)); got != want {
			t.Errorf("%s processes: %q, want %q", many, got, want)
		}
	}
}

// ownGroup returns the path of this process in the hierarchy of version 2.
func ownGroup(t *testing.T) string {
	t.Helper()
	text, _ := os.ReadFile("/proc/self/cgroup")
	for line := range strings.Lines(string(text)) {
		if path, ok := strings.CutPrefix(strings.TrimSpace(line), "0::"); ok {
			return path
		}
	}
	parts.Missing(t, "no control groups of version 2 here")
	return ""
}

// delegated makes a tree like that of a delegated control group.
func delegated(t *testing.T, controllers, processes string) (root, group string) {
	t.Helper()
	root = t.TempDir()
	group = filepath.Join(root, ownGroup(t))
	if err := os.MkdirAll(group, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"cgroup.controllers": controllers, "cgroup.procs": processes} {
		if err := os.WriteFile(filepath.Join(group, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return root, group
}

// In a delegated control group each server has a group with its limits, which it enters by
// itself and in which its guardian kills what is left. toolgate moves to a group beside them.
func TestResourcesInGroup(t *testing.T) {
	root, group := delegated(t, "cpuset cpu io memory pids\n", "")
	h := sandbox.New(sandbox.Options{Cgroups: root})
	s := sandbox.Server{Path: "/bin/sh", Args: []string{"-c", "ulimit -Hn"}, Mode: sandbox.Off, Resources: resources}
	if names, why := h.Unlimited(s); why != nil || len(names) > 0 {
		t.Errorf("unlimited %v: %v", names, why)
	}
	cmd, leash, err := h.Command(s)
	if err != nil {
		t.Fatal(err)
	}
	defer leash.Close()
	var out strings.Builder
	cmd.Stdout = &out
	err = cmd.Start()
	sandbox.Started(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil || out.String() != "50\n" {
		t.Errorf("%v: %q", err, out.String())
	}
	servers, _ := filepath.Glob(filepath.Join(group, "server-*"))
	if len(servers) != 1 {
		t.Fatalf("groups of servers: %v", servers)
	}
	for path, want := range map[string]string{
		filepath.Join(group, "cgroup.subtree_control"): "+memory +cpu +pids",
		filepath.Join(servers[0], "memory.max"):        "67108864",
		filepath.Join(servers[0], "pids.max"):          "40",
		filepath.Join(servers[0], "cpu.weight"):        "7",
		filepath.Join(servers[0], "cgroup.procs"):      "0",
		filepath.Join(servers[0], "cgroup.kill"):       "1",
	} {
		if got, err := os.ReadFile(path); err != nil || string(got) != want {
			t.Errorf("%s is %q, want %q: %v", path, got, want, err)
		}
	}
	// An earlier toolgate's group is emptied.
	if err := os.Remove(filepath.Join(servers[0], "cgroup.kill")); err != nil {
		t.Fatal(err)
	}
	sandbox.New(sandbox.Options{Cgroups: root}).Unlimited(s)
	if got, _ := os.ReadFile(filepath.Join(servers[0], "cgroup.kill")); string(got) != "1" {
		t.Error("what an earlier toolgate left is not killed")
	}
}

// A control group that is not toolgate's alone, or lacks a controller, is left as it is.
func TestGroupIsNotDelegated(t *testing.T) {
	for _, tc := range []struct{ controllers, processes, want string }{
		{"cpu pids", "", "no memory controller"},
		{"", "", "no memory controller"},
		{"memory cpu pids", "1\n", "other processes"},
	} {
		root, group := delegated(t, tc.controllers, tc.processes)
		names, why := sandbox.New(sandbox.Options{Cgroups: root}).Unlimited(sandbox.Server{Resources: resources, Mode: sandbox.Off})
		if len(names) != 3 || why == nil || !strings.Contains(why.Error(), tc.want) {
			t.Errorf("%+v: unlimited %v, %v", tc, names, why)
		}
		if _, err := os.Stat(filepath.Join(group, "toolgate")); err == nil {
			t.Errorf("%+v: toolgate has moved", tc)
		}
	}
}

// In a real delegated control group the kernel holds the limits.
func TestResourcesInRealGroup(t *testing.T) {
	h := sandbox.New(sandbox.Options{})
	s := sandbox.Server{Mode: sandbox.Off, Resources: sandbox.Resources{Memory: 32 << 20, Processes: 40}}
	if names, why := h.Unlimited(s); len(names) > 0 {
		t.Skip("the kernel gives this process no delegated control group, in CI neither: " + why.Error())
	}
	if got := shell(t, s, `head -c 200000000 /dev/zero | tail -c 150000000 >/dev/null && echo done; echo end`); got != "end" && !strings.Contains(got, "Killed") {
		t.Errorf("memory beyond the limit: %q", got)
	}
	if got := shell(t, s, `(i=0; while [ $i -lt 60 ]; do sleep 60 >/dev/null & i=$((i+1)); done; echo all) 2>/dev/null; echo end`); got != "end" {
		t.Errorf("processes beyond the limit: %q", got)
	}
}
