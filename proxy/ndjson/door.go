// Package ndjson serves clients of the NDJSON action protocol: one request per line,
// list_actions or invoke, and one response per line. Actions are the tools that are
// visible to the principal. An invoke becomes a tools/call and takes the same road as
// every other call. The door makes no decision: it frames requests, bounds how many
// run at once, and translates the road's replies into the protocol.
//
//	line -> decode -> identify -> dispatch -> reply
package ndjson

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/ndjson"
	"github.com/toolgate/toolgate/internal/share"
	"github.com/toolgate/toolgate/internal/wait"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/identity"
	"github.com/toolgate/toolgate/proxy"
	"github.com/toolgate/toolgate/registry"
	"github.com/toolgate/toolgate/signal"
)

// Gate is the part of the road that the door calls, from many goroutines at
// once.
type Gate interface {
	// Call governs one tools/call, or refuses one line that could not be
	// decoded (in.Fault). Exactly one of its results is set.
	Call(ctx context.Context, in *proxy.Call) (*proxy.Reply, *proxy.Failure)
	// List returns the tools that are visible to who on the route of in, in order.
	// It reads the route and the caller from in.
	List(ctx context.Context, in *proxy.Call, who policy.Principal) []*registry.Tool
	// Identify returns the principal of c, or a Failure if there is none.
	Identify(ctx context.Context, c identity.Credential) (policy.Principal, *proxy.Failure)
}

// Refuser records the refusals of the door. code is one of the signal.Code
// constants; the result is never nil.
type Refuser interface {
	Refuse(ctx context.Context, in *proxy.Call, code, reason string) *proxy.Failure
}

var (
	_ Gate    = (*proxy.Gate)(nil)
	_ Refuser = (*proxy.Gate)(nil)
)

// Options configure a Door. Gate and Refuser are required; the other fields
// have a default.
type Options struct {
	Gate    Gate
	Refuser Refuser
	// Credential authenticates each request; the zero value is the local user.
	Credential identity.Credential
	// MaxFlights bounds the requests of one client in flight; 0 = 64. The next line is
	// read when there is room for it.
	MaxFlights int
	// Budget bounds the bytes of messages that are held at once; nil = nothing does. The next
	// line is read when there is room for the one before.
	Budget *share.Budget
	// MaxDepth is how many arrays and objects of a line may be in each other; 0 = the
	// default of jsonrpc.
	MaxDepth int
	// Drain bounds the wait of Serve, at the end of its input, for requests in
	// flight; 0 = 30 s.
	Drain time.Duration
	// Ended is called with the key (proxy.Call.Session) of each client that has
	// disconnected, once and after its last call; nil is allowed.
	Ended func(session string)
	// Log receives toolgate's own faults; nil discards them.
	Log hclog.Logger
}

// Door serves clients of the NDJSON action protocol. It is safe for concurrent
// use.
type Door struct{ opts Options }

// New returns a Door. It fails when Gate or Refuser is missing.
func New(opts Options) (*Door, error) {
	if opts.Gate == nil || opts.Refuser == nil {
		return nil, errors.New("making the ndjson door: no gate")
	}
	opts.Credential = cmp.Or(opts.Credential, identity.Credential{Local: true})
	opts.MaxFlights = cmp.Or(opts.MaxFlights, 64)
	opts.Drain = cmp.Or(opts.Drain, 30*time.Second)
	if opts.Ended == nil {
		opts.Ended = func(string) {}
	}
	opts.Log = cmp.Or(opts.Log, hclog.NewNullLogger())
	return &Door{opts: opts}, nil
}

// client is one connected client.
type client struct {
	door    *Door
	session string          // key of its upstream connections
	ctx     context.Context // of every call; outlives the context of Serve
	cancel  context.CancelCauseFunc
	flights *wait.Workers // run the requests
	room    chan struct{} // has an element for each further line that may be handled
	ended   chan struct{} // gets a signal when a request has ended
	out     *ndjson.Sink
	live    jsonrpc.Pool[struct{}] // by the ids of the requests in flight
}

