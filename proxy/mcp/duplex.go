package mcp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/toolgate/toolgate/internal/guard"
	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/ndjson"
	"github.com/toolgate/toolgate/internal/share"
	"github.com/toolgate/toolgate/internal/span"
	"github.com/toolgate/toolgate/internal/wait"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/identity"
	"github.com/toolgate/toolgate/proxy"
	"github.com/toolgate/toolgate/proxy/eventlog"
	"github.com/toolgate/toolgate/signal"
)

// errTwice is reported for a second initialize in one session.
var errTwice = errors.New("this session is initialized already")

// duplex is a client with one connection for everything that is sent to it:
// stdio, or HTTP+SSE. Its requests are admitted in order, run side by side, and
// are answered as they finish. It has one session, from initialize on.
type duplex struct {
	door    *Door
	session *session
	send    func(message []byte) // sends one message
	spawn   func(work func())    // runs work on another goroutine
	calls   *wait.Queue          // runs all requests but pings
	pings   *wait.Queue          // runs pings, one after the other
	arrays  bool                 // the answers to a batch are sent as one message

	// await waits until more may wait in the queue. It returns false to refuse the request
	// that has no room; nil always does.
	await func(*wait.Queue) bool

	ready atomic.Bool // the client has sent notifications/initialized

	mu          sync.Mutex // protects the field below
	initialized bool       // initialize has been answered, and session says what was agreed
}

// newDuplex returns a client of d whose requests run through spawn.
func newDuplex(d *Door, s *session, send func([]byte), spawn func(func())) duplex {
	most := d.opts.Limits.Bytes
	return duplex{door: d, session: s, send: send, spawn: spawn,
		calls: wait.NewQueue(d.opts.MaxFlights, most, spawn), pings: wait.NewQueue(1, most, spawn)}
}

// busy reports whether a request runs or waits.
func (c *duplex) busy() bool { return c.calls.Busy() || c.pings.Busy() }

// openSession stores what initialize negotiated.
func (c *duplex) openSession(made *session) (*session, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.initialized {
		return nil, errTwice
	}
	c.initialized = true
	c.session.version, c.session.client, c.session.clientInfo, c.session.capabilities = made.version, made.client, made.clientInfo, made.capabilities
	c.session.extensions, c.session.began, c.session.transport = made.extensions, made.began, made.transport
	return c.session, nil
}

// current returns the session of c, nil before initialize.
func (c *duplex) current() *session {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.initialized {
		return nil
	}
	return c.session
}

// noteInitialized notes that the client accepts notifications, if x says so.
func (c *duplex) noteInitialized(x *exchange) {
	if x.session == nil || x.call.Message == nil || x.call.Message.Method != "notifications/initialized" {
		return
	}
	c.ready.Store(true)
	wait.Signal(c.session.changes.wake)
}

// flushChanges sends the pending list changes once the client accepts
// notifications.
func (c *duplex) flushChanges() {
	if c.ready.Load() {
		c.session.flushChanges()
	}
}

// reply sends the answer a, if it has a body.
func (c *duplex) reply(a answer) {
	if message := a.message(); message != nil {
		c.send(message)
	}
}

// serve serves one message and calls reply with its answer.
func (c *duplex) serve(x *exchange, reply func(answer)) {
	if work := c.door.session.accept(x, reply); work != nil {
		c.start(x, work)
	}
	c.noteInitialized(x)
}

// start runs work, the rest of the request x, when its turn comes, or at once to refuse x
// when too much waits or is in flight. The bytes of x are held until the work is done.
func (c *duplex) start(x *exchange, work func()) {
	q, size := c.calls, len(x.call.Message.Raw)
	if x.row.anytime {
		q = c.pings
	}
	for {
		if claim := c.claim(x, int64(size)); claim != nil {
			run := func() {
				defer wait.Signal(q.Moved)
				defer claim.Release()
				work()
			}
			if _, ok := q.Add(size, run); ok {
				return
			}
			claim.Release()
		}
		if x.crowded = c.await == nil || !c.await(q); x.crowded {
			work()
			return
		}
	}
}

