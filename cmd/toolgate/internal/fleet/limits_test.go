package fleet_test

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/fleet"
	"github.com/toolgate/toolgate/internal/testkit/redis"
	"github.com/toolgate/toolgate/internal/wait"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/limit"
)

// patient is how long the calls of tests wait, so that a busy machine changes no result.
const patient = time.Minute

// replica is one process that shares limits.
type replica struct {
	*fleet.Limits
	*limit.Limiter
	log *lines
}

// lines is a log that tests read while it is written.
type lines struct {
	mu   sync.Mutex // protects the field below
	text bytes.Buffer
}

// Write implements io.Writer.
func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) all() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Split(strings.TrimSuffix(l.text.String(), "\n"), "\n")
}

// join starts a replica whose calls wait for so long.
func join(t *testing.T, server *redis.Server, rules limit.Rules, o fleet.LimitOptions) *replica {
	t.Helper()
	r := &replica{log: &lines{}}
	o.Server, o.Log = server.Client(), hclog.New(&hclog.LoggerOptions{Output: r.log})
	r.Limits = fleet.NewLimits(t.Context(), o)
	r.Limiter = r.Limits.New("calls", rules)
	t.Cleanup(r.Limits.Close)
	return r
}

// joined starts n replicas that know of each other.
func joined(t *testing.T, n int, server *redis.Server, rules limit.Rules, o fleet.LimitOptions) (all []*replica) {
	t.Helper()
	for range n {
		all = append(all, join(t, server, rules, o))
	}
	for _, r := range all {
		until(t, "all replicas are known", func() bool { return r.Status().Replicas == n })
	}
	return all
}

// until waits for a state.
func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), patient)
	defer stop()
	for !is() {
		if !wait.For(ctx, 5*time.Millisecond) {
			t.Fatalf("waiting until %s", what)
		}
	}
}

func (r *replica) call() *limit.Exceeded {
	return r.Spend(time.Now(), policy.Principal{Subject: "agent"}, policy.Tool{Exposed: "tool"}, nil)
}

// admitted makes calls until one is refused, at most n, and returns how many were not.
func (r *replica) admitted(n int) int {
	for i := range n {
		if r.call() != nil {
			return i
		}
	}
	return n
}

// race makes n calls at once, spread over replicas, and returns how many were admitted.
func race(replicas []*replica, n int) int {
	var admitted atomic.Int64
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			if replicas[i%len(replicas)].call() == nil {
				admitted.Add(1)
			}
		})
	}
	all.Wait()
	return int(admitted.Load())
}

func everyCall(rate string, burst int) limit.Rules {
	r, err := limit.ParseRate(rate)
	if err != nil {
		panic(err)
	}
	r.Burst = burst
	return limit.Rules{Default: &r}
}

// reads counts how often buckets were read on the server.
func reads(s *redis.Server) int64 {
	return s.Run(`return {tonumber(string.match(redis.call('INFO', 'commandstats'), 'cmdstat_get:calls=(%d+)')) or 0}`)[0]
}

func clock(s *redis.Server) time.Time {
	now := s.Run(`local t = redis.call('TIME'); return {tonumber(t[1]), tonumber(t[2])}`)
	return time.Unix(now[0], now[1]*1000)
}

// A slow limit has leases of one token: three replicas admit what one would.
func TestSharedLimitIsExact(t *testing.T) {
	server := redis.Start(t, "")
	replicas := joined(t, 3, server, everyCall("10/100h", 10), fleet.LimitOptions{Patience: patient})
	if n := race(replicas, 1000); n != 10 {
		t.Errorf("%d of 1000 racing calls were admitted, want 10", n)
	}
	over := replicas[0].call()
	if over == nil || over.RetryAfter < 9*time.Hour || over.RetryAfter > 10*time.Hour || over.Rule != "default" || over.Limit != "10/100h" {
		t.Errorf("refused with %+v, want the rule and a wait of nearly 10 hours", over)
	}
}

