package limit

import (
	"time"

	xrate "golang.org/x/time/rate"

	"github.com/toolgate/toolgate/policy"
)

// evictionScan is how many of the longest unused buckets are looked at for one
// that may be forgotten; it bounds what a single call can cost.
const evictionScan = 64

// bucketLocked returns the bucket of key, set to rate, and marks it as used.
// It returns nil when the rate is not valid or there is no room.
func (l *Limiter) bucketLocked(key bucketKey, rate Rate, now time.Time) *bucket {
	if !rate.valid() {
		return nil
	}
	b := l.buckets[key]
	if b == nil {
		if len(l.buckets) >= l.maxBuckets && !l.evictLocked(now) {
			return nil
		}
		b = &bucket{key: key, rate: rate, tokens: xrate.NewLimiter(rate.limit(), rate.burst())}
		l.buckets[key] = b
	} else {
		b.unlink()
		b.adjust(rate, now)
	}
	b.linkBefore(&l.oldest)
	return b
}

// adjust gives b another rate. What has been spent stays spent: a larger
// bucket does not start full.
func (b *bucket) adjust(rate Rate, now time.Time) {
	if b.rate == rate {
		return
	}
	b.tokens.SetLimitAt(now, rate.limit())
	b.tokens.SetBurstAt(now, rate.burst())
	b.rate = rate
}

func (b *bucket) full(now time.Time) bool {
	return b.tokens.TokensAt(now) >= float64(b.rate.burst())
}

// evictLocked forgets one bucket that is full, and reports whether it found one.
func (l *Limiter) evictLocked(now time.Time) bool {
	b := l.oldest.next
	for range evictionScan {
		if b == &l.oldest {
			return false
		}
		if b.full(now) {
			l.removeLocked(b)
			return true
		}
		b = b.next
	}
	return false
}

func (l *Limiter) removeLocked(b *bucket) {
	b.unlink()
	delete(l.buckets, b.key)
}

func (b *bucket) unlink() {
	b.prev.next, b.next.prev = b.next, b.prev
}

func (b *bucket) linkBefore(at *bucket) {
	b.prev, b.next = at.prev, at
	at.prev.next, at.prev = b, b
}

// noRoomLocked is the refusal for want of a bucket: room comes when one of the
// longest unused buckets is full again. An invalid rate never passes.
func (l *Limiter) noRoomLocked(name string, rate Rate, p *policy.Principal, now time.Time) *Exceeded {
	e := &Exceeded{Rule: name, Scope: p.Subject, Limit: rate.String()}
	if !rate.valid() {
		return e
	}
	b := l.oldest.next
	for range evictionScan {
		if b == &l.oldest {
			break
		}
		missing := float64(b.rate.burst()) - b.tokens.TokensAt(now)
		wait := time.Duration(missing / float64(b.rate.limit()) * float64(time.Second))
		if e.RetryAfter == 0 || wait < e.RetryAfter {
			e.RetryAfter = max(wait, time.Nanosecond)
		}
		b = b.next
	}
	return e
}
