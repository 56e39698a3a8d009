package upstream

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/span"
	"github.com/toolgate/toolgate/internal/wait"
	"github.com/toolgate/toolgate/registry/config"
)

// Call is one judged tools/call.
type Call struct {
	Tool        string          // the upstream's name
	Fingerprint string          // of the definition that was judged
	Form        string          // of that definition, "" = the connection has to offer its very bytes
	Arguments   json.RawMessage // sent as they are, nil for none
	Meta        json.RawMessage // params._meta without progressToken, nil for none
	Task        json.RawMessage // params.task (MCP 2025-11-25, tasks), nil for none
	From        Downstream      // for whom
	Trace       span.Carrier    // sent in params._meta, in place of what is there, and in headers of HTTP; nil = none
	Timeout     time.Duration   // without progress; 0 = the server's
	MaxTimeout  time.Duration   // with progress, at least Timeout; 0 = the server's
	// Progress receives notifications/progress without our token, in order, from
	// one goroutine at a time and never after Do has returned; nil for none. It
	// should not block for long, as Peer.Tell.
	Progress func(params json.RawMessage)
	// Later receives those of the task that came of the call, if one did, when
	// Do has returned, for as long as the task lives and at most a day, or until
	// the connection ends; nil for none.
	Later func(params json.RawMessage)
	// Cancel ends the context that is given to Do, which ends with the deadline too; nil = Do makes
	// one that it can end.
	Cancel wait.Ender
	// Plain becomes true if the strings of the result are known to be plain, as in
	// jsonrpc.Message; nil = nobody asks.
	Plain *bool
}

// Do sends a call and waits for its answer, which it returns byte for byte. The
// call is sent at most once. The only exception is an HTTP server that refused
// the call because it had forgotten the session, and so did not execute it. A
// tool whose definition on this connection differs from the one that was judged
// is not called.
func (s *Server) Do(ctx context.Context, call Call) (json.RawMessage, *Error) {
	r := &request{Call: call, method: "tools/call"}
	var room [64]byte
	name := jsonrpc.AppendQuoted(room[:0], call.Tool)
	r.params = object(member{"name", name}, member{"arguments", call.Arguments}, member{"task", call.Task}, member{"_meta", call.Meta})
	return s.send(ctx, r)
}

// Ask is one request that calls no tool.
type Ask struct {
	Method string
	Params json.RawMessage // sent as they are, nil for none
	From   Downstream      // for whom
	Trace  span.Carrier    // as in Call
	// Progress is as in Call.
	Progress func(params json.RawMessage)
	// Listen makes subscriptions/listen open a stream that outlives the request, whose result is
	// then the server's acknowledgement; nil for any other method.
	Listen *Listen
}

// Listen is the stream of a client's subscriptions/listen request at one server. What the server
// sends on it goes to Downstream.Peer. It is not opened again when it ends.
type Listen struct {
	Life context.Context // ends the stream
	// Lost is called when the server, or the connection, has ended an acknowledged stream
	// before Life.
	Lost func()
}

// Ask sends a request that calls no tool and waits for its answer, within the
// server's timeouts and otherwise as Do does. While the server is not connected, a request
// for a list that is kept is answered at once with that.
func (s *Server) Ask(ctx context.Context, ask Ask) (json.RawMessage, *Error) {
	if page := s.recalled(ask); page != nil {
		return page, nil
	}
	return s.send(ctx, &request{Call: Call{From: ask.From, Trace: ask.Trace, Progress: ask.Progress}, method: ask.Method, params: ask.Params, listen: ask.Listen})
}

