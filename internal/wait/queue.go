package wait

import "sync"

// pieceCost is counted in addition to the bytes of a piece of work that waits in a Queue.
const pieceCost = 512

// A Queue begins pieces of work in the order in which they are added. Some run side by
// side; the others wait, bounded by their bytes. It is safe for concurrent use.
type Queue struct {
	// Moved gets a Signal when work that waited has begun. Others may signal it too, to have
	// whoever waits for room look again.
	Moved chan struct{}

	run   func(work func())
	slots int
	bytes int

	mu      sync.Mutex // protects the fields below
	running int
	waiting []piece // in order; only while running == slots
	held    int     // cost of waiting
}

// A piece is one piece of work that waits.
type piece struct {
	work func()
	cost int
}

// NewQueue returns a Queue that runs at most slots pieces of work at a time, each through
// run, which calls it on another goroutine. Those that wait have at most the given bytes,
// and 512 of them are counted for each in addition to its own; one may always wait.
func NewQueue(slots, bytes int, run func(work func())) *Queue {
	return &Queue{run: run, slots: slots, bytes: bytes, Moved: make(chan struct{}, 1)}
}

// Add begins work, or lets it wait with its size in bytes. It returns false for ok, and
// drops work, when too much waits.
func (q *Queue) Add(size int, work func()) (began, ok bool) {
	q.mu.Lock()
	if q.running < q.slots {
		q.running++
		q.mu.Unlock()
		q.run(func() {
			for ; work != nil; work = q.next() {
				work()
			}
		})
		return true, true
	}
	defer q.mu.Unlock()
	cost := size + pieceCost
	if len(q.waiting) > 0 && q.held+cost > q.bytes {
		return false, false
	}
	q.waiting, q.held = append(q.waiting, piece{work, cost}), q.held+cost
	return false, true
}

// next returns the work that has waited longest, nil when none waits.
func (q *Queue) next() func() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.waiting) == 0 {
		q.running--
		return nil
	}
	first := q.waiting[0]
	q.waiting[0] = piece{}
	q.waiting, q.held = q.waiting[1:], q.held-first.cost
	Signal(q.Moved)
	return first.work
}

// Busy reports whether work runs or waits.
func (q *Queue) Busy() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.running > 0
}
