package upstream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/mcpclient"
	"github.com/toolgate/toolgate/internal/paramheader"
	"github.com/toolgate/toolgate/internal/span"
)

// conn is one connection to an upstream, and what belongs to the downstream
// session that has it. It is safe for concurrent use.
type conn struct {
	*mcpclient.Conn
	opts          *Options
	secrets       *secrets
	changed       chan struct{}                    // has one element when the tool list changed
	announced     atomic.Bool                      // the server said so
	relist        chan struct{}                    // has one element when another list changed
	client        *client                          // the session that has it, nil for the shared connection
	queue         queue                            // of notifications and questions in the course of no request
	asked         jsonrpc.Pool[*asking]            // :: the server's id ⇒ question that wants an answer
	asking        atomic.Int64                     // questions that are asked or whose answer is being sent
	taskListeners *lru.Cache[string, taskListener] // :: progress token ⇒ listener

	pid     int             // of its process, set before it serves; 0 = it has none
	offer   json.RawMessage // capabilities, set when it is connected
	both    bool            // the server names both kinds of revision
	self    json.RawMessage // serverInfo, set when it has introduced itself
	said    Introduction    // set with self
	info    json.RawMessage // clientInfo
	dropped *atomic.Int64   // messages that were nobody's
	unbind  func() bool     // undoes the tie to the server's life
	began   atomic.Int64    // when a session served on it, Unix time in nanoseconds; 0 = none did, or its end was reported
}

// newConn makes a connection without a transport; dial adds it. It belongs to
// cl, or with nil to all.
func newConn(opts *Options, dropped, lastID *atomic.Int64, cl *client) *conn {
	c := &conn{
		opts: opts, changed: make(chan struct{}, 1), relist: make(chan struct{}, 1), client: cl, dropped: dropped,
		info: object(member{"name", json.RawMessage(`"toolgate"`)}, member{"version", jsonrpc.Quote(opts.Version)}),
	}
	if cl != nil {
		if info := cl.clientInfo(); info != nil {
			c.info = info
		}
	}
	c.taskListeners, _ = lru.New[string, taskListener](maxTaskListeners) // fails for no positive size
	c.Conn = mcpclient.New(mcpclient.Options{MaxBytes: opts.MaxAnswerBytes, MaxDepth: opts.maxDepth, IDs: lastID, Dropped: dropped, Handle: c.handle, Log: opts.Logger})
	return c
}

// close ends the connection and waits until nothing of it is left.
func (c *conn) close() {
	c.Fail(&Error{Kind: Unavailable, Err: errors.New("the connection was closed")})
	if c.unbind != nil {
		c.unbind()
	}
	c.queue.finish(true)
	c.Close()
	if began := c.began.Swap(0); began != 0 {
		c.opts.Ended(span.Session{Protocol: c.Revision(), Duration: c.opts.Now().Sub(time.Unix(0, began))})
	}
}

// request is one request of ours. Its Call says for whom it is made, and what
// is reported meanwhile; for a tools/call it also names the tool.
type request struct {
	Call
	method string
	params json.RawMessage
	// loose is as in mcpclient.Call.
	loose bool
	// lasting requests are not cancelled upstream when ctx ends.
	lasting bool
	// ofClient requests are made for a client, and not on our own account.
	ofClient bool
	// clock is the deadline of a client's request, nil for any other.
	clock    *deadline
	deadline deadline // that clock is
	// bound are the parameters that headers repeat.
	bound []paramheader.Parameter
	// first is the request as it is sent for the first time.
	first pending
	// onNotice takes what comes on the stream of subscriptions/listen, nil for any
	// other request.
	onNotice func(*jsonrpc.Message)
	// listen is as in Ask.
	listen *Listen
}

// pending is one request that waits for its answer.
type pending struct {
	mcpclient.Call
	request *request
	life    context.Context // ends soon after the request, and not before
	queue   queue           // of notifications and questions in its course
}

// pendingOf returns the request that a call belongs to, nil for none.
func pendingOf(call *mcpclient.Call) *pending {
	if call == nil {
		return nil
	}
	p, _ := call.Owner.(*pending)
	return p
}

