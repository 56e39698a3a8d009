package fleet

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/toolgate/toolgate/policy/limit"
)

const (
	// leaseTime is the time in which all replicas together spend their leases, at the rate
	// of the bucket. A slower bucket has leases of one token.
	leaseTime = 100 * time.Millisecond
	// leaseLife is how long a leased token can be spent. The rest of a lease is lost.
	leaseLife = time.Second
	// unknownWait is the suggested wait while no share is known.
	unknownWait = time.Second
	// maxAsks is how many buckets one script takes from.
	maxAsks = 64
	// forgetScan is how many of the least recently used buckets are examined for one that can be
	// forgotten.
	forgetScan = 64
)

// takeScript takes tokens from the buckets KEYS, all on the server's clock. For each it
// reads five arguments: the tokens that a microsecond adds, the burst, the tokens that were spent
// while the server was away, those that a call must have, and those that it takes if they are there.
// It takes from no bucket unless each has what a call must have. For each it answers the
// tokens taken, the whole tokens left, and the microseconds until one is left. A full
// bucket has no key. When the clock steps back, nothing is added until it has caught up.
const takeScript = `
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local ok, buckets, answer = true, {}, {}
for i, key in ipairs(KEYS) do
	local a = i * 5 - 4
	local b = {rate = tonumber(ARGV[a]), burst = tonumber(ARGV[a+1]), spent = tonumber(ARGV[a+2]),
		must = tonumber(ARGV[a+3]), more = tonumber(ARGV[a+4]), at = now}
	b.tokens = b.burst
	local text = redis.call('GET', key)
	if text then
		local tokens, at = string.match(text, '^(%S+) (%d+)$')
		tokens, at = tonumber(tokens) or 0, tonumber(at) or now
		b.at = math.max(now, at)
		b.tokens = math.min(b.burst, tokens + (b.at - at) * b.rate)
	end
	b.tokens = math.max(0, b.tokens - b.spent)
	ok = ok and b.tokens >= b.must
	buckets[i] = b
end
for i, key in ipairs(KEYS) do
	local b, taken = buckets[i], 0
	if ok then
		taken = b.must + math.min(b.more, math.floor(b.tokens - b.must))
		b.tokens = b.tokens - taken
	end
	if taken > 0 or b.spent > 0 then
		local full = math.ceil((b.burst - b.tokens) / b.rate / 1000) + 1
		redis.call('SET', key, string.format('%.17g %.0f', b.tokens, b.at), 'PX', string.format('%.0f', full))
	end
	answer[i*3-2], answer[i*3-1] = taken, math.floor(b.tokens)
	answer[i*3] = math.ceil(math.max(0, 1 - b.tokens) / b.rate)
end
return answer`

// buckets are the buckets of one limiter. They implement limit.Buckets.
type buckets struct {
	limits *Limits
	name   string // of the limiter

	mu     sync.Mutex                            // protects the fields below, and those of each bucket; free during a trip
	known  *simplelru.LRU[limit.Bucket, *bucket] // by bucket without its rate; its own bound is never reached
	latest time.Time
}

// bucket is what a replica knows of a bucket on the server.
type bucket struct {
	rate   limit.Rate
	key    string    // on the server
	tokens int       // leased and not spent
	ends   time.Time // when tokens are lost
	taking bool      // a trip for more tokens is under way
	empty  time.Time // no replica gets a token before
	left   int64     // tokens on the server after the last trip
	leftAt time.Time // when that was; zero = there was no trip
	spent  int64     // tokens spent while the server was away, which it does not know
	share  share
}

// share is what a replica allows of a bucket during an outage.
type share struct {
	outage           uint64
	divided          int // by how many replicas
	perSecond, burst float64
	tokens           float64 // at time at
	at               time.Time
}

// Spend implements limit.Buckets.
func (s *buckets) Spend(now time.Time, wanted []limit.Bucket) (late int, wait time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.latest = now
	all := make([]*bucket, len(wanted))
	for i, w := range wanted {
		if all[i] = s.bucketLocked(w); all[i] == nil {
			return i, unknownWait
		}
	}
	if s.limits.down.Load() {
		return s.spendLocalLocked(all, now)
	}
	var missing []*bucket
	for i, b := range all {
		if b.held(now) == 0 {
			missing = append(missing, b)
			if w := b.empty.Sub(now); w > wait {
				late, wait = i, w
			}
		}
	}
	if wait > 0 {
		return late, wait
	}
	for _, b := range all {
		if b.tokens > 0 {
			b.tokens--
		}
	}
	if len(missing) > 0 {
		if late, wait := s.takeMissingLocked(all, missing, now); wait > 0 {
			return late, wait
		}
	}
	s.topUpLocked(all, now)
	return 0, 0
}

