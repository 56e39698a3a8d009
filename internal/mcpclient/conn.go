package mcpclient

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/go-hclog"

	"github.com/toolgate/toolgate/internal/jsonrpc"
)

// Options are what a Conn needs besides its transport.
type Options struct {
	// MaxBytes bounds one message of the server.
	MaxBytes int
	// IDs is the last id given out; nil begins at 0. Connections that a server
	// may take for one share it.
	IDs *atomic.Int64
	// Dropped counts messages that belong to nobody; nil is not counted.
	Dropped *atomic.Int64
	// Handle takes the requests and notifications of the server, in the order of
	// each stream. During is the call in whose stream the message came, nil where
	// calls share one. It must not block. Nil drops them.
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
	opts    Options
	wire    wire
	frames  framing
	limits  jsonrpc.Limits
	calls   jsonrpc.Pool[*Call]
	garbage atomic.Int64 // messages in a row that made no sense

	life     context.Context // ends when the connection is dead
	end      context.CancelCauseFunc
	closeOne sync.Once

	revision atomic.Pointer[spoken]

	mu      sync.Mutex // protects the fields below
	tasks   sync.WaitGroup
	closing bool // no task may begin any more
}

// spoken is the revision in which messages are sent.
type spoken struct {
	revision  string
	stateless bool
}

// New makes a connection without a transport. The caller adds one with OpenStdio,
// OpenHTTP or OpenSSE before anything else, and closes the connection.
func New(opts Options) *Conn {
	if opts.IDs == nil {
		opts.IDs = new(atomic.Int64)
	}
	if opts.Dropped == nil {
		opts.Dropped = new(atomic.Int64)
	}
	if opts.Handle == nil {
		opts.Handle = func(*jsonrpc.Message, *Call) { opts.Dropped.Add(1) }
	}
	if opts.Log == nil {
		opts.Log = hclog.NewNullLogger()
	}
	c := &Conn{opts: opts, frames: messageFrames{}, limits: jsonrpc.Limits{Bytes: opts.MaxBytes}}
	c.life, c.end = context.WithCancelCause(context.Background())
	c.revision.Store(&spoken{})
	return c
}

// NextID returns an id that no other call has.
func (c *Conn) NextID() string { return strconv.FormatInt(c.opts.IDs.Add(1), 10) }

// Life is a context that ends when the connection is dead. Its cause is an
// *Error.
func (c *Conn) Life() context.Context { return c.life }

// Dead reports whether the connection has ended.
func (c *Conn) Dead() bool { return c.life.Err() != nil }

// Fail declares the connection dead. The first cause stays.
func (c *Conn) Fail(cause *Error) { c.end(cause) }

// Close ends the connection and waits until nothing of it is left.
func (c *Conn) Close() {
	c.closeOne.Do(func() {
		c.Fail(&Error{Kind: Unavailable, Err: errors.New("the connection was closed")})
		if c.wire != nil {
			c.wire.close()
		}
		c.mu.Lock()
		c.closing = true
		c.mu.Unlock()
		c.tasks.Wait()
	})
}

// Go runs f in a goroutine that Close waits for. It reports false, and does
// nothing, when the connection is being closed.
func (c *Conn) Go(f func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closing {
		c.tasks.Go(f)
	}
	return !c.closing
}

// Do sends a call and waits for its answer, until ctx ends or the connection
// does. A call is used once.
func (c *Conn) Do(ctx context.Context, p *Call) (json.RawMessage, *Error) {
	p.key, p.answered = jsonrpc.Quote(p.ID), make(chan struct{})
	var e *Error
	if p.line, e = c.frames.request(p); e != nil {
		return nil, e
	}
	if e := c.ended(ctx, true); e != nil {
		return nil, e
	}
	c.calls.Put(p.key, p)
	err := c.wire.send(ctx, p)
	if _, open := c.calls.Match(p.key, nil); !open {
		<-p.answered
		return p.result, p.fault
	}
	unsent := p.withdraw()
	switch e := c.ended(ctx, unsent); {
	case e != nil:
		return nil, e
	case unsent:
		return nil, &Error{Kind: Unavailable, Err: err}
	}
	return nil, failed(err)
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

// within returns ctx, which also ends with the connection.
func (c *Conn) within(ctx context.Context) (context.Context, func()) {
	ctx, stop := context.WithCancel(ctx)
	detach := context.AfterFunc(c.life, stop)
	return ctx, func() {
		detach()
		stop()
	}
}

// Offer sends a message that has no answer. It does not block, and drops the
// message when too many wait.
func (c *Conn) Offer(line []byte) { _ = c.wire.post(c.life, line, true) } // as the comment says

// IsMCP reports whether the server speaks MCP, and may be initialized and sent
// notifications.
func (c *Conn) IsMCP() bool { return c.frames == messageFrames{} }

// IsHTTP reports whether requests have streams and headers of their own.
func (c *Conn) IsHTTP() bool {
	_, ok := c.wire.(*httpWire)
	return ok
}

// ClosesStreams reports whether a call is cancelled by closing the stream of its
// answer, and by nothing else (MCP 2026-07-28 basic/patterns/cancellation).
func (c *Conn) ClosesStreams() bool { return c.Stateless() && c.IsHTTP() }
