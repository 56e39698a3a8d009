package upstream

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/toolgate/toolgate/internal/wait"
)

const (
	// queueDepth is how much may wait for one receiver.
	queueDepth = 256
	// patience is how long a server is not read for a receiver that is behind by a whole
	// queue. Later messages do not wait again before the receiver has had all.
	patience = 2 * time.Second
)

// A queue runs functions one after the other, away from the goroutine that
// reads the connection. Its goroutine lives while there is something to run,
// and finish waits for it. The zero value is ready.
type queue struct {
	mu      sync.Mutex // protects the fields below
	waiting []queued
	full    time.Time     // when it became full; zero when it has been empty since
	moved   chan struct{} // holds a token when something was taken; nil before it was full
	ended   chan struct{} // closed when the goroutine has ended, nil while there is none
	closed  bool
	muted   bool // nobody wants the effect of what waits, unless it is vital

	lossy atomic.Bool // something was dropped for want of room
}

// queued is a function in a queue.
type queued struct {
	run   func()
	vital bool
	token string // of the progress that it reports, "" for anything else
}

// offer queues f, which is vital. It does not wait, and reports false when the queue is
// full or finished.
func (q *queue) offer(f func()) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed || len(q.waiting) >= queueDepth {
		return false
	}
	q.addLocked(queued{run: f, vital: true})
	return true
}

// put queues n, and waits for room in a full queue until patience or life is over. Then
// progress makes room that newer progress of its token replaces, or else the oldest
// notification, so that the newest progress is kept. ok reports whether n is queued, and
// crowded whether something was dropped for want of room: n, or what made room for it.
func (q *queue) put(life context.Context, n queued) (ok, crowded bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for !q.closed && len(q.waiting) >= queueDepth && q.awaitRoomLocked(life) {
	}
	if q.closed {
		return false, false
	}
	crowded = len(q.waiting) >= queueDepth
	if ok = !crowded || q.makeRoomLocked(n.token); ok {
		q.addLocked(n)
	}
	return ok, crowded
}

// awaitRoomLocked waits until something was taken, and reports false when patience or
// life is over. The caller must hold q.mu, which is released meanwhile.
func (q *queue) awaitRoomLocked(life context.Context) bool {
	if q.full.IsZero() {
		q.full, q.moved = time.Now(), make(chan struct{}, 1)
	}
	left, moved := patience-time.Since(q.full), q.moved
	if left <= 0 || life.Err() != nil {
		return false
	}
	q.mu.Unlock()
	defer q.mu.Lock()
	timer := time.NewTimer(left)
	defer timer.Stop()
	select {
	case <-moved:
	case <-timer.C:
	case <-life.Done():
	}
	return true
}

// makeRoomLocked drops what is worth the least, and reports false when that is what
// comes next: progress of token, or with "" another notification. The caller must hold
// q.mu.
func (q *queue) makeRoomLocked(token string) bool {
	newer := map[string]bool{"": false, token: token != ""}
	oldest, replaced := -1, -1
	for i, w := range slices.Backward(q.waiting) {
		switch {
		case w.vital:
		case newer[w.token]:
			replaced = i
		case w.token != "":
			newer[w.token] = true
		default:
			oldest = i
		}
	}
	if replaced < 0 {
		replaced = oldest
	}
	if replaced >= 0 {
		q.waiting = slices.Delete(q.waiting, replaced, replaced+1)
	}
	return replaced >= 0
}

// addLocked queues n and starts the goroutine if there is none. The caller must hold q.mu.
func (q *queue) addLocked(n queued) {
	q.waiting = append(q.waiting, n)
	if q.ended == nil {
		q.ended = make(chan struct{})
		go q.run(q.ended)
	}
}

// run runs until nothing waits.
func (q *queue) run(ended chan struct{}) {
	defer close(ended)
	for f := q.next(); f != nil; f = q.next() {
		f()
	}
}

// next returns the function to run next, nil when the goroutine is to end.
func (q *queue) next() func() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.waiting) > 0 {
		first := q.waiting[0]
		q.waiting = q.waiting[1:]
		wait.Signal(q.moved)
		if first.vital || !q.muted {
			return first.run
		}
	}
	q.waiting, q.ended, q.full = nil, nil, time.Time{}
	return nil
}

// finish closes the queue and returns when all functions have run. With mute,
// those that are waiting run only if they are vital.
func (q *queue) finish(mute bool) {
	q.mu.Lock()
	q.closed, q.muted = true, mute
	ended, moved := q.ended, q.moved
	q.mu.Unlock()
	if ended != nil { // somebody may wait for room
		wait.Signal(moved)
		<-ended
	}
}
