package mcpclient

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/go-hclog"

	"golang.org/x/time/rate"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/keepalive"
	"github.com/toolgate/toolgate/internal/paramheader"
	"github.com/toolgate/toolgate/internal/share"
	"github.com/toolgate/toolgate/internal/span"
	"github.com/toolgate/toolgate/internal/wait"
)

// Options are what a Conn needs besides its transport.
type Options struct {
	// MaxBytes bounds one message of the server, in bytes, and MaxDepth how many arrays
	// and objects may be in each other. 0 stands for the limits of package jsonrpc.
	MaxBytes, MaxDepth int
	// IDs is the last id given out; nil begins at 0. Connections that a server
	// may take for one share it.
	IDs *atomic.Int64
	// Dropped counts messages that belong to nobody; nil is not counted.
	Dropped *atomic.Int64
	// Handle takes the requests and notifications of the server, in the order of
	// each stream. During is the call in whose stream the message came, nil where
	// calls share one. Nothing more of the stream is read before it returns. Nil drops them.
	Handle func(msg *jsonrpc.Message, during *Call)
	// Log takes what people may want to know of event streams; nil discards.
	Log hclog.Logger
}

// wire is one transport.
type wire interface {
	// send puts a call on the wire. It returns when the call is answered, or with
	// an error when it will not be: ctx or the connection ended, or the transport
	// gave up.
	send(ctx context.Context, p *Call) error
	// post sends a message that has no answer. With lossy it does not block, and
	// drops the message when too many wait.
	post(ctx context.Context, line []byte, lossy bool) error
	// close ends the transport and everything that hangs on it, and waits.
	close()
}

// Conn is one connection to a server. It is safe for concurrent use.
type Conn struct {
	opts     Options
	wire     wire
	endpoint *Endpoint // nil over stdio
	actions  bool      // the server speaks the NDJSON action protocol
	limits   jsonrpc.Limits
	garbage  atomic.Int64 // messages in a row that made no sense
	unasked  *rate.Limiter
	flooded  atomic.Bool // the server has been slowed down

	life     context.Context // ends when the connection is dead
	end      context.CancelCauseFunc
	closeOne sync.Once

	spoken atomic.Pointer[spoken]

	mu    sync.Mutex       // protects calls; held while life ends, and while a task begins
	calls map[string]*Call // :: id ⇒ call that waits for its answer
	tasks sync.WaitGroup
}

// spoken is how messages are sent: in which session and revision.
type spoken struct {
	Session
	stateless bool
	header    http.Header         // of every POST, never changed; nil over stdio
	head      *keepalive.Template // the same for a poster, nil where there is none
}

// New returns a connection without a transport. The caller adds one with
// OpenStdio, OpenHTTP or OpenSSE before anything else, and closes the connection.
func New(opts Options) *Conn {
	opts.IDs = cmp.Or(opts.IDs, new(atomic.Int64))
	opts.Dropped = cmp.Or(opts.Dropped, new(atomic.Int64))
	if opts.Handle == nil {
		opts.Handle = func(*jsonrpc.Message, *Call) { opts.Dropped.Add(1) }
	}
	opts.Log = cmp.Or(opts.Log, hclog.NewNullLogger())
	c := &Conn{opts: opts, unasked: rate.NewLimiter(unaskedRate, unaskedBurst), calls: make(map[string]*Call)}
	// The bytes of a message are the connection's own.
	c.limits = jsonrpc.Limits{Bytes: cmp.Or(opts.MaxBytes, jsonrpc.DefaultLimits().Bytes), Depth: opts.MaxDepth, Mend: true, Owned: true}
	c.life, c.end = context.WithCancelCause(context.Background())
	c.speakIn(Session{})
	return c
}

// NextID returns an id that no other call has.
func (c *Conn) NextID() string { return strconv.FormatInt(c.opts.IDs.Add(1), 10) }

// Life is a context that ends when the connection is dead. Its cause is an
// *Error.
func (c *Conn) Life() context.Context { return c.life }

// Dead reports whether the connection has ended.
func (c *Conn) Dead() bool { return c.life.Err() != nil }

// Fail ends the connection and the calls that wait. The first cause stays.
func (c *Conn) Fail(cause *Error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.end(cause)
	for _, p := range c.calls {
		p.Stop.End(nil)
	}
}

// Close ends the connection and waits for its goroutines and its process.
func (c *Conn) Close() {
	c.closeOne.Do(func() {
		c.Fail(&Error{Kind: Unavailable, Err: errors.New("the connection was closed")})
		if c.wire != nil {
			c.wire.close()
		}
		c.tasks.Wait()
	})
}

