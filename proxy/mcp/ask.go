package mcp

import (
	"context"
	"encoding/json"
	"slices"
	"strconv"
	"sync/atomic"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/wait"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/proxy/eventlog"
	"github.com/toolgate/toolgate/proxy/wire"
	"github.com/toolgate/toolgate/registry"
)

// clientPeer sends what servers ask and notify to one client of a session
// revision: questions as JSON-RPC requests, the rest as notifications. A
// message takes the first way that can be read:
//
//	stream of its request -> GET stream -> newest request stream -> mailbox
//	event stream of HTTP+SSE
//	stdout
//
// A message that belongs to no request starts at the second.
type clientPeer struct {
	session *session
	stream  *eventlog.Stream // nil = of no request
}

var _ registry.Peer = (*clientPeer)(nil)

// Ask implements registry.Peer. A question that cannot be sent now waits until
// a stream can carry it. When the client does not answer, the Error of the
// answer is toolgate's own.
func (p *clientPeer) Ask(ctx context.Context, all []registry.Question) []registry.Answer {
	sent, answers := make([]*question, len(all)), make([]registry.Answer, len(all))
	for i, q := range all {
		if feature := deprecatedQuestions[q.Method]; feature != "" {
			p.session.deprecated(feature)
		}
		sent[i] = p.ask(q)
	}
	for i, q := range sent {
		select {
		case <-q.answered:
		case <-ctx.Done():
			p.withdraw(sent, unwanted)
		case <-p.session.answering.Done():
			p.withdraw(sent, sessionOver)
		}
		<-q.answered
		m := wire.MatchResponseToRequest(q.id, &p.session.answers)
		answers[i] = registry.Answer{Result: m.Result, Error: m.Error}
	}
	return answers
}

// Tell implements registry.Peer. Several list changes that the client has not
// yet received become one.
func (p *clientPeer) Tell(method string, params json.RawMessage) {
	if p.session.changes.add(method) {
		return
	}
	p.send(eventlog.Message{Text: jsonrpc.OneLine(jsonrpc.NewNotification(method, params))})
}

// send sends l and returns false when no way exists.
func (p *clientPeer) send(l eventlog.Message) bool {
	return p.stream != nil && p.stream.Post(l) || p.session.post(l)
}

// useStream makes t the stream for messages that belong to x.
func (x *exchange) useStream(t *eventlog.Stream) {
	x.notify = t.Send
	x.call.Peer = &clientPeer{session: x.session, stream: t}
}

// Why a question has no answer of the client.
const (
	unreachable = "the client cannot be reached"
	unreadable  = "the answer of the client cannot be read"
	unwanted    = "nobody waits for the answer any more"
	sessionOver = "the session of the client has ended"
)

// A question is one request to a client that waits for its answer.
type question struct {
	registry.Question
	id       json.RawMessage // ours, and the progress token too
	session  *session
	answered chan struct{} // closed by settle
}

