// Package ndjson is where clients of the NDJSON action protocol come in: one
// request per line, list_actions and invoke, one response per line. Actions are
// the tools that the principal may see; invoke is a tools/call and takes the
// same road as every other. The door judges nothing: it frames requests, keeps
// them from crowding each other, and puts the road's replies into the
// protocol's words.
//
//	line -> decode -> identify -> dispatch -> reply
package ndjson

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/ndjson"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/identity"
	"github.com/toolgate/toolgate/proxy"
	"github.com/toolgate/toolgate/registry"
	"github.com/toolgate/toolgate/signal"
)

// Gate is what the door needs of the road. Its methods are called from many
// goroutines at a time.
type Gate interface {
	// Call governs one tools/call, or refuses one line that could not be
	// decoded (in.Fault). Exactly one of its results is set.
	Call(ctx context.Context, in *proxy.Call) (*proxy.Reply, *proxy.Failure)
	// List gives the tools that who may see on the route of in, in the order to
	// show. Of in it takes the route and for whom the list is.
	List(ctx context.Context, in *proxy.Call, who policy.Principal) []*registry.Tool
	// Identify says who shows c; a Failure means nobody.
	Identify(ctx context.Context, c identity.Credential) (policy.Principal, *proxy.Failure)
}

// Refuser records what the door itself refuses. code is one of the signal.Code
// constants; the result is never nil.
type Refuser interface {
	Refuse(ctx context.Context, in *proxy.Call, code, reason string) *proxy.Failure
}

var (
	_ Gate    = (*proxy.Gate)(nil)
	_ Refuser = (*proxy.Gate)(nil)
)

// Options are what a Door needs. Gate and Refuser are required, the zero value
// of everything else has a meaning.
type Options struct {
	Gate    Gate
	Refuser Refuser
	// Credential is what the door shows for each request; the zero value is the
	// local user.
	Credential identity.Credential
	// MaxFlights is how many requests of one client run at a time; 0 = 64.
	MaxFlights int
	// Drain is how long Serve waits at the end of its input for requests in
	// flight; 0 = 30 s.
	Drain time.Duration
	// Ended is told the key (proxy.Call.Session) of each client that has gone,
	// once and after its last call; nil = nobody wants to know.
	Ended func(session string)
	// Log is told of faults of our own; nil discards.
	Log hclog.Logger
}

// Door serves clients of the NDJSON action protocol. It is safe for concurrent
// use.
type Door struct{ opts Options }

// New makes a Door. It fails when Gate or Refuser is missing.
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
	if opts.Log == nil {
		opts.Log = hclog.NewNullLogger()
	}
	return &Door{opts: opts}, nil
}

var (
	// errClosing is the cause with which calls end that outlive the drain.
	errClosing = errors.New("the door is closing")
	// errDuplicate is reported for a request id that is in flight already.
	errDuplicate = errors.New("a request with this id is in flight")
	// errFull is reported when too many requests are in flight.
	errFull = errors.New("too many requests of this client are in flight")
)

// client is one client being served.
type client struct {
	door    *Door
	session string          // key of its upstream connections
	ctx     context.Context // of every call; the end of Serve's context does not end it
	cancel  context.CancelCauseFunc
	flights sync.WaitGroup // ready when every request has been answered
	out     *ndjson.Sink

	mu     sync.Mutex      // protects the fields below
	flying int             // requests in flight
	live   map[string]bool // :: id as text ⇒ it is in flight
}

// Serve talks to one client over in and out until in ends or ctx is done; then
// it waits for the requests in flight, at most Options.Drain, and cancels what
// is left. A request without an id is answered before the next line is read;
// those with an id run side by side and are answered as they finish. A line
// beyond 512 KB is refused and the next one is read. Nothing but responses is
// written to out, one Write per line.
//
// Serve returns nil at the end of input and on ctx; otherwise why reading or
// writing failed. If in is an io.Closer it is closed when Serve stops before
// its end, so that no reader is left waiting.
func (d *Door) Serve(ctx context.Context, in io.Reader, out io.Writer) error {
	c := &client{
		door: d, session: "ses_" + rand.Text(), out: ndjson.NewSink(out),
		live: make(map[string]bool),
	}
	c.ctx, c.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	defer c.cancel(errClosing)
	err := ndjson.Serve(ctx, in, c.out, ndjson.MaxLine, func(line []byte) { c.serveLine(ctx, line) })
	err = errors.Join(err, c.drain())
	d.opts.Ended(c.session)
	return err
}

// serveLine deals with one line; a request without an id is waited for.
func (c *client) serveLine(ctx context.Context, line []byte) {
	x := c.door.receive(c.session, line)
	if refusal := c.door.authenticate(c.ctx, x); refusal != nil {
		c.send(refusal)
		return
	}
	if x.req == nil {
		c.send(c.door.refuseFault(c.ctx, x))
		return
	}
	if err := c.beginFlight(x); err != nil {
		c.send(c.door.refuseFlight(c.ctx, x, err))
		return
	}
	done := make(chan struct{})
	c.flights.Go(func() {
		defer close(done)
		c.finishFlight(x, c.door.run(c.ctx, x))
	})
	if x.id() != nil {
		return
	}
	select {
	case <-done:
	case <-c.out.Broken():
	case <-ctx.Done():
	}
}

// beginFlight enters x among the requests in flight.
func (c *client) beginFlight(x *exchange) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	key, named := jsonrpc.Text(x.id())
	switch {
	case named && c.live[key]:
		return errDuplicate
	case c.flying >= c.door.opts.MaxFlights:
		return errFull
	}
	c.flying++
	if named {
		c.live[key] = true
	}
	return nil
}

