package mcp

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/signal"
)

var (
	// errDuplicate is reported for a request id that is in flight already.
	errDuplicate = errors.New("a request with this id is in flight")
	// errEnded is reported for a session that is over.
	errEnded = errors.New("the session has ended")
	// errCancelled is the cause of a call that its own client cancelled.
	errCancelled = errors.New("cancelled by the client")
)

// session is one client's conversation. It belongs to one principal and one
// route; nobody else can use it.
type session struct {
	account
	id            string // what the client shows; random, 130 bits
	key           string // what the road sees instead of id
	route         string
	version       string          // the negotiated revision
	client        string          // name/version the client gave of itself
	capabilities  json.RawMessage // capabilities of the client, nil = it named none
	mayBeNotified bool            // a server of its road may say something before it answers
	onEnd         func()          // called once, after the last call of an ended session
	changes       *listChanges
	peer          *clientPeer         // for what belongs to no request
	direct        func(outgoing) bool // the one way to the client; nil = whatever stream there is
	questions     jsonrpc.Pool[*question]
	questionCount atomic.Uint64 // ids given to questions
	unreachable   chan struct{} // closed when the client will answer nothing further
	// closeToQuestions closes unreachable, so that open questions fail.
	closeToQuestions func()
	events           *eventLog  // set when the session is opened; nil over stdio
	streams          streams    // protected by eventLog.mu
	sseClient        *sseClient // the client of HTTP+SSE that it belongs to; nil = none

	level atomic.Pointer[string] // least severe log message that the client wants, "" = it has not said

	mu      sync.Mutex                         // protects the fields below
	flights map[string]context.CancelCauseFunc // :: jsonrpc.Key of the request id -> its end
	stream  chan struct{}                      // closed to end the open event stream; nil = none is open
	ended   bool
}

// newSession makes the session that who opens on route.
func newSession(who policy.Principal, route, version, client string) *session {
	s := &session{
		id:          rand.Text(),
		key:         signal.NewID("ses_"),
		account:     account{owner: ownerOf(who)},
		route:       route,
		version:     version,
		client:      client,
		onEnd:       func() {},
		changes:     newListChanges(),
		unreachable: make(chan struct{}),
		flights:     make(map[string]context.CancelCauseFunc),
	}
	s.peer = &clientPeer{session: s}
	s.closeToQuestions = sync.OnceFunc(func() { close(s.unreachable) })
	s.level.Store(new(string))
	return s
}

// begin registers request id and returns the context for its work, errDuplicate
// or errEnded.
func (s *session) begin(base context.Context, id string) (context.Context, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return nil, errEnded
	}
	if _, ok := s.flights[id]; ok {
		return nil, errDuplicate
	}
	ctx, cancel := context.WithCancelCause(base)
	s.flights[id] = cancel
	return ctx, nil
}

// finish unregisters request id, which ended at now.
func (s *session) finish(id string, now time.Time) {
	s.mu.Lock()
	cancel := s.flights[id]
	delete(s.flights, id)
	last := s.ended && len(s.flights) == 0
	s.mu.Unlock()
	s.used.Store(now.UnixNano())
	cancel(nil)
	if last {
		s.onEnd()
	}
}

// abort cancels request id of this session, if it is in flight.
func (s *session) abort(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if cancel, ok := s.flights[id]; ok {
		cancel(errCancelled)
	}
}

// abortAll cancels every request of s for cause.
func (s *session) abortAll(cause error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, cancel := range s.flights {
		cancel(cause)
	}
}

// end ends the session: nothing more begins, its event stream ends, open
// questions fail, requests in flight continue.
func (s *session) end() {
	s.mu.Lock()
	was := s.ended
	s.ended = true
	s.closeToQuestions()
	s.dropStreamLocked()
	last := !was && len(s.flights) == 0
	s.mu.Unlock()
	if s.events != nil {
		s.events.forget(s)
	}
	if last {
		s.onEnd()
	}
}

// unanswering reports whether the client will answer nothing further.
func (s *session) unanswering() bool {
	select {
	case <-s.unreachable:
		return true
	default:
		return false
	}
}

// busy implements client: a request or a question is open, or an event stream.
func (s *session) busy(streams bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.flights) > 0 || s.questions.Len() > 0 || streams && s.stream != nil
}

// openStream makes the caller's event stream the one of the session and ends
// the one before: a client that reconnects must not wait for its dead
// connection to be noticed. The result is nil for an ended session, else it is
// closed when the stream must end.
func (s *session) openStream() chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return nil
	}
	s.dropStreamLocked()
	s.stream = make(chan struct{})
	return s.stream
}

// closeStream forgets stream if it is still the one of the session.
func (s *session) closeStream(stream chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stream == stream {
		s.stream = nil
	}
}

// dropStreamLocked ends the open event stream. The caller must hold s.mu.
func (s *session) dropStreamLocked() {
	if s.stream != nil {
		close(s.stream)
		s.stream = nil
	}
}

// flushChanges sends the pending list changes.
func (s *session) flushChanges() { s.changes.flush(s.post) }

// openSession keeps the session that an HTTP initialize opened.
func (s *sessionServer) openSession(made *session) (*session, error) {
	made.onEnd, made.events = func() { s.opts.Ended(made.key) }, s.events
	if !s.sessions.put(made.id, made) {
		return nil, errNoRoom
	}
	return made, nil
}

// find returns the session id if it is alive, of the kind that sse names, and
// belongs to who on route, and marks it used; otherwise nil, without saying why.
// An HTTP+SSE session has its own route.
func (s *sessionServer) find(id string, who policy.Principal, route string, sse bool) *session {
	t := s.sessions
	t.mu.Lock()
	found, now := t.byKey[id], t.now().UnixNano()
	t.mu.Unlock()
	switch {
	case found == nil, found.owner.subject != who.Subject, found.owner.tenant != who.Tenant,
		sse != (found.sseClient != nil), !sse && found.route != route:
		return nil
	case now-found.used.Load() > int64(t.ttl) && !found.busy(true):
		s.endSession(found)
		return nil
	}
	found.used.Store(now)
	return found
}

// endSession ends a session that openSession has kept.
func (s *sessionServer) endSession(old *session) {
	t := s.sessions
	t.mu.Lock()
	defer t.unlock()
	if t.byKey[old.id] == old {
		t.endLocked(old.id)
	}
}
