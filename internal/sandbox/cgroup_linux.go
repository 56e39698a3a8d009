package sandbox

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// controllers are what the control group of a server needs.
var controllers = []string{"memory", "cpu", "pids"}

// Names of control groups below the one that was delegated to toolgate.
const (
	gateGroup   = "toolgate" // toolgate itself: a group with controllers for its children holds no processes
	serverGroup = "server-"
)

// findGroups returns the directory in which servers get control groups of their own
// (cgroups(7), version 2). The error says why there is none. toolgate moves itself to a child of
// its group, which must be delegated to its user and hold no other process. Groups of servers
// that an earlier toolgate left are emptied and removed.
func (h *Host) findGroups() (dir string, err error) {
	memberships, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return "", err
	}
	own, found := "", false
	for line := range strings.Lines(string(memberships)) {
		if path, ok := strings.CutPrefix(strings.TrimSpace(line), "0::"); ok {
			own, found = path, true
		}
	}
	if !found {
		return "", errors.New("the system has no control groups of version 2")
	}
	dir = filepath.Join(cmp.Or(h.options.Load().Cgroups, "/sys/fs/cgroup"), own)
	if filepath.Base(dir) == gateGroup {
		dir = filepath.Dir(dir) // toolgate is there already
	}
	has, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return "", fmt.Errorf("no control group of version 2: %w", err)
	}
	for _, name := range controllers {
		if !slices.Contains(strings.Fields(string(has)), name) {
			return "", fmt.Errorf("toolgate's control group has no %s controller", name)
		}
	}
	processes, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	if err != nil {
		return "", err
	}
	pid := strconv.Itoa(os.Getpid())
	if slices.ContainsFunc(strings.Fields(string(processes)), func(other string) bool { return other != pid }) {
		return "", errors.New("other processes are in toolgate's control group")
	}
	gate := filepath.Join(dir, gateGroup)
	if err = os.Mkdir(gate, 0o755); errors.Is(err, fs.ErrExist) {
		err = nil
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(gate, "cgroup.procs"), []byte(pid), 0o600)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+strings.Join(controllers, " +")), 0o600)
	}
	if err != nil {
		return "", fmt.Errorf("toolgate's control group is not delegated to it: %w", err)
	}
	left, _ := filepath.Glob(filepath.Join(dir, serverGroup+"*"))
	for _, group := range left {
		removeGroup(group)
	}
	return dir, nil
}

// newGroup makes a control group with the limits of r. It returns the files with which a
// guardian puts its server there and kills what is in it.
func newGroup(dir string, r Resources) (files []*os.File, err error) {
	group, err := os.MkdirTemp(dir, serverGroup)
	if err != nil {
		return nil, fmt.Errorf("making a control group: %w", err)
	}
	for name, most := range map[string]uint64{"memory.max": r.Memory, "pids.max": r.Processes, "cpu.weight": r.CPUWeight} {
		if most > 0 && err == nil {
			err = os.WriteFile(filepath.Join(group, name), []byte(strconv.FormatUint(most, 10)), 0o600)
		}
	}
	for _, name := range []string{"cgroup.procs", "cgroup.kill"} {
		var f *os.File
		if err == nil {
			f, err = os.OpenFile(filepath.Join(group, name), os.O_WRONLY|os.O_CREATE, 0o600)
			files = append(files, f)
		}
	}
	if err != nil {
		for _, f := range files {
			_ = f.Close() // err says more
		}
		removeGroup(group)
		return nil, fmt.Errorf("limiting the resources of a server: %w", err)
	}
	return files, nil
}

// removeGroup kills what is in a group and removes it. One that the kernel does not give up in
// time stays for the next start.
func removeGroup(group string) {
	_ = os.WriteFile(filepath.Join(group, "cgroup.kill"), []byte("1"), 0o600) // an empty group needs none
	for range 20 {
		if err := os.Remove(group); !errors.Is(err, syscall.EBUSY) {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
}
