// Package limit spends calls from token buckets (golang.org/x/time/rate).
//
// Every matching rule is a bucket of its own for every principal: a rule that
// names a tool and a role limits each principal with that role on that tool,
// and nobody spends from somebody else's bucket. A call spends one token from
// each bucket that it matches, or none at all. The default is one more bucket
// per principal, shared by all calls that no rule matches.
//
// The buckets are those of this process, or those of all replicas when the Limiter is
// made with [NewOn].
package limit

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	xrate "golang.org/x/time/rate"

	"github.com/toolgate/toolgate/internal/text"
	"github.com/toolgate/toolgate/policy"
)

// DefaultMaxBuckets bounds the buckets that a Limiter remembers.
const DefaultMaxBuckets = 100_000

// Rule is a rate for the calls that match every selector that is set; a rule
// without selectors matches every call.
type Rule struct {
	Tool      string // as agents call it (policy.Tool.Exposed)
	Role      string // one that the principal has
	Server    string // name of the upstream
	Principal string // subject
	Tenant    string // of the principal
	Rate      Rate
}

// matches reports whether r governs a call of t by p.
func (r *Rule) matches(p *policy.Principal, t *policy.Tool) bool {
	return (r.Tool == "" || r.Tool == t.Exposed) &&
		(r.Server == "" || r.Server == t.Server) &&
		(r.Principal == "" || r.Principal == p.Subject) &&
		(r.Tenant == "" || r.Tenant == p.Tenant) &&
		(r.Role == "" || p.Has(r.Role))
}

// String names the rule by its selectors: "tool=search_internet role=researcher".
func (r Rule) String() string {
	var parts []string
	for _, s := range [...]struct{ name, value string }{
		{"tool", r.Tool}, {"role", r.Role}, {"server", r.Server}, {"principal", r.Principal}, {"tenant", r.Tenant},
	} {
		if s.value != "" {
			parts = append(parts, s.name+"="+s.value)
		}
	}
	if parts == nil {
		return "every call"
	}
	return strings.Join(parts, " ")
}

// Rules is a whole configuration of limits.
type Rules struct {
	Default *Rate // nil = calls that no rule matches are not limited
	Rules   []Rule
}

// Exceeded says why a call was refused.
type Exceeded struct {
	Rule       string        // which limit: "default", a rule's selectors, or "policy KEY"
	Scope      string        // whose bucket: the principal's subject
	Limit      string        // the rate, as in "10/1m"
	RetryAfter time.Duration // until a like call would pass if nothing else is spent; 0 = not by waiting
}

// Buckets keep tokens that several replicas share. They are safe for concurrent use.
type Buckets interface {
	// Spend takes one token from each bucket, of at least one, and returns 0, 0, or it takes none
	// and returns the bucket with the longest wait.
	Spend(now time.Time, wanted []Bucket) (late int, wait time.Duration)
	// Left returns the tokens of the buckets that this replica has used lately, as it knows them.
	Left(now time.Time) map[Bucket]float64
}

// Bucket is a bucket that replicas share. One whose rate alone has changed is still the same.
type Bucket struct {
	Rule            string // the limit's name; "policy" = the policy asks for the bucket
	Key             string // under which it does
	Subject, Tenant string
	Rate            Rate
}

// Limiter holds the buckets. It is safe for concurrent use. It fails closed: an
// invalid rate and a bucket for which there is no room refuse the call.
type Limiter struct {
	shared Buckets // nil = the buckets are this process's own

	mu         sync.Mutex // protects the fields below
	rules      []*rule
	fallback   *rule                              // nil = no default
	buckets    *simplelru.LRU[bucketKey, *bucket] // its own bound is never reached
	maxBuckets int
	latest     time.Time // no clock step back refills or empties a bucket
	nextID     uint64
}

// rule is a Rule with the id and name under which its buckets are kept.
type rule struct {
	Rule
	id     uint64
	name   string
	shared string // its name among replicas: without its rate, so that a new one keeps what was spent
}

type bucketKey struct {
	rule            uint64 // 0 = asked for by the policy, under policyKey
	policyKey       string
	subject, tenant string
}

type bucket struct {
	rate   Rate
	tokens *xrate.Limiter
}

// demand is one bucket that a call needs.
type demand struct {
	rule   *rule // nil = the bucket that the policy asks for
	key    bucketKey
	rate   Rate
	bucket *bucket
}

// New returns a Limiter with full buckets. A rule whose rate is invalid refuses
// every call that it matches.
func New(r Rules) *Limiter { return NewSized(r, DefaultMaxBuckets) }