// finishFlight ends x and answers it, in one step: who has read the response
// may use its id again.
func (c *client) finishFlight(x *exchange, response []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.flying--
	if key, named := jsonrpc.Text(x.id()); named {
		delete(c.live, key)
	}
	c.send(response)
}

// send writes one response as one line.
func (c *client) send(response []byte) { c.out.Send(jsonrpc.OneLine(response)) }

// drain waits for the requests in flight. It gives the write error, if there
// was one.
func (c *client) drain() error {
	if !ndjson.Drain(&c.flights, c.door.opts.Drain, func() { c.cancel(errClosing) }) {
		return errors.New("serving ndjson: requests do not end")
	}
	return c.out.Err()
}

// exchange is one line with what the door knows of it.
type exchange struct {
	call  proxy.Call
	req   *ndjson.Request // nil when the line is no request
	fault *ndjson.Fault   // why not
	who   policy.Principal
	at    string // pointer of what the door itself refuses, "" for all of it
}

// id is the id to answer with, nil when none is known.
func (x *exchange) id() json.RawMessage {
	if x.req != nil {
		return x.req.ID
	}
	return x.fault.ID
}

// action is the action as the caller named it.
func (x *exchange) action() string {
	if x.req == nil {
		return ""
	}
	return x.req.Action
}

// receive decodes a line. An invoke becomes the tools/call that it stands for,
// with the input's own bytes as arguments.
func (d *Door) receive(session string, line []byte) *exchange {
	x := &exchange{call: proxy.Call{Transport: "ndjson", Credential: d.opts.Credential, Session: session}}
	req, err := ndjson.Decode(line)
	if err != nil {
		x.refuse(err)
		return x
	}
	if x.req = req; req.Type == ndjson.Invoke {
		x.setCall()
	}
	return x
}

// refuse notes why the line is no request.
func (x *exchange) refuse(err error) {
	fault, ok := errors.AsType[*ndjson.Fault](err)
	if !ok { // fails closed: whatever it is, it is no request
		fault = &ndjson.Fault{Text: ndjson.InvalidEnvelope, Cause: &jsonrpc.Fault{Kind: jsonrpc.Invalid, Reason: err.Error()}}
	}
	x.req, x.fault, x.call.Message, x.call.Fault = nil, fault, nil, fault.Cause
}

// setCall makes the message that the road judges. It is decoded like any other,
// so that nothing passes here that would not pass another door.
func (x *exchange) setCall() {
	id := x.req.ID
	if id == nil {
		id = json.RawMessage(`""`)
	}
	params := slices.Concat([]byte(`{"name":`), jsonrpc.Quote(x.req.Action), []byte(`,"arguments":`), x.req.Input, []byte(`}`))
	m, err := jsonrpc.Decode(jsonrpc.NewRequest(id, "tools/call", params), jsonrpc.Limits{})
	if err != nil {
		fault := &ndjson.Fault{Text: ndjson.InvalidEnvelope, ID: x.req.ID, Cause: &jsonrpc.Fault{Kind: jsonrpc.Invalid, Reason: err.Error(), ID: x.req.ID}}
		x.refuse(fault)
		return
	}
	x.call.Message = m
}

// path gives the steps of a pointer into the call's message, as the client
// sees the place in its request.
func (x *exchange) path(pointer string) []any {
	if rest, ok := strings.CutPrefix(pointer, "/params/arguments"); ok && x.req != nil {
		return append([]any{"payload", "input"}, ndjson.Path(x.req.Input, rest)...)
	}
	return ndjson.Path(nil, pointer)
}

// authenticate puts the principal behind the door's credential into x, or
// returns the response that refuses x. Each line is authenticated, so that a
// revoked token stops its client. Only what wanted an action invoked is recorded.
func (d *Door) authenticate(ctx context.Context, x *exchange) (refusal []byte) {
	who, f := d.opts.Gate.Identify(ctx, x.call.Credential)
	switch {
	case f == nil && who.Valid():
		x.who, x.call.Principal = who, who
		return nil
	case f == nil:
		return d.refuse(ctx, x, signal.CodeUnauthenticated, "missing or unknown bearer token")
	case x.call.Message == nil:
		return d.failed(x, f)
	}
	return d.refuse(ctx, x, f.Kernel.Code, f.Reason)
}

// refuseFlight refuses a request that may not run beside those that do.
func (d *Door) refuseFlight(ctx context.Context, x *exchange, why error) []byte {
	code := signal.CodeOverloaded
	if errors.Is(why, errDuplicate) {
		code, x.at = signal.CodeEnvelopeInvalid, "/id"
	}
	return d.refuse(ctx, x, code, why.Error())
}

// refuse answers x with the refusal code and has it recorded.
func (d *Door) refuse(ctx context.Context, x *exchange, code, reason string) []byte {
	return d.failed(x, d.opts.Refuser.Refuse(ctx, &x.call, code, reason))
}

// refuseFault answers a line that is no request. The gate refuses and records
// it as it does a call.
func (d *Door) refuseFault(ctx context.Context, x *exchange) []byte {
	_, failure := d.opts.Gate.Call(ctx, &x.call)
	if failure == nil { // fails closed: a gate that lets this pass is broken
		return d.broken(x, "", "")
	}
	return d.failed(x, failure)
}

// run does the work of a request.
func (d *Door) run(ctx context.Context, x *exchange) []byte {
	if x.req.Type == ndjson.ListActions {
		return ndjson.NewSuccess(x.id(), actions(d.opts.Gate.List(ctx, &x.call, x.who)))
	}
	reply, failure := d.opts.Gate.Call(ctx, &x.call)
	switch {
	case failure != nil:
		return d.failed(x, failure)
	case reply == nil: // fails closed: a gate that says nothing is broken
		return d.broken(x, "", "")
	}
	return d.replied(x, reply)
}