// Left implements limit.Buckets: what the server had after the last trip, what a bucket has got since, and
// what is leased; others may have spent since. While the server is away it is this replica's share.
func (s *buckets) Left(now time.Time) map[limit.Bucket]float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make(map[limit.Bucket]float64)
	for _, key := range s.known.Keys() {
		b, _ := s.known.Peek(key)
		key.Rate = b.rate
		left := float64(b.rate.Size())
		switch {
		case s.limits.down.Load() && b.share.outage == s.limits.outage.Load():
			left = min(b.share.burst, b.share.tokens+now.Sub(b.share.at).Seconds()*b.share.perSecond)
		case !b.leftAt.IsZero():
			left = min(left, float64(b.left+int64(b.held(now))-b.spent)+now.Sub(b.leftAt).Seconds()*b.rate.PerSecond())
		}
		all[key] = left
	}
	return all
}

// bucketLocked returns a bucket, nil when there is no room for it. The caller must hold s.mu.
func (s *buckets) bucketLocked(w limit.Bucket) *bucket {
	rate := w.Rate
	w.Rate = limit.Rate{}
	b, ok := s.known.Get(w)
	switch {
	case ok && b.rate == rate:
		return b
	case ok: // the server has what was spent
		b.rate, b.empty, b.share.divided = rate, time.Time{}, 0
		return b
	}
	for scanned := 0; s.known.Len() >= limit.DefaultMaxBuckets; scanned++ {
		oldest, b, _ := s.known.GetOldest()
		switch {
		case b.spent == 0 && !b.taking: // the server remembers it
			s.known.Remove(oldest)
		case scanned == forgetScan:
			return nil
		default:
			s.known.Get(oldest) // the next scan examines others
		}
	}
	// The key on the server has no names in it.
	sum := sha256.Sum256(fmt.Appendf(nil, "%q", []string{s.name, w.Rule, w.Key, w.Subject, w.Tenant}))
	b = &bucket{rate: rate, key: limitsPrefix + base64.RawURLEncoding.EncodeToString(sum[:18])}
	s.known.Add(w, b)
	return b
}

// held returns the leased tokens that can be spent.
func (b *bucket) held(now time.Time) int {
	if !now.Before(b.ends) {
		b.tokens = 0
	}
	return b.tokens
}

// size returns how many tokens this replica leases at once. The leases of all replicas
// are at most what the rate gives in leaseTime, and at most the burst.
func (b *bucket) size(replicas int64) int {
	most := min(b.rate.PerSecond()*leaseTime.Seconds(), float64(b.rate.Size()))
	return max(1, int(most/float64(replicas)))
}

// ask is what one trip wants from a bucket, and what the server answered.
type ask struct {
	b           *bucket
	rate        limit.Rate // of b when the trip began
	must, more  int
	spent       int64
	taken, left int64
	wait        time.Duration // until a token is left
}

// takeMissingLocked makes one trip for the tokens that a call misses. When the call is
// refused, its leased tokens go back. The caller must hold s.mu, which is free during the trip.
func (s *buckets) takeMissingLocked(all, missing []*bucket, now time.Time) (late int, wait time.Duration) {
	asks := make([]ask, len(missing))
	for i, b := range missing {
		asks[i] = ask{b: b, must: 1}
		if size := b.size(s.limits.replicas.Load()); size > 1 && !b.taking { // else another trip brings the lease
			b.taking, asks[i].more = true, size
		}
	}
	err := s.tripLocked(asks, now)
	for _, a := range asks {
		if w := max(a.wait, 1); a.taken == 0 && w > wait {
			late, wait = slices.Index(all, a.b), w
		}
	}
	if wait == 0 {
		return 0, 0
	}
	for _, b := range all {
		if !slices.Contains(missing, b) {
			b.tokens++
		}
	}
	if err != nil {
		return s.spendLocalLocked(all, now)
	}
	return late, wait
}

