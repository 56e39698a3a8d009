package sandbox_test

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/toolgate/toolgate/internal/guardian"
	"github.com/toolgate/toolgate/internal/sandbox"
	"github.com/toolgate/toolgate/internal/testkit/parts"
)

// The test program has six roles: the test, a guardian, the owner of the secrets
// who stands for toolgate, the stealing server, a host that also stands for toolgate, and
// the server that kills its guardian.
func TestMain(m *testing.M) {
	switch {
	case sandbox.IsGuardian(os.Args[1:]):
		os.Exit(guardian.Main(os.Args[2:]))
	case os.Getenv("ROLE") == "owner":
		os.Exit(own())
	case os.Getenv("ROLE") == "thief":
		os.Exit(steal())
	case os.Getenv("ROLE") == "host":
		os.Exit(host())
	case os.Getenv("ROLE") == "assassin":
		os.Exit(assassinate())
	}
	os.Exit(m.Run())
}

// readCommandLine is an attempt that only a PID namespace stops.
const readCommandLine = "read the command line of toolgate"

const secret = "correct horse battery staple"

// attempts are what a stealing server tries against its owner. Each reports whether
// it succeeded. stopped says whether a whole sandbox stops the attempt; what it does
// not stop is in docs/security.md.
var attempts = []struct {
	name    string
	stopped bool
	try     func(v victim) bool
}{
	{"read the environment of toolgate", true, func(v victim) bool {
		data, err := os.ReadFile(v.proc("environ"))
		return err == nil && strings.Contains(string(data), secret)
	}},
	{"open the memory of toolgate", true, func(v victim) bool { return opens(v.proc("mem"), os.O_RDONLY) }},
	{"list the descriptors of toolgate", true, func(v victim) bool { _, err := os.ReadDir(v.proc("fd")); return err == nil }},
	{"trace toolgate", true, func(v victim) bool {
		return unix.PtraceSeize(v.PID) == nil
	}},
	{"signal toolgate", true, func(v victim) bool { return syscall.Kill(v.PID, syscall.SIGWINCH) == nil }},
	{"limit toolgate", true, func(v victim) bool {
		var old unix.Rlimit
		return unix.Prlimit(v.PID, unix.RLIMIT_CORE, &unix.Rlimit{}, &old) == nil
	}},
	{"read the state", true, func(v victim) bool { return holds(filepath.Join(v.Dir, "state/state.db")) }},
	{"write the state", true, func(v victim) bool { return opens(filepath.Join(v.Dir, "state/state.db"), os.O_WRONLY) }},
	{"make a file in the state", true, func(v victim) bool {
		return opens(filepath.Join(v.Dir, "state/new"), os.O_WRONLY|os.O_CREATE)
	}},
	{"read the state by a relative path", true, func(victim) bool { return holds("../state/state.db") }},
	{"read the state through the working directory in /proc", true, func(victim) bool { return holds("/proc/self/cwd/../state/state.db") }},
	{"read the state through the root of toolgate", true, func(v victim) bool {
		return holds(v.proc("root") + filepath.Join(v.Dir, "state/state.db"))
	}},
	{"read the state through the root of another process", true, func(v victim) bool {
		return holds(fmt.Sprintf("/proc/%d/root%s", v.Other, filepath.Join(v.Dir, "state/state.db")))
	}},
	{"read the state through the root of the guardian", true, func(v victim) bool {
		return holds(fmt.Sprintf("/proc/%d/root%s", os.Getppid(), filepath.Join(v.Dir, "state/state.db")))
	}},
	{"link the state", true, func(v victim) bool {
		return os.Link(filepath.Join(v.Dir, "state/state.db"), filepath.Join(v.Dir, "work/db")) == nil
	}},
	{"read the configuration", true, func(v victim) bool { return holds(filepath.Join(v.Dir, "mcp.json")) }},
	{"write the configuration", true, func(v victim) bool {
		path := filepath.Join(v.Dir, "mcp.json")
		return os.WriteFile(path, []byte(secret+"!"), 0o600) == nil && holds(path)
	}},
	{"replace the configuration", true, func(v victim) bool {
		plan := filepath.Join(v.Dir, "plan")
		return os.WriteFile(plan, nil, 0o600) == nil && moves(plan, filepath.Join(v.Dir, "mcp.json"))
	}},
	{"rename the project away", true, func(v victim) bool { return moves(v.Dir, v.Dir+".old") && moves(v.Dir+".old", v.Dir) }},
	{"replace toolgate's program", true, func(v victim) bool {
		path := filepath.Join(v.Dir, "program")
		return moves(path, path+".old") && moves(path+".old", path)
	}},
	{"unmount the cover", true, func(v victim) bool {
		return unix.Unmount(filepath.Join(v.Dir, "state"), unix.MNT_DETACH) == nil && holds(filepath.Join(v.Dir, "state/state.db"))
	}},
	{"unmount the cover in a user namespace of its own", true, func(v victim) bool {
		path := filepath.Join(v.Dir, "state")
		out, _ := exec.Command("unshare", "-Urm", "sh", "-c", "umount -l "+path+"; cat "+path+"/state.db").Output()
		return strings.Contains(string(out), secret)
	}},
	{"connect to an abstract socket", true, func(v victim) bool {
		c, err := net.Dial("unix", v.Abstract)
		if err == nil {
			c.Close()
		}
		return err == nil
	}},
	{"add a key", true, func(victim) bool {
		_, err := unix.AddKey("user", "toolgate-test", []byte("x"), unix.KEY_SPEC_PROCESS_KEYRING)
		return err == nil
	}},
	{"inherit a descriptor", true, func(victim) bool {
		entries, _ := os.ReadDir("/proc/self/fd")
		return slices.ContainsFunc(entries, func(e os.DirEntry) bool {
			to, err := os.Readlink("/proc/self/fd/" + e.Name())
			return err == nil && strings.Contains(to, "state.db")
		})
	}},
	{"read the kept directory", false, func(v victim) bool { return holds(filepath.Join(v.Dir, "state/tools/own")) }},
	{"write its own directory", false, func(v victim) bool { return os.WriteFile(filepath.Join(v.Dir, "work/own"), nil, 0o600) == nil }},
	{readCommandLine, false, func(v victim) bool { return opens(v.proc("cmdline"), os.O_RDONLY) }},
	{"connect to a path socket", false, func(v victim) bool {
		c, err := net.Dial("unix", filepath.Join(v.Dir, "work/socket"))
		if err == nil {
			c.Close()
		}
		return err == nil
	}},
	{"connect over loopback", false, func(v victim) bool {
		c, err := net.Dial("tcp", v.Address)
		if err == nil {
			c.Close()
		}
		return err == nil
	}},
}

