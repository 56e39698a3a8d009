package upstream

import "sync"

// queueDepth is how much may wait for one receiver; what comes later is
// dropped until it catches up.
const queueDepth = 256

// A queue runs functions one after the other, away from the goroutine that
// reads the connection. Its goroutine lives while there is something to run,
// and finish waits for it. Each function learns whether the queue is muted,
// that is, whether nobody wants its effect any longer. The zero value is ready.
type queue struct {
	mu      sync.Mutex // protects the fields below
	waiting []func(muted bool)
	ended   chan struct{} // closed when the goroutine has ended, nil while there is none
	closed  bool
	muted   bool
}

// offer queues f, and reports false when the queue is full or finished.
func (q *queue) offer(f func(muted bool)) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed || len(q.waiting) >= queueDepth {
		return false
	}
	q.waiting = append(q.waiting, f)
	if q.ended == nil {
		q.ended = make(chan struct{})
		go q.run(q.ended)
	}
	return true
}

// run runs until nothing waits.
func (q *queue) run(ended chan struct{}) {
	defer close(ended)
	for f, muted := q.next(); f != nil; f, muted = q.next() {
		f(muted)
	}
}

// next returns the function to run next, nil when the goroutine is to end.
func (q *queue) next() (f func(bool), muted bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.waiting) == 0 {
		q.waiting, q.ended = nil, nil
		return nil, false
	}
	f, q.waiting = q.waiting[0], q.waiting[1:]
	return f, q.muted
}

// finish closes the queue and returns when all functions have run. With mute,
// those that were waiting run muted.
func (q *queue) finish(mute bool) {
	q.mu.Lock()
	q.closed, q.muted = true, mute
	ended := q.ended
	q.mu.Unlock()
	if ended != nil {
		<-ended
	}
}
