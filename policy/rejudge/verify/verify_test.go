package verify_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/rejudge/verify"
)

// reference decides as its function does.
type reference func(ctx context.Context, in *policy.Input) (policy.Decision, error)

func (r reference) Decide(ctx context.Context, in *policy.Input) (policy.Decision, error) {
	return r(ctx, in)
}

// always is a reference with one decision.
func always(d policy.Decision) reference {
	return func(context.Context, *policy.Input) (policy.Decision, error) { return d, nil }
}

// recordedSampler is a sampler that keeps its reports.
type recordedSampler struct {
	*verify.Sampler
	mu       sync.Mutex // protects the fields below
	outcomes map[verify.Outcome]int
	records  []*audit.Record
}

func newRecordedSampler(share float64) *recordedSampler {
	s := &recordedSampler{outcomes: map[verify.Outcome]int{}}
	s.Sampler = verify.New(verify.Options{
		Share: share,
		Observe: func(o verify.Outcome) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.outcomes[o]++
		},
		Record: func(_ context.Context, r *audit.Record) error {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.records = append(s.records, r)
			return nil
		},
	})
	return s
}

func (s *recordedSampler) want(t *testing.T, records int, outcomes map[verify.Outcome]int) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.records) != records {
		t.Errorf("%d records, want %d", len(s.records), records)
	}
	for _, o := range verify.Outcomes() {
		if s.outcomes[o] != outcomes[o] {
			t.Errorf("%s: %d, want %d", o, s.outcomes[o], outcomes[o])
		}
	}
}

func call() *policy.Input {
	return &policy.Input{
		Principal: policy.Principal{Subject: "agent-7", Roles: []string{"researcher"}},
		Tool:      policy.Tool{Server: "s", Name: "pay", Exposed: "s__pay"},
		Arguments: json.RawMessage(`{"amount":1}`),
		Request:   policy.Request{ID: "1", TraceID: "trc_1"},
	}
}

var (
	allowed = policy.Decision{Effect: policy.Allow, Rule: "a"}
	denied  = policy.Decision{Effect: policy.Deny, Rule: "b", Reason: "no"}
)

// run runs s until everything that f offers is verified.
func run(t *testing.T, s *recordedSampler, f func()) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	var done sync.WaitGroup
	done.Go(func() { s.Run(ctx) })
	f()
	synctest.Wait()
	stop()
	done.Wait()
}

func TestADifferenceIsAnAlarm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRecordedSampler(1)
		run(t, s, func() {
			s.Offer(call(), &allowed, always(allowed))
			s.Offer(call(), &allowed, always(denied))
			reworded := denied
			reworded.Reason = "never"
			s.Offer(call(), &reworded, always(denied))
			s.Offer(call(), &denied, reference(func(context.Context, *policy.Input) (policy.Decision, error) {
				return policy.Decision{Effect: policy.Deny, Rule: "policy_error"}, errors.New("division by zero")
			}))
		})
		s.want(t, 3, map[verify.Outcome]int{verify.Same: 1, verify.Differed: 3})
		r := s.records[0]
		if r.Stage != verify.Stage || r.Outcome != audit.Failed || r.Exposed != "s__pay" || r.TraceID != "trc_1" || r.Principal.Subject != "agent-7" ||
			!strings.Contains(r.Error, "served allow (a), OPA decides deny (b)") {
			t.Errorf("recorded %+v", r)
		}
		if !strings.Contains(s.records[2].Error, "division by zero") {
			t.Errorf("recorded %q", s.records[2].Error)
		}
	})
}

// What is verified is what was judged, whatever the caller does with its input.
func TestTheInputIsCopied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRecordedSampler(1)
		run(t, s, func() {
			in := call()
			in.Usage = map[string]policy.Reading{"day": {Calls: 1}}
			before, _ := json.Marshal(in)
			s.Offer(in, &allowed, reference(func(_ context.Context, got *policy.Input) (policy.Decision, error) {
				if after, _ := json.Marshal(got); string(after) != string(before) {
					t.Errorf("verified %s, want %s", after, before)
				}
				return allowed, nil
			}))
			copy(in.Arguments, `{"amount":9}`)
			in.Principal.Roles[0], in.Usage["day"] = "treasurer", policy.Reading{Calls: 2}
		})
		s.want(t, 0, map[verify.Outcome]int{verify.Same: 1})
	})
}

func TestShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRecordedSampler(0)
		run(t, s, func() {
			s.Offer(call(), &allowed, always(denied))
			s.SetShare(0.5)
			for range 2000 {
				s.Offer(call(), &allowed, always(allowed))
				synctest.Wait()
			}
		})
		if n := s.outcomes[verify.Same]; n < 800 || n > 1200 || s.outcomes[verify.Differed]+s.outcomes[verify.Dropped] != 0 {
			t.Errorf("verified %v of 2000", s.outcomes)
		}
	})
}

// A reference that hangs holds no call up: what the queue cannot hold is dropped.
func TestOfferNeverBlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRecordedSampler(1)
		hang := reference(func(ctx context.Context, _ *policy.Input) (policy.Decision, error) {
			<-ctx.Done()
			return denied, ctx.Err()
		})
		run(t, s, func() {
			s.Offer(call(), &allowed, hang)
			synctest.Wait()
			began := time.Now()
			for range 300 {
				s.Offer(call(), &allowed, always(allowed))
			}
			large := call()
			large.Arguments = json.RawMessage(`"` + strings.Repeat("x", 16<<20) + `"`)
			s.Offer(large, &allowed, always(allowed))
			if took := time.Since(began); took != 0 {
				t.Errorf("offers took %v", took)
			}
			time.Sleep(10 * time.Second) // the bubble's clock: beyond the bound of one decision
		})
		s.want(t, 0, map[verify.Outcome]int{verify.Failed: 1, verify.Same: 256, verify.Dropped: 45})
	})
}

func TestAnEndDropsTheRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRecordedSampler(1)
		hang := reference(func(ctx context.Context, _ *policy.Input) (policy.Decision, error) {
			<-ctx.Done()
			return denied, ctx.Err()
		})
		run(t, s, func() {
			for range 3 {
				s.Offer(call(), &allowed, hang)
			}
		})
		s.want(t, 0, map[verify.Outcome]int{verify.Dropped: 3})
	})
}
