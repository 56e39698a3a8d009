package ndjson

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

// stopGrace is how long Serve waits for a reader whose input it has closed.
const stopGrace = time.Second

// Serve reads lines from in and calls handle with each that is not blank, until in
// ends, ctx is done, or out is broken. A line, without its end, of more than limit
// bytes arrives as its first limit+1 bytes, which nothing with that limit accepts;
// the rest is skipped, and the next line is read.
//
// Serve returns nil, or why reading failed. If in is an io.Closer and Serve stops
// before its end, it closes in, which ends a Read that is under way; one that does
// not end so (a terminal's) is left to the end of the process.
func Serve(ctx context.Context, in io.Reader, out *Sink, limit int, handle func(line []byte)) error {
	var err error // set before next is closed
	next, quit, done := make(chan []byte), make(chan struct{}), make(chan struct{})
	defer stop(in, quit, done)
	go func() { // stop waits for it
		defer close(next)
		defer close(done)
		err = readLines(bufio.NewReaderSize(in, 64<<10), limit, next, quit)
	}()
	for ctx.Err() == nil {
		select {
		case line, ok := <-next:
			if !ok {
				return err
			}
			handle(line)
		case <-out.broken:
			return nil // Err says why
		case <-ctx.Done():
		}
	}
	return nil
}

// stop ends readLines, which closes done.
func stop(in io.Reader, quit chan<- struct{}, done <-chan struct{}) {
	close(quit)
	if within(done, 0) {
		return
	}
	if c, ok := in.(io.Closer); ok {
		_ = c.Close() // it is being abandoned
		within(done, stopGrace)
	}
}

// readLines sends lines to next until the end of input, where it returns nil, or
// until quit is closed.
func readLines(in *bufio.Reader, limit int, next chan<- []byte, quit <-chan struct{}) error {
	for {
		line, err := readLine(in, limit)
		if len(bytes.TrimSpace(line)) > 0 {
			select {
			case next <- line:
			case <-quit:
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

// readLine returns the next line without its end, LF or CR LF; of a line with
// more than limit bytes the first limit+1. The last line of the input comes
// with io.EOF, what an error cuts off with that error.
func readLine(in *bufio.Reader, limit int) ([]byte, error) {
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
	select {
	case <-done:
		return true
	case <-time.After(limit):
		return false
	}
}
