package fleet

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/toolgate/toolgate/internal/delivery"
	"github.com/toolgate/toolgate/internal/wait"
	"github.com/toolgate/toolgate/policy/limit"
)

const (
	// DefaultPatience is how much longer than usual a call waits for the server, at least.
	DefaultPatience = 25 * time.Millisecond
	// LongestPatience bounds every wait. A server that usually takes longer counts as away.
	LongestPatience = 500 * time.Millisecond

	// beatEvery is the time between two signs of life of a replica, which counts as gone
	// after missedBeats of them.
	beatEvery   = 5 * time.Second
	missedBeats = 3
	// firstBeat bounds one sign of life, which may have to connect.
	firstBeat = time.Second

	// The keys of all replicas. Their tag keeps them in one slot of a cluster.
	limitsPrefix = "toolgate:{limits}:"
	replicasKey  = limitsPrefix + "replicas"
)

// beats are the pauses between attempts to reach a server that is down.
var beats = delivery.Backoff{First: 200 * time.Millisecond, Longest: beatEvery}

// beatScript notes that replica ARGV[1] lives, or leaves when ARGV[3] is 0, and answers how many have
// lived within ARGV[2] milliseconds.
const beatScript = `
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - ARGV[2])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '(' .. now, '+inf')
redis.call('ZREM', KEYS[1], ARGV[1])
if ARGV[3] == '1' then
	redis.call('ZADD', KEYS[1], now, ARGV[1])
	redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
return {redis.call('ZCARD', KEYS[1])}`

// Server runs scripts on the server that replicas share. It must be safe for concurrent
// use. After an error the script may have run.
type Server interface {
	Run(ctx context.Context, script string, keys []string, args ...any) ([]int64, error)
}

// LimitOptions say how limits are shared. Server is required.
type LimitOptions struct {
	Server Server
	// Open keeps the whole rate in each replica while the server is away. Otherwise each
	// has its share, and a replica that has never reached the server refuses.
	Open bool
	// Patience is how much longer than usual a call waits for the server, at least;
	// 0 = DefaultPatience. A call waits for LongestPatience, or for Patience if that is longer, at most.
	Patience time.Duration
	Log      hclog.Logger // nil = none
}

// Limits are what the limiters of one replica share with other replicas: the server with
// the buckets, and the number of replicas. It is safe for concurrent use.
type Limits struct {
	opts LimitOptions
	id   string // of this replica, among all

	down     atomic.Bool
	outage   atomic.Uint64 // counts the times that the server went away
	replicas atomic.Int64  // that the server last knew; 0 = it was never reached
	local    atomic.Uint64 // decisions without the server
	trips    atomic.Uint64

	failed chan struct{} // wakes the loop of beats
	loop   delivery.Workers
	logged bool // that the server is away; for the loop alone
	topUps sync.WaitGroup

	mu      sync.Mutex // protects the fields below
	buckets []*buckets // of each limiter
	// How long the server usually takes to answer, and how much that varies (RFC 6298, section 2).
	usual, variation time.Duration
	fault            error // why the server is away; nil = it is not
	since            time.Time
}

// NewLimits returns a Limits after it has tried to reach the server, for two seconds at
// most. Close must be called.
func NewLimits(ctx context.Context, o LimitOptions) *Limits {
	if o.Patience == 0 {
		o.Patience = DefaultPatience
	}
	if o.Log == nil {
		o.Log = hclog.NewNullLogger()
	}
	s := &Limits{opts: o, id: rand.Text(), failed: make(chan struct{}, 1), since: time.Now()}
	s.down.Store(true)
	pause := s.attend(ctx, 1)
	s.loop.Start(func(ctx context.Context) { s.attendUntil(ctx, pause) })
	return s
}

// New returns a Limiter with shared buckets. Limiters of the same name share them, in all
// replicas. With a nil Limits its buckets are its own.
func (s *Limits) New(name string, r limit.Rules) *limit.Limiter {
	if s == nil {
		return limit.New(r)
	}
	known, _ := simplelru.NewLRU[limit.Bucket, *bucket](limit.DefaultMaxBuckets+1, nil) // an error means a size below 1
	b := &buckets{limits: s, name: name, known: known}
	s.mu.Lock()
	s.buckets = append(s.buckets, b)
	s.mu.Unlock()
	return limit.NewOn(b, r)
}

// Close leaves the replicas and waits for what is under way. What was spent without a server that
// is still away is lost. The limiters of s must not be used after it.
func (s *Limits) Close() {
	s.loop.Stop()
	s.topUps.Wait()
	_ = s.repay() // which tries once, for as long as a call would wait
	if !s.down.Load() {
		_ = s.beat(context.Background(), 0) // the others notice without it, a little later
	}
}

// LimitStatus is what a Limits knows of the server.
type LimitStatus struct {
	Replicas int           // that share, this one included; 0 = the server was never reached
	Fault    error         // why limits are local; nil = they are shared
	For      time.Duration // since Fault
	Open     bool          // of Fault: each replica has the whole rate
	Local    uint64        // decisions without the server
	Trips    uint64        // scripts that were run for calls and leases
}

// Status returns what s knows of the server.
func (s *Limits) Status() LimitStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := LimitStatus{Replicas: int(s.replicas.Load()), Fault: s.fault, Open: s.opts.Open, Local: s.local.Load(), Trips: s.trips.Load()}
	if s.fault != nil {
		st.For = time.Since(s.since)
	}
	return st
}

