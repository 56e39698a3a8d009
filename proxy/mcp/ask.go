package mcp

import (
	"context"
	"encoding/json"
	"slices"
	"strconv"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/registry"
)

// maxNotes is how many reports of progress wait for whoever asked; what is more
// is dropped, so that a client's messages are never held up by a server.
const maxNotes = 64

// Why a question has no answer of the client.
const (
	unreachable = "the client cannot be reached"
	unreadable  = "the answer of the client cannot be read"
	unwanted    = "nobody waits for the answer any more"
	sessionOver = "the session of the client has ended"
)

// question is one request to a client that waits for its answer.
type question struct {
	id      json.RawMessage // ours, and the progress token too
	at      int             // place in its inquiry
	inquiry *inquiry
	session *session
}

// inquiry is what one Ask waits for.
type inquiry struct {
	session *session
	all     []registry.Question
	asked   []*question
	answers []registry.Answer
	open    int        // how many have no answer
	came    chan reply // has room for an answer to each question
	notes   chan note
}

// reply is the answer to question at.
type reply struct {
	at     int
	answer registry.Answer
}

// note is what the client reports of its work on question at.
type note struct {
	at     int
	params json.RawMessage
}

func newInquiry(s *session, all []registry.Question) *inquiry {
	return &inquiry{
		session: s, all: all, open: len(all),
		asked: make([]*question, len(all)), answers: make([]registry.Answer, len(all)),
		came: make(chan reply, len(all)), notes: make(chan note, maxNotes),
	}
}

// put sends question i with an id that this session has not seen. Ids are
// strings: clients count their own requests in numbers, and some take a request
// for the answer to one with the same id.
func (r *inquiry) put(v *voice, i int) {
	s := r.session
	q := &question{id: jsonrpc.Quote("ask_" + strconv.FormatUint(s.count.Add(1), 10)), at: i, inquiry: r, session: s}
	r.asked[i] = q
	s.asked.Put(q.id, q)
	params := r.all[i].Params
	if r.all[i].Progress != nil {
		params = withToken(params, q.id)
	}
	message := jsonrpc.OneLine(jsonrpc.NewRequest(q.id, r.all[i].Method, params))
	switch {
	case s.quiet():
		q.fail(sessionOver)
	case !v.send(letter{message: message, question: q}):
		q.fail(unreachable)
	}
}

// withToken puts a progress token into params; what is no object stays as it is.
func withToken(params, token json.RawMessage) json.RawMessage {
	if params == nil {
		params = json.RawMessage(`{}`)
	}
	meta, ok := jsonrpc.Get(params, "_meta")
	if !ok {
		meta = json.RawMessage(`{}`)
	}
	meta, err := jsonrpc.Set(meta, "progressToken", token)
	if err != nil {
		return params
	}
	if out, err := jsonrpc.Set(params, "_meta", meta); err == nil {
		return out
	}
	return params
}

// wait collects the answers until ctx or the session ends.
func (r *inquiry) wait(ctx context.Context, v *voice) {
	for r.open > 0 {
		select {
		case n := <-r.notes:
			r.hear(n)
		case a := <-r.came:
			r.take(a)
		case <-ctx.Done():
			r.withdraw(v, unwanted)
		case <-r.session.gone:
			r.withdraw(nil, sessionOver)
		}
	}
}

// take keeps an answer. What the client reported before it is passed on first.
func (r *inquiry) take(a reply) {
	for len(r.notes) > 0 {
		r.hear(<-r.notes)
	}
	r.answers[a.at] = a.answer
	r.open--
}

func (r *inquiry) hear(n note) {
	if report := r.all[n.at].Progress; report != nil {
		report(n.params)
	}
}

// withdraw ends the questions that are open, and tells the client so unless v is
// nil or the client has not heard of them.
func (r *inquiry) withdraw(v *voice, reason string) {
	for _, q := range r.asked {
		if !q.fail(reason) || v == nil || r.session.recall(q) {
			continue
		}
		params := slices.Concat([]byte(`{"requestId":`), q.id, []byte(`,"reason":"`+unwanted+`"}`))
		v.Tell("notifications/cancelled", params)
	}
	for r.open > 0 {
		r.take(<-r.came)
	}
}

// fail answers q for the client and reports whether it was still open. It does
// not block.
func (q *question) fail(reason string) bool {
	_, open := q.session.asked.Match(q.id)
	if open {
		q.settle(registry.Answer{Error: failed(reason)})
	}
	return open
}

// settle gives q its answer. Who took q out of the session's pool calls it.
func (q *question) settle(a registry.Answer) { q.inquiry.came <- reply{at: q.at, answer: a} }

// failed is the error object of a question that the client did not answer.
func failed(reason string) json.RawMessage {
	object, _ := jsonrpc.Get(jsonrpc.NewFailure(nil, -32603, reason, nil), "error")
	return object
}

// answered takes a client's answer and reports whether it is one to a question
// of its own session.
func (s *session) answered(m *jsonrpc.Message) bool {
	if s == nil {
		return false
	}
	q, ok := s.asked.Match(m.ID)
	if ok {
		q.settle(registry.Answer{Result: m.Result, Error: m.Error})
	}
	return ok
}

// spoiled ends the question id: what came in place of an answer was no message.
func (s *session) spoiled(id json.RawMessage) {
	if s == nil || id == nil {
		return
	}
	if q, ok := s.asked.Peek(id); ok {
		q.fail(unreadable)
	}
}

// reported takes what a client reports of its work on a question.
func (s *session) reported(params json.RawMessage) {
	token, _ := jsonrpc.Get(params, "progressToken")
	q, ok := s.asked.Peek(token)
	if !ok {
		return
	}
	params, err := jsonrpc.Delete(params, "progressToken")
	if err != nil {
		return
	}
	select {
	case q.inquiry.notes <- note{at: q.at, params: params}:
	default:
	}
}