// claim returns the claim of x, which the caller releases: that of its HTTP request, or a new
// one of size bytes. It returns nil when the budget has no room.
func (c *duplex) claim(x *exchange, size int64) *share.Claim {
	if claim := x.call.Bytes; claim.Hold() {
		return claim
	}
	claim := new(share.Claim)
	if !c.door.opts.Budget.Take(claim, ownerOf(x.call.Principal), size) {
		return nil
	}
	x.call.Bytes = claim
	return claim
}

// serveBatch serves a batch of x's session and returns the transport's answer.
func (c *duplex) serveBatch(x *exchange, data []byte) answer {
	d := c.door
	parts, ok := d.session.split(x, data)
	if !ok {
		a := d.refuseFault(x)
		d.observe(x, a)
		return a
	}
	all, tell := &replies{}, c.reply
	if c.arrays {
		tell = all.add
	}
	wait := d.session.runBatch(parts, c.start, tell)
	for _, x := range parts {
		c.noteInitialized(x)
	}
	c.spawn(func() {
		wait()
		c.reply(answer{body: all.array()})
	})
	return answer{status: http.StatusAccepted}
}

// stdioClient is one client on stdin and stdout.
type stdioClient struct {
	duplex
	flights *wait.Workers // run the requests
	out     *ndjson.Sink

	listening wait.Context // ends with the streams of notifications
}

// Serve talks to one client over in and out, one JSON-RPC message per line,
// until in ends, ctx is done or the door closes; then it waits for the calls
// in flight, at most Options.Drain, and cancels what is left. At the end of in
// that time begins when the last request that waited has begun. A line beyond
// the size limit is refused and the next one is read. Nothing but protocol is
// written to out, one Write per message.
//
// Requests are admitted as they are read, and Options.MaxFlights of them run. A
// request that has no room to wait for them stops the reading until it has,
// unless a question to the client is open: its answer may be the next line, so
// the request is refused.
//
// Serve returns nil at the end of input and on ctx; otherwise why reading or
// writing failed. If in is an io.Closer it is closed when Serve stops before
// its end, so that no reader is left waiting.
func (d *Door) Serve(ctx context.Context, in io.Reader, out io.Writer) error {
	c := &stdioClient{flights: wait.NewWorkers(), out: ndjson.NewSink(out)}
	c.duplex = newDuplex(d, newSession(policy.Principal{}, "", "", ""), c.out.Send, c.flights.Go)
	c.arrays = true
	c.session.direct = func(o eventlog.Message) bool {
		c.send(o.Text)
		wait.Signal(c.calls.Moved) // it may be a question: a refusal that it causes comes after it
		return true
	}
	if !d.work.Enter() {
		return fmt.Errorf("serving stdio: %w", proxy.ErrShutdown)
	}
	defer d.work.Leave()
	c.listening.Begin(d.base)
	d.stdioClients.Store(c, owner{})
	defer d.stdioClients.Delete(c)
	c.flights.Go(c.sendChanges)
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	defer context.AfterFunc(d.closing, stop)()
	c.await = func(q *wait.Queue) bool { return c.session.questions.Len() == 0 && c.out.Await(ctx, q.Moved) }
	err := ndjson.Serve(ctx, in, c.out, d.opts.Limits.Bytes, c.serveLine)
	return errors.Join(err, c.drain(ctx))
}

// sendChanges sends changes of lists until the client's input has ended.
func (c *stdioClient) sendChanges() {
	for c.out.Await(&c.listening, c.session.changes.wake) {
		c.flushChanges()
	}
}