// Refuses says why calls with a limit are refused until the server has been reached, "" when
// they are not. Nobody refuses with a nil Limits.
func (s *Limits) Refuses() string {
	if s == nil {
		return ""
	}
	if st := s.Status(); st.Replicas == 0 && !st.Open {
		return fmt.Sprintf("the server of toolgate.shared has not been reached, and calls with a rate limit are refused: %v", st.Fault)
	}
	return ""
}

// Warnings say that the server is away, unless Refuses does.
func (s *Limits) Warnings() []string {
	if s == nil || s.Refuses() != "" {
		return nil
	}
	st := s.Status()
	if st.Fault == nil {
		return nil
	}
	return []string{fmt.Sprintf("the server of toolgate.shared is away for %s, and %s: %v", st.For.Round(time.Second), s.side(), st.Fault)}
}

// share returns by how many replicas a rate is divided while the server is away; 0 = it is
// not known.
func (s *Limits) share() int {
	if s.opts.Open {
		return 1
	}
	return int(s.replicas.Load())
}

// attendUntil sends signs of life until ctx ends, and an extra one when a call finds the
// server away.
func (s *Limits) attendUntil(ctx context.Context, pause time.Duration) {
	failures := 1
	timer := time.NewTimer(pause)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-s.failed:
		}
		failures++
		pause := s.attend(ctx, failures)
		if !s.down.Load() {
			failures = 0
		}
		timer.Reset(pause)
	}
}

// attend sends a sign of life, and returns the pause until the next one. failures counts
// the signs of life that have failed in a row if this one does. The first failure is not logged: it may
// be a connection that broke, and the next attempt follows at once.
func (s *Limits) attend(ctx context.Context, failures int) time.Duration {
	err := s.beat(ctx, 1)
	if err == nil && s.down.Load() {
		err = s.repay()
	}
	switch {
	case ctx.Err() != nil:
		return beatEvery
	case err == nil:
		s.mu.Lock()
		since := s.since
		s.fault = nil
		s.mu.Unlock()
		s.down.Store(false)
		if s.logged {
			s.logged = false
			s.opts.Log.Info("the server of toolgate.shared is back: limits are shared", "away", time.Since(since).Round(time.Millisecond), "replicas", s.replicas.Load())
		}
		return delivery.Backoff{First: beatEvery, Longest: beatEvery}.After(1)
	}
	s.fail(err)
	if failures > 1 && !s.logged {
		s.logged = true
		s.opts.Log.Warn("the server of toolgate.shared is away: "+s.side(), "error", err)
	}
	return beats.After(failures)
}

// side says what limits do while the server is away.
func (s *Limits) side() string {
	switch n := s.share(); {
	case s.opts.Open:
		return "each replica allows the whole rate of each limit"
	case n == 0:
		return "calls with a rate limit are refused until it is reached the first time"
	default:
		return fmt.Sprintf("this replica allows 1/%d of each limit", n)
	}
}

// errAnswer is the cause of an answer of another length than its script's.
var errAnswer = errors.New("unexpected answer of the server")

// errSlow is the cause of a server whose answers take longer than calls wait.
var errSlow = errors.New("its answers are too slow")

// beat sends a sign of life, or with alive 0 the end of it. A slow answer may be that of a new
// connection, so the second one is measured then.
func (s *Limits) beat(ctx context.Context, alive int) error {
	var took time.Duration
	for range 2 {
		began := time.Now()
		bounded, stop := context.WithTimeout(ctx, max(firstBeat, s.longest()))
		got, err := s.opts.Server.Run(bounded, beatScript, []string{replicasKey}, s.id, missedBeats*beatEvery.Milliseconds(), alive)
		stop()
		switch {
		case err != nil:
			return err
		case len(got) != 1:
			return errAnswer
		}
		s.replicas.Store(max(1, got[0]))
		if took = time.Since(began); took <= s.patience() {
			break
		}
	}
	if took > s.longest() {
		return fmt.Errorf("%w: %s, and calls wait for %s at most", errSlow, took.Round(time.Millisecond), s.longest())
	}
	s.measured(took)
	return nil
}

// Replicas returns how many replicas share limits on a server, without joining them.
func Replicas(ctx context.Context, server Server) (int, error) {
	got, err := server.Run(ctx, beatScript, []string{replicasKey}, "", missedBeats*beatEvery.Milliseconds(), 0)
	if err == nil && len(got) != 1 {
		err = errAnswer
	}
	if err != nil {
		return 0, err
	}
	return int(got[0]), nil
}

// fail notes that the server is away.
func (s *Limits) fail(err error) {
	s.mu.Lock()
	if s.fault == nil {
		s.since = time.Now()
	}
	s.fault = err
	s.mu.Unlock()
	if s.down.CompareAndSwap(false, true) {
		s.outage.Add(1)
		wait.Signal(s.failed)
	}
}

// repay takes from the buckets on the server what was spent while it was away.
func (s *Limits) repay() error {
	s.mu.Lock()
	all := s.buckets
	s.mu.Unlock()
	for _, b := range all {
		if err := b.repay(); err != nil {
			return err
		}
	}
	return nil
}

// measured adds the time of one trip.
func (s *Limits) measured(took time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.usual == 0 {
		s.usual, s.variation = took, took/2
		return
	}
	s.variation += ((s.usual - took).Abs() - s.variation) / 4
	s.usual += (took - s.usual) / 8
}

// patience returns how long a trip may take: what is usual and four times its variation, which counts
// as LimitOptions.Patience at least.
func (s *Limits) patience() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return min(s.usual+max(s.opts.Patience, 4*s.variation), s.longest())
}

// longest returns the most that patience can be.
func (s *Limits) longest() time.Duration { return max(s.opts.Patience, LongestPatience) }
