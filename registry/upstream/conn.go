package upstream

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mark3labs/mcp-go/client/transport"
	"github.com/mark3labs/mcp-go/mcp"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/paramheader"
)

const (
	// maxAnswer bounds one message of an upstream, in bytes.
	maxAnswer = 4 << 20
	// cancelTimeout bounds the sending of one notifications/cancelled.
	cancelTimeout = 5 * time.Second
	// maxCancels bounds how many of them are under way at once.
	maxCancels = 64
)

// wire is what lies below mcp-go's transport: it carries our bytes.
type wire interface {
	// reply sends a line of ours that is no request. It does not block, and may
	// drop the line when there are too many.
	reply(line []byte)
	// answer sends a line as reply does, and waits for its turn. It gives up
	// when the connection ends.
	answer(line []byte)
	// close ends the wire and everything that hangs on it, and waits for that.
	close()
}

// conn is one connection to an upstream. It is safe for concurrent use.
type conn struct {
	transport transport.Interface
	wire      wire
	frames    framing
	limits    jsonrpc.Limits
	opts      *Options
	changed   chan struct{} // has one element when the tool list changed
	announced atomic.Bool   // the server said so
	client    *client       // whose it is, nil for the shared one
	queue     queue         // of what is told and asked in the course of no request
	asks      asks
	after     afterlives

	offer    json.RawMessage // capabilities, set when it is connected
	revision atomic.Value    // the MCP revision agreed on, a string, "" for none
	info     json.RawMessage // what we tell the server of ourselves
	life     context.Context // ends when the connection is dead
	end      context.CancelCauseFunc
	table    table
	lastID   *atomic.Int64 // of the server, which may take all connections for one where there is no handshake
	dropped  *atomic.Int64 // messages that were nobody's
	garbage  atomic.Int64  // messages in a row that made no sense
	cancels  chan struct{} // a slot for each cancellation under way
	unbind   func() bool   // undoes the tie to the server's life
	closeOne sync.Once

	mu      sync.Mutex // protects the fields below
	tasks   sync.WaitGroup
	closing bool // no task may begin any more
}

// newConn makes a connection without a transport; dial adds it. It belongs to
// cl, or with nil to all.
func newConn(opts *Options, dropped, lastID *atomic.Int64, cl *client) *conn {
	life, end := context.WithCancelCause(context.Background())
	return &conn{
		frames:  mcpFrames{},
		limits:  jsonrpc.Limits{Bytes: opts.maxAnswer()},
		opts:    opts,
		changed: make(chan struct{}, 1),
		client:  cl,
		life:    life,
		end:     end,
		info:    clientInfo(opts.version()),
		dropped: dropped,
		lastID:  lastID,
		cancels: make(chan struct{}, maxCancels),
	}
}

// fail declares the connection dead. The first cause stays.
func (c *conn) fail(cause *Error) { c.end(cause) }

// close ends the connection and waits until nothing of it is left.
func (c *conn) close() {
	c.closeOne.Do(func() {
		c.fail(&Error{Kind: Unavailable, Err: errors.New("the connection was closed")})
		if c.unbind != nil {
			c.unbind()
		}
		if c.transport != nil {
			_ = c.transport.Close() // it is being given up
		}
		if c.wire != nil {
			c.wire.close()
		}
		c.queue.finish(true)
		c.mu.Lock()
		c.closing = true
		c.mu.Unlock()
		c.tasks.Wait()
	})
}

// start runs f in a goroutine that close waits for. It reports false, and does
// nothing, when the connection is being closed.
func (c *conn) start(f func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closing {
		c.tasks.Go(f)
	}
	return !c.closing
}

// request is one request of ours.
type request struct {
	method string
	params json.RawMessage
	loose  bool
	// progress receives what the upstream tells meanwhile, nil for nothing.
	progress func(json.RawMessage)
	// later receives what the upstream tells of the task that came of the request.
	later func(json.RawMessage)
	// lasting requests are not cancelled upstream when ctx ends.
	lasting bool
	// ofClient, from and clock are as in pending.
	ofClient bool
	from     Downstream
	clock    *patience
	// tool is what tools/call calls, and bound its parameters that headers repeat.
	tool  string
	bound []paramheader.Parameter
	// heard takes what comes on the stream of subscriptions/listen, nil for any
	// other request.
	heard func(*jsonrpc.Message)
}

// do sends a request and waits for its answer, or until ctx ends.
func (c *conn) do(ctx context.Context, r request) (json.RawMessage, *Error) {
	p, e := c.prepare(r)
	if e != nil {
		return nil, e
	}
	if e := c.ended(ctx, true); e != nil {
		return nil, e
	}
	c.table.put(p)
	if r.later != nil {
		c.after.expect(p.id, r.later)
		defer func() { c.after.answered(p.id, p.result, c.opts.now()) }()
	}
	err := c.send(ctx, p, r.method)
	late := !p.answered.Load() && c.table.drop(p)
	if late {
		c.asks.over(p)
	}
	p.queue.finish(late)
	c.asks.over(p)
	if p.answered.Load() {
		return p.result, p.fault
	}
	unsent := p.withdraw()
	if e := c.ended(ctx, unsent); e != nil {
		if e.Sent && !r.lasting && c.life.Err() == nil && !c.closesStreams() {
			c.cancel(p, e.Kind)
		}
		return nil, e
	}
	return nil, broken(err, unsent)
}

