package mcp

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/registry"
	"github.com/toolgate/toolgate/signal"
)

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

// restartable reports whether nothing has been sent to a server for the call
// that asks r.
func (r *questionRound) restartable() bool {
	return !slices.ContainsFunc(r.questions, func(q registry.Question) bool { return !q.Anew })
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
	case <-m.server.streams:
		return unanswered(questions, errClosing.Error())
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
	state := m.server.signer.sign(claim{call: m.id, round: m.sentRound, until: m.expires, binding: m.binding, restartable: m.round.restartable()})
	result := slices.Concat([]byte(`{"resultType":"input_required","inputRequests":`), m.round.requests(),
		[]byte(`,"requestState":`), jsonrpc.Quote(state), []byte(`,"_meta":{`), jsonrpc.Quote(metaServer), []byte{':'},
		m.server.serverInfo(), []byte("}}"))
	t.reply <- answer{status: http.StatusOK, body: jsonrpc.NewSuccess(t.x.id, result)}
}

// awaitAnswers waits for the answers to r until AnswerTTL has passed.
func (m *multiCall) awaitAnswers(ctx context.Context, r *questionRound) []registry.Answer {
	timer := time.NewTimer(m.server.opts.AnswerTTL)
	defer timer.Stop()
	var reason string
	over := true
	select {
	case <-r.answered:
		return r.answers
	case <-timer.C:
		reason = errNoAnswer.Error()
	case <-ctx.Done():
		reason, over = "the question was withdrawn", false
	case <-m.ctx.Done():
		reason = "the client has gone"
	case <-m.server.streams:
		reason = errClosing.Error()
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
	case c.binding != bindingOf(t.x):
		return nil, errForeign
	case !s.opts.Now().Before(c.until):
		return nil, errExpired
	}
	var m *multiCall
	if parked, ok := s.parked.Load(c.call); ok {
		m = parked.(*multiCall)
		err = m.continueWith(t, c.round)
	} else {
		err = errGone
	}
	if errors.Is(err, errGone) && c.restartable {
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
	case m.round.number != number || !m.acceptAnswersLocked(t):
		m.sendRoundLocked(t)
	default:
		m.attempt = t
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

// parkCall registers m and returns false when its principal, or all together,
// have too many parked calls.
func (s *statelessServer) parkCall(m *multiCall) bool {
	if !s.groups.acquire(m.x.stateless.group, parkedCall, s.opts.MaxParkedEach, s.opts.MaxParked) {
		return false
	}
	s.parked.Store(m.id, m)
	return true
}

// unparkCall removes m.
func (s *statelessServer) unparkCall(m *multiCall) {
	s.parked.Delete(m.id)
	s.groups.release(m.x.stateless.group, parkedCall)
}

func newCallID() (id callID) {
	_, _ = rand.Read(id[:]) // never fails
	return id
}