// A fast limit is exceeded by the leases that replicas hold at most.
func TestSharedLimitByLeases(t *testing.T) {
	server := redis.Start(t, "")
	const rate, burst, leases = 1000, 300, 3 * 33
	replicas := joined(t, 3, server, everyCall("1000/1s", burst), fleet.LimitOptions{Patience: patient})
	for round := range 3 {
		begun := clock(server)
		n := race(replicas, 2000)
		most := burst + int(rate*clock(server).Sub(begun).Seconds()) + 1 + leases
		for _, r := range replicas {
			most += int(r.Status().Local) // a busy machine can be late with a connection
		}
		if n > most || round == 0 && n < burst-leases { // later rounds begin with what is left
			t.Errorf("round %d: %d calls were admitted, want from %d to %d", round, n, burst-leases, most)
		}
	}
}

func TestLeaseIsSpentWithoutTrips(t *testing.T) {
	server := redis.Start(t, "")
	r := join(t, server, everyCall("1000/1s", 0), fleet.LimitOptions{Patience: patient})
	now := time.Now()
	call := func() *limit.Exceeded {
		return r.Spend(now, policy.Principal{Subject: "agent"}, policy.Tool{Exposed: "tool"}, nil)
	}
	if over := call(); over != nil {
		t.Fatal(over)
	}
	before := reads(server)
	for range 45 { // half of 100 is spent after 50
		if over := call(); over != nil {
			t.Fatal(over)
		}
	}
	if n := reads(server) - before; n != 0 || before != 1 {
		t.Errorf("%d trips for the first call, %d within the lease, want 1 and 0", before, n)
	}
	for range 10 {
		call()
	}
	until(t, "the lease is topped up", func() bool { return reads(server) == before+1 })
	now = now.Add(2 * time.Second)
	call()
	if n := reads(server) - before; n != 2 {
		t.Errorf("%d trips after the lease has expired, want 2", n)
	}
}

func TestRefusalIsRememberedWithoutTrips(t *testing.T) {
	server := redis.Start(t, "")
	r := join(t, server, everyCall("1/1h", 0), fleet.LimitOptions{Patience: patient})
	race([]*replica{r}, 2)
	before := reads(server)
	if n := race([]*replica{r}, 100); n != 0 {
		t.Errorf("%d calls were admitted", n)
	}
	if n := reads(server) - before; n != 0 {
		t.Errorf("%d trips for calls that must be refused, want 0", n)
	}
}

// What a refused call would take stays with the buckets that have it.
func TestSharedCallTakesAllOrNothing(t *testing.T) {
	server := redis.Start(t, "")
	rules := limit.Rules{Rules: []limit.Rule{
		{Tool: "tool", Rate: limit.Rate{Count: 5, Per: time.Hour}},
		{Principal: "agent", Rate: limit.Rate{Count: 1, Per: time.Hour}},
	}}
	for i, want := range []int{1, 0} { // the second replica does not know yet that the principal has no token
		if n := join(t, server, rules, fleet.LimitOptions{Patience: patient}).admitted(10); n != want {
			t.Fatalf("replica %d admitted %d calls, want %d", i, n, want)
		}
	}
	other := join(t, server, limit.Rules{Rules: rules.Rules[:1]}, fleet.LimitOptions{Patience: patient})
	if n := other.admitted(10); n != 4 {
		t.Errorf("%d calls were left for the tool, want 4", n)
	}
}

// Limits of the policy, and those of other limiters, principals and tenants have buckets
// of their own.
func TestSharedBucketsAreApart(t *testing.T) {
	server := redis.Start(t, "")
	r := join(t, server, everyCall("1/1h", 0), fleet.LimitOptions{Patience: patient})
	again := join(t, server, everyCall("1/1h", 0), fleet.LimitOptions{Patience: patient})
	refused := r.Limits.New("refused", everyCall("1/1h", 0))
	now, tool := time.Now(), policy.Tool{Exposed: "tool"}
	for _, tc := range []struct {
		name    string
		limiter *limit.Limiter
		who     policy.Principal
		extra   *policy.Limit
		passes  bool
	}{
		{"the first", r.Limiter, policy.Principal{Subject: "agent"}, nil, true},
		{"in another replica", again.Limiter, policy.Principal{Subject: "agent"}, nil, false},
		{"of another tenant", again.Limiter, policy.Principal{Subject: "agent", Tenant: "t"}, nil, true},
		{"of another principal", r.Limiter, policy.Principal{Subject: "other"}, &policy.Limit{Rate: "1/1h", Key: "k"}, true},
		{"of the policy, in another replica", again.Limiter, policy.Principal{Subject: "other"}, &policy.Limit{Rate: "1/1h", Key: "k"}, false},
		{"of another limiter", refused, policy.Principal{Subject: "agent"}, nil, true},
	} {
		if over := tc.limiter.Spend(now, tc.who, tool, tc.extra); (over == nil) != tc.passes {
			t.Errorf("%s: refused with %v, want passes %v", tc.name, over, tc.passes)
		}
	}
}

