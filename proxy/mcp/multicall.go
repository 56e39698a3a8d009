package mcp

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/share"
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
	id      callID    // set, with binding, when it is parked for the first time
	binding digest    // of x
	ctx     context.Context
	cancel  context.CancelCauseFunc
	asking  chan struct{}       // holds the place of the one round under way
	away    atomic.Int64        // since when it waits for its client, Unix time in nanoseconds; 0 = its client waits
	place   *share.Place[owner] // among the parked calls

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
// names, and returns the next answer for it. When ctx ends first, the call is
// cancelled; it is answered only when toolgate shuts down, because otherwise the client
// is gone.
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
		if cause := context.Cause(ctx); errors.Is(cause, proxy.ErrShutdown) {
			e.cancel(cause)
			return <-t.reply
		}
		e.hangUp(t)
		return answer{silent: true, status: http.StatusAccepted}
	}
}

// beginCall starts the call of t in a goroutine that Close waits for.
func (s *statelessServer) beginCall(t *attempt) *multiCall {
	e := &multiCall{server: s, x: t.x, attempt: t, earlyAnswers: t.x.stateless.responses, asking: make(chan struct{}, 1), fetched: make(chan struct{})}
	e.ctx, e.cancel = context.WithCancelCause(s.base)
	if t.x.row.asks {
		t.x.stateless.group.addCall(e)
	}
	t.x.call.Peer = e
	if token := t.x.token; token != nil && t.notify != nil {
		t.x.call.Progress = e.sendProgress
	}
	s.work.Continue()
	t.x.stateless.group.work.Add(1)
	t.x.call.Bytes.Hold()
	s.calls.Go(func() {
		defer s.work.Leave()
		defer t.x.call.Bytes.Release()
		defer s.groups.leave(t.x.stateless.group)
		defer e.cancel(nil)
		o := e.run()
		t.x.stateless.group.removeCall(e)
		e.finish(o)
	})
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
	select {
	case <-m.fetched:
	case <-time.After(wait):
	case <-m.ctx.Done():
	case <-m.server.closing.Done():
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
	if t := m.currentAttempt(); t != nil && t.notify != nil && t.x.token != nil {
		progress(t.notify, t.x.token)(params)
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
	text, _ := jsonrpc.TextAt(params, "level")
	is, wanted := slices.Index(proxy.Levels, text), slices.Index(proxy.Levels, level)
	return wanted >= 0 && is >= wanted
}

// askable are the requests of a server that the revision knows.
var askable = []string{"elicitation/create", "sampling/createMessage", "roots/list"}

// A questionRound is a set of questions that one retry of the client must
// answer completely.
type questionRound struct {
	number    uint32
	questions []registry.Question
	keys      []string // of asked, "" for a question that is not put
	answers   []registry.Answer
	answered  chan struct{} // closed when answers is whole
}

// newQuestionRound returns the round for questions and refuses those that the
// revision does not know. open reports whether any question is left.
func newQuestionRound(questions []registry.Question) (r *questionRound, open bool) {
	r = &questionRound{
		questions: questions, keys: make([]string, len(questions)), answers: make([]registry.Answer, len(questions)),
		answered: make(chan struct{}),
	}
	for i, q := range questions {
		if !slices.Contains(askable, q.Method) {
			r.answers[i].Error = failed("revision " + statelessVersion + " has no request " + q.Method + " to a client")
			continue
		}
		r.keys[i], open = r.keyFor(q.Key), true
	}
	return r, open
}

// keyFor returns the key of the next question: its own key, or a free one.
func (r *questionRound) keyFor(own string) string {
	if own != "" && !slices.Contains(r.keys, own) {
		return own
	}
	for n := 1; ; n++ {
		key := "question_" + strconv.Itoa(n)
		taken := func(q registry.Question) bool { return q.Key == key }
		if !slices.Contains(r.keys, key) && !slices.ContainsFunc(r.questions, taken) {
			return key
		}
	}
}

// match stores the client's answers and returns false when one is missing.
// Unknown keys are ignored.
func (r *questionRound) match(responses json.RawMessage) bool {
	whole := slices.Clone(r.answers)
	for i, key := range r.keys {
		if key == "" {
			continue
		}
		result, ok := jsonrpc.Get(responses, key)
		if !ok || !isObject(result) {
			return false
		}
		whole[i].Result = result
	}
	r.answers = whole
	return true
}

// fail answers every question that was put with an error.
func (r *questionRound) fail(reason string) []registry.Answer {
	for i, key := range r.keys {
		if key != "" {
			r.answers[i] = registry.Answer{Error: failed(reason)}
		}
	}
	return r.answers
}

// requests returns the inputRequests member of the result that asks r.
func (r *questionRound) requests() json.RawMessage {
	out := []byte{'{'}
	for i, key := range r.keys {
		if key == "" {
			continue
		}
		if len(out) > 1 {
			out = append(out, ',')
		}
		out = append(append(out, jsonrpc.Quote(key)...), `:{"method":`...)
		out = append(out, jsonrpc.Quote(r.questions[i].Method)...)
		out = append(append(append(out, `,"params":`...), paramsOf(r.questions[i])...), '}')
	}
	return append(out, '}')
}

// paramsOf returns the params of q without members that the revision does not
// have. The member is never absent: some clients cannot read a question without
// params.
func paramsOf(q registry.Question) json.RawMessage {
	if q.Params == nil {
		return json.RawMessage("{}")
	}
	params := q.Params
	for _, member := range []string{"elicitationId", "task"} {
		if without, err := jsonrpc.Delete(params, member); err == nil {
			params = without
		}
	}
	return params
}

// Ask puts questions to the client in place of the answer to its request and
// waits for the answers. Rounds of one call follow each other in the order in
// which they come.
func (m *multiCall) Ask(ctx context.Context, questions []registry.Question) []registry.Answer {
	if !m.x.row.asks {
		return unanswered(questions, "method "+m.x.call.Message.Method+" cannot ask the client in revision "+statelessVersion)
	}
	select {
	case m.asking <- struct{}{}:
		defer func() { <-m.asking }()
	case <-ctx.Done():
		return unanswered(questions, "the question was withdrawn")
	case <-m.ctx.Done():
		return unanswered(questions, "the client has gone")
	case <-m.server.closing.Done():
		return unanswered(questions, proxy.ErrShutdown.Error())
	}
	for _, q := range questions {
		if feature := deprecatedQuestions[q.Method]; feature != "" {
			m.server.opts.Deprecated(feature)
		}
	}
	r, open := newQuestionRound(questions)
	if !open || r.match(m.takeEarlyAnswers()) {
		return r.answers
	}
	if reason := m.openRound(r); reason != "" {
		return r.fail(reason)
	}
	return m.awaitAnswers(ctx, r)
}

// takeEarlyAnswers returns, once, the answers that the first attempt brought
// before anything was asked.
func (m *multiCall) takeEarlyAnswers() json.RawMessage {
	m.mu.Lock()
	defer m.mu.Unlock()
	early := m.earlyAnswers
	m.earlyAnswers = nil
	return early
}

// openRound makes r the open round. It returns the reason when the client
// cannot be asked.
func (m *multiCall) openRound(r *questionRound) string {
	d := m.server
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.closed:
		return "the client has gone"
	case m.rounds == 0 && !d.parkCall(m):
		t := m.attempt
		m.attempt, m.closed = nil, true
		t.reply <- d.refuse(t.x, signal.CodeOverloaded, "too many calls wait for the answers of their clients")
		m.cancel(errNoRoom)
		return errNoRoom.Error()
	}
	m.rounds++
	r.number, m.round = m.rounds, r
	if m.attempt != nil {
		m.sendRoundLocked(m.attempt)
	}
	return ""
}

// sendRoundLocked answers t with the open round and parks the call. The caller
// must hold m.mu.
func (m *multiCall) sendRoundLocked(t *attempt) {
	if m.sentRound != m.round.number {
		m.expires = m.server.opts.Now().Add(m.server.opts.AnswerTTL)
	}
	m.attempt, m.sentRound = nil, m.round.number
	m.away.Store(m.server.opts.Now().UnixNano())
	restartable := !slices.ContainsFunc(m.round.questions, func(q registry.Question) bool { return !q.Anew })
	state := m.server.signer.sign(claim{m.id, m.sentRound, m.expires.UnixMilli(), m.binding, restartable})
	result := slices.Concat([]byte(`{"resultType":"input_required","inputRequests":`), m.round.requests(),
		[]byte(`,"requestState":`), jsonrpc.Quote(state), []byte(`,"_meta":{`), jsonrpc.Quote(metaServer), []byte{':'},
		m.server.serverInfo, []byte("}}"))
	t.reply <- answer{status: http.StatusOK, body: jsonrpc.NewSuccess(t.x.id, result)}
}

// awaitAnswers waits for the answers to r until AnswerTTL has passed.
func (m *multiCall) awaitAnswers(ctx context.Context, r *questionRound) []registry.Answer {
	var reason string
	over := true
	select {
	case <-r.answered:
		return r.answers
	case <-time.After(m.server.opts.AnswerTTL):
		reason = errNoAnswer.Error()
	case <-ctx.Done():
		reason, over = "the question was withdrawn", false
	case <-m.ctx.Done():
		reason = "the client has gone"
	case <-m.server.closing.Done():
		reason = proxy.ErrShutdown.Error()
	}
	return m.withdrawRound(r, reason, over)
}

// withdrawRound ends r with reason unless it was answered in the meantime. When
// over is true and no attempt waits, the call accepts no further attempt.
func (m *multiCall) withdrawRound(r *questionRound, reason string, over bool) []registry.Answer {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.round != r {
		return r.answers
	}
	m.round = nil
	m.closed = m.closed || over && m.attempt == nil
	return r.fail(reason)
}

// resumeCall makes t the next attempt of the call that its requestState names,
// or returns why it cannot; the call is then unchanged. A call that is gone,
// for example with its process, starts from the beginning when nothing can have
// been sent for it; the client's answers are then dropped.
func (s *statelessServer) resumeCall(t *attempt) (*multiCall, error) {
	text, _ := jsonrpc.Text(t.x.stateless.state)
	c, err := s.signer.read(text)
	switch {
	case err != nil:
		return nil, err
	case c.Binding != bindingOf(t.x):
		return nil, errForeign
	case !s.opts.Now().Before(time.UnixMilli(c.Until)):
		return nil, errExpired
	}
	var m *multiCall
	if parked, ok := s.parked.Load(c.Call); ok {
		m = parked.(*multiCall)
		err = m.continueWith(t, c.Round)
	} else {
		err = errGone
	}
	if errors.Is(err, errGone) && c.Restartable {
		t.x.stateless.responses = nil
		return s.beginCall(t), nil
	}
	return m, err
}

// continueWith makes t the current attempt. number is the round that the client
// answers. t is answered at once with a kept outcome, and with the same round
// when an answer is missing.
func (m *multiCall) continueWith(t *attempt, number uint32) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.closed:
		return errGone
	case number != m.sentRound || m.attempt != nil:
		return errAnswered
	case m.outcome != nil:
		m.closed = true
		m.acceptAnswersLocked(t) // of a round that was open meanwhile
		t.reply <- m.server.answerTo(t.x, *m.outcome)
		close(m.fetched)
	case m.round == nil:
		m.attempt = t
		m.away.Store(0)
	case m.round.number != number || !m.acceptAnswersLocked(t):
		m.sendRoundLocked(t)
	default:
		m.attempt = t
		m.away.Store(0)
	}
	return nil
}