// prepare makes the line of a request.
func (c *conn) prepare(r request) (*pending, *Error) {
	p := &pending{
		id: strconv.FormatInt(c.lastID.Add(1), 10), loose: r.loose, progress: r.progress,
		ofClient: r.ofClient, from: r.from, clock: r.clock, heard: r.heard,
	}
	params := r.params
	if r.progress != nil || r.later != nil {
		var err error
		if params, err = withToken(params, p.id); err != nil {
			return nil, &Error{Kind: Unavailable, Err: fmt.Errorf("adding a progress token: %w", err)}
		}
	}
	if c.modern() {
		var err error
		if params, err = c.dress(p, r, params); err != nil {
			return nil, &Error{Kind: Unavailable, Err: fmt.Errorf("adding what each request says of its client: %w", err)}
		}
	}
	line, e := c.frames.request(p.id, r.method, params)
	if e != nil {
		return nil, e
	}
	p.line = line
	return p, nil
}

// withToken puts a progress token into params._meta.
func withToken(params json.RawMessage, id string) (json.RawMessage, error) {
	meta, ok := jsonrpc.Get(params, "_meta")
	if !ok {
		meta = json.RawMessage(`{}`)
	}
	meta, err := jsonrpc.Set(meta, "progressToken", jsonrpc.Quote(id))
	if err != nil {
		return nil, err
	}
	return jsonrpc.Set(params, "_meta", meta)
}

// keyPending is the context key under which the HTTP wire finds its request.
type keyPending struct{}

// send hands the request to mcp-go, which writes something like it; the wire
// below puts p's own line in its place.
func (c *conn) send(ctx context.Context, p *pending, method string) error {
	ctx, cancel := context.WithCancel(context.WithValue(ctx, keyPending{}, p))
	defer cancel()
	defer context.AfterFunc(c.life, cancel)()
	if method == methodDiscover {
		method = "probe" // mcp-go takes the acknowledgement of a discovery for its success
	}
	_, err := c.transport.SendRequest(ctx, transport.JSONRPCRequest{
		JSONRPC: mcp.JSONRPC_VERSION, ID: mcp.NewRequestId(p.id), Method: method,
	})
	return err
}

// ended says how the end of the connection or of ctx ends a request, nil when
// neither has come.
func (c *conn) ended(ctx context.Context, unsent bool) *Error {
	switch {
	case c.life.Err() != nil:
		return c.died(unsent)
	case errors.Is(context.Cause(ctx), context.DeadlineExceeded):
		return &Error{Kind: Timeout, Sent: !unsent, Err: context.DeadlineExceeded}
	case ctx.Err() != nil:
		return &Error{Kind: Cancelled, Sent: !unsent, Err: ctx.Err()}
	}
	return nil
}

// died makes the error of a request whose connection ended under it.
func (c *conn) died(unsent bool) *Error {
	cause := asError(context.Cause(c.life))
	e := &Error{Kind: cause.Kind, Sent: !unsent, Err: cause.Err}
	switch {
	case unsent:
		e.Kind = Unavailable
	case e.Kind == Unavailable:
		e.Kind = Failed
	}
	return e
}

// broken makes the error of a request that mcp-go gave up.
func broken(err error, unsent bool) *Error {
	if err == nil {
		err = errMalformed
	}
	if unsent {
		return &Error{Kind: Unavailable, Err: err, lost: errors.Is(err, transport.ErrSessionTerminated)}
	}
	// A session may have ended after the request was taken, so it is not lost in
	// the sense that it was certainly not executed.
	return &Error{Kind: Failed, Sent: true, Err: err}
}

// cancel tells the upstream that nobody waits for p any more. It does not
// block: telling is a courtesy.
func (c *conn) cancel(p *pending, why ErrorKind) {
	select {
	case c.cancels <- struct{}{}:
	default:
		return
	}
	c.start(func() {
		defer func() { <-c.cancels }()
		ctx, stop := context.WithTimeout(c.life, cancelTimeout)
		defer stop()
		_ = c.notify(ctx, "notifications/cancelled", map[string]any{"requestId": p.id, "reason": why.String()})
	})
}

// notify sends a notification of our own making.
func (c *conn) notify(ctx context.Context, method string, fields map[string]any) error {
	return c.transport.SendNotification(ctx, mcp.JSONRPCNotification{
		JSONRPC:      mcp.JSONRPC_VERSION,
		Notification: mcp.Notification{Method: method, Params: mcp.NotificationParams{AdditionalFields: fields}},
	})
}

// revisions are the MCP revisions that we speak to upstreams, newest first.
var revisions = []string{"2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"}

// initialize opens the MCP session (MCP basic/lifecycle), where there is one.
func (c *conn) initialize(ctx context.Context, version string) error {
	can := json.RawMessage(`{}`)
	if c.client != nil {
		can = c.client.can()
	}
	if !c.frames.isMCP() {
		return nil
	}
	params := append(append([]byte(`{"protocolVersion":"`+revisions[0]+`","capabilities":`), can...), `,"clientInfo":{"name":"toolgate","version":`...)
	params = append(append(params, jsonrpc.Quote(version)...), `}}`...)
	result, e := c.do(ctx, request{method: "initialize", params: params, lasting: true})
	if e != nil {
		return fmt.Errorf("initializing: %w", e)
	}
	raw, _ := jsonrpc.Get(result, "protocolVersion")
	revision, _ := jsonrpc.Text(raw)
	if !slices.Contains(revisions, revision) {
		return fmt.Errorf("initializing: the server speaks MCP revision %q, which is not one of %v", revision, revisions)
	}
	c.offer, _ = jsonrpc.Get(result, "capabilities")
	c.revision.Store(revision)
	if h, ok := c.transport.(transport.HTTPConnection); ok {
		h.SetProtocolVersion(revision)
	}
	if err := c.notify(ctx, "notifications/initialized", nil); err != nil {
		return fmt.Errorf("initializing: %w", err)
	}
	return nil
}

// newReader reads raw and does nothing else.
func newReader(raw []byte) io.Reader { return bytes.NewReader(raw) }