// A limit for a tenant and one for everybody take from buckets of their own.
func TestSharedLimitOfATenant(t *testing.T) {
	rules := []limit.Rule{{Rate: limit.Rate{Count: 4, Per: time.Hour}}, {Tenant: "t", Rate: limit.Rate{Count: 100, Per: time.Hour}}}
	r := join(t, redis.Start(t, ""), limit.Rules{Rules: rules}, fleet.LimitOptions{Patience: patient})
	who, n := policy.Principal{Subject: "agent", Tenant: "t"}, 0
	for r.Limiter.Spend(time.Now(), who, policy.Tool{Exposed: "tool"}, nil) == nil {
		n++
	}
	if n != 4 {
		t.Errorf("%d calls passed, want 4", n)
	}
}

func TestRestartKeepsWhatWasSpent(t *testing.T) {
	server := redis.Start(t, "secret")
	rules := everyCall("10/100h", 10)
	first := join(t, server, rules, fleet.LimitOptions{Patience: patient})
	if n := first.admitted(7); n != 7 {
		t.Fatal(n)
	}
	first.Limits.Close()
	second := join(t, server, rules, fleet.LimitOptions{Patience: patient})
	if n := second.Status().Replicas; n != 1 {
		t.Errorf("%d replicas after one has left, want 1", n)
	}
	if n := second.admitted(2); n != 2 {
		t.Fatal(n)
	}
	server.Kill()
	server.Restart()
	until(t, "the server is reached again", func() bool { return second.Status().Fault == nil && second.call() == nil })
	if n := second.admitted(10); n != 0 {
		t.Errorf("%d calls were left after a restart of both, want 0", n)
	}
	second.Apply(everyCall("20/100h", 20))
	if n := second.admitted(30); n != 0 {
		t.Errorf("a larger bucket started with %d tokens, want 0", n)
	}
}

// A replica that ends before it has seen the server again leaves what was spent meanwhile.
func TestRestartKeepsWhatWasSpentLocally(t *testing.T) {
	server := redis.Start(t, "")
	rules := everyCall("10/100h", 10)
	first := join(t, server, rules, fleet.LimitOptions{Patience: patient})
	if n := first.admitted(3); n != 3 {
		t.Fatal(n)
	}
	server.Kill()
	if n := first.admitted(10); n != 7 {
		t.Fatalf("%d calls were admitted without the server, want 7", n)
	}
	server.Restart()
	first.Limits.Close()
	if n := join(t, server, rules, fleet.LimitOptions{Patience: patient}).admitted(10); n != 0 {
		t.Errorf("%d calls were left, want 0", n)
	}
}

// Nothing that nobody uses stays on the server.
func TestIdleBucketsExpire(t *testing.T) {
	server := redis.Start(t, "")
	r := join(t, server, everyCall("10/1s", 0), fleet.LimitOptions{Patience: patient})
	r.admitted(3)
	forever := server.Run(`local n = 0
for _, key in ipairs(redis.call('KEYS', '*')) do if redis.call('PTTL', key) < 0 then n = n + 1 end end
return {n}`)
	if forever[0] != 0 {
		t.Errorf("%d keys never expire", forever[0])
	}
	until(t, "the bucket is forgotten", func() bool { return server.Run(`return {#redis.call('KEYS', '*')}`)[0] == 1 })
}

