package mcp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/toolgate/toolgate/internal/ndjson"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/proxy"
)

// stdioClient is one client on stdin and stdout.
type stdioClient struct {
	duplex
	flights sync.WaitGroup // ready when every request has been answered
	out     *ndjson.Sink

	listening     context.Context
	stopListening context.CancelFunc // ends the streams of notifications
}

// Serve talks to one client over in and out, one JSON-RPC message per line,
// until in ends, ctx is done or the door closes; then it waits for the calls
// in flight, at most Options.Drain, and cancels what is left. A line beyond
// the size limit is refused and the next one is read. Nothing but protocol is
// written to out, one Write per message.
//
// Serve returns nil at the end of input and on ctx; otherwise why reading or
// writing failed. If in is an io.Closer it is closed when Serve stops before
// its end, so that no reader is left waiting.
func (d *Door) Serve(ctx context.Context, in io.Reader, out io.Writer) error {
	c := &stdioClient{out: ndjson.NewSink(out)}
	c.duplex = duplex{door: d, session: newSession(policy.Principal{}, "", "", ""), send: c.out.Send, spawn: c.flights.Go, arrays: true}
	c.session.direct = func(o outgoing) bool { c.send(o.message); return true }
	c.listening, c.stopListening = context.WithCancel(d.base)
	if !d.work.Enter() {
		return fmt.Errorf("serving stdio: %w", errClosing)
	}
	defer d.work.Leave()
	d.noteStdioClient(c, policy.Principal{})
	defer d.dropStdioClient(c)
	lines := ndjson.NewLines(in, d.opts.Limits.Bytes)
	err := c.loop(ctx, lines)
	lines.Stop(in)
	return errors.Join(err, c.drain())
}

// noteStdioClient registers c for changes of lists, as a client of who.
func (d *Door) noteStdioClient(c *stdioClient, who policy.Principal) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.stdioClients[c] = ownerOf(who)
}

// dropStdioClient ends what noteStdioClient began.
func (d *Door) dropStdioClient(c *stdioClient) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.stdioClients, c)
}

// loop takes lines until there are none or c must stop.
func (c *stdioClient) loop(ctx context.Context, lines *ndjson.Lines) error {
	for {
		select {
		case data, ok := <-lines.Next():
			if !ok {
				return lines.Err()
			}
			c.serveLine(data)
		case <-c.session.changes.wake:
			c.flushChanges()
		case <-c.out.Broken():
			return nil // drain says why
		case <-ctx.Done():
			return nil
		case <-c.door.streams:
			return nil
		}
	}
}

// serveLine serves one line:
//
//	decode -> identify -> dispatch -> observe -> reply
func (c *stdioClient) serveLine(data []byte) {
	if len(bytes.TrimSpace(data)) == 0 {
		return
	}
	d := c.door
	x := &exchange{versions: olderVersions, open: c.openSession, notify: c.send}
	x.call = proxy.Call{Transport: "stdio", Credential: d.opts.Stdio}
	x.use(c.current())
	denied := d.authenticate(x, nil)
	d.noteStdioClient(c, x.who)
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
func (c *stdioClient) drain() error {
	c.stopListening()
	c.session.closeToQuestions()
	if !ndjson.Drain(&c.flights, c.door.opts.Drain, func() { c.session.abortAll(errClosing) }) {
		return errors.New("serving stdio: calls do not end")
	}
	if s := c.current(); s != nil {
		s.onEnd = func() { c.door.opts.Ended(s.key) }
		s.end()
	}
	return c.out.Err()
}
