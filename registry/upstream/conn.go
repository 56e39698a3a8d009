package upstream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/mcpclient"
	"github.com/toolgate/toolgate/internal/paramheader"
)

const (
	// cancelTimeout bounds the sending of one notifications/cancelled.
	cancelTimeout = 5 * time.Second
	// maxCancels bounds how many of them are under way at once.
	maxCancels = 64
)

// conn is one connection to an upstream, and what belongs to the downstream
// session that has it. It is safe for concurrent use.
type conn struct {
	*mcpclient.Conn
	opts          *Options
	changed       chan struct{} // has one element when the tool list changed
	announced     atomic.Bool   // the server said so
	client        *client       // the session that has it, nil for the shared connection
	queue         queue         // of notifications and questions in the course of no request
	asks          asks
	taskListeners taskListeners
	pendings      pendings

	offer    json.RawMessage // capabilities, set when it is connected
	info     json.RawMessage // clientInfo
	dropped  *atomic.Int64   // messages that were nobody's
	cancels  chan struct{}   // a slot for each cancellation under way
	unbind   func() bool     // undoes the tie to the server's life
	closeOne sync.Once
}

// newConn makes a connection without a transport; dial adds it. It belongs to
// cl, or with nil to all.
func newConn(opts *Options, dropped, lastID *atomic.Int64, cl *client) *conn {
	c := &conn{
		opts: opts, changed: make(chan struct{}, 1), client: cl, info: clientInfo(opts.Version),
		dropped: dropped, cancels: make(chan struct{}, maxCancels),
	}
	c.Conn = mcpclient.New(mcpclient.Options{MaxBytes: opts.MaxAnswerBytes, IDs: lastID, Dropped: dropped, Handle: c.handle})
	return c
}

// close ends the connection and waits until nothing of it is left.
func (c *conn) close() {
	c.closeOne.Do(func() {
		c.Fail(&Error{Kind: Unavailable, Err: errors.New("the connection was closed")})
		if c.unbind != nil {
			c.unbind()
		}
		c.queue.finish(true)
		c.Close()
	})
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
	clock    *deadline
	// tool is what tools/call calls, fingerprint its definition that was judged,
	// and bound its parameters that headers repeat.
	tool, fingerprint string
	bound             []paramheader.Parameter
	// onNotice takes what comes on the stream of subscriptions/listen, nil for any
	// other request.
	onNotice func(*jsonrpc.Message)
}

// do sends a request and waits for its answer, or until ctx ends.
func (c *conn) do(ctx context.Context, r request) (json.RawMessage, *Error) {
	p, e := c.prepare(r)
	if e != nil {
		return nil, e
	}
	if p.ofClient {
		c.pendings.add(p)
		defer c.pendings.remove(p)
	}
	if r.later != nil {
		c.taskListeners.expect(p.ID, r.later)
	}
	result, e := c.Do(ctx, &p.Call)
	if r.later != nil {
		c.taskListeners.answered(p.ID, result, c.opts.Now())
	}
	late := !p.Answered()
	if late {
		c.asks.endFor(p)
	}
	p.queue.finish(late)
	c.asks.endFor(p)
	if late && ctx.Err() != nil && e.Sent && !r.lasting && !c.Dead() && !c.ClosesStreams() {
		c.cancel(p, e.Kind)
	}
	return result, e
}

// prepare makes the call of a request.
func (c *conn) prepare(r request) (*pending, *Error) {
	p := &pending{ofClient: r.ofClient, from: r.from, clock: r.clock, progress: r.progress, onNotice: r.onNotice}
	p.Call = mcpclient.Call{ID: c.NextID(), Method: r.method, Params: r.params, Bound: r.bound, Loose: r.loose, Owner: p}
	var err error
	if r.progress != nil || r.later != nil {
		if p.Params, err = withToken(p.Params, p.ID); err != nil {
			return nil, &Error{Kind: Unavailable, Err: fmt.Errorf("adding a progress token: %w", err)}
		}
	}
	if c.Stateless() {
		if p.Params, err = c.addClientMeta(r, p.Params); err != nil {
			return nil, &Error{Kind: Unavailable, Err: fmt.Errorf("adding what each request says of its client: %w", err)}
		}
	}
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

// cancel tells the upstream that nobody waits for p any more. It does not block:
// the notification is a courtesy.
func (c *conn) cancel(p *pending, why ErrorKind) {
	select {
	case c.cancels <- struct{}{}:
	default:
		return
	}
	params := object(member{"requestId", jsonrpc.Quote(p.ID)}, member{"reason", jsonrpc.Quote(why.String())})
	c.Go(func() {
		defer func() { <-c.cancels }()
		ctx, stop := context.WithTimeout(c.Life(), cancelTimeout)
		defer stop()
		_ = c.notify(ctx, "notifications/cancelled", params) // as above
	})
}

// notify sends a notification, where the server knows any.
func (c *conn) notify(ctx context.Context, method string, params json.RawMessage) error {
	if !c.IsMCP() {
		return nil
	}
	return c.Post(ctx, jsonrpc.NewNotification(method, params))
}

// initialize opens the MCP session (MCP basic/lifecycle), where there is one.
func (c *conn) initialize(ctx context.Context) error {
	if !c.IsMCP() {
		return nil
	}
	can := json.RawMessage(`{}`)
	if c.client != nil {
		can = c.client.clientCapabilities()
	}
	result, err := c.Initialize(ctx, can, c.info)
	c.offer, _ = jsonrpc.Get(result, "capabilities")
	return err
}

// handle takes one request or notification of the server.
func (c *conn) handle(msg *jsonrpc.Message, during *mcpclient.Call) {
	switch {
	case msg.Kind == jsonrpc.Request:
		c.respond(msg, during)
	case c.Stateless():
		c.statelessNotice(msg, during)
	default:
		c.notice(msg, during)
	}
}
