package mcp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"

	"github.com/toolgate/toolgate/internal/ndjson"
	"github.com/toolgate/toolgate/proxy"
)

// errTwice is reported for a second initialize on one stdio connection.
var errTwice = errors.New("this connection is initialized already")

// stdioClient is one client on stdin and stdout. Its reader handles messages in
// order; requests other than initialize run concurrently and are answered as
// they finish.
type stdioClient struct {
	door    *Door
	session *session // nil before initialize; of the loop's goroutine only
	ready   bool     // the client has sent notifications/initialized; as session
	changes *listChanges
	flying  atomic.Int64
	flights sync.WaitGroup // ready when every request has been answered
	out     *ndjson.Sink

	requests      *session // keeps the requests that are of no session
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
	p := &stdioClient{door: d, out: ndjson.NewSink(out), changes: newListChanges()}
	p.listening, p.stopListening = context.WithCancel(d.base)
	p.requests = &session{flights: make(map[string]context.CancelCauseFunc)}
	if !d.work.Enter() {
		return fmt.Errorf("serving stdio: %w", errClosing)
	}
	defer d.work.Leave()
	d.noteStdioClient(p, true)
	defer d.noteStdioClient(p, false)
	lines := ndjson.NewLines(in, d.opts.Limits.Bytes)
	err := p.loop(ctx, lines)
	lines.Stop(in)
	return errors.Join(err, p.drain())
}

// noteStdioClient registers or unregisters a client for changes of lists.
func (d *Door) noteStdioClient(c *stdioClient, served bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if delete(d.stdioClients, c); served {
		d.stdioClients[c] = struct{}{}
	}
}

// loop takes lines until there are none or p must stop.
func (c *stdioClient) loop(ctx context.Context, lines *ndjson.Lines) error {
	for {
		var wake chan struct{} // nil: a client accepts no notification before it is initialized
		if c.ready {
			wake = c.changes.wake
		}
		select {
		case data, ok := <-lines.Next():
			if !ok {
				return lines.Err()
			}
			c.serveLine(data)
		case <-wake:
			c.changes.flush(c.post)
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
	x.use(c.session)
	if x.session.batches(data) {
		c.serveBatch(x, data)
		return
	}
	d.decode(x, data, d.opts.Limits)
	if s := d.authenticate(x, nil); s != nil {
		c.reply(x, d.refuseUnauthenticated(x, s))
		return
	}
	c.cancelRequest(x)
	if c.serveStateless(x) {
		return
	}
	d.session.serveAsync(x, &c.flying, c.flights.Go, func(a answer) { c.reply(x, a) })
	c.ready = c.ready || x.isInitialized()
}

// isInitialized reports whether x says that the client accepts notifications.
func (x *exchange) isInitialized() bool {
	return x.session != nil && x.call.Message != nil && x.call.Message.Method == "notifications/initialized"
}

// openSession makes s the session of the connection.
func (c *stdioClient) openSession(s *session) (*session, error) {
	if c.session != nil {
		return nil, errTwice
	}
	s.onEnd = func() { c.door.opts.Ended(s.key) }
	s.changes, s.direct = c.changes, c.post
	c.session = s
	return s, nil
}

// reply writes the answer to x, if there is one to write.
func (c *stdioClient) reply(x *exchange, a answer) {
	c.door.observe(x, a)
	if a.body != nil && !a.silent {
		c.send(a.body)
	}
}

// send writes one message as one line.
func (c *stdioClient) send(message []byte) { c.out.Send(message) }

// post writes o as one line.
func (c *stdioClient) post(l outgoing) bool {
	c.send(l.message)
	return true
}

// abandon cancels the requests in flight.
func (c *stdioClient) abandon() {
	c.session.abortAll(errClosing)
	c.requests.abortAll(errClosing)
}

// drain waits for the requests in flight, whose questions to the client are not
// answered any more, then ends the session. It gives the write error, if there
// was one.
func (c *stdioClient) drain() error {
	c.stopListening()
	c.session.closeToQuestions()
	if !ndjson.Drain(&c.flights, c.door.opts.Drain, c.abandon) {
		return errors.New("serving stdio: calls do not end")
	}
	if c.session != nil {
		c.session.end()
	}
	return c.out.Err()
}
