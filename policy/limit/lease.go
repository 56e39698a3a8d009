package limit

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"math"
	"time"

	xrate "golang.org/x/time/rate"
)

const (
	// leaseTime is the time in which all replicas together spend their leases, at the rate
	// of the bucket. A slower bucket has leases of one token.
	leaseTime = 100 * time.Millisecond
	// leaseLife is how long a leased token can be spent. The rest of a lease is lost.
	leaseLife = time.Second
	// unknownWait is the suggested wait while no share is known.
	unknownWait = time.Second
)

// lease is what a replica knows of a bucket on the server. Its fields are protected by
// the mutex of its Limiter.
type lease struct {
	key     string    // of the bucket on the server
	tokens  int       // taken from the server and not spent
	ends    time.Time // when tokens are lost
	taking  bool      // a trip for more tokens is under way
	empty   time.Time // no replica gets a token before
	left    int64     // tokens on the server after the last trip
	leftAt  time.Time // when that was; zero = there was no trip
	spent   int64     // tokens spent while the server was away, which it does not know
	outage  uint64    // for which the local share was made
	divided int       // by how many replicas the local share is divided
}

// newLease returns the lease of a bucket. The key on the server has no names in it.
func (l *Limiter) newLease(d *demand) *lease {
	name := "policy"
	if d.rule != nil {
		name = d.rule.shared
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%q", []string{l.name, name, d.key.policyKey, d.key.subject, d.key.tenant}))
	return &lease{key: keyPrefix + base64.RawURLEncoding.EncodeToString(sum[:18])}
}

// held returns the leased tokens that can be spent.
func (l *lease) held(now time.Time) int {
	if !now.Before(l.ends) {
		l.tokens = 0
	}
	return l.tokens
}

// size returns how many tokens this replica leases at once. The leases of all replicas
// are at most what the rate gives in leaseTime, and at most the burst.
func (b *bucket) size(replicas int64) int {
	most := min(float64(b.rate.limit())*leaseTime.Seconds(), float64(b.rate.burst()))
	return max(1, int(most/float64(replicas)))
}

// ask is what one trip wants from a bucket, and what the server answered.
type ask struct {
	b           *bucket
	rate        Rate // of b when the trip began
	must, more  int
	spent       int64
	taken, left int64
	wait        time.Duration // until a token is left
}

// spendSharedLocked is Spend for buckets on the server, or for local shares of them
// while it is away. The caller must hold l.mu, which is free during a trip.
func (l *Limiter) spendSharedLocked(wanted []demand, now time.Time) *Exceeded {
	if len(wanted) == 0 {
		return nil
	}
	if l.shared.down.Load() {
		return l.spendLocalLocked(wanted, now)
	}
	missing := 0
	var late refusal
	for i := range wanted {
		if lease := wanted[i].bucket.lease; lease.held(now) == 0 {
			missing++
			late.add(&wanted[i], lease.empty.Sub(now))
		}
	}
	if late.wait > 0 {
		return late.exceeded()
	}
	for i := range wanted {
		if lease := wanted[i].bucket.lease; lease.tokens > 0 {
			lease.tokens--
			wanted[i].leased = true
		}
	}
	if missing > 0 {
		if over := l.takeMissingLocked(wanted, now); over != nil {
			return over
		}
	}
	l.topUpLocked(wanted, now)
	return nil
}

// takeMissingLocked makes one trip for the tokens that a call misses. When the call is
// refused, its leased tokens go back. The caller must hold l.mu, which is free during the trip.
func (l *Limiter) takeMissingLocked(wanted []demand, now time.Time) *Exceeded {
	var asks []ask
	var missing []*demand
	for i := range wanted {
		d := &wanted[i]
		if d.leased {
			continue
		}
		a := ask{b: d.bucket, must: 1}
		if size := d.bucket.size(l.shared.replicas.Load()); size > 1 && !d.bucket.lease.taking { // else another trip brings the lease
			d.bucket.lease.taking, a.more = true, size
		}
		asks, missing = append(asks, a), append(missing, d)
	}
	err := l.tripLocked(asks, now)
	refused := err != nil
	var late refusal
	for i, a := range asks {
		if a.taken == 0 {
			refused = true
			late.add(missing[i], max(a.wait, 1))
		}
	}
	if !refused {
		return nil
	}
	for i := range wanted {
		if wanted[i].leased {
			wanted[i].bucket.lease.tokens++
		}
	}
	if err != nil {
		return l.spendLocalLocked(wanted, now)
	}
	return late.exceeded()
}

// topUpLocked leases more tokens in the background for buckets of which half a lease is
// spent. The caller must hold l.mu.
func (l *Limiter) topUpLocked(wanted []demand, now time.Time) {
	var asks []ask
	for i := range wanted {
		b := wanted[i].bucket
		size := b.size(l.shared.replicas.Load())
		if size > 1 && b.lease.tokens <= size/2 && !b.lease.taking && !now.Before(b.lease.empty) {
			b.lease.taking = true
			asks = append(asks, ask{b: b, more: size - b.lease.tokens})
		}
	}
	if asks == nil {
		return
	}
	l.shared.topUps.Go(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		_ = l.tripLocked(asks, now) // the next call without a token notices
	})
}

