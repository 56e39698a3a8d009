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

// pipe is one stdio client. Its reader takes messages in order; requests but
// initialize are worked on side by side and answered as they finish.
type pipe struct {
	door    *Door
	session *session // nil before initialize; of the loop's goroutine only
	ready   bool     // the client has sent notifications/initialized; as session
	news    *news
	flying  atomic.Int64
	flights sync.WaitGroup // ready when every request has been answered
	out     *ndjson.Sink

	stateless *session // keeps the requests that are of no session
	hearing   context.Context
	deaf      context.CancelFunc // ends the streams of notifications
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
	p := &pipe{door: d, out: ndjson.NewSink(out), news: newNews()}
	p.hearing, p.deaf = context.WithCancel(d.base)
	p.stateless = &session{flights: make(map[string]context.CancelCauseFunc)}
	if !d.addPipe(p) {
		return fmt.Errorf("serving stdio: %w", errClosing)
	}
	defer d.dropPipe(p)
	lines := ndjson.NewLines(in, d.opts.Limits.Bytes)
	err := p.loop(ctx, lines)
	lines.Stop(in)
	return errors.Join(err, p.drain())
}

// addPipe enters p and reports false when the door is closing.
func (d *Door) addPipe(p *pipe) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closing {
		return false
	}
	d.flights++
	d.pipes[p] = struct{}{}
	return true
}

// dropPipe forgets p.
func (d *Door) dropPipe(p *pipe) {
	d.mu.Lock()
	delete(d.pipes, p)
	d.mu.Unlock()
	d.leave()
}

// loop takes lines until there are none or p must stop.
func (p *pipe) loop(ctx context.Context, lines *ndjson.Lines) error {
	for {
		var wake chan struct{} // nil: a client is told nothing before it is ready
		if p.ready {
			wake = p.news.wake
		}
		select {
		case data, ok := <-lines.Next():
			if !ok {
				return lines.Err()
			}
			p.take(data)
		case <-wake:
			p.news.tell(p.post)
		case <-p.out.Broken():
			return nil // drain says why
		case <-ctx.Done():
			return nil
		case <-p.door.streams:
			return nil
		}
	}
}

// take deals with one line:
//
//	decode -> identify -> dispatch -> observe -> reply
func (p *pipe) take(data []byte) {
	if len(bytes.TrimSpace(data)) == 0 {
		return
	}
	d := p.door
	x := &exchange{versions: olderVersions, dialect: d.dialect(""), open: p.keep, notify: p.send}
	x.call = proxy.Call{Transport: "stdio", Credential: d.opts.Stdio}
	x.use(p.session)
	if x.session.batches(data) {
		p.batch(x, data)
		return
	}
	d.decode(x, data, d.opts.Limits)
	if s := d.recognise(x); s != nil {
		p.reply(x, d.turnAway(x, s))
		return
	}
	p.cancels(x)
	if p.takeModern(x) {
		return
	}
	d.take(x, &p.flying, p.flights.Go, func(a answer) { p.reply(x, a) })
	p.ready = p.ready || x.opensTalk()
}

// opensTalk reports whether x says that the client is ready to be told things.
func (x *exchange) opensTalk() bool {
	return x.session != nil && x.call.Message != nil && x.call.Message.Method == "notifications/initialized"
}

// keep makes s the session of the connection.
func (p *pipe) keep(s *session) (*session, error) {
	if p.session != nil {
		return nil, errTwice
	}
	s.over = func() { p.door.opts.Ended(s.key) }
	s.news, s.direct = p.news, p.post
	p.session = s
	return s, nil
}

// reply writes the answer to x, if there is one to write.
func (p *pipe) reply(x *exchange, a answer) {
	p.door.observe(x, a)
	if a.body != nil && !a.silent {
		p.send(a.body)
	}
}

// send writes one message as one line.
func (p *pipe) send(message []byte) { p.out.Send(message) }

// post writes a letter.
func (p *pipe) post(l letter) bool {
	p.send(l.message)
	return true
}

// abandon cancels the requests in flight.
func (p *pipe) abandon() {
	p.session.abortAll(errClosing)
	p.stateless.abortAll(errClosing)
}

// drain waits for the requests in flight, whose questions to the client are not
// answered any more, then ends the session. It gives the write error, if there
// was one.
func (p *pipe) drain() error {
	p.deaf()
	p.session.hush()
	if !ndjson.Drain(&p.flights, p.door.opts.Drain, p.abandon) {
		return errors.New("serving stdio: calls do not end")
	}
	if p.session != nil {
		p.session.end()
	}
	return p.out.Err()
}
