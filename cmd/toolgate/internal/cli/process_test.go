package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// patience is how long anything in these tests may take.
const patience = 30 * time.Second

// process is a program under way whose output can be read while it runs.
type process struct {
	t    testing.TB
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended

	mu   sync.Mutex // protects the fields below
	out  bytes.Buffer
	seen chan struct{} // closed and replaced when there is more output
}

// Write gathers output, stdout and stderr alike.
func (p *process) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.seen)
	p.seen = make(chan struct{})
	return p.out.Write(b)
}

// start runs toolgate in a directory until the end of the test at the latest.
func start(t testing.TB, dir string, args ...string) *process {
	t.Helper()
	return startCommand(t, dir, exec.Command("toolgate", args...))
}

// startCommand runs a command as start does.
func startCommand(t testing.TB, dir string, cmd *exec.Cmd) *process {
	t.Helper()
	p := &process{t: t, cmd: cmd, done: make(chan struct{}), seen: make(chan struct{})}
	p.cmd.Dir, p.cmd.Stdout, p.cmd.Stderr = dir, p, p
	p.cmd.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0", "TOOLGATE_CONFIG=", "TOOLGATE_TOKEN=")
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.done)
		_ = p.cmd.Wait() // ends asks ProcessState
	}()
	t.Cleanup(func() {
		p.signal(syscall.SIGTERM)
		select {
		case <-p.done:
		case <-time.After(patience):
			_ = p.cmd.Process.Kill()
			<-p.done
		}
		if t.Failed() {
			t.Logf("%s\n%s", strings.Join(cmd.Args, " "), p.out.String())
		}
	})
	return p
}

func (p *process) signal(s os.Signal) {
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		p.t.Error(err)
	}
}

// says waits for a line of output.
func (p *process) says(pattern string) {
	p.t.Helper()
	want, end := regexp.MustCompile("(?m)"+pattern), time.After(patience)
	for {
		p.mu.Lock()
		found, more := want.Match(p.out.Bytes()), p.seen
		p.mu.Unlock()
		if found {
			return
		}
		select {
		case <-more:
		case <-end:
			p.t.Fatalf("never said %q", pattern)
		}
	}
}

// ends waits for the exit code.
func (p *process) ends(want int) {
	p.t.Helper()
	select {
	case <-p.done:
		if got := p.cmd.ProcessState.ExitCode(); got != want {
			p.t.Errorf("exit code %d, want %d", got, want)
		}
	case <-time.After(patience):
		p.t.Fatal("does not end")
	}
}

// toolgate runs a command to its end.
func toolgate(t testing.TB, dir string, args ...string) (code int, output string) {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), patience)
	defer stop()
	cmd := exec.CommandContext(ctx, "toolgate", args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "GORACE=atexit_sleep_ms=0", "TOOLGATE_CONFIG=", "TOOLGATE_TOKEN=")
	text, err := cmd.CombinedOutput()
	if x := (*exec.ExitError)(nil); err != nil && !errors.As(err, &x) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), string(text)
}

// write makes the files of a directory.
func write(t testing.TB, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// ready waits until a toolgate serves, and its upstreams do.
func ready(t testing.TB, admin string) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(patience); time.Now().Before(end); <-tick.C {
		if status, body, err := visit("http://"+admin+"/readyz?verbose", ""); err == nil && settled(status, body) {
			return
		}
	}
	t.Fatal("toolgate is not ready")
}

func decode(t testing.TB, text []byte, to any) {
	t.Helper()
	if err := json.Unmarshal(text, to); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
}

// allowAll is a policy under which everybody may call everything.
const allowAll = `package toolgate

import rego.v2

decision := {"effect": "allow", "rule": "all"} if input.tool.name
`
