package upstream

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"sync/atomic"
	"time"
)

// deaf is a wire on which nobody hears.
type deaf struct{}

func (deaf) reply([]byte)  {}
func (deaf) answer([]byte) {}
func (deaf) close()        {}

// listening is a wire that gives what is sent to a function.
type listening func(line []byte)

func (f listening) reply(line []byte)  { f(line) }
func (f listening) answer(line []byte) { f(line) }
func (listening) close()               {}

// Hear gives one message of a server to the connection of a session that is at
// home with somebody, sends what goes back to answered, and gives what ends it.
func Hear(home Peer, message []byte, answered func(line []byte)) (end func()) {
	c := newConn(&Options{}, new(atomic.Int64), new(atomic.Int64), &client{home: home})
	c.wire = listening(answered)
	c.receive(message, source{any: true})
	return c.close
}

// Patience is patience, alone or as one of those that stand still together.
type Patience struct {
	*patience
	Group *Group
}

// Group is waiting.
type Group struct{ waiting }

// Hold is waiting.hold.
func (g *Group) Hold() { g.hold() }

// Release is waiting.release.
func (g *Group) Release() { g.release() }

// WithPatience is withPatience, as a member of g.
func WithPatience(ctx context.Context, d time.Duration, g *Group) (context.Context, Patience) {
	ctx, p := withPatience(ctx, d)
	g.enter(p)
	return ctx, Patience{p, g}
}

// Hold is patience.hold.
func (p Patience) Hold() { p.hold() }

// Release is patience.release.
func (p Patience) Release() { p.release() }

// Done leaves the group and frees what p holds.
func (p Patience) Done() {
	p.Group.leave(p.patience)
	p.done()
}

// FilterEvents gives what mcp-go would read of an event stream while nobody
// waits for an answer.
func FilterEvents(stream []byte, maxBytes int) ([]byte, error) {
	c := newConn(&Options{MaxAnswerBytes: maxBytes}, new(atomic.Int64), new(atomic.Int64), nil)
	c.wire = deaf{}
	defer c.close()
	return io.ReadAll(newEvents(c, io.NopCloser(bytes.NewReader(stream)), source{any: true}, false))
}

// LooseMembers is looseMembers.
func LooseMembers(raw []byte) (map[string]json.RawMessage, error) { return looseMembers(raw) }

// Environ is environ.
func Environ(ours []string, own map[string]string) []string { return environ(ours, own) }