// NewSized is New with room for at most maxBuckets buckets, at least 1. When
// there is no room, a full bucket among the least recently used is removed,
// which changes no decision; if none is full, the call is refused.
func NewSized(r Rules, maxBuckets int) *Limiter {
	maxBuckets = max(1, maxBuckets)
	buckets, _ := simplelru.NewLRU[bucketKey, *bucket](maxBuckets+1, nil) // an error means a size below 1
	l := &Limiter{buckets: buckets, maxBuckets: maxBuckets}
	l.Apply(r)
	return l
}

// NewOn is New with shared buckets.
func NewOn(shared Buckets, r Rules) *Limiter {
	l := New(r)
	l.shared = shared
	return l
}

// Apply replaces all rules at once. Buckets of a rule that remains keep what
// was spent, even when only its rate has changed.
func (l *Limiter) Apply(r Rules) {
	l.mu.Lock()
	defer l.mu.Unlock()
	old, before := l.rules, []*rule{l.fallback}
	l.rules, l.fallback = nil, nil
	alike := make(map[Rule]int)
	for _, next := range r.Rules {
		of := next
		of.Rate = Rate{}
		alike[of]++
		added := l.adoptLocked(old, next, next.String())
		added.shared = fmt.Sprintf("%q %d", []string{of.Tool, of.Role, of.Server, of.Principal, of.Tenant}, alike[of])
		l.rules = append(l.rules, added)
	}
	if r.Default != nil {
		l.fallback = l.adoptLocked(before, Rule{Rate: *r.Default}, "default")
		l.fallback.shared = "default"
	}
	live := []uint64{0}
	for _, r := range slices.Concat(l.rules, []*rule{l.fallback}) {
		if r != nil {
			live = append(live, r.id)
		}
	}
	for _, key := range l.buckets.Keys() {
		if !slices.Contains(live, key.rule) {
			l.buckets.Remove(key)
		}
	}
}

// adoptLocked makes a rule with the id of the first unclaimed old one that is the
// same, else of one that differs by its rate only, else with a new id. The caller must
// hold l.mu.
func (l *Limiter) adoptLocked(old []*rule, next Rule, name string) *rule {
	find := func(same func(a, b Rule) bool) int {
		return slices.IndexFunc(old, func(was *rule) bool { return was != nil && same(was.Rule, next) })
	}
	i := find(func(a, b Rule) bool { return a == b })
	if i < 0 {
		i = find(func(a, b Rule) bool { a.Rate = b.Rate; return a == b })
	}
	if i < 0 {
		l.nextID++
		return &rule{Rule: next, id: l.nextID, name: name}
	}
	id := old[i].id
	old[i] = nil
	return &rule{Rule: next, id: id, name: name}
}

// Spend takes one token for a call of t by p from every bucket that the call
// matches, and from extra when the policy asks for one. It returns nil when all
// had a token; otherwise nothing was spent and Exceeded describes the bucket
// with the longest wait.
//
// The bucket for extra belongs to this principal and extra.Key ("" = the
// exposed name of the tool); calls with different rates under one key share it.
//
// Buckets created for a call that is then refused are full, so they change nothing.
func (l *Limiter) Spend(now time.Time, p policy.Principal, t policy.Tool, extra *policy.Limit) *Exceeded {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.Before(l.latest) {
		now = l.latest
	}
	l.latest = now
	var few [8]demand
	wanted := few[:0]
	for _, r := range l.rules {
		if r.matches(&p, &t) {
			wanted = append(wanted, demand{rule: r, rate: r.Rate, key: bucketKey{rule: r.id}})
		}
	}
	if len(wanted) == 0 && l.fallback != nil {
		wanted = append(wanted, demand{rule: l.fallback, rate: l.fallback.Rate, key: bucketKey{rule: l.fallback.id}})
	}
	if extra != nil {
		d := demand{key: bucketKey{policyKey: cmp.Or(extra.Key, t.Exposed)}}
		d.rate, _ = ParseRate(extra.Rate) // an invalid rate has no bucket
		d.rate.Burst = extra.Burst
		wanted = append(wanted, d)
	}
	if l.shared != nil {
		return l.spendSharedLocked(now, slices.Clone(wanted), &p) // a clone: the demands of other calls need no allocation
	}
	for i := range wanted {
		d := &wanted[i]
		d.key.subject, d.key.tenant = p.Subject, p.Tenant
		b, known := l.buckets.Get(d.key) // and marks it as used
		switch {
		case known && b.rate == d.rate:
		case !d.rate.valid():
			return d.exceeded(0)
		case known: // spent tokens stay spent: a larger bucket does not start full
			b.rate = d.rate
			b.tokens.SetLimitAt(now, xrate.Limit(d.rate.PerSecond()))
			b.tokens.SetBurstAt(now, d.rate.Size())
		default:
			if wait := l.makeRoomLocked(now); wait > 0 {
				return d.exceeded(wait)
			}
			b = &bucket{d.rate, xrate.NewLimiter(xrate.Limit(d.rate.PerSecond()), d.rate.Size())}
			l.buckets.Add(d.key, b)
		}
		d.bucket = b
	}
	var late *demand
	var longest time.Duration
	for i := range wanted {
		if wait := wanted[i].bucket.until(1, now); wait > longest {
			late, longest = &wanted[i], wait
		}
	}
	if late != nil {
		return late.exceeded(longest)
	}
	for i := range wanted {
		wanted[i].bucket.tokens.AllowN(now, 1)
	}
	return nil
}

