package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/proxy"
	"github.com/toolgate/toolgate/proxy/wire"
	"github.com/toolgate/toolgate/registry"
	"github.com/toolgate/toolgate/signal"
)

// errNoAnswer reports that the client did not answer a server's question in
// time.
var errNoAnswer = errors.New("the client did not answer in time")

// An attempt is one HTTP request of a multi-round call. It ends with the
// result, or with questions that the client answers in its next attempt.
type attempt struct {
	x      *exchange
	notify func(message []byte) // nil = nothing can be said before the answer
	reply  chan answer          // takes one
}

// A multiCall is one call of a client without a session (MCP 2026-07-28, multi
// round-trip requests). When a server asks, the current attempt is answered
// with the questions and the call is parked until the client sends the request
// again with its answers. The road sees one call and one result.
type multiCall struct {
	server  *statelessServer
	x       *exchange // the first request
	id      callID
	binding binding32 // of x; only where the row asks
	ctx     context.Context
	cancel  context.CancelCauseFunc
	asking  chan struct{} // holds the place of the one round under way

	mu           sync.Mutex // protects the fields below
	attempt      *attempt   // nil while it is parked
	earlyAnswers json.RawMessage
	round        *questionRound // the questions that are open; nil = none
	rounds       uint32         // number of the last round
	sentRound    uint32         // number of the last round that the client has heard of
	expires      time.Time      // when the parked call ends; zero = it was never parked
	outcome      *outcome       // its outcome, while it is parked
	fetched      chan struct{}  // closed when the client has it
	closed       bool           // accepts no further attempt
}

// serveAttempt starts the call of x, or continues the one that its requestState
// names, and returns the next answer for it. When ctx ends first, the client is
// gone and the call is cancelled.
func (s *statelessServer) serveAttempt(ctx context.Context, x *exchange, notify func([]byte)) answer {
	t := &attempt{x: x, notify: notify, reply: make(chan answer, 1)}
	var e *multiCall
	if x.stateless.state == nil {
		e = s.beginCall(t)
	} else {
		var err error
		if e, err = s.resumeCall(t); err != nil {
			return s.refuse(x, signal.CodeEnvelopeParams, err.Error())
		}
	}
	select {
	case a := <-t.reply:
		return a
	case <-ctx.Done():
		e.hangUp(t)
		return answer{silent: true, status: http.StatusAccepted}
	}
}

// beginCall starts the call of t in a goroutine that Close waits for.
func (s *statelessServer) beginCall(t *attempt) *multiCall {
	e := &multiCall{server: s, x: t.x, attempt: t, earlyAnswers: t.x.stateless.responses, asking: make(chan struct{}, 1), fetched: make(chan struct{})}
	e.ctx, e.cancel = context.WithCancelCause(s.base)
	if t.x.row.asks {
		e.id, e.binding = newCallID(), bindingOf(t.x)
		t.x.stateless.group.addCall(e)
	}
	t.x.call.Peer = e
	if token := t.x.token; token != nil && t.notify != nil {
		t.x.call.Progress = e.sendProgress
	}
	s.work.Continue()
	t.x.stateless.group.work.Add(1)
	go func() {
		defer s.work.Leave()
		defer s.groups.leave(t.x.stateless.group)
		defer e.cancel(nil)
		o := e.run()
		t.x.stateless.group.removeCall(e)
		e.finish(o)
	}()
	return e
}

// run takes the call down its road. A panic ends that call only.
func (m *multiCall) run() (o outcome) {
	defer func() {
		if fault := recover(); fault != nil {
			m.server.logPanic(m.x, fault)
			o = outcome{}
		}
	}()
	return m.x.row.run(m.server.core, m.ctx, m.x)
}

// finish delivers the outcome to the current attempt, or keeps it for the
// attempt that comes before requestState expires.
func (m *multiCall) finish(o outcome) {
	m.mu.Lock()
	t := m.attempt
	m.attempt, m.closed = nil, m.closed || t != nil
	if t == nil && !m.closed {
		m.outcome = &o
	}
	wait, parked := m.expires.Sub(m.server.opts.Now()), !m.expires.IsZero()
	keep := m.outcome != nil
	m.mu.Unlock()
	if t != nil {
		t.reply <- m.server.answerTo(t.x, o)
	}
	if keep {
		m.keepOutcome(wait)
	}
	if parked {
		m.server.unparkCall(m)
	}
}

// keepOutcome waits until the outcome was fetched or can no longer be.
func (m *multiCall) keepOutcome(wait time.Duration) {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-m.fetched:
	case <-timer.C:
	case <-m.ctx.Done():
	case <-m.server.streams:
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
}

// hangUp cancels the call because the client of t disconnected: in this
// revision that cancels a request.
func (m *multiCall) hangUp(t *attempt) {
	m.mu.Lock()
	mine := m.attempt == t
	if mine {
		m.attempt, m.closed = nil, true
	}
	m.mu.Unlock()
	if mine {
		m.cancel(errCancelled)
	}
}

// currentAttempt returns the attempt that waits, nil while the call is parked.
func (m *multiCall) currentAttempt() *attempt {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.attempt
}

// sendProgress sends progress to the current attempt, under the token of its
// own request.
func (m *multiCall) sendProgress(params json.RawMessage) {
	t := m.currentAttempt()
	if t == nil || t.notify == nil {
		return
	}
	if token := t.x.token; token != nil {
		progress(t.notify, token)(params)
	}
}

var _ registry.Peer = (*multiCall)(nil)

// unrelayed are notifications that revision 2026-07-28 does not have, or sends
// in another way.
var unrelayed = []string{
	"notifications/elicitation/complete", "notifications/tasks/status", "notifications/cancelled", "notifications/progress",
}

// Tell sends a server's notification: log messages to the current attempt at
// the level that its request names, changes of lists and resources to the
// group's listeners. Notifications that the revision does not have are dropped.
func (m *multiCall) Tell(method string, params json.RawMessage) {
	if slices.Contains(listenable, method) {
		m.x.stateless.group.Tell(method, params)
		return
	}
	t := m.currentAttempt()
	if t == nil || t.notify == nil || slices.Contains(unrelayed, method) {
		return
	}
	if method == "notifications/message" && !severe(params, t.x.call.Level) {
		return
	}
	if message, err := wire.CreateNotification(method, params); err == nil {
		t.notify(message)
	}
}

// severe reports whether a log message is at least as severe as level.
func severe(params json.RawMessage, level string) bool {
	raw, _ := jsonrpc.Get(params, "level")
	text, _ := jsonrpc.Text(raw)
	is, wanted := slices.Index(proxy.Levels, text), slices.Index(proxy.Levels, level)
	return wanted >= 0 && is >= wanted
}