// topUpLocked leases more tokens in the background for buckets of which half a lease is
// spent. The caller must hold s.mu.
func (s *buckets) topUpLocked(all []*bucket, now time.Time) {
	var asks []ask
	for _, b := range all {
		size := b.size(s.limits.replicas.Load())
		if size > 1 && b.tokens <= size/2 && !b.taking && !now.Before(b.empty) {
			b.taking = true
			asks = append(asks, ask{b: b, more: size - b.tokens})
		}
	}
	if asks == nil {
		return
	}
	s.limits.topUps.Go(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		_ = s.tripLocked(asks, now) // the next call without a token notices
	})
}

// tripLocked asks the server, and notes its answers: what was taken beyond must is
// leased. The caller must hold s.mu, which is free during the trip.
func (s *buckets) tripLocked(asks []ask, now time.Time) error {
	for i := range asks {
		asks[i].spent, asks[i].rate = asks[i].b.spent, asks[i].b.rate
	}
	s.mu.Unlock()
	err := s.limits.take(asks)
	s.mu.Lock()
	for _, a := range asks {
		if a.more > 0 {
			a.b.taking = false
		}
		if err != nil {
			continue
		}
		a.b.spent -= a.spent
		a.b.left, a.b.leftAt, a.b.empty = a.left, now, now.Add(a.wait)
		if extra := int(a.taken) - a.must; extra > 0 {
			a.b.tokens, a.b.ends = a.b.held(now)+extra, now.Add(leaseLife)
		}
	}
	return err
}

// take runs one script for all asks. An error means that the server is away.
func (s *Limits) take(asks []ask) error {
	keys, args := make([]string, len(asks)), make([]any, 0, 5*len(asks))
	for i, a := range asks {
		keys[i] = a.b.key
		args = append(args, a.rate.PerSecond()/1e6, a.rate.Size(), a.spent, a.must, a.more)
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
// bucket. It refuses when no share is known. The caller must hold s.mu.
func (s *buckets) spendLocalLocked(all []*bucket, now time.Time) (late int, wait time.Duration) {
	s.limits.local.Add(1)
	n := s.limits.share()
	if n == 0 {
		return 0, unknownWait
	}
	for i, b := range all {
		b.divide(n, s.limits.outage.Load(), now)
		missing := max(0, (1-b.share.tokens)/b.share.perSecond)
		if w := time.Duration(min(missing*1e9, math.MaxInt64/2)); w > wait {
			late, wait = i, w
		}
	}
	if wait > 0 {
		return late, wait
	}
	for _, b := range all {
		b.share.tokens--
		b.spent++
	}
	return 0, 0
}

// divide makes the local share of b for an outage, unless it has it: 1/n of its rate and burst, with 1/n
// of the tokens that the server had, as far as this replica knows. A burst is at least one. It adds
// the tokens that the share has got since.
func (b *bucket) divide(n int, outage uint64, now time.Time) {
	if b.share.outage == outage && b.share.divided == n {
		if elapsed := now.Sub(b.share.at).Seconds(); elapsed > 0 {
			b.share.tokens, b.share.at = min(b.share.burst, b.share.tokens+elapsed*b.share.perSecond), now
		}
		return
	}
	of := share{outage: outage, divided: n, perSecond: b.rate.PerSecond() / float64(n), burst: float64(max(1, b.rate.Size()/n)), at: now}
	of.tokens = float64(b.rate.Size()) / float64(n)
	if !b.leftAt.IsZero() {
		of.tokens = min(of.tokens, float64(b.left)/float64(n)+now.Sub(b.leftAt).Seconds()*of.perSecond)
	}
	of.tokens = min(of.burst, max(0, of.tokens-float64(b.spent)))
	b.share, b.tokens = of, 0
}

// repay takes from the buckets on the server what was spent while it was away.
func (s *buckets) repay() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var asks []ask
	for _, b := range s.known.Values() {
		if b.spent > 0 {
			asks = append(asks, ask{b: b})
		}
	}
	for some := range slices.Chunk(asks, maxAsks) {
		if err := s.tripLocked(some, s.latest); err != nil {
			return err
		}
	}
	return nil
}