// spendSharedLocked is Spend for shared buckets. The caller must hold l.mu, which is free meanwhile.
func (l *Limiter) spendSharedLocked(now time.Time, wanted []demand, p *policy.Principal) *Exceeded {
	l.mu.Unlock()
	defer l.mu.Lock()
	shared := make([]Bucket, len(wanted))
	for i := range wanted {
		d := &wanted[i]
		d.key.subject = p.Subject
		if !d.rate.valid() {
			return d.exceeded(0)
		}
		shared[i] = Bucket{"policy", d.key.policyKey, p.Subject, p.Tenant, d.rate}
		if d.rule != nil {
			shared[i].Rule = d.rule.shared
		}
	}
	if len(shared) == 0 {
		return nil
	}
	if late, wait := l.shared.Spend(now, shared); wait > 0 {
		return wanted[late].exceeded(wait)
	}
	return nil
}

// exceeded is the refusal for d, which has a token after wait.
func (d *demand) exceeded(wait time.Duration) *Exceeded {
	name := "policy " + d.key.policyKey
	if d.rule != nil {
		name = d.rule.name
	}
	return &Exceeded{Rule: name, Scope: d.key.subject, Limit: d.rate.String(), RetryAfter: wait}
}

// until returns how long a bucket takes to hold so many tokens, 0 when it does.
func (b *bucket) until(tokens float64, now time.Time) time.Duration {
	missing := (tokens - b.tokens.TokensAt(now)) / float64(b.tokens.Limit())
	return time.Duration(min(float64(time.Second)*max(missing, 0), math.MaxInt64/2))
}

// evictionScan is how many of the least recently used buckets are examined for
// eviction. It bounds the cost of one call.
const evictionScan = 64

// makeRoomLocked removes one full bucket, which changes no decision, when there is no
// room for another bucket. When it examines none that is full, it returns the time
// until one of those is. The caller must hold l.mu.
func (l *Limiter) makeRoomLocked(now time.Time) (wait time.Duration) {
	if l.buckets.Len() < l.maxBuckets {
		return 0
	}
	for range evictionScan {
		key, b, _ := l.buckets.GetOldest()
		full := b.until(float64(b.rate.Size()), now)
		if full == 0 {
			l.buckets.Remove(key)
			return 0
		}
		l.buckets.Get(key) // the next scan examines others
		if wait == 0 || full < wait {
			wait = full
		}
	}
	return wait
}

// Rate is the refill of a bucket: Count calls in every Per, Burst at once.
type Rate struct {
	Count int           // more than 0
	Per   time.Duration // more than 0
	Burst int           // size of the bucket; 0 = Count
}

// ParseRate parses COUNT/DURATION, for example "60/1m": a whole count and a
// duration with a unit, both above zero. Burst is left at 0, which means the
// count. An error carries a hint.
func ParseRate(s string) (Rate, error) {
	count, per, ok := policy.ParseRate(s)
	if !ok {
		return Rate{}, fmt.Errorf("invalid rate %q\nhint: write COUNT/DURATION, for example 60/1m", s)
	}
	return Rate{Count: count, Per: per}, nil
}

// String returns the form that ParseRate parses, without the burst.
func (r Rate) String() string {
	return strconv.Itoa(r.Count) + "/" + text.Duration(r.Per)
}

func (r Rate) valid() bool { return r.Count > 0 && r.Per > 0 && r.Burst >= 0 }

// Size returns how many tokens a bucket has when it is full.
func (r Rate) Size() int { return cmp.Or(max(r.Burst, 0), r.Count) }

// PerSecond returns how many tokens a bucket gets in a second.
func (r Rate) PerSecond() float64 { return float64(r.Count) / r.Per.Seconds() }
