package mcp

import (
	"context"
	"encoding/json"
	"slices"
	"strconv"
	"sync/atomic"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/policy"
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
	stream  *stream // nil = of no request
}

var _ registry.Peer = (*clientPeer)(nil)

// Ask implements registry.Peer. A question that cannot be sent now waits until
// a stream can carry it. When the client does not answer, the Error of the
// answer is toolgate's own.
func (p *clientPeer) Ask(ctx context.Context, all []registry.Question) []registry.Answer {
	r := newQuestionSet(p.session, all)
	for i := range all {
		r.send(p, i)
	}
	r.wait(ctx, p)
	return r.answers
}

// Tell implements registry.Peer. Several list changes that the client has not
// yet received become one.
func (p *clientPeer) Tell(method string, params json.RawMessage) {
	if p.session.changes.add(method) {
		return
	}
	p.send(outgoing{message: jsonrpc.OneLine(jsonrpc.NewNotification(method, params))})
}

// send sends o and returns false when no way exists.
func (p *clientPeer) send(l outgoing) bool {
	return p.stream != nil && p.stream.post(l) || p.session.post(l)
}

// useStream makes t the stream for messages that belong to x.
func (x *exchange) useStream(t *stream) {
	x.notify = t.send
	x.call.Peer = &clientPeer{session: x.session, stream: t}
}

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

// Bounds of a mailbox. It serves the time between two streams, so it is
// small; its messages count as kept for the session (EventLog).
const (
	maxMailbox      = 64
	maxMailboxBytes = 256 << 10
)

// outgoing is one message on its way to a client.
type outgoing struct {
	message  []byte    // on one line; nil = an event without data
	question *question // that the message asks; nil = none
}

// cost returns the bytes that keeping o takes.
func (l outgoing) cost() int { return eventCost + len(l.message) }

// fail ends o's question: the client will never read it.
func (l outgoing) fail() {
	if l.question != nil {
		l.question.fail(unreachable)
	}
}

// mailbox holds messages for a client of Streamable HTTP while no stream can
// carry them. It is protected by eventLog.mu.
type mailbox struct {
	messages []outgoing
	bytes    int
}

// post sends o outside the streams of requests and returns false when there is
// no way.
func (s *session) post(l outgoing) bool {
	if s.direct != nil {
		return s.direct(l)
	}
	return s.events.postToSession(s, l)
}

// recall removes the question q from the mailbox of s. It returns true when q
// was there, so that the client never received it.
func (s *session) recall(q *question) bool {
	if s.events == nil {
		return false
	}
	s.events.mu.Lock()
	defer s.events.mu.Unlock()
	o := &s.streams
	i := slices.IndexFunc(o.mailbox.messages, func(l outgoing) bool { return l.question == q })
	if i >= 0 {
		s.events.removeFromMailboxLocked(o, i)
	}
	return i >= 0
}

// postToSession adds o to the GET stream of s, whose reader may be
// reconnecting, or to the newest request stream. Otherwise o waits in the
// mailbox for the next stream.
func (log *eventLog) postToSession(s *session, l outgoing) bool {
	log.mu.Lock()
	defer log.mu.Unlock()
	o := &s.streams
	for t := o.listen; t != nil; t = o.listen {
		if t.postLocked(l) {
			return true
		}
	}
	if t := o.newestLocked(); t != nil && t.postLocked(l) {
		return true
	}
	return log.addToMailboxLocked(o, l)
}

// newestLocked is the stream that the newest request in flight has with its
// client, nil for none. The caller must hold mu.
func (o *streams) newestLocked() *stream {
	for _, t := range slices.Backward(o.flying) {
		if t.openLocked() {
			return t
		}
	}
	return nil
}

// addToMailboxLocked puts o into the mailbox. The oldest notification makes
// room, then the oldest question. The caller must hold mu.
func (log *eventLog) addToMailboxLocked(o *streams, l outgoing) bool {
	if o.ended || l.cost() > maxMailboxBytes {
		return false
	}
	for len(o.mailbox.messages) == maxMailbox || o.mailbox.bytes+l.cost() > maxMailboxBytes || !log.shedLocked(o, l.cost()) {
		if len(o.mailbox.messages) == 0 {
			return false
		}
		i := slices.IndexFunc(o.mailbox.messages, func(l outgoing) bool { return l.question == nil })
		log.removeFromMailboxLocked(o, max(i, 0)).fail()
	}
	o.mailbox.messages = append(o.mailbox.messages, l)
	log.countMailboxLocked(o, l.cost())
	o.waiting.Store(true)
	return true
}

// removeFromMailboxLocked removes message i from the mailbox. The caller must
// hold mu.
func (log *eventLog) removeFromMailboxLocked(o *streams, i int) outgoing {
	l := o.mailbox.messages[i]
	o.mailbox.messages = slices.Delete(o.mailbox.messages, i, i+1)
	log.countMailboxLocked(o, -l.cost())
	o.waiting.Store(len(o.mailbox.messages) > 0)
	return l
}

// countMailboxLocked adds n bytes to what is kept. The caller must hold mu.
func (log *eventLog) countMailboxLocked(o *streams, n int) {
	o.mailbox.bytes += n
	o.bytes += n
	log.bytes += n
}

// drainMailboxLocked moves the mailbox of the session onto t, which is new. The
// caller must hold mu.
func (t *stream) drainMailboxLocked() {
	o := t.owner
	for len(o.mailbox.messages) > 0 {
		t.begun = true
		t.addLocked(t.log.removeFromMailboxLocked(o, 0))
	}
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
	token(c.wake)
	return true
}

// clear drops the pending changes.
func (c *listChanges) clear() { c.pending.Store(0) }

// flush sends the pending changes. A change that cannot be sent stays pending.
func (c *listChanges) flush(send func(outgoing) bool) {
	unheard := c.pending.Swap(0)
	for i, method := range listMethods {
		if unheard&(1<<i) != 0 && !send(outgoing{message: jsonrpc.NewNotification(method, nil)}) {
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
	d.mu.Lock()
	defer d.mu.Unlock()
	for c, of := range d.stdioClients {
		if concerns(of, "") {
			c.session.changes.add(method)
		}
	}
}
