package app

import (
	"slices"
	"sync"
	"time"

	"github.com/toolgate/toolgate/console"
)

// latencyCalls is how many calls of a server latencies keeps.
const latencyCalls = 512

// latencies keep how long the last calls of each server took. They are safe for concurrent use.
type latencies struct {
	mu       sync.Mutex            // protects byServer and what is in it
	byServer map[string]*lastCalls // servers of the configuration, and of former ones
}

// lastCalls are the times of the last calls of one server, in no order.
type lastCalls struct {
	took [latencyCalls]time.Duration
	all  int // that were noted
}

// note notes a call that a server has answered. Calls wait for it: it allocates with the first call of a server
// only.
func (l *latencies) note(server string, took time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	k := l.byServer[server]
	if k == nil {
		if l.byServer == nil {
			l.byServer = make(map[string]*lastCalls)
		}
		k = new(lastCalls)
		l.byServer[server] = k
	}
	k.took[k.all%latencyCalls] = took
	k.all++
}

// of returns how long the last calls of a server took, nil before the first.
func (l *latencies) of(server string) *console.Latency {
	l.mu.Lock()
	k := l.byServer[server]
	if k == nil {
		l.mu.Unlock()
		return nil
	}
	took := slices.Clone(k.took[:min(k.all, latencyCalls)])
	l.mu.Unlock()
	slices.Sort(took)
	at := func(share float64) float64 {
		return float64(took[int(share*float64(len(took)-1)+.5)].Microseconds()) / 1000
	}
	return &console.Latency{Calls: len(took), MedianMS: at(.5), P99MS: at(.99)}
}