// Notify passes a client's notification to the connection of its downstream
// session, if there is one. It does not block. Notifications that name a
// request are dropped, because the client's ids mean nothing to the server.
func (s *Server) Notify(session, method string, params json.RawMessage) {
	switch method {
	case "notifications/cancelled", "notifications/progress", "notifications/initialized":
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	// A connection that is being opened has missed nothing. Without a handshake
	// there is nothing that a client could report.
	if sess := s.slots[session].opened(); sess != nil && sess.conn.IsMCP() && !sess.conn.Stateless() && !sess.conn.Dead() {
		sess.conn.Offer(jsonrpc.NewNotification(method, params))
	}
}

// send makes a request for a client, on the connection of its session where it
// has one. It tries once more when the server has forgotten the session.
func (s *Server) send(ctx context.Context, r *request) (json.RawMessage, *Error) {
	if !s.calls.Enter() {
		return nil, errStopping()
	}
	defer s.calls.Leave()
	clock := &r.deadline
	ctx = clock.begin(ctx, r.Cancel, cmp.Or(max(r.Timeout, 0), s.cfg.Timeout), cmp.Or(max(r.MaxTimeout, 0), s.cfg.MaxTimeout))
	defer clock.done()
	r.ofClient, r.clock = true, clock
	var cl *client
	if r.From.Session != "" && s.cfg.Isolation != config.IsolationShared {
		cl = s.acquireClient(r.From)
		defer s.releaseClient(r.From.Session, cl)
		cl.enter(clock)
		defer cl.leave(clock)
		if e := cl.reserveSubscription(r); e != nil {
			return nil, e
		}
	} else if ofSession[r.method] {
		return nil, &Error{Kind: Unavailable, Err: errShared}
	} else if known := s.era.Load(); known.both && !known.stateless && s.era.inSession(r.From) {
		r.From = Downstream{Session: sharedHandshake, Revision: r.From.Revision} // nobody's
		cl = s.acquireClient(r.From)
		defer s.releaseClient(sharedHandshake, cl)
	}
	result, e := s.attempt(ctx, cl, r)
	if e != nil && e.Lost {
		result, e = s.attempt(ctx, cl, r)
	}
	if cl != nil && ofSession[r.method] {
		cl.recordOutcome(r, e == nil)
	}
	if e != nil {
		return nil, needsPerson(e)
	}
	return result, nil
}

// sharedHandshake keys the second shared connection of a server that speaks both kinds of
// revision: the initialized one. No session has this key.
const sharedHandshake = "\x00handshake"

// attempt makes a request once, on the connection of its client.
func (s *Server) attempt(ctx context.Context, cl *client, r *request) (json.RawMessage, *Error) {
	sess, sl, e := s.session(ctx, r.From.Session, cl)
	if e != nil {
		return nil, e
	}
	if sl != nil {
		defer sl.idle()
	}
	if r.method == "tools/call" {
		offer, ok := sess.profile.Load().offers[r.Tool]
		if !ok || offer.Fingerprint != r.Fingerprint && offer.Form != r.Form {
			return nil, &Error{Kind: Quarantined, Err: fmt.Errorf("the server offers %q with another definition on this connection", r.Tool)}
		}
		r.bound = offer.bound
	}
	result, e := sess.request(ctx, r)
	switch {
	case e == nil:
		return result, nil
	case e.Lost && (sess.conn.Stateless() || e.RPC != nil):
		s.era.Store(&spoken{}) // another server has taken its place
	case codeOf(e) == codeHeaders:
		sess.conn.signal() // it reads the headers otherwise than we do: its tools have changed
	}
	if e.Lost {
		sess.conn.Fail(e)
		s.forget(r.From.Session, sess)
	}
	return nil, e
}

// request makes a request of a client. On an initialized connection it first sets
// the log level that the client wants. On a stateless one the server may answer
// with questions: then the client is asked, and the request is sent again with
// its answers.
//
//	request ---> input_required: questions, state
//	             Peer.Ask(questions)
//	request + answers + state ---> input_required … | result
//
// Each round is a request of its own. The client's time does not count against
// the deadline.
func (s *session) request(ctx context.Context, r *request) (json.RawMessage, *Error) {
	stateless := s.conn.Stateless()
	if stateless {
		if result, e, ok := s.answerHere(ctx, r); ok {
			return result, e
		}
	} else if r.listen != nil {
		return nil, rpcFault(codeMethod, "the server speaks MCP "+s.conn.Revision()+", which has no "+methodListen, nil)
	} else if r.method != methodSetLevel && s.conn.client != nil {
		s.setLevel(ctx, r.From.Level)
	}
	params := r.params
	for n := 1; ; n++ {
		result, e := s.conn.do(ctx, r)
		switch {
		case e != nil && n == 1:
			return nil, s.conn.markLost(e)
		case e != nil: // a second attempt would repeat what was done so far
			e.Sent, e.Lost = true, false
			return nil, e
		case r.method == methodSetLevel:
			s.levelMu.Lock()
			s.level = textParam(r, "level")
			s.levelMu.Unlock()
		}
		if !stateless || !asks(result) {
			return result, nil
		}
		if n == maxRounds {
			return nil, failed(fmt.Errorf("the server asked %d times and did not answer", n))
		}
		if r.params, e = s.conn.answered(ctx, r, params, result); e != nil {
			return nil, e
		}
	}
}

// asks reports whether a result has questions in place of an answer.
func asks(result json.RawMessage) bool {
	const short = 1 << 10
	if len(result) < short && !bytes.Contains(result, []byte(`input_required`)) { // most results end here, without a walk
		return false
	}
	kind, _, _ := jsonrpc.Unpack(result, true, nil, "resultType")
	return len(kind) > 0 && string(kind[0]) == `"input_required"`
}

// session returns the connection of a client with its slot, which the caller
// releases with idle, or for a nil client the shared connection. It waits for the
// shared connection while that is being opened after a lost session, or for the first
// time and not longer than Server.StartWait.
func (s *Server) session(ctx context.Context, key string, cl *client) (*session, *slot, *Error) {
	for {
		s.mu.Lock()
		shared, patient, wake, err := s.shared, s.patient, s.wake, s.status.Err
		var startOver <-chan struct{}
		if s.status.State == StateStarting {
			startOver = s.started.Done()
		}
		if shared != nil && !shared.conn.Dead() {
			if cl != nil {
				return s.ownSession(ctx, key, cl)
			}
			s.mu.Unlock()
			return shared, nil, nil
		}
		s.mu.Unlock()
		if shared == nil && !patient {
			if err == nil {
				err = errors.New("it is not connected")
			}
			return nil, nil, &Error{Kind: Unavailable, Err: fmt.Errorf("server %s is not available: %w", s.cfg.Name, err)}
		}
		select {
		case <-wake:
		case <-s.life.Done():
			return nil, nil, errStopping()
		case <-startOver:
			if e := s.stillStarting(); e != nil {
				return nil, nil, e
			}
		case <-ctx.Done():
			return nil, nil, ctxError(ctx)
		}
	}
}

// stillStarting returns the error of a request that has waited for StartWait, nil for a
// server that has answered or failed, or was restarted meanwhile.
func (s *Server) stillStarting() *Error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.life.Err() != nil:
		return errStopping()
	case s.status.State == StateStarting && s.started.Err() != nil:
		return &Error{Kind: Unavailable, Err: fmt.Errorf("server %s is still starting, after %v\nhint: try again later, or raise start_wait", s.cfg.Name, s.cfg.StartWait)}
	}
	return nil
}

