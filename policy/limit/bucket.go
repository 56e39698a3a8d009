package limit

import (
	"container/list"
	"time"

	xrate "golang.org/x/time/rate"

	"github.com/toolgate/toolgate/policy"
)

// evictionScan is how many of the least recently used buckets are examined for
// eviction. It bounds the cost of one call.
const evictionScan = 64

// bucketLocked returns the bucket of key, adjusted to rate, and marks it as
// used. It returns nil when rate is invalid or there is no room. The caller must
// hold l.mu.
func (l *Limiter) bucketLocked(key bucketKey, rate Rate, now time.Time) *bucket {
	if e := l.buckets[key]; e != nil {
		b := e.Value.(*bucket)
		if b.rate != rate && !b.adjust(rate, now) {
			return nil
		}
		l.used.MoveToBack(e)
		return b
	}
	if !rate.valid() {
		return nil
	}
	if len(l.buckets) >= l.maxBuckets && !l.evictLocked(now) {
		return nil
	}
	b := &bucket{key: key, rate: rate, tokens: xrate.NewLimiter(rate.limit(), rate.burst())}
	l.buckets[key] = l.used.PushBack(b)
	return b
}

// adjust changes the rate of b and reports whether rate is valid. Spent tokens
// stay spent: a larger bucket does not start full.
func (b *bucket) adjust(rate Rate, now time.Time) bool {
	if !rate.valid() {
		return false
	}
	b.tokens.SetLimitAt(now, rate.limit())
	b.tokens.SetBurstAt(now, rate.burst())
	b.rate = rate
	return true
}

// evictLocked removes one full bucket among the least recently used and reports
// whether it found one. Removing a full bucket changes no decision. The caller
// must hold l.mu.
func (l *Limiter) evictLocked(now time.Time) bool {
	e := l.used.Front()
	for n := 0; e != nil && n < evictionScan; n++ {
		if b := e.Value.(*bucket); b.tokens.TokensAt(now) >= float64(b.rate.burst()) {
			l.removeLocked(e)
			return true
		}
		e = e.Next()
	}
	return false
}

// removeLocked removes the bucket in e. The caller must hold l.mu.
func (l *Limiter) removeLocked(e *list.Element) {
	delete(l.buckets, l.used.Remove(e).(*bucket).key)
}

// noRoomLocked returns the refusal of a call whose bucket has no room.
// RetryAfter is when one of the least recently used buckets is full again. An
// invalid rate never passes. The caller must hold l.mu.
func (l *Limiter) noRoomLocked(name string, rate Rate, p *policy.Principal, now time.Time) *Exceeded {
	refused := &Exceeded{Rule: name, Scope: p.Subject, Limit: rate.String()}
	if !rate.valid() {
		return refused
	}
	e := l.used.Front()
	for n := 0; e != nil && n < evictionScan; n++ {
		b := e.Value.(*bucket)
		missing := float64(b.rate.burst()) - b.tokens.TokensAt(now)
		wait := time.Duration(missing / float64(b.rate.limit()) * float64(time.Second))
		if refused.RetryAfter == 0 || wait < refused.RetryAfter {
			refused.RetryAfter = max(wait, time.Nanosecond)
		}
		e = e.Next()
	}
	return refused
}
