package mcp

import (
	"context"
	"encoding/json"
	"slices"
	"strconv"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/registry"
)

// maxProgress bounds the progress reports that wait for a server. Further
// reports are dropped, so that a server never holds up a client's messages.
const maxProgress = 64

// Why a question has no answer of the client.
const (
	unreachable = "the client cannot be reached"
	unreadable  = "the answer of the client cannot be read"
	unwanted    = "nobody waits for the answer any more"
	sessionOver = "the session of the client has ended"
)

// A question is one request to a client that waits for its answer.
type question struct {
	id      json.RawMessage // ours, and the progress token too
	at      int             // place in its inquiry
	set     *questionSet
	session *session
}

// questionSet is the questions of one Ask and their answers.
type questionSet struct {
	session  *session
	all      []registry.Question
	sent     []*question
	answers  []registry.Answer
	open     int        // how many have no answer
	replies  chan reply // has room for an answer to each question
	progress chan progressReport
}

// reply is the answer to question at.
type reply struct {
	at     int
	answer registry.Answer
}

// progressReport is what the client reports about its work on question at.
type progressReport struct {
	at     int
	params json.RawMessage
}

func newQuestionSet(s *session, all []registry.Question) *questionSet {
	return &questionSet{
		session: s, all: all, open: len(all),
		sent: make([]*question, len(all)), answers: make([]registry.Answer, len(all)),
		replies: make(chan reply, len(all)), progress: make(chan progressReport, maxProgress),
	}
}

// send sends question i under an id that the session has not used. Ids are
// strings: clients number their own requests, and some take a request for the
// answer to theirs with the same id.
func (qs *questionSet) send(v *clientPeer, i int) {
	s := qs.session
	q := &question{id: jsonrpc.Quote("ask_" + strconv.FormatUint(s.questionCount.Add(1), 10)), at: i, set: qs, session: s}
	qs.sent[i] = q
	s.questions.Put(q.id, q)
	params := qs.all[i].Params
	if qs.all[i].Progress != nil {
		if params == nil {
			params = json.RawMessage(`{}`)
		}
		params = setIn(params, q.id, "_meta", "progressToken")
	}
	message := jsonrpc.OneLine(jsonrpc.NewRequest(q.id, qs.all[i].Method, params))
	switch {
	case s.unanswering():
		q.fail(sessionOver)
	case !v.send(outgoing{message: message, question: q}):
		q.fail(unreachable)
	}
}

// setIn returns object with value as the member that path names, and objects for
// those on the way that are none. It returns object itself when it is not an
// object.
func setIn(object, value json.RawMessage, path ...string) json.RawMessage {
	if len(path) > 1 {
		inner, _ := jsonrpc.Get(object, path[0])
		if !isObject(inner) {
			inner = json.RawMessage("{}")
		}
		value = setIn(inner, value, path[1:]...)
	}
	out, err := jsonrpc.Set(object, path[0], value)
	if err != nil {
		return object
	}
	return out
}

// wait collects the answers until all are there, ctx ends, or the client can no
// longer answer.
func (qs *questionSet) wait(ctx context.Context, v *clientPeer) {
	for qs.open > 0 {
		select {
		case n := <-qs.progress:
			qs.forwardProgress(n)
		case a := <-qs.replies:
			qs.accept(a)
		case <-ctx.Done():
			qs.withdraw(v, unwanted)
		case <-qs.session.unreachable:
			qs.withdraw(nil, sessionOver)
		}
	}
}

// accept stores an answer. Progress that the client reported earlier is
// forwarded first.
func (qs *questionSet) accept(a reply) {
	for len(qs.progress) > 0 {
		qs.forwardProgress(<-qs.progress)
	}
	qs.answers[a.at] = a.answer
	qs.open--
}

func (qs *questionSet) forwardProgress(n progressReport) {
	if report := qs.all[n.at].Progress; report != nil {
		report(n.params)
	}
}

// withdraw ends the open questions with reason. It notifies the client through
// p about those that the client has received; p is nil when the client is gone.
func (qs *questionSet) withdraw(v *clientPeer, reason string) {
	for _, q := range qs.sent {
		if !q.fail(reason) || v == nil || qs.session.recall(q) {
			continue
		}
		params := slices.Concat([]byte(`{"requestId":`), q.id, []byte(`,"reason":"`+unwanted+`"}`))
		v.Tell("notifications/cancelled", params)
	}
	for qs.open > 0 {
		qs.accept(<-qs.replies)
	}
}

// fail ends q with an error and reports whether q was still open. It does not
// block.
func (q *question) fail(reason string) bool {
	_, open := q.session.questions.Match(q.id, nil)
	if open {
		q.answer(registry.Answer{Error: failed(reason)})
	}
	return open
}

// answer delivers the answer to q. Only whoever removed q from the session's
// pool calls it.
func (q *question) answer(a registry.Answer) { q.set.replies <- reply{at: q.at, answer: a} }

// failed is the error object of a question that the client did not answer.
func failed(reason string) json.RawMessage {
	object, _ := jsonrpc.Get(jsonrpc.NewFailure(nil, -32603, reason, nil), "error")
	return object
}

// takeAnswer accepts a client's answer and reports whether it matches an open
// question of the session.
func (s *session) takeAnswer(m *jsonrpc.Message) bool {
	if s == nil {
		return false
	}
	q, ok := s.questions.Match(m.ID, nil)
	if ok {
		q.answer(registry.Answer{Result: m.Result, Error: m.Error})
	}
	return ok
}

// failQuestion ends the question id when the client's message could not be
// decoded.
func (s *session) failQuestion(id json.RawMessage) {
	if s == nil || id == nil {
		return
	}
	if q, ok := s.questions.Peek(id); ok {
		q.fail(unreadable)
	}
}

// takeProgress accepts progress that the client reports about a question. It
// drops the report when maxProgress reports are waiting.
func (s *session) takeProgress(params json.RawMessage) {
	token, _ := jsonrpc.Get(params, "progressToken")
	q, ok := s.questions.Peek(token)
	if !ok {
		return
	}
	params, err := jsonrpc.Delete(params, "progressToken")
	if err != nil {
		return
	}
	select {
	case q.set.progress <- progressReport{at: q.at, params: params}:
	default:
	}
}