// ownSession returns the connection of a client, opening it if needed. The error is one
// of a lost session if the server is restarted meanwhile. The caller must hold s.mu, which
// it unlocks.
func (s *Server) ownSession(ctx context.Context, key string, cl *client) (*session, *slot, *Error) {
	sl, e := s.slotLocked(key, cl)
	if e == nil {
		sl.busy++
	}
	s.mu.Unlock()
	if e != nil {
		return nil, nil, e
	}
	select {
	case <-sl.ready:
	case <-sl.round.Done():
	case <-ctx.Done():
	}
	switch {
	case ctx.Err() != nil:
		e = ctxError(ctx)
	case sl.round.Err() != nil:
		e = s.roundOver()
	case sl.err != nil:
		e = &Error{Kind: Unavailable, Err: sl.err}
	default:
		return sl.s, sl, nil
	}
	sl.idle()
	return nil, nil, e
}

// slotLocked returns the slot of a client, opening it if needed. The caller must
// hold s.mu.
func (s *Server) slotLocked(key string, cl *client) (*slot, *Error) {
	sl := s.slots[key]
	switch sess := sl.opened(); {
	case s.life.Err() != nil:
		return nil, errStopping()
	case sess != nil && sess.conn.Dead():
		sl.dropLocked()
		sl = nil
	case sl != nil && sl.place.Leaving():
		delete(s.slots, key) // it ends with the requests that it has
		sl = nil
	}
	if sl == nil {
		sl = &slot{ready: make(chan struct{}), round: s.round, server: s, key: key, of: cl, profile: profileKey{string(cl.clientCapabilities()), cl.handshake}, last: s.opts.Now()}
		s.slots[key] = sl
		sl.place = s.places.Claim(cl.owner, sl)
		cl.uses++
		if s.ownKeyLocked(sl.profile) && s.profiles.opening[sl.profile] == nil {
			s.profiles.opening[sl.profile] = sl
		}
		s.tasks.Go(sl.open)
	}
	return sl, nil
}

