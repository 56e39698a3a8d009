package wait

import (
	"sync"
	"sync/atomic"
	"time"
)

// Workers run pieces of work side by side, on goroutines that they keep for a while: a
// new one has a small stack, which a call on its way down the road outgrows more than
// once. They are safe for concurrent use. The owner calls Finish.
type Workers struct {
	idle chan func() // has a receiver for each goroutine without work
	over chan struct{}
	kept atomic.Int64 // goroutines that have stayed after their first work
	all  sync.WaitGroup
}

const (
	maxKept = 64          // goroutines that Workers keep
	keptFor = time.Second // how long one of them waits for work
)

// NewWorkers returns Workers without a goroutine.
func NewWorkers() *Workers { return &Workers{idle: make(chan func()), over: make(chan struct{})} }

// Go runs work on a goroutine that has none, or else on a new one.
func (w *Workers) Go(work func()) {
	select {
	case w.idle <- work:
	default:
		w.all.Go(func() { w.run(work) })
	}
}

// run does work, and what comes after it while the goroutine is kept.
func (w *Workers) run(work func()) {
	work()
	defer w.kept.Add(-1)
	if w.kept.Add(1) > maxKept {
		return
	}
	for rest := time.NewTimer(keptFor); ; rest.Reset(keptFor) {
		select {
		case work := <-w.idle:
			work()
		case <-rest.C:
			return
		case <-w.over:
			return
		}
	}
}

// Finish keeps no goroutine any longer. It is called once, and returns what is done when
// all work is: nobody may call Go while that is waited for.
func (w *Workers) Finish() *sync.WaitGroup {
	close(w.over)
	return &w.all
}
