package upstream

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"sync/atomic"
	"time"

	"github.com/toolgate/toolgate/registry/config"
)

// server is one that is in this process: what is sent goes to hear.
type server struct {
	hear func(line []byte)
	out  *io.PipeWriter
}

// Write implements io.Writer.
func (s server) Write(line []byte) (int, error) {
	s.hear(bytes.TrimSpace(line))
	return len(line), nil
}

// Exited, Fate and Stop implement mcpclient.Process.
func (s server) Exited() <-chan struct{} { return nil }
func (s server) Fate() error             { return nil }
func (s server) Stop()                   { s.out.Close() }

// Hear gives one message of a server to the connection of a session that is at
// home with somebody, sends what goes back to answered, and gives what ends it.
func Hear(home Peer, message []byte, answered func(line []byte)) (end func()) {
	opts := Options{}.withDefaults()
	c := newConn(&opts, new(atomic.Int64), new(atomic.Int64), &client{home: home})
	in, out := io.Pipe()
	s := server{answered, out}
	c.OpenStdio(s, in, s, false)
	_, _ = out.Write(append(message, '\n')) // nobody closes it before
	return c.close
}

// DoWithin makes a request that wants progress, within idle and total. Each line
// for the server goes to answer, with what sends a line back.
func DoWithin(idle, total time.Duration, answer func(line []byte, say func(string))) *Error {
	return DoFor(nil, Options{}, func(json.RawMessage) {}, idle, total, answer)
}

// DoFor is DoWithin for a peer, which may be nil, that takes progress.
func DoFor(peer Peer, opts Options, progress func(json.RawMessage), idle, total time.Duration, answer func(line []byte, say func(string))) *Error {
	opts = opts.withDefaults()
	c := newConn(&opts, new(atomic.Int64), new(atomic.Int64), &client{})
	defer c.close()
	in, out := io.Pipe()
	say := func(line string) { _, _ = io.WriteString(out, line+"\n") }
	s := server{func(line []byte) { answer(line, say) }, out}
	c.OpenStdio(s, in, s, false)
	clock := &deadline{}
	ctx := clock.begin(context.Background(), nil, idle, total)
	defer clock.done()
	_, e := c.do(ctx, &request{Call: Call{Progress: progress, From: Downstream{Peer: peer}}, method: "tools/call", ofClient: true, clock: clock})
	return e
}

// Deadline is a deadline, alone or as one of those that stand still together.
type Deadline struct {
	*deadline
	Group *Group
}

// Group is waiting.
type Group struct{ waiting }

// Hold is waiting.hold.
func (g *Group) Hold() { g.hold() }

// Release is waiting.release.
func (g *Group) Release() { g.release() }

// WithDeadline is deadline.begin, as a member of g.
func WithDeadline(ctx context.Context, idle, total time.Duration, g *Group) (context.Context, Deadline) {
	p := &deadline{}
	ctx = p.begin(ctx, nil, idle, total)
	g.enter(p)
	return ctx, Deadline{p, g}
}

// Hold is deadline.hold.
func (p Deadline) Hold() { p.hold() }

// Release is deadline.release.
func (p Deadline) Release() { p.release() }

// Progress is deadline.progress.
func (p Deadline) Progress() { p.progress() }

// Done leaves the group and frees what p holds.
func (p Deadline) Done() {
	p.Group.leave(p.deadline)
	p.done()
}

// Environ is environ.
func Environ(ours []string, own map[string]string) []string { return environ(ours, own) }

// NewSecrets is newSecrets, for tests.
var NewSecrets = newSecrets

// Redact is redact, for tests.
func (s *secrets) Redact(raw json.RawMessage) json.RawMessage { return s.redact(raw) }

// RedactError is redactError, for tests.
func (s *secrets) RedactError(e *Error) *Error { return s.redactError(e) }

// Waiting returns how many connections wait for a place.
func (s *Server) Waiting() int {
	_, waiting := s.count()
	return waiting
}

// Open returns how many connections of sessions have a place.
func (s *Server) Open() int {
	open, _ := s.count()
	return open
}

// count returns how many connections of sessions have a place, and how many wait for one.
func (s *Server) count() (open, waiting int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, sl := range s.slots {
		select {
		case <-sl.place.Granted():
			open++
		default:
			waiting++
		}
	}
	return open, waiting
}

// RelistPause is relistPause.
var RelistPause = relistPause

// Asks is asks.
var Asks = asks

// HasSpare reports whether a spare is there, or being started.
func (s *Server) HasSpare() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.spare.starting || s.spare.child != nil
}

// StartInProcess is Start for a server in this process: each connection is one that
// answer gets, with what sends a line back.
func StartInProcess(cfg config.Server, opts Options, connect func() (answer func(line []byte, say func(string)))) *Server {
	opts.dial = func(c *conn) {
		in, out := io.Pipe()
		say := func(line string) { _, _ = io.WriteString(out, line+"\n") }
		answer := connect()
		s := server{func(line []byte) { answer(bytes.Clone(line), say) }, out}
		c.OpenStdio(s, in, s, false)
	}
	return Start(cfg, opts)
}