// placeTimeout bounds how long a new connection waits for a place: for a connection that
// somebody else is using.
const placeTimeout = 5 * time.Second

// awaitPlace waits for the place of a slot.
func (sl *slot) awaitPlace() error {
	s := sl.server
	select {
	case <-sl.place.Granted(): // looked at alone, for no time that is over at once wins against it
		return nil
	default:
	}
	select {
	case <-sl.place.Granted():
		return nil
	case <-s.opts.After(placeTimeout):
		return fmt.Errorf("server %s has %d sessions open, which is its most, and all are busy\nhint: try again later, raise max_sessions, or set isolation to shared", s.cfg.Name, s.cfg.MaxSessions)
	case <-sl.round.Done():
		return s.roundOver()
	}
}

// open connects a slot, keeps its tools up to date, and removes the slot when
// the connection has ended.
func (sl *slot) open() {
	s, key, cl := sl.server, sl.key, sl.of
	defer s.releaseClient(key, cl)
	began := s.opts.Now()
	var sess *session
	err := sl.awaitPlace()
	if err == nil {
		sess, _, err = s.connect(sl.round, cl)
	}
	if err == nil {
		s.recordList(sess)
	}
	sl.conclude(sess, err)
	if err == nil {
		if sess.conn.Stateless() && !sess.conn.ClosesStreams() { // over HTTP, follow hears for all
			sess.conn.Go(func() { sess.conn.listenForChanges(s.relistOwn) })
		}
		sess.watch(s, func(_ []json.RawMessage, changed, announced bool) {
			if changed {
				s.mu.Lock()
				delete(s.profiles.known, sl.profile)
				s.mu.Unlock()
			}
			if changed || announced {
				s.opts.Relisted()
			}
		})
		sess.conn.close()
	}
	s.mu.Lock()
	sl.dropLocked()
	if s.opts.Now().Sub(began) >= stableAfter {
		cl.ended = 0
	}
	n := cl.ended
	cl.ended++
	s.mu.Unlock()
	s.reopenAfterPause(key, cl, n)
}

// idle ends one use of a slot.
func (sl *slot) idle() {
	s := sl.server
	s.mu.Lock()
	defer s.mu.Unlock()
	sl.busy--
	sl.last = s.opts.Now()
	switch {
	case s.life.Err() != nil:
	case sl.busy == 0 && s.slots[sl.key] != sl:
		sl.releaseLocked()
	default:
		s.places.Settle()
	}
}

// forget removes the slot of a connection whose session the server has
// forgotten.
func (s *Server) forget(key string, sess *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if sl := s.slots[key]; sl.opened() == sess {
		sl.dropLocked()
	}
}