// ask sends a question under an id that the session has not used. Ids are
// strings: clients number their own requests, and some take a request for the
// answer to theirs with the same id.
func (p *clientPeer) ask(asked registry.Question) *question {
	s := p.session
	q := &question{Question: asked, session: s, answered: make(chan struct{})}
	q.id = jsonrpc.Quote("ask_" + strconv.FormatUint(s.questionCount.Add(1), 10))
	s.questions.Put(q.id, q)
	params := asked.Params
	if asked.Progress != nil {
		if params == nil {
			params = json.RawMessage(`{}`)
		}
		params = setIn(params, q.id, "_meta", "progressToken")
	}
	message := jsonrpc.OneLine(jsonrpc.NewRequest(q.id, asked.Method, params))
	switch {
	case s.answering.Err() != nil:
		q.fail(sessionOver)
	case !p.send(eventlog.Message{Text: message, Question: q}):
		q.fail(unreachable)
	}
	return q
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

// withdraw ends those of the questions sent that are open. It notifies a client
// that can still be reached about each that it has received.
func (p *clientPeer) withdraw(sent []*question, reason string) {
	for _, q := range sent {
		if !q.fail(reason) || reason == sessionOver || p.session.events != nil && p.session.events.Recall(&p.session.streams, q) {
			continue
		}
		params := slices.Concat([]byte(`{"requestId":`), q.id, []byte(`,"reason":"`+unwanted+`"}`))
		p.Tell("notifications/cancelled", params)
	}
}

// fail ends q with an error and reports whether q was still open. It does not
// block.
func (q *question) fail(reason string) bool {
	return q.session.settle(&jsonrpc.Message{Kind: jsonrpc.Failure, ID: q.id, Error: failed(reason)})
}

// Lose implements eventlog.Question.
func (q *question) Lose() { q.fail(unreachable) }

// settle ends the question that m responds to: m waits among the answers, from which
// Ask takes it. settle reports whether the question was open. It does not block.
func (s *session) settle(m *jsonrpc.Message) bool {
	q, open := s.questions.Match(m.ID, nil)
	if open {
		s.answers.Put(q.id, m)
		close(q.answered)
	}
	return open
}

// failed is the error object of a question that the client did not answer.
func failed(reason string) json.RawMessage {
	object, _ := jsonrpc.Get(jsonrpc.NewFailure(nil, -32603, reason, nil), "error")
	return object
}

// takeAnswer accepts a client's answer and reports whether it matches an open
// question of the session.
func (s *session) takeAnswer(m *jsonrpc.Message) bool {
	return s != nil && s.settle(m)
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

// takeProgress passes on what the client reports about a question.
func (s *session) takeProgress(params json.RawMessage) {
	token, _ := jsonrpc.Get(params, "progressToken")
	q, ok := s.questions.Peek(token)
	if !ok || q.Progress == nil {
		return
	}
	if params, err := jsonrpc.Delete(params, "progressToken"); err == nil {
		q.Progress(params)
	}
}

// post sends l outside the streams of requests and returns false when there is
// no way.
func (s *session) post(l eventlog.Message) bool {
	if s.direct != nil {
		return s.direct(l)
	}
	return s.events.Post(&s.streams, l)
}

// toolsChanged reports that the client's list of tools may have changed.
const toolsChanged = "notifications/tools/list_changed"

// listMethods are the notifications that report a changed list and nothing
// more, so that two are worth one.
var listMethods = []string{toolsChanged, "notifications/resources/list_changed", "notifications/prompts/list_changed"}

// listChanges holds the list-change notifications that one client has not
// received; repeated changes become one. It is safe for concurrent use.
type listChanges struct {
	wake    chan struct{} // holds a token when changes are pending
	pending atomic.Uint32 // a bit for each of listMethods
}

func newListChanges() *listChanges { return &listChanges{wake: make(chan struct{}, 1)} }

// add notes a change. It returns false when method is not one of listMethods.
func (c *listChanges) add(method string) bool {
	i := slices.Index(listMethods, method)
	if i < 0 {
		return false
	}
	c.pending.Or(1 << i)
	wait.Signal(c.wake)
	return true
}

// clear drops the pending changes.
func (c *listChanges) clear() { c.pending.Store(0) }

// flush sends the pending changes. A change that cannot be sent stays pending.
func (c *listChanges) flush(send func(eventlog.Message) bool) {
	unheard := c.pending.Swap(0)
	for i, method := range listMethods {
		if unheard&(1<<i) != 0 && !send(eventlog.Message{Text: jsonrpc.NewNotification(method, nil)}) {
			c.add(method)
		}
	}
}

// ToolsChanged notifies every client that its list of tools may have changed.
// It never blocks; changes that a client has not yet received become one.
func (d *Door) ToolsChanged() {
	d.notifyAll(toolsChanged, func(owner, string) bool { return true })
}

// ListChanged notifies the clients on the route of server, or of all servers,
// that one of its lists may have changed. method is
// notifications/tools/list_changed, or that of resources or prompts; any other
// is ignored. It never blocks; changes that a client has not yet received
// become one.
func (d *Door) ListChanged(server, method string) {
	if slices.Contains(listMethods, method) {
		d.notifyAll(method, func(_ owner, route string) bool { return route == "" || route == server })
	}
}

// ToolsChangedFor is [Door.ToolsChanged] for the clients of one principal.
func (d *Door) ToolsChangedFor(who policy.Principal) {
	d.notifyAll(toolsChanged, func(of owner, _ string) bool { return of == ownerOf(who) })
}

// notifyAll notes a change for the clients whose principal and route concerns
// accepts. The route of a stdio client is all servers.
func (d *Door) notifyAll(method string, concerns func(of owner, route string) bool) {
	for _, s := range d.session.sessions.all() {
		if concerns(s.owner, s.route) {
			s.changes.add(method)
		}
	}
	for _, g := range d.stateless.groups.all() {
		if concerns(g.owner, g.route) {
			g.Tell(method, nil)
		}
	}
	for c, of := range d.stdioClients.Range {
		if concerns(of.(owner), "") {
			c.(*stdioClient).session.changes.add(method)
		}
	}
}
