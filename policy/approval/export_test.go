package approval

import (
	"math"
	"slices"
)

// Moves returns the states that from may change to, nil when it is final.
func Moves(from State) []State { return slices.Clone(moves[from]) }

// Woken returns a channel that has a token when those who wait for a ticket are woken.
func (t *Tickets) Woken(id string) <-chan struct{} {
	woken, _ := t.waiters.join(id)
	return woken
}

// Waiting returns the number of tickets that somebody waits for.
func (t *Tickets) Waiting() int {
	t.waiters.mu.Lock()
	defer t.waiters.mu.Unlock()
	return len(t.waiters.of)
}

// NeverPoll lets Wait look at tickets only when it is woken. It comes before the first Wait.
func (t *Tickets) NeverPoll() { t.poll = math.MaxInt64 }

// PollEvery is how often Wait looks at a ticket without being woken.
const PollEvery = pollEvery