// do sends a request and waits for its answer, or until ctx ends.
func (c *conn) do(ctx context.Context, r *request) (json.RawMessage, *Error) {
	p := &r.first
	if p.request != nil {
		p = new(pending)
	}
	p.request, p.life = r, ctx
	p.Call = mcpclient.Call{ID: c.NextID(), Method: r.method, Params: r.params, Bound: r.bound, Trace: r.Trace, Loose: r.loose, Bytes: r.From.Bytes, Owner: p}
	if r.clock != nil {
		p.Stop = r.clock.ender
	}
	var meta []jsonrpc.Change
	if r.Progress != nil || r.Later != nil {
		meta = append(meta, jsonrpc.Change{Name: "progressToken", Value: jsonrpc.Quote(p.ID)})
	}
	if c.Stateless() {
		meta = c.appendClientMeta(meta, r)
	}
	if r.Trace != nil {
		meta = appendTrace(meta, r.Trace)
	}
	if meta != nil {
		if p.Params == nil {
			p.Params = json.RawMessage(`{}`)
		}
		var err error
		if p.Params, err = jsonrpc.Extend(p.Params, jsonrpc.Change{Name: "_meta", Members: meta}); err != nil {
			return nil, &Error{Kind: Unavailable, Err: fmt.Errorf("adding what each request says of its client: %w", err)}
		}
	}
	if r.Later != nil {
		c.taskListeners.Add(p.ID, taskListener{tell: r.Later})
	}
	result, e := c.Do(ctx, &p.Call)
	if c.secrets != nil {
		result, e = c.secrets.redact(result), c.secrets.redactError(e)
	}
	if r.Plain != nil {
		*r.Plain = e == nil && p.Plain
	}
	if r.Later != nil {
		c.keepListener(p.ID, r.Later, result)
	}
	late := e != nil && !p.Answered()
	p.queue.finish(late)
	if late && ctx.Err() != nil && e.Sent && !r.lasting && !c.Dead() && !c.ClosesStreams() && c.IsMCP() {
		// A courtesy, which may be dropped: nobody waits for p any longer.
		c.Offer(jsonrpc.NewNotification("notifications/cancelled", object(member{"requestId", jsonrpc.Quote(p.ID)}, member{"reason", jsonrpc.Quote(cancelReason(ctx, e))})))
	}
	return result, e
}

// cancelReason says to the server why a request was given up: in the words of its client,
// where the cause of the end of ctx has CancelReason.
func cancelReason(ctx context.Context, e *Error) string {
	var client interface{ CancelReason() string }
	if errors.As(context.Cause(ctx), &client) && client.CancelReason() != "" {
		return client.CancelReason()
	}
	return e.Kind.String()
}

// appendTrace appends the _meta that carries a trace. What the caller wrote there is
// replaced: its own span is not the parent of the server's.
func appendTrace(meta []jsonrpc.Change, trace span.Carrier) []jsonrpc.Change {
	for _, name := range span.Fields {
		change := jsonrpc.Change{Name: name}
		if value, ok := trace[name]; ok {
			change.Value, change.Checked = jsonrpc.Quote(value), true
		}
		meta = append(meta, change)
	}
	return meta
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
	c.keepIntroduction(c.secrets.redact(result))
	return err
}

// keepIntroduction keeps what the result of initialize or server/discover says
// of the server. From revision 2026-07-28 on, serverInfo is in _meta.
func (c *conn) keepIntroduction(result json.RawMessage) {
	c.offer, _ = jsonrpc.Get(result, "capabilities")
	c.self, _ = jsonrpc.Get(result, "serverInfo")
	c.said.Info = c.self
	if c.self == nil {
		meta, _ := jsonrpc.Get(result, "_meta")
		c.said.Info, _ = jsonrpc.Get(meta, "io.modelcontextprotocol/serverInfo")
	}
	c.said.Instructions, _ = jsonrpc.TextAt(result, "instructions")
}

// handle takes one request or notification of the server.
func (c *conn) handle(msg *jsonrpc.Message, during *mcpclient.Call) {
	c.secrets.redactMessage(msg)
	switch {
	case msg.Kind == jsonrpc.Request:
		c.respond(msg, during)
	case c.Stateless():
		c.statelessNotice(msg, during)
	default:
		c.notice(msg, during)
	}
}

// member is one member of an object.
type member struct {
	name  string
	value json.RawMessage // nil = the object does not have it
}

// object writes the members that are there.
func object(members ...member) json.RawMessage {
	size := 2
	for _, m := range members {
		size += len(m.name) + len(m.value) + 4
	}
	out := append(make([]byte, 0, size), '{')
	for _, m := range members {
		if m.value == nil {
			continue
		}
		if len(out) > 1 {
			out = append(out, ',')
		}
		out = append(append(append(append(out, '"'), m.name...), `":`...), m.value...)
	}
	return append(out, '}')
}

// isEmpty reports whether obj has no members, as an empty object or another value.
func isEmpty(obj json.RawMessage) bool {
	for range jsonrpc.Members(obj) {
		return false
	}
	return true
}