// acceptAnswersLocked stores the answers of t if they answer the open round
// completely. The caller must hold m.mu.
func (m *multiCall) acceptAnswersLocked(t *attempt) bool {
	if m.round == nil || !m.round.match(t.x.stateless.responses) {
		return false
	}
	close(m.round.answered)
	m.round = nil
	return true
}

// State implements share.Holder: a call that waits for its client can be ended for a
// principal that has fewer.
func (m *multiCall) State() share.State {
	if m.away.Load() == 0 {
		return share.Busy
	}
	return share.Pinned
}

// Used implements share.Holder.
func (m *multiCall) Used() int64 { return m.away.Load() }

// Evict implements share.Holder.
func (m *multiCall) Evict() { m.cancel(errNoRoom) }

// parkCall registers m and returns false when too many calls are parked, and none of a
// principal that has more than that of m.
func (s *statelessServer) parkCall(m *multiCall) bool {
	t := s.groups
	t.mu.Lock()
	defer t.mu.Unlock()
	place := t.parked.Claim(m.x.stateless.group.owner, m)
	select {
	case <-place.Granted():
	default:
		place.Release()
		return false
	}
	_, _ = rand.Read(m.id[:]) // never fails
	if s.opts.PassOn != nil {
		copy(m.id[:], s.opts.Replica[:])
	}
	m.place, m.binding = place, bindingOf(m.x)
	s.parked.Store(m.id, m)
	return true
}

// unparkCall removes m.
func (s *statelessServer) unparkCall(m *multiCall) {
	s.parked.Delete(m.id)
	s.groups.mu.Lock()
	defer s.groups.mu.Unlock()
	m.place.Release()
}
