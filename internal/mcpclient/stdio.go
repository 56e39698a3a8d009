package mcpclient

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"
)

const (
	// maxQueued bounds what waits to be written to a server that does not read,
	// in bytes; maxLossy bounds it for messages that may be dropped.
	maxQueued = 64 << 20
	maxLossy  = 1 << 20
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
	wakeup  chan struct{} // has an element when there is something to write

	mu     sync.Mutex // protects the fields below
	queue  []outLine
	queued int // bytes in queue
	closed bool
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
	w := &stdioWire{c: c, in: in, out: out, process: process, wakeup: make(chan struct{}, 1)}
	c.wire = w
	w.tasks.Go(w.read)
	w.tasks.Go(w.write)
}

// send implements wire.
func (w *stdioWire) send(ctx context.Context, p *Call) error {
	if err := w.enqueue(outLine{p, p.line}, maxQueued); err != nil {
		return err
	}
	return p.await(ctx)
}

// post implements wire. A server that reads nothing gets nothing.
func (w *stdioWire) post(_ context.Context, line []byte, lossy bool) error {
	most := maxQueued
	if lossy {
		most = maxLossy
	}
	return w.enqueue(outLine{line: line}, most)
}

// enqueue leaves a line to the writer, unless more than most bytes would wait.
func (w *stdioWire) enqueue(out outLine, most int) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return io.ErrClosedPipe
	}
	if w.queued+len(out.line) > most {
		return errors.New("the server does not read what it is sent")
	}
	w.queue = append(w.queue, out)
	w.queued += len(out.line)
	select {
	case w.wakeup <- struct{}{}:
	default:
	}
	return nil
}

// next takes a line off the queue.
func (w *stdioWire) next() (outLine, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.queue) == 0 {
		w.queue = nil
		return outLine{}, false
	}
	out := w.queue[0]
	w.queue[0] = outLine{}
	w.queue = w.queue[1:]
	w.queued -= len(out.line)
	return out, true
}

// write is the goroutine that writes to the process.
func (w *stdioWire) write() {
	for {
		out, ok := w.next()
		if !ok {
			select {
			case <-w.wakeup:
				continue
			case <-w.c.life.Done():
				return
			}
		}
		if out.call != nil && !out.call.claim() {
			continue
		}
		if !w.put(out) {
			return
		}
	}
}

// put writes one line, and records when it is certain that no byte of it went.
func (w *stdioWire) put(out outLine) bool {
	n, err := w.in.Write(append(out.line, '\n'))
	if err == nil {
		return true
	}
	if out.call != nil && n == 0 {
		out.call.unsent.Store(true)
	}
	// The reader knows better why, when the process has ended.
	select {
	case <-w.process.Exited():
		w.c.Fail(failed(w.process.Fate()))
	default:
		w.c.Fail(failed(fmt.Errorf("writing to the server: %w", err)))
	}
	return false
}

// read is the goroutine that reads from the process.
func (w *stdioWire) read() {
	lines := bufio.NewReaderSize(w.out, 64<<10)
	for !w.c.Dead() {
		line, err := readLine(lines, w.c.limits.Bytes)
		switch {
		case errors.Is(err, ErrTooLong):
			w.tooLong(line)
			return
		case err != nil:
			w.ended(err)
			return
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

// ended fails the connection with the way in which the process ended.
func (w *stdioWire) ended(err error) {
	timer := time.NewTimer(fateGrace)
	defer timer.Stop()
	select {
	case <-w.process.Exited():
		w.c.Fail(failed(w.process.Fate()))
	case <-w.c.life.Done():
	case <-timer.C:
		w.c.Fail(failed(fmt.Errorf("the server closed its output: %w", err)))
	}
}

// tooLong fails the connection because of a line beyond the limit: the call that
// it answers, if its head tells, with TooLarge.
func (w *stdioWire) tooLong(head []byte) {
	cause := tooLarge(w.c.limits.Bytes)
	if p := w.c.named(head); p != nil {
		w.c.Settle(p, nil, cause)
		cause = failed(errors.New("the server was restarted: it sent an answer beyond the size limit to another call"))
	}
	w.c.Fail(cause)
}

// close implements wire.
func (w *stdioWire) close() {
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	w.process.Stop()
	w.tasks.Wait()
}

// readLine reads one line without its end. Beyond most bytes it stops reading
// and returns what it has with ErrTooLong.
func readLine(r *bufio.Reader, most int) ([]byte, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		line = append(line, part...)
		switch {
		case len(line) > most+1:
			return line, ErrTooLong
		case err == nil:
			return bytes.TrimRight(line, "\r\n"), nil
		case !errors.Is(err, bufio.ErrBufferFull):
			return line, err
		}
	}
}
