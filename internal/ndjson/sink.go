package ndjson

import (
	"fmt"
	"io"
	"sync"
	"time"
)

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
