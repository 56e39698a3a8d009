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

// Timeout is the time limit of every wait.
const Timeout = 60 * time.Second

// Text collects the bytes that are written to it. The zero value is empty; it is
// safe for concurrent use.
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

// String returns everything written so far.
func (x *Text) String() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.text.String()
}

// Process is a running program. Call its methods on the test's goroutine.
type Process struct {
	// Cmd is the program. Do not call its Wait.
	Cmd *exec.Cmd
	// Out and Log are its stdout and stderr, unless Cmd redirects them.
	Out, Log *Text
	// Exited is closed when the process has exited.
	Exited chan struct{}
	// Err is the result of Cmd.Wait; read it after Exited.
	Err error
}

// Launch starts a program. At the end of the test it gets TERM, then KILL; a program
// that does not exit on TERM fails the test.
func Launch(t testing.TB, cmd *exec.Cmd) *Process {
	t.Helper()
	p := &Process{Cmd: cmd, Out: &Text{}, Log: &Text{}, Exited: make(chan struct{})}
	if cmd.Stdout == nil {
		cmd.Stdout = p.Out
	}
	if cmd.Stderr == nil {
		cmd.Stderr = p.Log
	}
	// The children of a killed program hold its pipes for a while.
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

// end stops the process at the end of its test.
func (p *Process) end(t testing.TB) {
	t.Helper()
	_ = p.Cmd.Process.Signal(syscall.SIGTERM) // it may have exited
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

// String returns the command line.
func (p *Process) String() string { return strings.Join(p.Cmd.Args, " ") }

// Kill kills the process as a crash would, and waits until it has exited.
func (p *Process) Kill(t testing.TB) {
	t.Helper()
	if err := p.Cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	p.Wait(t)
}

// Wait waits until the process has exited.
func (p *Process) Wait(t testing.TB) {
	t.Helper()
	select {
	case <-p.Exited:
	case <-time.After(Timeout):
		t.Fatalf("%s did not end:\n%s", p, p.Log)
	}
}

// Await polls until a condition holds, and reports whether it did before the process
// exited.
func (p *Process) Await(t testing.TB, what string, holds func() bool) bool {
	t.Helper()
	return poll(t, what, p.Exited, holds)
}

// Await polls until a condition holds; what names the condition.
func Await(t testing.TB, what string, holds func() bool) {
	t.Helper()
	poll(t, what, nil, holds)
}

// Settles polls for a quarter of Timeout at most, and reports whether the condition
// holds: for tests with their own failure message.
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

// poll polls until a condition holds or over is closed, and reports whether the
// condition holds. The longer it takes, the less often it looks: looking costs time too.
func poll(t testing.TB, what string, over <-chan struct{}, holds func() bool) bool {
	t.Helper()
	deadline, pause := time.After(Timeout), 5*time.Millisecond
	for !holds() {
		select {
		case <-time.After(pause):
			pause = min(pause*5/4, 50*time.Millisecond)
		case <-over:
			return false
		case <-deadline:
			t.Fatalf("timed out after %v: %s", Timeout, what)
		}
	}
	return true
}
