package upstream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/toolgate/toolgate/internal/jsonrpc"
)

// Do sends a call and waits for its answer, which it returns byte for byte. The
// call is sent at most once. The only exception is an HTTP server that refused
// the call because it had forgotten the session, and so did not execute it. A
// tool whose definition on this connection differs from the one that was judged
// is not called.
func (s *Server) Do(ctx context.Context, call Call) (json.RawMessage, *Error) {
	return s.send(ctx, call.From, call.Timeout, request{
		method: "tools/call", params: paramsOf(call), progress: call.Progress, later: call.Later, tool: call.Tool, fingerprint: call.Fingerprint,
	})
}

// Ask is one request that calls no tool.
type Ask struct {
	Method string
	Params json.RawMessage // sent as they are, nil for none
	From   Downstream      // for whom
	// Progress is as in Call.
	Progress func(params json.RawMessage)
}

// Ask sends a request that calls no tool and waits for its answer, within the
// server's timeout and otherwise as Do does.
func (s *Server) Ask(ctx context.Context, ask Ask) (json.RawMessage, *Error) {
	r := request{method: ask.Method, params: ask.Params, progress: ask.Progress}
	return s.send(ctx, ask.From, 0, r)
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
	sl := s.slots[session]
	s.mu.Unlock()
	if sl == nil {
		return
	}
	select {
	case <-sl.ready:
		// Without a handshake, there is nothing that a client has to tell.
		if sl.s != nil && sl.s.conn.IsMCP() && !sl.s.conn.Stateless() && !sl.s.conn.Dead() {
			sl.s.conn.Offer(jsonrpc.NewNotification(method, params))
		}
	default: // a connection that is being opened has nothing to be told of
	}
}

// send makes a request for a client, on the connection of its session where it
// has one.
func (s *Server) send(ctx context.Context, from Downstream, timeout time.Duration, r request) (json.RawMessage, *Error) {
	if !s.calls.Enter() {
		return nil, errStopping()
	}
	defer s.calls.Leave()
	if timeout <= 0 {
		timeout = s.cfg.Timeout
	}
	ctx, clock := withDeadline(ctx, timeout)
	defer clock.done()
	r.ofClient, r.from, r.clock = true, from, clock
	cl := s.acquireClient(from)
	if cl == nil {
		if ofSession[r.method] {
			return nil, &Error{Kind: Unavailable, Err: errShared}
		}
		return s.attempt(ctx, nil, r)
	}
	defer s.releaseClient(from.Session, cl)
	cl.enter(clock)
	defer cl.leave(clock)
	if !ofSession[r.method] {
		return s.attempt(ctx, cl, r)
	}
	if e := cl.reserveSubscription(r); e != nil {
		return nil, e
	}
	result, e := s.attempt(ctx, cl, r)
	cl.recordOutcome(r, e == nil)
	return result, e
}

// attempt makes a request on the connection of its client. It tries once more
// when the server has forgotten the session.
func (s *Server) attempt(ctx context.Context, cl *client, r request) (json.RawMessage, *Error) {
	key := r.from.Session
	for again := true; ; again = false {
		sess, done, e := s.session(ctx, key, cl)
		if e != nil {
			return nil, e
		}
		if r.method == "tools/call" && sess.profile.Load().Offers(r.tool) != r.fingerprint {
			done()
			return nil, &Error{Kind: Quarantined, Err: fmt.Errorf("the server offers %q with another definition on this connection", r.tool)}
		}
		result, e := s.request(ctx, sess, r)
		if e != nil && e.Lost {
			sess.conn.Fail(e)
			s.forget(key, sess)
		}
		done()
		if e == nil || !e.Lost || !again {
			return result, e
		}
	}
}

// request makes a request on a connection, in the revision that its server
// speaks.
func (s *Server) request(ctx context.Context, sess *session, r request) (json.RawMessage, *Error) {
	stateless, do := sess.conn.Stateless(), s.inSession
	if stateless {
		do = s.stateless
	}
	result, e := do(ctx, sess, r)
	switch {
	case e == nil:
		return result, nil
	case e.Lost && (stateless || e.RPC != nil):
		s.era.Store(&spoken{}) // another server has taken its place
	case codeOf(e) == codeHeaders:
		sess.conn.signal() // it reads the headers otherwise than we do: its tools have changed
	}
	return nil, e
}

// inSession makes a request on an initialized connection. It first sets the log
// level that the client wants.
func (s *Server) inSession(ctx context.Context, sess *session, r request) (json.RawMessage, *Error) {
	sets := r.method == "logging/setLevel"
	if r.from.Level != "" && !sets && sess.conn.client != nil {
		s.setLevel(ctx, sess, r.from.Level)
	}
	result, e := sess.conn.do(ctx, r)
	if e != nil {
		return nil, sess.conn.markLost(e)
	}
	if sets {
		sess.recordLevel(r)
	}
	return result, nil
}

