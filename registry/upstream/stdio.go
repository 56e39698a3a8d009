package upstream

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/mark3labs/mcp-go/client/transport"

	"github.com/toolgate/toolgate/registry/config"
)

// maxQueued bounds what waits to be written to a server that does not read, in
// bytes.
const maxQueued = 64 << 20

// quiet swallows what mcp-go logs: the same is told in our own words.
var quiet = slog.New(slog.DiscardHandler)

// stdioWire ties mcp-go's stdio transport to a process: lines from the process
// pass the filter on their way up, requests are replaced on their way down.
type stdioWire struct {
	c      *conn
	child  *child
	up     *io.PipeWriter // to mcp-go
	tasks  sync.WaitGroup
	wakeup chan struct{} // has an element when there is something to write

	mu     sync.Mutex // protects the fields below
	queue  []outLine
	queued int // bytes in queue
	closed bool
}

// outLine is one line to write; p is nil for what is not a request.
type outLine struct {
	p    *pending
	line []byte
}

// dialStdio starts the server and connects to it over its streams.
func dialStdio(ctx context.Context, c *conn, cfg config.Server, opts *Options) error {
	child, err := startChild(cfg, opts.executable(), opts.logger().Named(cfg.Name))
	if err != nil {
		return err
	}
	down, up := io.Pipe()
	w := &stdioWire{c: c, child: child, up: up, wakeup: make(chan struct{}, 1)}
	c.wire = w
	if cfg.Type == config.TypeNDJSON {
		c.frames = actionFrames{}
	}
	c.transport = transport.NewIO(down, w, io.NopCloser(bytes.NewReader(nil)))
	transport.WithCommandLogger(quiet)(c.transport.(*transport.Stdio))
	w.tasks.Go(w.read)
	w.tasks.Go(w.write)
	return c.transport.Start(ctx)
}

// Write takes one line from mcp-go. A request of ours is replaced by the bytes
// that were judged. Notifications pass where the server knows any. It never
// blocks.
func (w *stdioWire) Write(line []byte) (int, error) {
	var out outLine
	if id := idOf(line); id != "" {
		p := w.c.table.peek(id)
		if p == nil || p.claimed.Load() {
			return 0, errWithdrawn
		}
		out = outLine{p: p, line: p.line}
	} else if out.line = bytes.Clone(bytes.TrimRight(line, "\n")); !w.c.frames.isMCP() {
		return len(line), nil
	}
	if err := w.enqueue(out); err != nil {
		return 0, err
	}
	return len(line), nil
}

// Close is mcp-go's wish to end the process; conn.close does that.
func (w *stdioWire) Close() error { return nil }

// reply implements wire.
func (w *stdioWire) reply(line []byte) {
	const most = 1 << 20 // a server that asks faster than it reads gets no answer
	w.mu.Lock()
	full := w.queued > most
	w.mu.Unlock()
	if !full {
		_ = w.enqueue(outLine{line: line}) // a wire that has ended sends nothing
	}
}

// answer implements wire. A server that reads nothing gets nothing.
func (w *stdioWire) answer(line []byte) { _ = w.enqueue(outLine{line: line}) }

// enqueue leaves a line to the writer.
func (w *stdioWire) enqueue(out outLine) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return io.ErrClosedPipe
	}
	if w.queued+len(out.line) > maxQueued {
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
		if out.p != nil && !out.p.claim() {
			continue
		}
		if !w.put(out) {
			return
		}
	}
}

// put writes one line, and notes when it turns out that no byte of it went.
func (w *stdioWire) put(out outLine) bool {
	n, err := w.child.stdin.Write(append(out.line, '\n'))
	if err == nil {
		return true
	}
	if out.p != nil && n == 0 {
		out.p.unsent.Store(true)
	}
	// The reader knows better why, when the process has ended.
	select {
	case <-w.child.exited:
		w.c.fail(&Error{Kind: Failed, Sent: true, Err: w.child.fate()})
	default:
		w.c.fail(&Error{Kind: Failed, Sent: true, Err: fmt.Errorf("writing to the server: %w", err)})
	}
	return false
}

// read is the goroutine that reads from the process.
func (w *stdioWire) read() {
	defer func() { _ = w.up.Close() }()
	lines := bufio.NewReaderSize(w.child.stdout, 64<<10)
	for {
		line, err := readLine(lines, w.c.limits.Bytes)
		if errors.Is(err, errTooLong) {
			w.tooLong(line)
			return
		}
		if len(line) > 0 && err == nil {
			if up := w.c.frames.receive(w.c, line); up != nil {
				_, _ = w.up.Write(append(up, '\n')) // fails only when nobody reads any more
			}
		}
		if err != nil {
			w.ended(err)
			return
		}
		if w.c.life.Err() != nil {
			return
		}
	}
}

// ended fails the connection with the way in which the process ended.
func (w *stdioWire) ended(err error) {
	select {
	case <-w.child.exited:
		w.c.fail(&Error{Kind: Failed, Sent: true, Err: w.child.fate()})
	case <-w.c.life.Done():
	case <-w.after():
		w.c.fail(&Error{Kind: Failed, Sent: true, Err: fmt.Errorf("the server closed its output: %w", err)})
	}
}

// tooLong fails the connection because of a line beyond the cap: the request
// that it answers, if its head tells, with TooLarge, or else all of them.
func (w *stdioWire) tooLong(head []byte) {
	cause := &Error{Kind: TooLarge, Sent: true, Err: fmt.Errorf("the answer is larger than %d bytes", w.c.limits.Bytes)}
	if p := w.c.table.named(head); p != nil && w.c.table.drop(p) {
		p.answer(nil, cause)
		_, _ = w.up.Write(append(acknowledgement(p), '\n')) // as above
		cause = &Error{Kind: Failed, Sent: true, Err: errors.New("the server was restarted: it sent an answer beyond the size limit to another call")}
	}
	w.c.fail(cause)
}

// close implements wire.
func (w *stdioWire) close() {
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	_ = w.up.Close()
	w.child.stop()
	w.tasks.Wait()
}

// errTooLong is reported for a line beyond the cap.
var errTooLong = errors.New("line too long")

// readLine reads one line without its end. Beyond most bytes it stops reading
// and gives what it has with errTooLong. A line that the end of the stream cuts
// short is given with the error.
func readLine(r *bufio.Reader, most int) ([]byte, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		line = append(line, part...)
		switch {
		case len(line) > most+1:
			return line, errTooLong
		case err == nil:
			return bytes.TrimRight(line, "\r\n"), nil
		case !errors.Is(err, bufio.ErrBufferFull):
			return line, err
		}
	}
}

// after is how long the end of a process may follow the end of its output.
func (w *stdioWire) after() <-chan time.Time { return time.After(termGrace) }