// serveLine serves one line:
//
//	decode -> identify -> dispatch -> observe -> reply
func (c *stdioClient) serveLine(data []byte, long *jsonrpc.Outline) {
	d := c.door
	x := &exchange{versions: olderVersions, open: c.openSession, notify: c.send, long: long}
	x.call = proxy.Call{Transport: "stdio", Credential: d.opts.Stdio}
	x.use(c.current())
	denied := d.authenticate(x, nil, identity.Resource{})
	d.stdioClients.Store(c, ownerOf(x.call.Principal))
	if denied == nil && x.session.batches(data) {
		if a := c.serveBatch(x, data); a.body != nil {
			c.reply(a)
		}
		return
	}
	d.decode(x, data)
	switch {
	case denied != nil:
		c.answer(x, d.refuseUnauthenticated(x, denied))
	case x.declares:
		c.cancelRequest(x)
		c.serveStateless(x)
	default:
		c.cancelRequest(x)
		c.serve(x, c.reply)
	}
}

// answer reports and sends the answer to x.
func (c *stdioClient) answer(x *exchange, a answer) {
	c.door.observe(x, a)
	c.reply(a)
}

// drain waits for the requests in flight, whose open questions to the client
// fail, then ends the session. It returns the write error, if there was one.
func (c *stdioClient) drain(ctx context.Context) error {
	c.listening.End(nil)
	c.session.closeToQuestions()
	if !c.out.Drain(ctx, c.flights.Finish(), c.calls.Moved, c.door.opts.Drain, func() { c.session.abortAll(proxy.ErrShutdown) }) {
		return errors.New("serving stdio: calls do not end")
	}
	if s := c.current(); s != nil {
		s.onEnd = c.door.ending(s)
		s.end()
	}
	return c.out.Err()
}

// messagesPath is the path that every HTTP+SSE client posts to, whatever its
// route.
const messagesPath = "/messages"

// A sseClient is one client of HTTP+SSE (MCP 2024-11-05, transports). It posts
// each message in a request of its own and gets every answer on one event
// stream, which begins and ends with its session. Its events are not kept for
// resumption.
type sseClient struct {
	duplex
	out *eventlog.Stream
}

// sse opens the stream of an HTTP+SSE client and serves it until the client
// leaves or stops reading, its session makes room for another, or the door
// closes. Calls in flight continue: in that revision only a notification
// cancels a call.
func (d *Door) sse(w http.ResponseWriter, r *http.Request, route string) {
	if _, events := accepts(r.Header); !events {
		problem(w, http.StatusNotAcceptable, "accept text/event-stream")
		return
	}
	at := identity.Resource{Door: "/sse", Server: route}
	who, ok := d.authenticatedPrincipal(w, r, at)
	if !ok {
		return
	}
	const revision = "2024-11-05" // of this transport
	if tooOld := d.tooOld(revision); tooOld != "" {
		kernel, _ := signal.ErrorFor(signal.CodeEnvelopeVersion, tooOld, door, nil, nil) // the code has a row
		d.refusal(w, nil, &proxy.Failure{Kernel: kernel, Reason: tooOld})
		return
	}
	d.opts.Deprecated("http+sse")
	s := newSession(who, route, "", "")
	rd := d.events.OpenQueue(&s.streams, false)
	c := &sseClient{out: rd.Stream}
	c.duplex = newDuplex(d, s, c.out.Send, c.spawnFlight)
	s.sseClient, s.direct = c, c.out.Post
	defer rd.Detach()
	if _, err := d.session.openSession(s); err != nil {
		problem(w, http.StatusServiceUnavailable, errNoRoom.Error())
		return
	}
	defer d.session.endSession(s)
	out := d.respond(w, r)
	out.wake, out.flush, out.busy = s.changes.wake, c.flushChanges, c.busy
	out.beginEvents()
	if out.write([]byte("event: endpoint\ndata: "+messagesPath+"?sessionId="+s.id+"\n\n")) == nil {
		d.pump(out, rd)
	}
}

