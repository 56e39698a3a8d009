package upstream

import "sync"

// queueDepth is how much may wait for one receiver; what comes later is
// dropped until it catches up.
const queueDepth = 256

// queue runs what it is given one after the other, away from the goroutine
// that reads the connection. Its own goroutine lives while there is something
// to run, and whoever calls finish waits for it. The zero value is ready.
type queue struct {
	mu      sync.Mutex // protects the fields below
	waiting []func()
	ended   chan struct{} // closed when the goroutine has ended, nil while there is none
	closed  bool
	muted   bool
}

// offer queues f, and reports false when the queue is full or finished.
func (q *queue) offer(f func()) bool {
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
	for f := q.next(); f != nil; f = q.next() {
		f()
	}
}

// next takes what is to run next, nil when the goroutine is to end.
func (q *queue) next() func() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.waiting) == 0 || q.muted {
		q.waiting, q.ended = nil, nil
		return nil
	}
	f := q.waiting[0]
	q.waiting = q.waiting[1:]
	return f
}

// finish takes no more and returns when nothing will be run again. With mute,
// what is still queued is dropped.
func (q *queue) finish(mute bool) {
	q.mu.Lock()
	q.closed = true
	q.muted = q.muted || mute
	ended := q.ended
	q.mu.Unlock()
	if ended != nil {
		<-ended
	}
}
