package limit

import "time"

const (
	// DefaultPatience is how much longer than usual a call waits for the server, at least.
	DefaultPatience = 25 * time.Millisecond
	// LongestPatience bounds every wait. A server that usually takes longer counts as away.
	LongestPatience = 500 * time.Millisecond
)

// roundTrip estimates how long the server usually takes to answer (RFC 6298, section 2).
type roundTrip struct{ smoothed, variation time.Duration }

// add adds a measurement.
func (r *roundTrip) add(took time.Duration) {
	if r.smoothed == 0 {
		r.smoothed, r.variation = took, took/2
		return
	}
	r.variation += ((r.smoothed - took).Abs() - r.variation) / 4
	r.smoothed += (took - r.smoothed) / 8
}

// measured adds the time of one trip.
func (s *Shared) measured(took time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.usual.add(took)
}

// patience returns how long a trip may take: what is usual and four times its variation, which counts
// as SharedOptions.Patience at least.
func (s *Shared) patience() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return min(s.usual.smoothed+max(s.opts.Patience, 4*s.usual.variation), s.longest())
}

// longest returns the most that patience can be.
func (s *Shared) longest() time.Duration { return max(s.opts.Patience, LongestPatience) }