// message serves one message, or one batch, of an HTTP+SSE client:
//
//	media -> identify -> body -> decode -> session -> dispatch -> observe -> event
//
// The request is answered with 202 and its message with an event. A message
// without an id or without a session has no event to answer it, and is answered
// as on /mcp.
func (d *Door) message(w http.ResponseWriter, r *http.Request, _ string) {
	if !guard.JSONBody(r.Header) {
		problem(w, http.StatusUnsupportedMediaType, "send application/json in UTF-8")
		return
	}
	out := d.respond(w, r)
	out.plain = true
	x := &exchange{versions: olderVersions}
	x.call = proxy.Call{Transport: "http", Trace: span.FromHeader(r.Header)}
	body, ok := d.readBody(out, r, x, identity.Resource{Door: "/sse", Server: d.session.routeOf(r.URL.Query().Get("sessionId"))})
	defer x.claim.Release()
	if !ok {
		return
	}
	c := d.sseClientFor(x, r)
	if c != nil && x.session.batches(body) {
		out.finish(c.serveBatch(x, body))
		return
	}
	d.decode(x, body)
	if c == nil {
		d.reply(out, x, d.refuseUnattached(x, body))
		return
	}
	// Work that takes time is accepted first and answered later.
	status := answer{status: http.StatusAccepted}
	c.serve(x, func(a answer) {
		if x.flight == "" && (a.problem != nil || a.body != nil && x.id == nil) {
			status = a
			return
		}
		c.reply(a)
	})
	out.finish(status)
}

// sseClientFor returns the client that posts x, nil for none, and attaches x to
// it.
func (d *Door) sseClientFor(x *exchange, r *http.Request) *sseClient {
	ids := r.URL.Query()["sessionId"]
	if x.denied != nil || len(ids) != 1 {
		return nil
	}
	s := d.session.find(ids[0], x.call.Principal, "", true)
	if s == nil {
		return nil
	}
	c := s.sseClient
	x.call.Route = c.session.route
	x.open, x.notify = c.openSession, c.send
	x.use(c.current())
	return c
}

// refuseUnattached answers a message that belongs to no HTTP+SSE client.
func (d *Door) refuseUnattached(x *exchange, body []byte) answer {
	switch {
	case x.denied != nil:
		return d.refuseUnauthenticated(x, x.denied)
	case x.call.Message == nil && jsontext.Value(body).Kind() != '[':
		return d.refuseFault(x)
	}
	return d.refuse(x, signal.CodeSessionLost, "the session is not known here: open /sse again")
}

// spawnFlight runs the work of a call in a goroutine that Close waits for. The
// last one ends the stream of a closing door.
func (c *sseClient) spawnFlight(work func()) {
	d := c.door
	d.work.Continue()
	d.calls.Go(func() {
		defer d.work.Leave()
		work()
		if d.closing.Err() != nil && !c.busy() {
			d.session.endSession(c.session)
		}
	})
}

// batchVersion is the one revision with batches; receiving them is a MUST there
// (MCP 2025-03-26, base protocol).
const batchVersion = "2025-03-26"

// maxBatch bounds the messages of one batch; together they may be as large as
// one message.
const maxBatch = 64

// batches reports whether data is a batch that s, which may be nil, takes.
// Any other array is refused as what it is: no message.
func (s *session) batches(data []byte) bool {
	return s != nil && s.version == batchVersion && jsontext.Value(data).Kind() == '['
}

// split takes a batch apart into exchanges that are judged each on its own: x,
// with its session, is what they have in common. A batch that is refused as a
// whole leaves its fault in x.
func (s *sessionServer) split(x *exchange, data []byte) ([]*exchange, bool) {
	if s.opts.Observe != nil {
		x.began = s.opts.Now()
	}
	all, err := jsonrpc.Split(data, s.opts.Limits, maxBatch)
	if err != nil {
		x.call.Fault = jsonrpc.FaultOf(err)
		x.id = x.call.Fault.ID
		return nil, false
	}
	parts := make([]*exchange, len(all))
	for i, raw := range all {
		part := &exchange{call: x.call, denied: x.denied, session: x.session, versions: x.versions, open: x.open, notify: x.notify, owned: x.owned}
		s.decode(part, raw)
		if m := part.call.Message; m != nil && m.Method == "initialize" {
			x.call.Fault = &jsonrpc.Fault{Kind: jsonrpc.Invalid, Reason: "initialize must not be part of a batch"}
			return nil, false
		}
		parts[i] = part
	}
	return parts, true
}