// Go runs f in a goroutine that Close waits for. It reports false, and does
// nothing, when the connection has ended.
func (c *Conn) Go(f func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.Dead() {
		return false
	}
	c.tasks.Go(f)
	return true
}

// Call is one request to a server. Its exported fields are set before Do.
type Call struct {
	ID     string // from Conn.NextID; decimal digits, also fit for a progress token
	Method string
	Params json.RawMessage // sent as they are, nil for none
	// Bound are the parameters that headers repeat (paramheader).
	Bound []paramheader.Parameter
	// Trace is sent in headers of HTTP; nil = none.
	Trace span.Carrier
	// Loose accepts a result that strict decoding refuses, if its envelope is
	// sound: the elements of a list are judged one by one later.
	Loose bool
	// Plain is set by Do: the strings of the result are known to be plain, as in jsonrpc.Message.
	Plain bool
	// Bytes is where the bytes of the answer are counted: reading it waits for room; nil =
	// they are not counted.
	Bytes *share.Claim
	// Owner belongs to the caller.
	Owner any
	// Stop ends the context that is given to Do; nil = Do makes one that it can end.
	Stop wait.Ender

	room     [24]byte        // of key
	key      json.RawMessage // the id on the wire
	line     []byte          // what goes on the wire
	ctx      context.Context // of Do
	state    atomic.Int32    // kept, claimed or withdrawn
	unsent   atomic.Bool     // the transport had it, and it is certain that no byte went
	answered wait.Context    // ends when the fields below are set
	result   json.RawMessage
	fault    *Error
}

// The states of a call. It leaves the first one once: nothing is sent twice.
const (
	kept      = iota // no byte has been written
	claimed          // the transport writes the call
	withdrawn        // the transport must not write it
)

// Claim reports whether the transport may write the call. Only transports call it.
func (p *Call) Claim() bool {
	return p.state.CompareAndSwap(kept, claimed) || p.state.Load() == claimed
}

// answer sets the outcome. Whoever removed the call from its table calls it.
func (p *Call) answer(result json.RawMessage, fault *Error) {
	p.result, p.fault = result, fault
	p.answered.End(nil)
}

// Answered reports whether the answer has arrived. It may be called at any time,
// also before Do.
func (p *Call) Answered() bool { return p.answered.Err() != nil }

// Do sends a call and waits for its answer, until ctx ends or the connection
// does. A call is used once.
func (c *Conn) Do(ctx context.Context, p *Call) (json.RawMessage, *Error) {
	p.key, p.ctx = append(append(append(p.room[:0], '"'), p.ID...), '"'), ctx
	p.answered.Begin(nil)
	if !c.actions {
		p.line = jsonrpc.NewRequest(p.key, p.Method, p.Params)
	} else if e := p.writeAction(); e != nil {
		return nil, e
	}
	sending := ctx
	if p.Stop == nil {
		sending, p.Stop = wait.WithEnder(ctx)
		defer p.Stop.End(nil)
	}
	c.mu.Lock()
	if c.life.Err() != nil || ctx.Err() != nil {
		c.mu.Unlock()
		return nil, c.ended(ctx, true)
	}
	c.calls[p.ID] = p
	c.mu.Unlock()
	err := c.wire.send(sending, p)
	if c.take(p.ID, source{only: p}) == nil {
		<-p.answered.Done()
		return p.result, p.fault
	}
	unsent := p.state.CompareAndSwap(kept, withdrawn) || p.unsent.Load()
	switch e := c.ended(ctx, unsent); {
	case e != nil:
		return nil, e
	case unsent:
		return nil, &Error{Kind: Unavailable, Err: err}
	}
	return nil, failed(err)
}