// Serve serves one client over in and out until in ends or ctx is done. It then
// waits for the requests in flight, at most Options.Drain, and cancels the
// rest. A request without an id is answered before the next line is read.
// Requests with an id run concurrently and are answered as they finish; while
// Options.MaxFlights of them run, no line is read. A line longer than 512 KB is refused, and reading continues after it. Serve writes
// only responses to out, one Write per line.
//
// Serve returns nil when in ends and when ctx is done, otherwise the error of
// reading or writing. If in is an io.Closer, Serve closes it when it stops
// before the end of in, so that no reader stays blocked.
func (d *Door) Serve(ctx context.Context, in io.Reader, out io.Writer) error {
	c := &client{door: d, session: "ses_" + rand.Text(), flights: wait.NewWorkers(), room: make(chan struct{}, d.opts.MaxFlights), ended: make(chan struct{}, 1), out: ndjson.NewSink(out)}
	for range d.opts.MaxFlights {
		c.room <- struct{}{}
	}
	c.ctx, c.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	defer c.cancel(proxy.ErrShutdown)
	err := ndjson.Serve(ctx, in, c.out, ndjson.MaxLine, func(line []byte, long *jsonrpc.Outline) { c.serveLine(ctx, line, long) })
	err = errors.Join(err, c.drain(ctx))
	d.opts.Ended(c.session)
	return err
}

// serveLine waits for room, handles one line, and waits for a request without an id.
func (c *client) serveLine(ctx context.Context, line []byte, long *jsonrpc.Outline) {
	if !c.out.Await(ctx, c.room) {
		return
	}
	x := c.door.receive(c.session, line, long)
	if refusal := c.refusalOf(x); refusal != nil {
		c.send(refusal)
		c.room <- struct{}{}
		return
	}
	claim, owner := new(share.Claim), share.Owner{Subject: x.call.Principal.Subject, Tenant: x.call.Principal.Tenant}
	for !c.door.opts.Budget.Take(claim, owner, int64(len(line))) {
		if !c.out.Await(ctx, c.ended) {
			return
		}
	}
	x.call.Bytes = claim
	done := make(chan struct{})
	c.flights.Go(func() {
		defer close(done)
		defer wait.Signal(c.ended)
		defer claim.Release()
		response := c.door.run(c.ctx, x)
		c.live.Match(x.id(), nil) // whoever has read the response may use the id again
		c.send(response)
		c.room <- struct{}{}
	})
	if x.id() == nil {
		c.out.Await(ctx, done)
	}
}

// refusalOf returns the response to a line that does not run, nil for a request that was
// added to those in flight.
func (c *client) refusalOf(x *exchange) []byte {
	if refusal := c.door.authenticate(c.ctx, x); refusal != nil {
		return refusal
	}
	if x.req == nil {
		return c.door.run(c.ctx, x)
	}
	if x.id() != nil && !c.live.Put(x.id(), struct{}{}) {
		x.at = "/id"
		return c.door.refuse(c.ctx, x, signal.CodeEnvelopeInvalid, "a request with this id is in flight")
	}
	return nil
}

// send writes one response as one line.
func (c *client) send(response []byte) { c.out.Send(jsonrpc.OneLine(response)) }

// drain waits for the requests in flight. It returns the write error, if there
// was one.
func (c *client) drain(ctx context.Context) error {
	if !c.out.Drain(ctx, c.flights.Finish(), nil, c.door.opts.Drain, func() { c.cancel(proxy.ErrShutdown) }) {
		return errors.New("serving ndjson: requests do not end")
	}
	return c.out.Err()
}

// exchange is one line and its state in the door.
type exchange struct {
	call  proxy.Call
	req   *ndjson.Request // nil when the line is not a request
	fault *ndjson.Fault   // why it is not
	at    string          // pointer to the member that the door refuses, "" = the whole request
}

// id returns the id of the response, nil when none is known.
func (x *exchange) id() json.RawMessage {
	if x.req != nil {
		return x.req.ID
	}
	return x.fault.ID
}