// runBatch admits parts in order, so that no id is taken twice, and then has start run
// the requests among them, side by side. It calls reply once for each answer, from several
// goroutines. The caller must call wait, which returns after the last reply.
func (s *sessionServer) runBatch(parts []*exchange, start func(x *exchange, work func()), reply func(answer)) (wait func()) {
	var all sync.WaitGroup
	work := make([]func(), len(parts))
	for i, x := range parts {
		work[i] = s.accept(x, reply)
	}
	for i, x := range parts {
		if work[i] != nil {
			all.Add(1)
			start(x, func() { work[i](); all.Done() })
		}
	}
	return all.Wait
}

// startNow runs the work of a request, for which its caller waits, beside others.
func startNow(_ *exchange, work func()) { go work() }

// replies collects the answers to one batch. It is safe for concurrent use.
type replies struct {
	mu     sync.Mutex // protects the field below
	bodies [][]byte
}

// add keeps the body of a, if it has one.
func (r *replies) add(a answer) {
	if a.body != nil && !a.silent {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.bodies = append(r.bodies, a.message())
	}
}

// array returns the answers as one, nil when there are none. Nothing may be added
// any more.
func (r *replies) array() []byte {
	if len(r.bodies) == 0 {
		return nil
	}
	return jsonrpc.Array(r.bodies)
}

// postBatch answers body, a batch, if its session takes batches or is lost, and
// reports whether it did.
func (d *Door) postBatch(out *response, x *exchange, r *http.Request, body []byte) bool {
	ids, said := r.Header[headerSession], r.Header[headerVersion]
	s := d.session.find(ids[0], x.call.Principal, x.call.Route, false)
	if s == nil && len(ids) == 1 {
		s = d.session.takeOver(x, ids[0])
	}
	switch {
	case x.elsewhere != nil:
		x.elsewhere(out.w, r, body)
	case s == nil || len(ids) > 1:
		d.decode(x, body)
		d.reply(out, x, d.refuse(x, signal.CodeSessionLost, lostSession))
	case !s.batches(body) || len(said) > 1 || len(said) == 1 && said[0] != batchVersion:
		return false
	default:
		x.use(s)
		d.answerBatch(out, x, body)
	}
	return true
}

// answerBatch answers a batch of x's session. Answers come as an array, or as
// single events where one of the messages may report or the client reads
// nothing else.
func (d *Door) answerBatch(out *response, x *exchange, body []byte) {
	parts, ok := d.session.split(x, body)
	switch {
	case !ok:
		d.reply(out, x, d.refuseFault(x))
		return
	case out.events && (!out.plain || slices.ContainsFunc(parts, (*exchange).mayNotify)):
		d.answerBatchOnStream(out, parts)
		return
	}
	var all replies
	d.session.runBatch(parts, startNow, all.add)()
	a := answer{status: http.StatusAccepted, body: all.array()}
	if a.body != nil {
		a.status = http.StatusOK
	}
	out.finish(a)
}

// answerBatchOnStream answers parts on one event stream, which can be resumed
// like the stream of a single request.
func (d *Door) answerBatchOnStream(out *response, parts []*exchange) {
	out.plain = false // nothing is gained by waiting
	claim := parts[0].call.Bytes
	claim.Hold()
	d.answerOnStream(out, parts[0].session, nil, func(t *eventlog.Stream) answer {
		defer claim.Release()
		for _, x := range parts {
			x.useStream(t)
		}
		d.session.runBatch(parts, startNow, func(a answer) {
			if message := a.message(); message != nil {
				t.Send(message)
			}
		})()
		return answer{}
	})
}
