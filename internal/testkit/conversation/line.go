// Package conversation is the far end of a server that speaks one message per
// line, for tests: a client over pipes in the test's own process.
package conversation

import (
	"bufio"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"
)

// patience is how long an answer may take.
const patience = 20 * time.Second

var errSilent = errors.New("nothing was said in time")

// Line is the client's end. One goroutine may send while another receives.
type Line struct {
	t     testing.TB
	in    *io.PipeWriter
	pipe  *io.PipeReader
	out   *bufio.Reader
	done  chan error
	ended bool
}

// Dial starts to serve. Unless the test calls End, the server is ended with
// the test, which fails if serve gives an error.
func Dial(t testing.TB, serve func(context.Context, io.Reader, io.Writer) error) *Line {
	t.Helper()
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	l := &Line{t: t, in: inW, pipe: outR, out: bufio.NewReader(outR), done: make(chan error, 1)}
	go func() {
		l.done <- serve(context.Background(), inR, outW) // t's own context ends before the cleanup
		_ = outW.Close()
	}()
	t.Cleanup(func() {
		if l.ended {
			return
		}
		if _, err := l.End(); err != nil {
			t.Errorf("serving: %v", err)
		}
	})
	return l
}

// Send writes one line.
func (l *Line) Send(line string) {
	l.t.Helper()
	if _, err := io.WriteString(l.in, line+"\n"); err != nil {
		l.t.Fatal(err)
	}
}

// Receive gives the next line, without its end. The test fails if none comes
// within 20 s.
func (l *Line) Receive() string {
	l.t.Helper()
	late := time.AfterFunc(patience, func() { _ = l.pipe.CloseWithError(errSilent) })
	defer late.Stop()
	line, err := l.out.ReadString('\n')
	if err != nil {
		l.t.Fatalf("reading what the server says: %v", err)
	}
	return strings.TrimSuffix(line, "\n")
}

// Ask sends one line and gives the one that comes back.
func (l *Line) Ask(line string) string {
	l.t.Helper()
	l.Send(line)
	return l.Receive()
}

// Answer gives the next message that is no MCP notification, after those that
// come before it, each with its line end.
func (l *Line) Answer() string {
	l.t.Helper()
	var all strings.Builder
	for {
		line := l.Receive()
		all.WriteString(line + "\n")
		if !strings.Contains(line, `"method":"notifications/`) {
			return all.String()
		}
	}
}

// HangUp ends the server's input; its output can still be received.
func (l *Line) HangUp() { _ = l.in.Close() }

// End ends the server's input and gives what it still says, and what serve
// ended with.
func (l *Line) End() (rest string, err error) {
	l.ended = true
	l.HangUp()
	all, _ := io.ReadAll(l.out)
	return string(all), <-l.done
}