// tripLocked asks the server, and notes its answers: what was taken beyond must is
// leased. The caller must hold l.mu, which is free during the trip.
func (l *Limiter) tripLocked(asks []ask, now time.Time) error {
	for i := range asks {
		asks[i].spent, asks[i].rate = asks[i].b.lease.spent, asks[i].b.rate
	}
	l.mu.Unlock()
	err := l.shared.take(asks)
	l.mu.Lock()
	for i := range asks {
		a := &asks[i]
		lease := a.b.lease
		if a.more > 0 {
			lease.taking = false
		}
		if err != nil {
			continue
		}
		lease.spent -= a.spent
		lease.left, lease.leftAt, lease.empty = a.left, now, now.Add(a.wait)
		if extra := int(a.taken) - a.must; extra > 0 {
			lease.tokens, lease.ends = lease.held(now)+extra, now.Add(leaseLife)
		}
	}
	return err
}

// take runs one script for all asks. An error means that the server is away.
func (s *Shared) take(asks []ask) error {
	keys, args := make([]string, len(asks)), make([]any, 0, 5*len(asks))
	for i, a := range asks {
		keys[i] = a.b.lease.key
		args = append(args, float64(a.rate.limit())/1e6, a.rate.burst(), a.spent, a.must, a.more)
	}
	ctx, stop := context.WithTimeout(context.Background(), s.patience())
	defer stop()
	s.trips.Add(1)
	began := time.Now()
	got, err := s.opts.Server.Run(ctx, takeScript, keys, args...)
	if err == nil || ctx.Err() != nil { // an answer that did not come took at least as long
		s.measured(time.Since(began))
	}
	if err == nil && len(got) != 3*len(asks) {
		err = errAnswer
	}
	if err != nil {
		s.fail(err)
		return err
	}
	for i := range asks {
		asks[i].taken, asks[i].left = got[3*i], got[3*i+1]
		asks[i].wait = time.Duration(min(got[3*i+2], math.MaxInt64/2000)) * time.Microsecond
	}
	return nil
}

// spendLocalLocked is Spend while the server is away: from this replica's share of each
// bucket. It refuses when no share is known. The caller must hold l.mu.
func (l *Limiter) spendLocalLocked(wanted []demand, now time.Time) *Exceeded {
	l.shared.local.Add(1)
	n := l.shared.share()
	if n == 0 {
		return refusal{wanted[0], unknownWait}.exceeded()
	}
	for i := range wanted {
		wanted[i].bucket.divide(n, l.shared.outage.Load(), now)
	}
	if over := spendTokens(wanted, now); over != nil {
		return over
	}
	for i := range wanted {
		wanted[i].bucket.lease.spent++
	}
	return nil
}

// divide makes the local share of b for an outage: 1/n of its rate and burst, with 1/n of
// the tokens that the server had, as far as this replica knows. A burst is at least one.
func (b *bucket) divide(n int, outage uint64, now time.Time) {
	l := b.lease
	if l.outage == outage && l.divided == n {
		return
	}
	limit, burst := b.rate.limit()/xrate.Limit(n), max(1, b.rate.burst()/n)
	tokens := float64(b.rate.burst()) / float64(n)
	if !l.leftAt.IsZero() {
		tokens = min(tokens, float64(l.left)/float64(n)+now.Sub(l.leftAt).Seconds()*float64(limit))
	}
	tokens = max(0, tokens-float64(l.spent))
	b.tokens = xrate.NewLimiter(limit, burst)
	if tokens < float64(burst) { // it was emptied when it would have tokens by now
		b.tokens.AllowN(now.Add(-time.Duration(min(tokens/float64(limit)*1e9, math.MaxInt64/2))), burst)
	}
	l.outage, l.divided, l.tokens = outage, n, 0
}

// repay takes from the buckets on the server what was spent while it was away.
func (s *Shared) repay() error {
	s.mu.Lock()
	limiters := s.limiters
	s.mu.Unlock()
	for _, l := range limiters {
		if err := l.repay(); err != nil {
			return err
		}
	}
	return nil
}

func (l *Limiter) repay() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var asks []ask
	for _, b := range l.buckets.Values() {
		if b.lease.spent > 0 {
			asks = append(asks, ask{b: b})
		}
	}
	for len(asks) > 0 {
		n := min(maxAsks, len(asks))
		if err := l.tripLocked(asks[:n], l.latest); err != nil {
			return err
		}
		asks = asks[n:]
	}
	return nil
}