// victim is what a thief knows of its owner.
type victim struct {
	PID      int
	Other    int // another process of the same user, unprotected
	Dir      string
	Abstract string
	Address  string
}

func (v victim) proc(name string) string { return "/proc/" + strconv.Itoa(v.PID) + "/" + name }

func opens(path string, flag int) bool {
	f, err := os.OpenFile(path, flag, 0o600)
	if err == nil {
		f.Close()
	}
	return err == nil
}

func moves(from, to string) bool { return os.Rename(from, to) == nil }

func holds(path string) bool {
	data, err := os.ReadFile(path)
	return err == nil && strings.Contains(string(data), secret)
}

// steal is the role of the server: it makes the attempts and prints those that
// succeeded.
func steal() int {
	var v victim
	if err := json.Unmarshal([]byte(os.Getenv("VICTIM")), &v); err != nil {
		fmt.Println(err)
		return 1
	}
	for _, a := range attempts {
		if a.try(v) {
			fmt.Println(a.name)
		}
	}
	return 0
}

// own is the role of toolgate: it protects itself, starts the thief and passes on
// what that prints.
func own() int {
	if os.Getenv("PROTECT") != "" {
		if err := sandbox.Protect(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	dir := os.Getenv("DIR")
	abstract, err := net.Listen("unix", "@toolgate-test-"+strconv.Itoa(os.Getpid()))
	if err != nil {
		panic(err)
	}
	if _, err := net.Listen("unix", filepath.Join(dir, "work/socket")); err != nil {
		panic(err)
	}
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	other := exec.Command("sleep", "60")
	if err := other.Start(); err != nil {
		panic(err)
	}
	defer other.Wait()
	defer other.Process.Kill()
	db, err := os.Open(filepath.Join(dir, "state/state.db"))
	if err != nil {
		panic(err)
	}
	defer db.Close()
	v, _ := json.Marshal(victim{PID: os.Getpid(), Other: other.Process.Pid, Dir: dir, Abstract: abstract.Addr().String(), Address: tcp.Addr().String()})
	h := sandbox.New(sandbox.Options{
		Hide: []string{filepath.Join(dir, "state"), filepath.Join(dir, "mcp.json"), filepath.Join(dir, "missing/file"), filepath.Join(dir, "closed/socket")}, Keep: []string{filepath.Join(dir, "state/tools")},
		ReadOnly: []string{filepath.Join(dir, "program")},
	})
	executable, _ := os.Executable()
	cmd, leash, err := h.Command(sandbox.Server{Path: executable, Mode: sandbox.Mode(os.Getenv("MODE")), NoNetwork: os.Getenv("NETWORK") == "none"})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer leash.Close()
	cmd.Dir, cmd.Stdout, cmd.Stderr = filepath.Join(dir, "work"), os.Stdout, os.Stderr
	cmd.Env = append(cmd.Env, "ROLE=thief", "VICTIM="+string(v), "PATH="+os.Getenv("PATH"))
	err = cmd.Start()
	sandbox.Started(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// robbery runs owner and thief as a user without privileges, and returns the names
// of the attempts that succeeded.
func robbery(t *testing.T, env ...string) []string {
	t.Helper()
	out, err := rob(t, "/tmp", nil, env...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

const nobody = 65533 // 65534 is also what a user namespace shows for users that it does not know

// rob is robbery in a place, with a command around the owner's. In a place other than
// /tmp the project's directory is root's. The error says what the owner said.
func rob(t *testing.T, place string, around []string, env ...string) ([]string, error) {
	t.Helper()
	dir, err := os.MkdirTemp(place, "sandbox")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	project := filepath.Join(dir, "project")
	for _, d := range []string{"work", "state/tools"} {
		if err := os.MkdirAll(filepath.Join(project, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range []string{"state/state.db", "state/tools/own", "mcp.json"} {
		if err := os.WriteFile(filepath.Join(project, f), []byte(secret), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	program := filepath.Join(project, "program")
	copyProgram(t, program)
	around = append(around, program)
	cmd := exec.Command(around[0], around[1:]...)
	cmd.Env = append(env, "ROLE=owner", "DIR="+project, "TOKEN="+secret, "PATH="+os.Getenv("PATH"))
	if os.Getuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
		if err := filepath.Walk(dir, func(path string, _ os.FileInfo, err error) error {
			if place != "/tmp" && (path == dir || path == project) {
				return cmp.Or(err, os.Chmod(path, 0o755))
			}
			return cmp.Or(err, os.Chown(path, nobody, nobody))
		}); err != nil {
			t.Fatal(err)
		}
		// The owner cannot look into root's directory, and neither can what it starts.
		if err := os.Mkdir(filepath.Join(project, "closed"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("%w: %s", err, said.String())
	}
	return strings.Split(strings.TrimSpace(out.String()), "\n"), nil
}

func copyProgram(t *testing.T, to string) {
	t.Helper()
	executable, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	from, err := os.Open(executable)
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	f, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(f, from); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

// Without sandbox and protection every attempt succeeds: each one is real.
func TestEveryAttemptIsReal(t *testing.T) {
	parts.Long(t, "traces processes")
	got := robbery(t, "MODE=off")
	for _, a := range attempts {
		if strings.Contains(a.name, "cover") || strings.Contains(a.name, "inherit") || strings.Contains(a.name, "guardian") {
			continue // nothing is covered, Go passes no descriptors on, and the guardian protects itself
		}
		if !slices.Contains(got, a.name) {
			t.Errorf("%s: failed without any control", a.name)
		}
	}
}

func TestSandboxStops(t *testing.T) {
	parts.Long(t, "traces processes")
	s := sandbox.New(sandbox.Options{}).Support()
	if !s.Whole() {
		parts.Missing(t, "servers cannot be confined here: %s", s.Missing)
	}
	got := robbery(t, "MODE=require", "PROTECT=1")
	for _, a := range attempts {
		if stopped := a.stopped || s.PIDs && a.name == readCommandLine; slices.Contains(got, a.name) == stopped {
			t.Errorf("%s: stopped = %v", a.name, !stopped)
		}
	}
}

// Where the kernel has no user namespaces left, and the hidden directories are the
// user's own, files are not hidden; the rest holds, and Require starts nothing.
func TestFallsBack(t *testing.T) {
	unshare := parts.Need(t, "unshare")
	if !sandbox.New(sandbox.Options{}).Support().Whole() {
		parts.Missing(t, "needs user namespaces")
	}
	without := withoutNamespaces(unshare)
	got, err := rob(t, "/tmp", without, "MODE=auto", "PROTECT=1")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{
		"read the environment of toolgate", "open the memory of toolgate", "trace toolgate", "signal toolgate", "limit toolgate",
		"connect to an abstract socket", "add a key",
	} {
		if slices.Contains(got, name) {
			t.Errorf("%s: not stopped", name)
		}
	}
	if !slices.Contains(got, "read the state") {
		t.Error("the state was hidden: this test needs a system that cannot")
	}
	_, err = rob(t, "/tmp", without, "MODE=require", "PROTECT=1")
	if err == nil || !strings.Contains(err.Error(), "cannot confine the server: user namespaces are refused") || !strings.Contains(err.Error(), "hint:") {
		t.Errorf("required: %v", err)
	}
}

// withoutNamespaces returns a command that runs another where no user namespace can
// be made.
func withoutNamespaces(unshare string) []string {
	return []string{unshare, "-U", "-r", "sh", "-c", `echo 0 >/proc/sys/user/max_user_namespaces && exec "$0"`}
}

// Where the kernel has no user namespaces left, Landlock hides what lies in
// directories that are not the user's.
func TestFilesForm(t *testing.T) {
	unshare := parts.Need(t, "unshare")
	if os.Getuid() != 0 || !sandbox.New(sandbox.Options{}).Support().Whole() {
		parts.Missing(t, "needs root and user namespaces")
	}
	got, err := rob(t, "/var/lib", withoutNamespaces(unshare), "MODE=auto", "PROTECT=1")
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range attempts {
		if a.name == "list the descriptors of toolgate" {
			continue // the list belongs to the root of unshare's namespace, who is the same user
		}
		if slices.Contains(got, a.name) == a.stopped {
			t.Errorf("%s: stopped = %v", a.name, !a.stopped)
		}
	}
}

// shell runs a script as a server and returns what it prints.
func shell(t *testing.T, s sandbox.Server, script string) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "sandbox")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(dir, "program") // a guardian that other users can run, where none is embedded
	copyProgram(t, program)
	s.Path, s.Args = "/bin/sh", []string{"-c", script}
	cmd, leash, err := sandbox.New(sandbox.Options{Executable: program}).Command(s)
	if err != nil {
		t.Fatal(err)
	}
	defer leash.Close()
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.Env = append(cmd.Env, "PATH="+os.Getenv("PATH"))
	err = cmd.Start()
	sandbox.Started(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		t.Fatalf("%v: %s", err, out.String())
	}
	return strings.TrimSpace(out.String())
}

func TestLimits(t *testing.T) {
	for _, mode := range []sandbox.Mode{sandbox.Auto, sandbox.Off} {
		s := sandbox.Server{Mode: mode, Limits: map[string]uint64{"nofile": 64, "core": 0, "as": 1 << 32}}
		if got := shell(t, s, "ulimit -Hn; ulimit -Sn; ulimit -Hc; ulimit -Hv; (ulimit -n 128) 2>/dev/null && echo raised; true"); got != "64\n64\n0\n4194304" {
			t.Errorf("%s: limits %q", mode, got)
		}
	}
}

func TestNoNetwork(t *testing.T) {
	if !sandbox.New(sandbox.Options{}).Support().Namespaces {
		parts.Missing(t, "no user namespaces here")
	}
	if got := shell(t, sandbox.Server{NoNetwork: true}, `tail -n +3 /proc/net/dev | cut -d: -f1; cat /proc/net/route | wc -l`); got != "lo\n1" && got != "lo\n0" {
		t.Errorf("interfaces and routes %q", got)
	}
	if got := shell(t, sandbox.Server{}, `tail -n +2 /proc/net/route | wc -l`); got == "0" {
		t.Log("no routes outside either")
	}
}

func TestOtherUser(t *testing.T) {
	if os.Getuid() != 0 {
		parts.Missing(t, "needs root")
	}
	if got := shell(t, sandbox.Server{User: "nobody"}, "id -u; id -g; cat /etc/shadow >/dev/null 2>&1 && echo read; true"); got != "65534\n65534" {
		t.Errorf("runs as %q", got)
	}
	if _, _, err := sandbox.New(sandbox.Options{}).Command(sandbox.Server{Path: "/bin/true", User: "no-such-user"}); err == nil {
		t.Error("an unknown user was accepted")
	}
}

// A guardian starts whatever number the descriptor of its program has. In the new process
// syscall.ForkExec moves descriptors of its own, when they have lower numbers, to those
// after the numbers of the files that the process gets: here, to that of the program.
func TestDescriptorNumbers(t *testing.T) {
	first := sandbox.New(sandbox.Options{})
	first.Support() // opens what a process opens once
	defer runtime.KeepAlive(first)
	files := make(map[uintptr]*os.File)
	open := func() uintptr {
		f, err := os.Open(os.DevNull)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		files[f.Fd()] = f
		return f.Fd()
	}
	low := []uintptr{open(), open()}
	var h *sandbox.Host
	var program uintptr
	// The collector closes programs of earlier tests whenever it finds them, so the first
	// program may get the number of one of these.
	for program == 0 || files[program-1] == nil {
		before := guardianPrograms(t)
		for open() < slices.Max(before) {
		}
		h = sandbox.New(sandbox.Options{})
		h.Support() // opens the program
		program = 0
		for _, fd := range guardianPrograms(t) {
			if !slices.Contains(before, fd) {
				program = fd
			}
		}
	}
	for open() < program {
	}
	files[program-1].Close() // the leash gets this number
	cmd, leash, err := h.Command(sandbox.Server{Path: "/bin/true"})
	if err != nil {
		t.Fatal(err)
	}
	defer leash.Close()
	for _, fd := range low {
		files[fd].Close() // ForkExec gets these
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	err = cmd.Run()
	sandbox.Started(cmd)
	if err != nil {
		t.Error(err)
	}
}

// guardianPrograms returns the descriptors of embedded guardians, at least one.
func guardianPrograms(t *testing.T) (found []uintptr) {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if to, _ := os.Readlink("/proc/self/fd/" + e.Name()); strings.HasPrefix(to, "/memfd:toolgate-guardian") {
			fd, err := strconv.ParseUint(e.Name(), 10, 32)
			if err != nil {
				t.Fatal(err)
			}
			found = append(found, uintptr(fd))
		}
	}
	if len(found) == 0 {
		parts.Missing(t, "no guardian is embedded: make -f .ci/Makefile guardian")
	}
	return found
}

// The guardian ends with the server's code, and the server with its leash.
func TestLeash(t *testing.T) {
	cmd, leash, err := sandbox.New(sandbox.Options{}).Command(sandbox.Server{Path: "/bin/sh", Args: []string{"-c", "trap '' TERM; sleep 600 & sleep 600"}})
	if err != nil {
		t.Fatal(err)
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	sandbox.Started(cmd)
	in.Close()
	leash.Close()
	if err := cmd.Wait(); err == nil || cmd.ProcessState.ExitCode() != 128+int(syscall.SIGKILL) {
		t.Errorf("ended with %v", err)
	}
}
