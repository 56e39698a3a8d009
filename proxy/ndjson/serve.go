package ndjson

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"sync"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/ndjson"
)

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
	lines := ndjson.NewLines(in, ndjson.MaxLine)
	err := c.loop(ctx, lines)
	lines.Stop(in)
	err = errors.Join(err, c.drain())
	d.opts.Ended(c.session)
	return err
}

// loop takes lines until there are none or c must stop.
func (c *client) loop(ctx context.Context, lines *ndjson.Lines) error {
	for ctx.Err() == nil {
		select {
		case line, ok := <-lines.Next():
			if !ok {
				return lines.Err()
			}
			c.serveLine(ctx, line)
		case <-c.out.Broken():
			return nil // drain says why
		case <-ctx.Done():
		}
	}
	return nil
}

// serveLine deals with one line; a request without an id is waited for.
func (c *client) serveLine(ctx context.Context, line []byte) {
	if len(bytes.TrimSpace(line)) == 0 {
		return
	}
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