func TestServerIsKilled(t *testing.T) {
	for _, tc := range []struct {
		name string
		open bool
		each []int // calls that each replica admits while the server is away
	}{
		{"closed", false, []int{3, 3}}, // half of the seven, and of the six, that were left when it asked the last time
		{"open", true, []int{7, 6}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			server := redis.Start(t, "")
			replicas := joined(t, 2, server, everyCall("10/100h", 10), fleet.LimitOptions{Patience: patient, Open: tc.open})
			for range 2 {
				for _, r := range replicas {
					if over := r.call(); over != nil {
						t.Fatal(over)
					}
				}
			}
			server.Kill()
			for i, r := range replicas {
				if n := race([]*replica{r}, 500); n != tc.each[i] {
					t.Errorf("replica %d admitted %d calls without the server, want %d", i, n, tc.each[i])
				}
			}
			for _, r := range replicas {
				until(t, "the loss is logged", func() bool { return strings.Contains(r.log.all()[0], "is away") })
			}
			server.Restart()
			for _, r := range replicas {
				until(t, "the server is back", func() bool { return r.Status().Fault == nil })
			}
			for _, r := range replicas {
				if n := r.admitted(10); n != 0 {
					t.Errorf("%d calls were left on the server, want 0: what was spent without it is taken off", n)
				}
				if got := r.log.all(); len(got) != 2 || !strings.Contains(got[1], "is back") {
					t.Errorf("the log has %d lines, want one for the loss and one for the return:\n%s", len(got), strings.Join(got, "\n"))
				}
				if st := r.Status(); st.Local != 500 {
					t.Errorf("%d decisions without the server, want 500", st.Local)
				}
			}
		})
	}
}

// A server that hangs is asked no longer. The replica that has not used the bucket allows
// its share of the whole burst.
func TestServerHangs(t *testing.T) {
	server := redis.Start(t, "")
	replicas := joined(t, 2, server, everyCall("10/100h", 10), fleet.LimitOptions{Patience: 2 * time.Second})
	n := replicas[0].admitted(2)
	server.Freeze()
	n += race(replicas, 1000)
	if n != 2+4+5 {
		t.Errorf("%d calls were admitted, want 2, half of the eight that were left, and half of the burst", n)
	}
	before := replicas[1].Status().Trips
	race(replicas, 1000)
	if trips := replicas[1].Status().Trips - before; trips > 0 {
		t.Errorf("%d calls waited for a server that was known to hang", trips)
	}
	server.Thaw()
	for _, r := range replicas {
		until(t, "the server is back", func() bool { return r.Status().Fault == nil })
	}
	if n := race(replicas, 1000); n != 0 {
		t.Errorf("%d calls were left on the server, want 0", n)
	}
}

// A replica that has never reached the server has no share.
func TestServerWasNeverReached(t *testing.T) {
	server := redis.Start(t, "")
	server.Kill()
	closed := join(t, server, everyCall("10/100h", 10), fleet.LimitOptions{})
	open := join(t, server, everyCall("10/100h", 10), fleet.LimitOptions{Open: true})
	if over := closed.call(); over == nil || over.RetryAfter != time.Second {
		t.Errorf("closed: refused with %+v, want a wait of a second", over)
	}
	if n := open.admitted(20); n != 10 {
		t.Errorf("open: %d calls were admitted, want 10", n)
	}
	server.Restart()
	until(t, "the server is reached", func() bool { return closed.Status().Fault == nil && open.Status().Fault == nil })
	if n := closed.admitted(20); n != 0 {
		t.Errorf("closed: %d calls were left, want 0", n)
	}
}

