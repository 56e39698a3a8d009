package sandbox_test

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/toolgate/toolgate/internal/sandbox"
	"github.com/toolgate/toolgate/internal/testkit/parts"
)

const attacked = "attacked"

// host is the role of toolgate: it starts an assassin and ends it in an orderly way when
// its own stdin ends.
func host() int {
	executable, _ := os.Executable()
	cmd, leash, err := sandbox.New(sandbox.Options{}).Command(sandbox.Server{Path: executable, Mode: sandbox.Mode(os.Getenv("MODE"))})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.Env = append(cmd.Env, "ROLE=assassin", "PATH="+os.Getenv("PATH"))
	if _, err = cmd.StdinPipe(); err == nil {
		err = cmd.Start()
	}
	sandbox.Started(cmd)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
	leash.Close()
	_ = cmd.Wait() // the server is killed
	return 0
}

// assassinate is the role of the server. It forks twice, and its daemon stops and kills
// the guardian, which the server finds as its parent and as the parent that /proc names.
func assassinate() int {
	if os.Getenv("GUARDIAN") == "" {
		guardians := strconv.Itoa(os.Getppid())
		status, _ := os.ReadFile("/proc/self/status") // a /proc of another namespace names it by another number
		if _, rest, ok := strings.Cut(string(status), "\nPPid:\t"); ok {
			parent, _, _ := strings.Cut(rest, "\n")
			guardians += " " + parent
		}
		return respawn("GUARDIAN=" + guardians)
	}
	if os.Getenv("DAEMON") == "" {
		return respawn("DAEMON=1")
	}
	for _, field := range strings.Fields(os.Getenv("GUARDIAN")) {
		if pid, err := strconv.Atoi(field); err == nil && pid > 0 {
			attackGuardian(pid)
		}
	}
	fmt.Println(attacked)
	time.Sleep(time.Minute) // longer than the test looks
	return 0
}

// respawn starts this role again in a session of its own. The first process waits, as a
// server does, the second one ends and leaves its child to whoever collects it.
func respawn(env string) int {
	self := exec.Command("/proc/self/exe")
	self.Env, self.Stdout, self.Stderr = append(os.Environ(), env), os.Stdout, os.Stderr
	self.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := self.Start(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if strings.HasPrefix(env, "GUARDIAN") {
		_ = self.Wait() // the second process fails or not: the test sees what it says
		_, _ = io.Copy(io.Discard, os.Stdin)
	}
	return 0
}

// attackGuardian tries every way to stop or end a process and its threads.
func attackGuardian(pid int) {
	group, _ := unix.Getpgid(pid)
	threads, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	for _, sig := range []syscall.Signal{syscall.SIGSTOP, syscall.SIGKILL} {
		_ = syscall.Kill(pid, sig)
		for _, thread := range threads {
			if tid, err := strconv.Atoi(thread.Name()); err == nil {
				_ = unix.Tgkill(pid, tid, sig)
				_, _, _ = unix.RawSyscall(unix.SYS_TKILL, uintptr(tid), uintptr(sig), 0)
			}
		}
		if fd, err := unix.PidfdOpen(pid, 0); err == nil {
			_ = unix.PidfdSendSignal(fd, sig, nil, 0)
		}
		if own, _ := unix.Getpgid(0); group > 1 && group != own {
			_ = syscall.Kill(-group, sig)
		}
	}
	_ = unix.Prlimit(pid, unix.RLIMIT_CPU, &unix.Rlimit{}, nil)
	_ = unix.PtraceSeize(pid)
}

// Nothing of a server outlives toolgate, whatever the server does to its guardian, and
// whether toolgate ends in an orderly way or is killed.
func TestNothingOutlives(t *testing.T) {
	unshare := parts.Need(t, "unshare")
	support := sandbox.New(sandbox.Options{}).Support()
	if !support.Whole() {
		parts.Missing(t, "servers cannot be confined here: %s", support.Missing)
	}
	program := hostProgram(t) // once: a process that a parallel test starts may inherit the file, open for writing
	for _, tc := range []struct {
		name   string
		around []string
		mode   sandbox.Mode
	}{
		{"whole", nil, sandbox.Require},
		{"without user namespaces", withoutNamespaces(unshare), sandbox.Auto},
	} {
		for _, end := range []string{"killed", "closed"} {
			t.Run(tc.name+", toolgate "+end, func(t *testing.T) {
				t.Parallel()
				out, p, stdin := startHost(t, append(tc.around[:len(tc.around):len(tc.around)], program), tc.mode)
				lines := bufio.NewScanner(out)
				for lines.Scan() && lines.Text() != attacked {
					t.Log(lines.Text())
				}
				if err := lines.Err(); err != nil || lines.Text() != attacked {
					t.Errorf("the server did not attack: %v", err)
				}
				if end == "killed" {
					_ = p.Process.Kill()
				}
				stdin.Close()
				// Every process of the server has the pipe. The deadline is longer than what the
				// guardian grants a server to end.
				if _, err := io.Copy(io.Discard, out); err != nil {
					t.Errorf("a process of the server is left: %v", err)
				}
				_ = p.Wait() // killed or not
			})
		}
	}
}

// hostProgram copies the test program to where users without privileges can run it.
func hostProgram(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "sandbox")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(dir, "program")
	copyProgram(t, program)
	return program
}

// startHost starts the role of toolgate as a user without privileges.
func startHost(t *testing.T, command []string, mode sandbox.Mode) (out *os.File, p *exec.Cmd, stdin io.Closer) {
	t.Helper()
	out, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { out.Close() })
	_ = out.SetReadDeadline(time.Now().Add(20 * time.Second)) // pipes have deadlines
	p = exec.Command(command[0], command[1:]...)
	p.Env = []string{"ROLE=host", "MODE=" + string(mode), "PATH=" + os.Getenv("PATH")}
	p.Stdout, p.Stderr = w, w
	if os.Getuid() == 0 {
		p.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	}
	stdin, err = p.StdinPipe()
	if err == nil {
		err = p.Start()
	}
	w.Close()
	if err != nil {
		t.Fatal(err)
	}
	return out, p, stdin
}
