// Package conversation is the client of a server that speaks one message per line,
// for tests. It runs over pipes in the test process.
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

// timeout is the time limit of an answer.
const timeout = time.Minute

var errSilent = errors.New("no line within the time limit")

// Line is the client's end. One goroutine may send while another receives.
type Line struct {
	t     testing.TB
	in    *io.PipeWriter
	pipe  *io.PipeReader
	out   *bufio.Reader
	done  chan error
	ended bool
}

// Dial starts serve. The server ends with the test, unless the test calls End; the
// test fails if serve returns an error.
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

// Receive returns the next line, without its line end. The test fails if none
// arrives within 20 s.
func (l *Line) Receive() string {
	l.t.Helper()
	late := time.AfterFunc(timeout, func() { _ = l.pipe.CloseWithError(errSilent) })
	defer late.Stop()
	line, err := l.out.ReadString('\n')
	if err != nil {
		l.t.Fatalf("reading the server's output: %v", err)
	}
	return strings.TrimSuffix(line, "\n")
}

// Ask sends one line and returns the next one.
func (l *Line) Ask(line string) string {
	l.t.Helper()
	l.Send(line)
	return l.Receive()
}

// Answer returns the next message that is no MCP notification, after the
// notifications before it, each with its line end.
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

// End ends the server's input and returns its remaining output and the error of
// serve.
func (l *Line) End() (rest string, err error) {
	l.ended = true
	l.HangUp()
	all, _ := io.ReadAll(l.out)
	return string(all), <-l.done
}