// paramsOf builds the params of tools/call by concatenation.
func paramsOf(call Call) json.RawMessage {
	name := jsonrpc.Quote(call.Tool)
	out := make([]byte, 0, len(name)+len(call.Arguments)+len(call.Meta)+40)
	out = append(append(out, `{"name":`...), name...)
	if call.Arguments != nil {
		out = append(append(out, `,"arguments":`...), call.Arguments...)
	}
	if call.Task != nil {
		out = append(append(out, `,"task":`...), call.Task...)
	}
	if call.Meta != nil {
		out = append(append(out, `,"_meta":`...), call.Meta...)
	}
	return append(out, '}')
}

// nothing is a release that has nothing to do.
func nothing() {}

// session returns the connection of a client, or with nil the shared one, and a
// function that releases it.
func (s *Server) session(ctx context.Context, key string, cl *client) (*session, func(), *Error) {
	shared, e := s.awaitShared(ctx)
	if e != nil {
		return nil, nil, e
	}
	if cl == nil {
		return shared, nothing, nil
	}
	sl, e := s.slot(key, cl)
	if e != nil {
		return nil, nil, e
	}
	release := func() { s.idle(sl) }
	select {
	case <-sl.ready:
	case <-ctx.Done():
		release()
		return nil, nil, ctxError(ctx)
	}
	if sl.err != nil {
		release()
		return nil, nil, &Error{Kind: Unavailable, Err: sl.err}
	}
	return sl.s, release, nil
}

// awaitShared returns the shared connection. It waits only while the connection
// is being opened for the first time or after a lost session.
func (s *Server) awaitShared(ctx context.Context) (*session, *Error) {
	for {
		s.mu.Lock()
		shared, patient, wake, err := s.shared, s.patient, s.wake, s.status.Err
		s.mu.Unlock()
		switch {
		case shared != nil && !shared.conn.Dead():
			return shared, nil
		case shared == nil && !patient:
			if err == nil {
				err = errors.New("it is not connected")
			}
			return nil, &Error{Kind: Unavailable, Err: fmt.Errorf("server %s is not available: %w", s.cfg.Name, err)}
		}
		select {
		case <-wake:
		case <-s.life.Done():
			return nil, errStopping()
		case <-ctx.Done():
			return nil, ctxError(ctx)
		}
	}
}

// slot returns the slot of a client, opening it if needed, and marks it as in
// use.
func (s *Server) slot(key string, cl *client) (*slot, *Error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sl, e := s.slotLocked(key, cl)
	if e == nil {
		sl.busy++
	}
	return sl, e
}

// slotLocked is slot without the mark. The caller must hold s.mu.
func (s *Server) slotLocked(key string, cl *client) (*slot, *Error) {
	sl := s.slots[key]
	if sl != nil && sl.dead() {
		delete(s.slots, key)
		sl = nil
	}
	switch {
	case s.life.Err() != nil:
		return nil, errStopping()
	case sl == nil && s.cfg.MaxSessions > 0 && len(s.slots) >= s.cfg.MaxSessions:
		return nil, &Error{Kind: Unavailable, Err: fmt.Errorf("server %s has %d sessions open, which is its most\nhint: raise max_sessions, or set isolation to shared", s.cfg.Name, len(s.slots))}
	case sl == nil:
		sl = &slot{ready: make(chan struct{}), of: cl}
		s.slots[key] = sl
		cl.uses++
		opened := s.openingLocked(cl.clientCapabilities())
		s.tasks.Go(func() { s.open(key, sl, opened) })
	}
	return sl, nil
}

// open connects a slot, keeps its tools up to date, and removes the slot when
// the connection has ended.
func (s *Server) open(key string, sl *slot, opened func(*session)) {
	cl := sl.of
	defer s.releaseClient(key, cl)
	began := s.opts.Now()
	sess, _, err := s.connect(s.life, cl)
	if err == nil {
		s.adopt(sess)
	}
	sl.s, sl.err = sess, err
	close(sl.ready)
	opened(sess)
	if err == nil {
		if sess.conn.Stateless() && !sess.conn.ClosesStreams() { // over HTTP, follow hears for all
			sess.conn.Go(func() { s.listenForChanges(sess.conn) })
		}
		before := sess.profile.Load()
		sess.watch(s, func([]json.RawMessage) { before = s.ownListed(sess, before) })
		sess.conn.close()
	}
	s.mu.Lock()
	if s.slots[key] == sl {
		delete(s.slots, key)
	}
	if s.opts.Now().Sub(began) >= stableAfter {
		cl.ended = 0
	}
	n := cl.ended
	cl.ended++
	s.mu.Unlock()
	s.reopenAfterPause(key, cl, n)
}

// idle ends one use of a slot.
func (s *Server) idle(sl *slot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sl.busy--
	sl.last = s.opts.Now()
}

// forget removes the slot of a connection whose session the server has
// forgotten.
func (s *Server) forget(key string, sess *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sl := s.slots[key]
	if sl == nil {
		return
	}
	select {
	case <-sl.ready:
		if sl.s == sess {
			delete(s.slots, key)
		}
	default:
	}
}