// action returns the action as the caller named it.
func (x *exchange) action() string {
	if x.req == nil {
		return ""
	}
	return x.req.Action
}

// receive decodes a line, unless there is the outline of one that is too long. An invoke
// becomes a tools/call whose arguments are the bytes of the input.
func (d *Door) receive(session string, line []byte, long *jsonrpc.Outline) *exchange {
	x := &exchange{call: proxy.Call{Transport: "ndjson", Credential: d.opts.Credential, Session: session}}
	if long != nil {
		x.fault = ndjson.TooLong(long)
	} else if x.req, x.fault = ndjson.Decode(line, d.opts.MaxDepth); x.req != nil && x.req.Type == ndjson.Invoke {
		x.setCall()
	}
	if x.fault != nil {
		x.call.Fault = x.fault.Cause
	}
	return x
}

// setCall makes the message that the road judges. It is decoded like the
// messages of other doors, so that it is held to the same rules.
func (x *exchange) setCall() {
	id := x.req.ID
	if id == nil {
		id = json.RawMessage(`""`)
	}
	params := slices.Concat([]byte(`{"name":`), jsonrpc.Quote(x.req.Action), []byte(`,"arguments":`), x.req.Input, []byte(`}`))
	m, err := jsonrpc.Decode(jsonrpc.NewRequest(id, "tools/call", params), jsonrpc.MostLimits())
	if err != nil {
		x.fault = &ndjson.Fault{Text: ndjson.InvalidEnvelope, ID: x.req.ID, Cause: &jsonrpc.Fault{Kind: jsonrpc.Invalid, Reason: err.Error(), ID: x.req.ID}}
		x.req = nil
	}
	x.call.Message = m
}

// path returns the steps of a pointer into the call's message, as the client
// sees the place in its request.
func (x *exchange) path(pointer string) []any {
	if rest, ok := strings.CutPrefix(pointer, "/params/arguments"); ok && x.req != nil {
		return append([]any{"payload", "input"}, ndjson.Path(x.req.Input, rest)...)
	}
	return ndjson.Path(nil, pointer)
}

// authenticate sets the principal of the door's credential in x, or returns the
// response that refuses x. Each line is authenticated, so that a revoked token
// stops its client. Only an invoke is recorded.
func (d *Door) authenticate(ctx context.Context, x *exchange) (refusal []byte) {
	who, f := d.opts.Gate.Identify(ctx, x.call.Credential)
	switch {
	case f == nil && who.Valid():
		x.call.Principal = who
		return nil
	case f == nil:
		return d.refuse(ctx, x, signal.CodeUnauthenticated, "missing or unknown bearer token")
	case x.call.Message == nil:
		return d.failed(x, f)
	}
	return d.refuse(ctx, x, f.Kernel.Code, f.Reason)
}

// refuse returns the response with a refusal code, and records it.
func (d *Door) refuse(ctx context.Context, x *exchange, code, reason string) []byte {
	return d.failed(x, d.opts.Refuser.Refuse(ctx, &x.call, code, reason))
}

// run executes a request. The gate refuses and records a line that is not a request
// like a call. A panic ends that request only.
func (d *Door) run(ctx context.Context, x *exchange) (response []byte) {
	defer func() {
		if fault := recover(); fault != nil {
			d.opts.Log.Error("panic in the ndjson door", "panic", fmt.Sprint(fault), "stack", string(debug.Stack()))
			response = d.broken(x, "", "")
		}
	}()
	if x.req != nil && x.req.Type == ndjson.ListActions {
		return ndjson.NewSuccess(x.id(), actions(d.opts.Gate.List(ctx, &x.call, x.call.Principal)))
	}
	reply, failure := d.opts.Gate.Call(ctx, &x.call)
	switch {
	case failure != nil:
		return d.failed(x, failure)
	case reply == nil, x.req == nil: // fails closed: the gate has to answer, or to refuse
		return d.broken(x, "", "")
	}
	return d.replied(x, reply)
}
