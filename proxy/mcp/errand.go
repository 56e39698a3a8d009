package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/proxy"
	"github.com/toolgate/toolgate/proxy/wire"
	"github.com/toolgate/toolgate/registry"
	"github.com/toolgate/toolgate/signal"
)

// errLate is the cause with which questions end that the client left without an
// answer.
var errLate = errors.New("the client did not answer in time")

// turn is one request of a client while it waits for what comes next of its
// errand: the result, or questions to answer first.
type turn struct {
	x      *exchange
	notify func(message []byte) // nil = nothing can be said before the answer
	told   chan answer          // takes one
}

// errand is one request of a client without a session on its road. It may need
// several turns: when a server asks, the request is answered with the questions
// and the errand waits, parked, until the client sends the request again with
// its answers (MCP 2026-07-28, multi round-trip requests). The road sees one
// call and one result.
type errand struct {
	door    *Door
	row     modernRow
	x       *exchange // the first request
	id      callID
	binding binding32 // of x; only where the row asks
	ctx     context.Context
	cancel  context.CancelCauseFunc
	asking  chan struct{} // holds the place of the one round under way

	mu       sync.Mutex // protects the fields below
	turn     *turn      // nil while it is parked
	early    json.RawMessage
	round    *questionnaire // the questions that are open; nil = none
	asked    uint32         // number of the last round
	told     uint32         // number of the last round that the client has heard of
	until    time.Time      // when the client's patience with it ends; zero = it was never parked
	kept     *outcome       // what came of it while it was parked
	fetched  chan struct{}  // closed when the client has it
	released bool           // no turn can follow
}

// takeTurn begins the errand of x, or goes on with the one that its requestState
// names, and gives the next word of it. When ctx ends the client has gone, and
// the errand with it.
func (d *Door) takeTurn(ctx context.Context, x *exchange, notify func([]byte)) answer {
	t := &turn{x: x, notify: notify, told: make(chan answer, 1)}
	var e *errand
	if x.modern.state == nil {
		e = d.begin(t)
	} else {
		var err error
		if e, err = d.resume(t); err != nil {
			return d.refuse(x, signal.CodeEnvelopeParams, err.Error())
		}
	}
	select {
	case a := <-t.told:
		return a
	case <-ctx.Done():
		e.hangUp(t)
		return answer{silent: true, status: http.StatusAccepted}
	}
}

// begin starts the errand of t. Its work has a goroutine of its own, which Close
// waits for.
func (d *Door) begin(t *turn) *errand {
	row, _ := d.modernRowOf(t.x.call.Message.Method)
	e := &errand{door: d, row: row, x: t.x, turn: t, early: t.x.modern.responses, asking: make(chan struct{}, 1), fetched: make(chan struct{})}
	e.ctx, e.cancel = context.WithCancelCause(d.base)
	if row.asks {
		e.id, e.binding = newCallID(), bindingOf(t.x)
		t.x.modern.party.begin(e)
	}
	t.x.call.Peer = e
	if token, ok := progressToken(t.x.call.Message.Params); ok && t.notify != nil && token != nil {
		t.x.call.Progress = e.progress
	}
	d.stay()
	d.parties.stay(t.x.modern.party)
	go func() {
		defer d.leave()
		defer d.parties.leave(t.x.modern.party)
		defer e.cancel(nil)
		o := e.work()
		t.x.modern.party.end(e)
		e.end(o)
	}()
	return e
}

// work takes the errand down its road. A panic is the end of this errand and of
// no other.
func (e *errand) work() (o outcome) {
	defer func() {
		if r := recover(); r != nil {
			e.door.opts.Log.Error("panic in the mcp door", "method", e.x.call.Message.Method, "panic", fmt.Sprint(r), "stack", string(debug.Stack()))
			o = outcome{}
		}
	}()
	return e.row.work(e.door, e.ctx, e.x)
}

// end tells what came of the errand: to the turn that waits for it, else to the
// one that comes while a requestState is good for it.
func (e *errand) end(o outcome) {
	e.mu.Lock()
	t := e.turn
	e.turn, e.released = nil, e.released || t != nil
	if t == nil && !e.released {
		e.kept = &o
	}
	wait, parked := e.until.Sub(e.door.opts.Now()), !e.until.IsZero()
	keep := e.kept != nil
	e.mu.Unlock()
	if t != nil {
		t.told <- e.door.worded(t.x, o, e.row)
	}
	if keep {
		e.await(wait)
	}
	if parked {
		e.door.forget(e)
	}
}

// await keeps an outcome until it is fetched, or nobody can any more.
func (e *errand) await(wait time.Duration) {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-e.fetched:
	case <-timer.C:
	case <-e.ctx.Done():
	case <-e.door.streams:
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.released = true
}

// hangUp ends the errand because the client of t has gone before it was
// answered: in this revision that is how a request is cancelled.
func (e *errand) hangUp(t *turn) {
	e.mu.Lock()
	mine := e.turn == t
	if mine {
		e.turn, e.released = nil, true
	}
	e.mu.Unlock()
	if mine {
		e.cancel(errCancelled)
	}
}

// current is the turn that waits, nil when none does.
func (e *errand) current() *turn {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.turn
}

// progress passes a report to the turn that waits, under the token that its own
// request gave.
func (e *errand) progress(params json.RawMessage) {
	t := e.current()
	if t == nil || t.notify == nil {
		return
	}
	if token, ok := progressToken(t.x.call.Message.Params); ok {
		progress(t.notify, token)(params)
	}
}

var _ registry.Peer = (*errand)(nil)

// unheard are notifications that the revision has not, or has for others.
var unheard = []string{
	"notifications/elicitation/complete", "notifications/tasks/status", "notifications/cancelled", "notifications/progress",
}

// Tell passes on what a server says in the course of the errand: log messages
// that the client has asked for here, what is about lists and resources to the
// streams that listen for it. What the revision has no longer is dropped.
func (e *errand) Tell(method string, params json.RawMessage) {
	if slices.Contains(heard, method) {
		e.x.modern.party.Tell(method, params)
		return
	}
	t := e.current()
	if t == nil || t.notify == nil || slices.Contains(unheard, method) {
		return
	}
	if method == "notifications/message" && !severe(params, t.x.call.Level) {
		return
	}
	if message, err := wire.CreateNotification(method, params); err == nil {
		t.notify(message)
	}
}

// severe reports whether a log message is one that who asked for level wants.
func severe(params json.RawMessage, level string) bool {
	raw, _ := jsonrpc.Get(params, "level")
	text, _ := jsonrpc.Text(raw)
	is, wanted := slices.Index(proxy.Levels, text), slices.Index(proxy.Levels, level)
	return wanted >= 0 && is >= wanted
}
