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

	"github.com/toolgate/toolgate/internal/jsonrpc"
)

// stopGrace is how long Serve waits for a reader whose input it has closed.
const stopGrace = time.Second

// A Handler handles one line without its end. Of a line beyond the limit it gets long,
// its outline, and no line.
type Handler func(line []byte, long *jsonrpc.Outline)

// Serve reads lines from in and calls handle with each that is not blank, until in
// ends, ctx is done, or out is broken. It reads a line of more than limit bytes to its
// end without keeping it.
//
// Serve returns nil, or why reading failed. If in is an io.Closer and Serve stops
// before its end, it closes in, which ends a Read that is under way; one that does
// not end so (a terminal's) is left to the end of the process.
func Serve(ctx context.Context, in io.Reader, out *Sink, limit int, handle Handler) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var turn sync.Mutex // held while a line is handled
	take := func(line []byte, long *jsonrpc.Outline) bool {
		turn.Lock()
		defer turn.Unlock()
		if ctx.Err() != nil {
			return false
		}
		handle(line, long)
		return true
	}
	var err error // set before ended is closed
	ended := make(chan struct{})
	go func() { // ends with in, or with a line that comes too late
		defer close(ended)
		err = readLines(bufio.NewReaderSize(in, 64<<10), limit, take)
	}()
	if out.Await(ctx, ended) && ctx.Err() == nil {
		return err
	}
	turn.Lock()
	stop()
	turn.Unlock()
	if c, ok := in.(io.Closer); ok {
		_ = c.Close() // it is being abandoned
		within(ended, stopGrace)
	}
	return nil
}

// readLines reads lines and has take handle each before it reads the next: to hand a line
// to another goroutine costs more than taking most of them. It returns nil at the end of
// input, and when take returns false.
func readLines(in *bufio.Reader, limit int, take func(line []byte, long *jsonrpc.Outline) bool) error {
	for {
		line, long, err := ReadLine(in, limit)
		if (long != nil || len(bytes.TrimSpace(line)) > 0) && !take(line, long) || errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("reading from the client: %w", err)
		}
	}
}

// ErrEndless is the error of a line of more than 1 GiB.
var ErrEndless = errors.New("a line without an end")

// ReadLine returns the next line of in without its end, LF or CR LF; of a line of more
// than limit bytes its outline. The last line of the input comes with io.EOF, what an
// error cuts off with that error.
func ReadLine(in *bufio.Reader, limit int) (line []byte, long *jsonrpc.Outline, err error) {
	for {
		part, err := in.ReadSlice('\n')
		if long == nil {
			line = append(line, part...)
		} else {
			_, _ = long.Write(part) // it never fails
		}
		ended := !errors.Is(err, bufio.ErrBufferFull)
		if ended && long == nil {
			line = bytes.TrimSuffix(bytes.TrimSuffix(line, []byte{'\n'}), []byte{'\r'})
		}
		if len(line) > limit && (ended || len(line) > limit+len("\r\n")) {
			line, long = nil, jsonrpc.OutlineOf(line)
		}
		switch {
		case ended:
			return line, long, err
		case long != nil && long.Endless():
			return nil, nil, ErrEndless
		}
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
	line := append(append(make([]byte, 0, len(message)+1), message...), '\n')
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

// Await waits for until. It returns false when ctx is done or a Write has failed first.
func (s *Sink) Await(ctx context.Context, until <-chan struct{}) bool {
	select {
	case <-until:
		return true
	case <-s.broken:
	case <-ctx.Done():
	}
	return false
}

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

// Drain waits until work is done, at most limit. While ctx lasts, each token of begun begins
// the limit again: work that had waited has begun. Then, or when a Write fails, Drain calls
// cancel and waits a little more. It reports false when work does not end even so.
func (s *Sink) Drain(ctx context.Context, work *sync.WaitGroup, begun <-chan struct{}, limit time.Duration, cancel func()) bool {
	done := make(chan struct{})
	go func() { // ends with the last piece of work
		work.Wait()
		close(done)
	}()
	for late := time.After(limit); ; {
		select {
		case <-done:
			return true
		case <-begun:
			if ctx.Err() == nil {
				late = time.After(limit)
			}
			continue
		case <-late:
		case <-s.broken: // nobody reads the answers
		}
		cancel()
		return within(done, lastGrace)
	}
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