// await waits for the answer of a call, or the end of ctx.
func (p *Call) await(ctx context.Context) error {
	select {
	case <-p.answered.Done():
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// source says which calls a stream may answer: the one that it was opened for,
// or, where all share one stream, any.
type source struct {
	only *Call
	any  bool
}

// take removes the call with an id that a stream may answer from the table. The
// caller answers it. It returns nil when there is none.
func (c *Conn) take(id string, from source) *Call {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.calls[id]
	if p == nil || p != from.only && !from.any {
		return nil
	}
	delete(c.calls, id)
	return p
}

// Settle answers a call in the server's place, and reports whether it waited.
func (c *Conn) Settle(p *Call, result json.RawMessage, fault *Error) bool {
	if c.take(p.ID, source{only: p}) == nil {
		return false
	}
	p.answer(result, fault)
	return true
}

// Lookup returns the call with an id that waits for its answer, nil for none.
func (c *Conn) Lookup(id string) *Call {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.calls[id]
}

// Only returns the one call that waits for its answer and fits, nil when there is
// none or more than one.
func (c *Conn) Only(fits func(*Call) bool) *Call {
	c.mu.Lock()
	defer c.mu.Unlock()
	var found *Call
	for _, p := range c.calls {
		if !fits(p) {
			continue
		}
		if found != nil {
			return nil
		}
		found = p
	}
	return found
}

// maxGarbage is how many messages in a row may make no sense before the
// connection is given up.
const maxGarbage = 100

// Bounds of the messages of a server that answer nothing: a second, and at once.
const (
	unaskedRate  = 2_000
	unaskedBurst = 20_000
)

// slowDown waits before a message that answers nothing, so that a server that sends them
// without end costs little: it is read more slowly, and nothing is lost.
func (c *Conn) slowDown() {
	pause := c.unasked.Reserve().Delay()
	if pause <= 0 {
		return
	}
	if c.flooded.CompareAndSwap(false, true) {
		c.opts.Log.Warn("the server sends more messages than it may: it is read more slowly", "most_per_second", unaskedRate)
	}
	wait.For(c.life, pause)
}

// receive handles one message of the server. The error is ErrMalformed with the
// *jsonrpc.Fault of a message that strict decoding refused; the connection
// continues, and a call that the message certainly answers has failed with it. Nobody
// else may have raw.
func (c *Conn) receive(raw []byte, from source) error {
	msg, err := jsonrpc.Decode(raw, c.limits)
	if err != nil {
		return c.receiveFaulty(raw, malformed(err), from)
	}
	c.garbage.Store(0)
	if msg.Kind != jsonrpc.Success && msg.Kind != jsonrpc.Failure {
		c.slowDown()
		c.opts.Handle(msg, from.only)
		return nil
	}
	id, _ := jsonrpc.Text(msg.ID)
	switch p := c.take(id, from); {
	case p == nil:
		return c.receiveStray(msg, from)
	case msg.Kind == jsonrpc.Failure:
		p.answer(nil, &Error{Kind: Failed, Sent: true, RPC: msg.Error})
	default:
		if from.any && p.Bytes.Grow(p.ctx, len(raw)) != nil { // streams of one call count while they are read
			p.answer(nil, ContextError(p.ctx, true))
			return nil //nolint:nilerr // the message is right
		}
		p.Plain = msg.Plain
		p.answer(msg.Result, nil)
	}
	return nil
}

// receiveEvent handles one message of an event stream, as receive does.
func (c *Conn) receiveEvent(event Event, from source) error {
	if event.Long != nil {
		c.receiveLong(event.Long, from)
		return nil
	}
	return c.receive(event.Data, from)
}

// receiveLong handles a message beyond the limit, which was read and not kept: it is
// dropped and counted. The call that it answers fails; on the stream of one call that is
// this call, unless the message has another's id. A request is refused.
func (c *Conn) receiveLong(long *jsonrpc.Outline, from source) {
	c.slowDown()
	c.opts.Dropped.Add(1)
	c.opts.Log.Warn("the server sent a message that is too large: it was dropped", "most_bytes", c.limits.Bytes)
	rawID := long.ID()
	id, _ := jsonrpc.Text(rawID)
	switch {
	case long.Asks() && rawID != nil && !c.actions:
		c.Offer(jsonrpc.NewFailure(rawID, codeInvalid, "the request is larger than "+sizeText(c.limits.Bytes), nil))
		return
	case long.Asks():
		return
	case rawID == nil && from.only != nil:
		id = from.only.ID
	}
	if p := c.take(id, from); p != nil {
		p.answer(nil, c.tooLarge())
	}
}

// codeInvalid is the code of JSON-RPC 2.0 for a request that is none.
const codeInvalid = -32600

// receiveStray handles an answer that has the id of no call. One that has it as a number
// fails the call at once: ids are returned as they were sent (JSON-RPC 2.0 §5).
func (c *Conn) receiveStray(msg *jsonrpc.Message, from source) error {
	c.slowDown()
	c.opts.Dropped.Add(1)
	p := c.take(string(msg.ID), from)
	switch {
	case p == nil && from.any: // it may answer a call that was given up
		return nil
	case p == nil:
		return errNoAnswer
	}
	err := unreadable("its id is the number %s, and the request has the string %q", msg.ID, p.ID)
	c.opts.Log.Warn("the server sent an invalid message", "error", err)
	p.answer(nil, failed(err))
	return err
}

// ended returns how the end of the connection or of ctx ends a call, nil when
// neither has ended.
func (c *Conn) ended(ctx context.Context, unsent bool) *Error {
	switch {
	case c.Dead():
		return c.Died(unsent)
	case ctx.Err() != nil:
		return ContextError(ctx, !unsent)
	}
	return nil
}

// Died is the error of a call whose connection ended under it.
func (c *Conn) Died(unsent bool) *Error {
	cause := AsError(context.Cause(c.life))
	e := &Error{Kind: cause.Kind, Sent: !unsent, Err: cause.Err}
	switch {
	case unsent:
		e.Kind = Unavailable
	case e.Kind == Unavailable:
		e.Kind = Failed
	}
	return e
}

// Post sends a message that has no answer, and waits for its turn. It fails when
// ctx or the connection ends.
func (c *Conn) Post(ctx context.Context, line []byte) error { return c.wire.post(ctx, line, false) }

// Offer sends a message that has no answer. It does not block, and drops the
// message when too many wait.
func (c *Conn) Offer(line []byte) { _ = c.wire.post(c.life, line, true) } // as the comment says

// IsMCP reports whether the server speaks MCP, and may be initialized and sent
// notifications.
func (c *Conn) IsMCP() bool { return !c.actions }

// ClosesStreams reports whether a call is cancelled by closing the stream of its
// answer, and by nothing else (MCP 2026-07-28 basic/patterns/cancellation).
func (c *Conn) ClosesStreams() bool { return c.Stateless() && c.endpoint != nil }

// Revisions are the MCP revisions with a handshake that a Conn speaks, newest
// first; StatelessRevisions those without one, whose every request says what the
// server has to know of its client.
var (
	Revisions          = []string{"2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"}
	StatelessRevisions = []string{"2026-07-28"}
)

// Speak sets the revision in which messages are sent from now on, "" for none
// yet. No call may be under way.
func (c *Conn) Speak(revision string) {
	c.speakIn(Session{ID: c.spoken.Load().ID, Revision: revision})
}

// speakIn sets the session in which messages are sent from now on.
func (c *Conn) speakIn(s Session) {
	next := &spoken{Session: s, stateless: slices.Contains(StatelessRevisions, s.Revision)}
	if c.endpoint != nil {
		next.header = c.endpoint.Headers(s)
		if _, ok := c.endpoint.Transport.(poster); ok {
			next.head, _ = keepalive.NewTemplate(c.endpoint.URL, next.header)
		}
	}
	c.spoken.Store(next)
}

// Revision returns the revision agreed on, "" for none.
func (c *Conn) Revision() string { return c.spoken.Load().Session.Revision }

// Stateless reports whether the connection speaks a revision without a
// handshake.
func (c *Conn) Stateless() bool { return c.spoken.Load().stateless }

// InSession reports whether the server has kept a session since Initialize. Over HTTP a
// server may give none; then it can request nothing from its client.
func (c *Conn) InSession() bool { return c.endpoint == nil || c.spoken.Load().ID != "" }

const methodInitialize = "initialize"

// Initialize opens a session (MCP basic/lifecycle), proposing the revision that Speak
// has set or else the newest, and returns the result of the server. Over Streamable HTTP it also opens the stream of the server's own
// messages, which a goroutine reads that Close waits for: what a server asks
// during a call may come on that stream, and is lost before it is open.
func (c *Conn) Initialize(ctx context.Context, capabilities, clientInfo json.RawMessage) (json.RawMessage, error) {
	params := fmt.Appendf(nil, `{"protocolVersion":%q,"capabilities":%s,"clientInfo":%s}`, cmp.Or(c.Revision(), Revisions[0]), capabilities, clientInfo)
	result, e := c.Do(ctx, &Call{ID: c.NextID(), Method: methodInitialize, Params: params})
	if e != nil {
		return nil, fmt.Errorf("initializing: %w", e)
	}
	revision, _ := jsonrpc.TextAt(result, "protocolVersion")
	if !slices.Contains(Revisions, revision) {
		return nil, fmt.Errorf("initializing: the server speaks MCP revision %q, which is not one of %v", revision, Revisions)
	}
	c.Speak(revision)
	if err := c.Post(ctx, jsonrpc.NewNotification("notifications/initialized", nil)); err != nil {
		return nil, fmt.Errorf("initializing: %w", err)
	}
	if w, ok := c.wire.(*httpWire); ok && !w.shared {
		w.awaitStream(ctx)
	}
	return result, nil
}

// Ping asks whether the server still knows the session, and fails the connection
// if not.
func (c *Conn) Ping(ctx context.Context) {
	if c.Stateless() {
		return // there is nothing that a server could have forgotten
	}
	if _, e := c.Do(ctx, &Call{ID: c.NextID(), Method: "ping"}); e != nil && e.Lost {
		c.Fail(e)
	}
}
