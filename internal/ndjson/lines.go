package ndjson

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"
)

// stopGrace is how long Stop waits for a reader whose input it has closed.
const stopGrace = time.Second

// Lines reads lines on a goroutine of its own. The caller must Stop it.
type Lines struct {
	next chan []byte
	err  error         // read after next is closed
	quit chan struct{} // closed by Stop
	done chan struct{} // closed when the reader has ended
}

// NewLines starts to read in. A line, without its end, of more than limit
// bytes arrives as its first limit+1, which nothing with that limit takes; the
// rest is skipped, and the next line is read. Empty lines do not arrive.
func NewLines(in io.Reader, limit int) *Lines {
	l := &Lines{next: make(chan []byte), quit: make(chan struct{}), done: make(chan struct{})}
	go func() { // awaited by Stop
		defer close(l.done)
		defer close(l.next)
		l.err = l.read(bufio.NewReaderSize(in, 64<<10), limit)
	}()
	return l
}

// Next gives the lines. It is closed at the end of input.
func (l *Lines) Next() <-chan []byte { return l.next }

// Err is why input ended, nil at its end. It may be called when Next is closed.
func (l *Lines) Err() error { return l.err }

// read passes on lines until the end of input, where it returns nil, or Stop.
func (l *Lines) read(in *bufio.Reader, limit int) error {
	for {
		line, err := ReadLine(in, limit)
		if len(line) > 0 {
			select {
			case l.next <- line:
			case <-l.quit:
				return nil
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("reading from the client: %w", err)
		}
	}
}

// ReadLine gives the next line without its end, LF or CR LF; of a line with
// more than limit bytes the first limit+1. The last line of the input comes
// with io.EOF, what an error cuts off with that error.
func ReadLine(in *bufio.Reader, limit int) ([]byte, error) {
	var line []byte
	for {
		part, err := in.ReadSlice('\n')
		line = append(line, part[:min(len(part), limit+3-len(line))]...)
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		line = bytes.TrimSuffix(line, []byte{'\n'})
		line = bytes.TrimSuffix(line, []byte{'\r'})
		return line[:min(len(line), limit+1)], err
	}
}

// Stop ends the reader. A Read that is under way ends when in, which must be
// what NewLines was given, is closed; one that does not (a terminal's) is left
// to the end of the process.
func (l *Lines) Stop(in io.Reader) {
	close(l.quit)
	select {
	case <-l.done:
		return
	default:
	}
	c, ok := in.(io.Closer)
	if !ok {
		return
	}
	_ = c.Close() // it is being abandoned
	timer := time.NewTimer(stopGrace)
	defer timer.Stop()
	select {
	case <-l.done:
	case <-timer.C:
	}
}

// Sink writes lines to one client, each by one Write. After a Write has failed
// it writes nothing more. It is safe for concurrent use.
type Sink struct {
	broken chan struct{}

	mu  sync.Mutex // protects the fields below
	out io.Writer
	err error
}

// NewSink makes a Sink on out.
func NewSink(out io.Writer) *Sink { return &Sink{out: out, broken: make(chan struct{})} }

// Send writes message, which must hold no raw line end, and the end of its line.
func (s *Sink) Send(message []byte) {
	line := append(make([]byte, 0, len(message)+1), message...)
	line = append(line, '\n')
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return
	}
	if _, err := s.out.Write(line); err != nil {
		s.err = err
		close(s.broken)
	}
}

// Broken is closed when a Write has failed.
func (s *Sink) Broken() <-chan struct{} { return s.broken }

// Err is why nothing more can be written, nil while it can.
func (s *Sink) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return fmt.Errorf("writing to the client: %w", s.err)
	}
	return nil
}

// lastGrace is how long Drain waits for work that was cancelled.
const lastGrace = 5 * time.Second

// Drain waits until work is done, at most limit; then it calls cancel and waits
// a little more. It reports false when work does not end even so.
func Drain(work *sync.WaitGroup, limit time.Duration, cancel func()) bool {
	done := make(chan struct{})
	go func() { // ends with the last piece of work
		work.Wait()
		close(done)
	}()
	if within(done, limit) {
		return true
	}
	cancel()
	return within(done, lastGrace)
}

// within reports whether done is closed before limit has passed.
func within(done <-chan struct{}, limit time.Duration) bool {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-timer.C:
		return false
	}
}
