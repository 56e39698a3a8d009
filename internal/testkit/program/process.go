package program

import (
	"bytes"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Timeout is how long anything may take before a test gives it up.
const Timeout = 60 * time.Second

// Text gathers what is written to it. Its zero value is empty; it is safe for
// concurrent use.
type Text struct {
	mu   sync.Mutex // protects the fields below
	text bytes.Buffer
}

// Write implements io.Writer; it never fails.
func (x *Text) Write(p []byte) (int, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.text.Write(p)
}

// String gives all that was written so far.
func (x *Text) String() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.text.String()
}

// Process is a program that runs. Its methods belong to the test's goroutine.
type Process struct {
	// Cmd is the program; whoever launched it does not wait for it.
	Cmd *exec.Cmd
	// Out and Log are what it wrote to stdout and stderr, where Cmd did not say
	// otherwise.
	Out, Log *Text
	// Exited is closed when it is gone and waited for.
	Exited chan struct{}
	// Err is how it ended, read after Exited.
	Err error
}

// Launch starts a program. It ends with the test, by TERM and if that does not
// help by KILL; not to end by TERM fails the test.
func Launch(t testing.TB, cmd *exec.Cmd) *Process {
	t.Helper()
	p := &Process{Cmd: cmd, Out: &Text{}, Log: &Text{}, Exited: make(chan struct{})}
	if cmd.Stdout == nil {
		cmd.Stdout = p.Out
	}
	if cmd.Stderr == nil {
		cmd.Stderr = p.Log
	}
	// A program that is killed leaves its pipes to its children for a while.
	cmd.WaitDelay = 5 * time.Second
	Tether(cmd)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		p.Err = cmd.Wait()
		close(p.Exited)
	}()
	t.Cleanup(func() { p.end(t) })
	return p
}

// end is what becomes of a process when its test is over.
func (p *Process) end(t testing.TB) {
	t.Helper()
	_ = p.Cmd.Process.Signal(syscall.SIGTERM) // it may be gone already
	select {
	case <-p.Exited:
	case <-time.After(Timeout / 4):
		t.Errorf("%s did not end %v after TERM", p, Timeout/4)
		_ = p.Cmd.Process.Kill() // as above
		<-p.Exited
	}
	if t.Failed() {
		t.Logf("stderr of %s:\n%s", p, p.Log)
	}
}

// String is its command line.
func (p *Process) String() string { return strings.Join(p.Cmd.Args, " ") }

// Kill ends the process as a crash would, and waits until it is gone.
func (p *Process) Kill(t testing.TB) {
	t.Helper()
	if err := p.Cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	p.Wait(t)
}

// Wait waits until the process is gone.
func (p *Process) Wait(t testing.TB) {
	t.Helper()
	select {
	case <-p.Exited:
	case <-time.After(Timeout):
		t.Fatalf("%s did not end:\n%s", p, p.Log)
	}
}

// Await polls until a condition holds, and reports whether it did before the
// process ended.
func (p *Process) Await(t testing.TB, what string, holds func() bool) bool {
	t.Helper()
	return poll(t, what, p.Exited, holds)
}

// Await polls until a condition holds; what says in words what is waited for.
func Await(t testing.TB, what string, holds func() bool) {
	t.Helper()
	poll(t, what, nil, holds)
}

// Settles polls for a quarter of Timeout at most, and reports whether the
// condition came to hold: for tests that say themselves what is missing then.
func Settles(holds func() bool) bool {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(Timeout / 4); !holds(); <-tick.C {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}

// poll polls until a condition holds or over is closed, and reports the first.
func poll(t testing.TB, what string, over <-chan struct{}, holds func() bool) bool {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(Timeout)
	for !holds() {
		select {
		case <-tick.C:
		case <-over:
			return false
		case <-deadline:
			t.Fatalf("waited %v in vain: %s", Timeout, what)
		}
	}
	return true
}