// The wait for the server follows what is usual there: one that always answers in 60 ms is used, also
// when it was quicker before, and one that always takes longer than calls wait is away.
func TestServerIsSlow(t *testing.T) {
	for _, tc := range []struct {
		first, then time.Duration
		local       uint64 // decisions without the server
		fault       string
	}{
		{60 * time.Millisecond, 60 * time.Millisecond, 0, ""},
		{time.Millisecond, 60 * time.Millisecond, 1, ""}, // the first that was slower
		{time.Millisecond, 400 * time.Millisecond, 1, ""},
		{700 * time.Millisecond, 700 * time.Millisecond, 101, "too slow"},
	} {
		t.Run(fmt.Sprintf("%s, then %s", tc.first, tc.then), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				slow, now := &slowServer{}, time.Now()
				slow.by.Store(int64(tc.first))
				s := fleet.NewLimits(t.Context(), fleet.LimitOptions{Server: slow})
				defer s.Close()
				calls := s.New("calls", everyCall("1/1s", 0))
				for i := range 101 {
					if i == 1 {
						slow.by.Store(int64(tc.then))
					}
					_ = calls.Spend(now, policy.Principal{Subject: fmt.Sprint(i)}, policy.Tool{Exposed: "tool"}, nil)
					time.Sleep(2 * time.Second) // for signs of life, and for one that follows a failure
				}
				if st := s.Status(); st.Local != tc.local || (st.Fault != nil) != (tc.fault != "") || st.Fault != nil && !strings.Contains(st.Fault.Error(), tc.fault) {
					t.Errorf("%d decisions without the server, want %d; fault %v, want %q", st.Local, tc.local, st.Fault, tc.fault)
				}
			})
		})
	}
}

// A server that stops answering delays a call by half a second at most, whatever was usual, and is away then.
func TestServerStopsAnswering(t *testing.T) {
	for _, usual := range []time.Duration{time.Millisecond, 60 * time.Millisecond, 490 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			server, now := &slowServer{}, time.Now()
			server.by.Store(int64(usual))
			s := fleet.NewLimits(t.Context(), fleet.LimitOptions{Server: server})
			defer s.Close()
			calls := s.New("calls", everyCall("1/1s", 0))
			took := func(who string) time.Duration {
				began := time.Now()
				_ = calls.Spend(now, policy.Principal{Subject: who}, policy.Tool{Exposed: "tool"}, nil)
				return time.Since(began)
			}
			for i := range 20 {
				took(fmt.Sprint(i))
			}
			server.by.Store(int64(time.Hour))
			if d := took("first"); d < usual || d > min(usual+25*time.Millisecond, 500*time.Millisecond) {
				t.Errorf("usually %s: a call waited for %s", usual, d)
			}
			if d, st := took("second"), s.Status(); d != 0 || st.Fault == nil || st.Local != 2 {
				t.Errorf("usually %s: the next call waited for %s, %d decisions without the server, fault %v", usual, d, st.Local, st.Fault)
			}
		})
	}
}

// slowServer answers every script after a time: that of signs of life with one replica, all others with a token.
type slowServer struct{ by atomic.Int64 }

func (s *slowServer) Run(ctx context.Context, _ string, keys []string, args ...any) ([]int64, error) {
	if !wait.For(ctx, time.Duration(s.by.Load())) {
		return nil, fmt.Errorf("waiting: %w", ctx.Err())
	}
	if len(args) == 3 {
		return []int64{1}, nil
	}
	return slices.Repeat([]int64{1, 0, 0}, len(keys)), nil
}

// A replica says of a shared bucket what it knows: after its own trip, what all have spent until then;
// while the server is away, its share.
func TestStatesOfSharedBuckets(t *testing.T) {
	t.Parallel()
	server := redis.Start(t, "")
	both := joined(t, 2, server, everyCall("10/1h", 10), fleet.LimitOptions{Patience: patient})
	left := func(r *replica) string {
		var all []string
		for _, s := range r.States(time.Now()) {
			all = append(all, fmt.Sprintf("%s of %s: %.0f of %d, %v", s.Rule, s.Subject, s.Left, s.Rate.Size(), s.Shared))
		}
		return strings.Join(all, "; ")
	}
	if got := left(both[0]); got != "" {
		t.Errorf("before any call: %s", got)
	}
	both[0].admitted(3)
	both[1].admitted(2)
	for i, want := range []string{"default of agent: 7 of 10, true", "default of agent: 5 of 10, true"} {
		if got := left(both[i]); got != want {
			t.Errorf("replica %d: %s, want %s", i, got, want)
		}
	}
	server.Kill()
	both[1].admitted(1)
	if got := left(both[1]); got != "default of agent: 2 of 10, true" && got != "default of agent: 1 of 10, true" {
		t.Errorf("without the server: %s", got)
	}
}
