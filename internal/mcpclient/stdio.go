package mcpclient

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/toolgate/toolgate/internal/ndjson"
)

const (
	// maxQueued is how many lines wait to be written to a server that does not
	// read; maxPosted bounds the bytes of those that may be dropped.
	maxQueued = 256
	maxPosted = 1 << 20
	// fateGrace is how long the end of a process may follow the end of its output.
	fateGrace = 1500 * time.Millisecond
)

// Process is the process at the other end of a stdio connection.
type Process interface {
	// Exited is closed when the process has ended.
	Exited() <-chan struct{}
	// Fate says how it ended. It is called after Exited only.
	Fate() error
	// Stop ends the process and its streams, and waits for that.
	Stop()
}

// stdioWire carries lines to and from a process.
type stdioWire struct {
	c       *Conn
	in      io.Writer
	out     io.Reader
	process Process
	tasks   sync.WaitGroup
	queue   chan outLine                   // what waits to be written
	posted  atomic.Int64                   // bytes of the messages in queue that are no calls
	queued  atomic.Int64                   // lines that are left to the writer and not written
	turn    sync.Mutex                     // held while a line is written
	try     func(line []byte) (int, error) // see tryWriter
}

// outLine is one line to write; call is nil unless the line is a request.
type outLine struct {
	call *Call
	line []byte
}

// OpenStdio connects to a process by its stdin and stdout. With actions the
// server speaks the NDJSON action protocol, and its actions appear as tools.
func (c *Conn) OpenStdio(in io.Writer, out io.Reader, process Process, actions bool) {
	c.actions = actions
	w := &stdioWire{c: c, in: in, out: out, process: process, queue: make(chan outLine, maxQueued), try: tryWriter(in)}
	c.wire = w
	w.tasks.Go(w.read)
	w.tasks.Go(w.write)
}

// send implements wire.
func (w *stdioWire) send(ctx context.Context, p *Call) error {
	if !w.sendNow(p) {
		if err := w.enqueue(ctx, outLine{p, p.line}); err != nil {
			return err
		}
	}
	return p.await(ctx)
}

// atOnce is PIPE_BUF of Linux.
const atOnce = 4096

// sendNow writes a short call where no line comes before it and the pipe has room for it,
// which spares waking the writer. It never waits. It reports false, and has written
// nothing, where the call has to be left to the writer.
func (w *stdioWire) sendNow(p *Call) bool {
	if w.try == nil || len(p.line) >= atOnce || !w.turn.TryLock() {
		return false
	}
	defer w.turn.Unlock()
	if w.queued.Load() > 0 || w.c.Dead() || !p.Claim() {
		return false
	}
	p.line = append(p.line, '\n')
	n, _ := w.try(p.line) // the writer finds out why it fails
	if n == len(p.line) {
		return true
	}
	if n > 0 { // in is not a pipe: a pipe takes a short line whole
		w.c.Fail(failed(fmt.Errorf("writing to the server: %w", io.ErrShortWrite)))
		return true
	}
	p.line = p.line[:len(p.line)-1]
	p.state.Store(kept)
	return false
}

// post implements wire.
func (w *stdioWire) post(ctx context.Context, line []byte, lossy bool) error {
	size, err := int64(len(line)), errors.New("the server does not read what it is sent")
	switch fits := w.posted.Add(size) <= maxPosted; {
	case !lossy:
		err = w.enqueue(ctx, outLine{line: line})
	case fits:
		w.queued.Add(1)
		select {
		case w.queue <- outLine{line: line}:
			return nil
		default:
			w.queued.Add(-1)
		}
	}
	if err != nil {
		w.posted.Add(-size)
	}
	return err
}

// enqueue leaves a line to the writer, and waits while too many are queued.
func (w *stdioWire) enqueue(ctx context.Context, out outLine) error {
	w.queued.Add(1)
	select {
	case w.queue <- out:
		return nil
	case <-ctx.Done():
		w.queued.Add(-1)
		return ctx.Err()
	case <-w.c.life.Done():
		w.queued.Add(-1)
		return io.ErrClosedPipe
	}
}

// write is the goroutine that writes to the process.
func (w *stdioWire) write() {
	for {
		select {
		case out := <-w.queue:
			if out.call == nil {
				w.posted.Add(-int64(len(out.line)))
			}
			ok := out.call != nil && !out.call.Claim() || w.put(out)
			if w.queued.Add(-1); !ok {
				return
			}
		case <-w.c.life.Done():
			return
		}
	}
}

// put writes one line, and records when certainly none of its bytes was sent.
func (w *stdioWire) put(out outLine) bool {
	w.turn.Lock()
	n, err := w.in.Write(append(out.line, '\n'))
	w.turn.Unlock()
	if err == nil {
		return true
	}
	if out.call != nil && n == 0 {
		out.call.unsent.Store(true)
	}
	w.ended(fmt.Errorf("writing to the server: %w", err))
	return false
}

// read is the goroutine that reads from the process.
func (w *stdioWire) read() {
	lines := bufio.NewReaderSize(w.out, 64<<10)
	for !w.c.Dead() {
		line, long, err := ndjson.ReadLine(lines, w.c.limits.Bytes)
		switch {
		case err != nil:
			w.ended(fmt.Errorf("the server closed its output: %w", err))
			return
		case long != nil:
			w.c.receiveLong(long, source{any: true})
		case len(line) > 0:
			w.receive(line)
		}
	}
}

// receive handles one line of the server.
func (w *stdioWire) receive(line []byte) {
	if w.c.actions {
		w.c.receiveAction(line)
	} else {
		_ = w.c.receive(line, source{any: true}) // a refused message is counted
	}
}

// ended fails the connection with the way in which the process ended, or with err when
// it does not end.
func (w *stdioWire) ended(err error) {
	timer := time.NewTimer(fateGrace)
	defer timer.Stop()
	select {
	case <-w.process.Exited():
		w.c.Fail(failed(w.process.Fate()))
	case <-w.c.life.Done():
	case <-timer.C:
		w.c.Fail(failed(err))
	}
}

// close implements wire.
func (w *stdioWire) close() {
	w.process.Stop()
	w.tasks.Wait()
}
