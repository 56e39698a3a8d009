package proxy_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/approval"
	"github.com/toolgate/toolgate/policy/identity"
	"github.com/toolgate/toolgate/policy/limit"
	"github.com/toolgate/toolgate/proxy"
	"github.com/toolgate/toolgate/registry"
	"github.com/toolgate/toolgate/signal"
)

// Eleven calls of a hundred under a window of a thousand: the eleventh is held. When
// it is approved it counts; and who comes back for its result gets it, though by
// then it would be too much.
func TestEleventhIsHeld(t *testing.T) {
	u := openMeteredGate(t)
	u.cap = 1100
	for n := range 10 {
		wantWord(t, fmt.Sprint("call ", n), u.pays(t, 100), "made")
	}
	wantWord(t, "call 11", u.pays(t, 100), "held")
	wantWord(t, "used", u.used(t), "10 1000")
	u.approves(t, "boss")
	wantWord(t, "call 11, approved", u.pays(t, 100), "made")
	wantWord(t, "used", u.used(t), "11 1100")
	wantWord(t, "call 11, asked for again", u.pays(t, 100), "made")
	wantWord(t, "used", u.used(t), "11 1100")
	wantWord(t, "another call", u.pays(t, 100.5), signal.CodePolicyDenied)
	if len(u.sent) != 11 || u.outcomes[11].Replayed || !u.outcomes[12].Replayed {
		t.Errorf("sent %d times; the last outcomes: %+v", len(u.sent), u.outcomes[10:])
	}
}

// Callers that come at once are judged one after the other. A caller
// whose turn does not come in time is refused and calls again.
func TestTogetherWithinTheWindow(t *testing.T) {
	u := openMeteredGate(t)
	var mu sync.Mutex
	words := map[string]int{}
	var all sync.WaitGroup
	for n := range 64 {
		all.Go(func() {
			word := signal.CodeOverloaded
			for word == signal.CodeOverloaded {
				word = u.pays(t, fmt.Sprintf("100, \"i\": %d", n))
			}
			mu.Lock()
			defer mu.Unlock()
			words[word]++
		})
	}
	all.Wait()
	if diff := cmp.Diff(map[string]int{"made": 10, "held": 54}, words); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	wantWord(t, "used", u.used(t), "10 1000")
	if len(u.sent) != 10 {
		t.Errorf("%d calls were sent", len(u.sent))
	}
}

// Every way off the road, for a call that is allowed and for one with a grant: what
// may have been sent stays counted, what was certainly not is given back, with its
// grant.
func TestEveryEndIsCountedRight(t *testing.T) {
	for _, tt := range []struct {
		name  string
		n     any // arguments, 100 if nil
		set   func(*meteredGate)
		word  string
		stays bool
		state approval.State // of the ticket, "" = as for any that stays
	}{
		{name: "made", word: "made", stays: true},
		{name: "the tool says no", set: func(u *meteredGate) { u.result = `{"isError":true,"content":[]}` }, word: "made", stays: true},
		{name: "over a rate", set: func(u *meteredGate) { u.exceeded = &limit.Exceeded{} }, word: signal.CodeRateLimited},
		{name: "arguments break the schema", n: 100.5, word: signal.CodeSchemaMismatch},
		{name: "no record", set: func(u *meteredGate) { u.decisionErr = errors.New("full") }, word: signal.CodeAuditUnavailable},
		{name: "no outcome", set: func(u *meteredGate) { u.outcomeErr = errors.New("full") }, word: signal.CodeAuditUnavailable, stays: true},
		{name: "neither", set: func(u *meteredGate) { u.decisionErr, u.outcomeErr = errors.New("full"), errors.New("full") }, word: signal.CodeAuditUnavailable},
		{name: "panic in limit", set: func(u *meteredGate) { u.panicAt = "limit" }, word: signal.CodeInternal},
		{name: "panic in record", set: func(u *meteredGate) { u.panicAt = "record" }, word: signal.CodeInternal},
		{name: "panic in forward", set: func(u *meteredGate) { u.panicAt = "forward" }, word: signal.CodeInternal, stays: true, state: approval.StateUnknown},
		{name: "server is down", set: func(u *meteredGate) { u.forwardErr = &registry.ForwardError{Kind: registry.Unavailable} }, word: signal.CodeUpstreamUnavailable},
		{name: "cancelled before it was sent", set: func(u *meteredGate) { u.forwardErr = &registry.ForwardError{Kind: registry.Cancelled} }, word: signal.CodeCancelled},
		{name: "cancelled after", set: func(u *meteredGate) { u.forwardErr = &registry.ForwardError{Kind: registry.Cancelled, Sent: true} }, word: signal.CodeCancelled, stays: true, state: approval.StateUnknown},
		{name: "too late", set: func(u *meteredGate) { u.forwardErr = &registry.ForwardError{Kind: registry.Timeout, Sent: true} }, word: signal.CodeToolTimeout, stays: true, state: approval.StateUnknown},
		{name: "an error nobody knows", set: func(u *meteredGate) { u.forwardErr = errors.New("?") }, word: signal.CodeToolFailed, stays: true, state: approval.StateUnknown},
		{name: "an error of the server", set: func(u *meteredGate) {
			u.forwardErr = &registry.ForwardError{Kind: registry.Failed, Sent: true, RPC: json.RawMessage(`{"code":1}`)}
		}, word: signal.CodeToolFailed, stays: true, state: approval.StateFailed},
		{name: "a result that is none", set: func(u *meteredGate) { u.result = `7` }, word: signal.CodeOutputInvalid, stays: true, state: approval.StateFailed},
		{name: "the store cannot be written", set: func(u *meteredGate) { u.reserveErr = errors.New("full") }, word: signal.CodeInternal},
		{name: "the store cannot be read", set: func(u *meteredGate) { u.readErr = errors.New("torn") }, word: signal.CodeInternal},
		{name: "the store fails at last", set: func(u *meteredGate) {
			u.forwardErr, u.returnErr = &registry.ForwardError{Kind: registry.Unavailable}, errors.New("full")
		}, word: signal.CodeUpstreamUnavailable, stays: true, state: approval.StateApproved},
	} {
		n := any(100)
		if tt.n != nil {
			n = tt.n
		}
		counted := map[bool]string{true: "1 100", false: "0 0"}[tt.stays]
		t.Run(tt.name+"/allowed", func(t *testing.T) {
			u := openMeteredGate(t)
			if tt.set != nil {
				tt.set(u)
			}
			wantWord(t, "call", u.pays(t, n), tt.word)
			wantWord(t, "used", u.used(t), counted)
			if len(u.outcomes) != 1 || (len(u.sent) > 0) && !tt.stays && u.forwardErr == nil {
				t.Errorf("%d outcomes, sent %v", len(u.outcomes), u.sent)
			}
		})
		t.Run(tt.name+"/granted", func(t *testing.T) {
			if tt.n != nil {
				t.Skip("such a call is never held")
			}
			u := openMeteredGate(t)
			u.most = 0
			wantWord(t, "call", u.pays(t, n), "held")
			wantWord(t, "used", u.used(t), "0 0")
			u.approves(t, "boss")
			if tt.set != nil {
				tt.set(u)
			}
			wantWord(t, "call", u.pays(t, n), tt.word)
			wantWord(t, "used", u.used(t), counted)
			state := tt.state
			switch {
			case state != "":
			case tt.stays:
				state = approval.StateDone
			default:
				state = approval.StateApproved
			}
			if got := u.ticket(t); got.State != state {
				t.Errorf("the ticket is %s, want %s", got.State, state)
			}
		})
	}
}

// What others use between the judgement and the counting is judged too.
func TestJudgedAgainBeforeItCounts(t *testing.T) {
	for _, tt := range []struct {
		name       string
		others     float64
		word       string
		used, rule string
	}{
		{"still below", 800, "made", "2 900", "below"},
		{"held by now", 950, "held", "1 950", "most"},
		{"denied by now", 2000, signal.CodePolicyDenied, "1 2000", "cap"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			u := openMeteredGate(t)
			u.cap = 2000
			u.reserving = func() { u.others(t, tt.others) }
			wantWord(t, "call", u.pays(t, 100), tt.word)
			wantWord(t, "used", u.used(t), tt.used)
			wantWord(t, "recorded", u.outcomes[0].Policy.Rule, tt.rule)
			if diff := cmp.Diff([]string{"0", fmt.Sprint(tt.others)}, u.judged); diff != "" {
				t.Errorf("judged by (-want +got):\n%s", diff)
			}
		})
	}
}

// The rate that the policy gives by what has been used is the one that holds.
func TestJudgedAgainWithAnotherRate(t *testing.T) {
	u := openMeteredGate(t)
	u.rate = func(sum float64) *policy.Limit {
		if sum < 500 {
			return nil
		}
		return &policy.Limit{Rate: "1/1h", Key: "slow"}
	}
	u.reserving = func() { u.others(t, 600) }
	wantWord(t, "call", u.pays(t, 100), "made")
	if len(u.limits) != 2 || u.limits[0] != nil || u.limits[1] == nil || u.limits[1].Key != "slow" {
		t.Errorf("spent by %v", u.limits)
	}
	u.rate = func(float64) *policy.Limit { return &policy.Limit{Rate: "1/1h"} } // the same by whatever is used
	u.limits, u.reserving = nil, func() { u.others(t, 1) }
	wantWord(t, "call", u.pays(t, 101), "made")
	if len(u.limits) != 1 {
		t.Errorf("spent %d times by one limit", len(u.limits))
	}
}

// A grant is spent by what holds at that moment. What may not go on gives it back,
// and what others have to approve is asked of them.
func TestGrantByWhatIsUsed(t *testing.T) {
	for _, tt := range []struct {
		name   string
		others float64
		word   string
		used   string
		state  approval.State
	}{
		{"still held by the same", 50, "made", "2 1150", approval.StateDone},
		{"held by others", 300, signal.CodeRateLimited, "1 300", approval.StateApproved},
		{"denied", 2000, signal.CodePolicyDenied, "1 2000", approval.StateApproved},
	} {
		t.Run(tt.name, func(t *testing.T) {
			u := openMeteredGate(t)
			u.tier, u.cap = 1300, 2000
			wantWord(t, "call", u.pays(t, 1100), "held")
			u.approves(t, "boss")
			u.claiming = func() { u.others(t, tt.others) }
			wantWord(t, "call with a grant", u.pays(t, 1100), tt.word)
			wantWord(t, "used", u.used(t), tt.used)
			wantWord(t, "ticket", string(u.ticket(t).State), string(tt.state))
		})
	}
	t.Run("needs none any more", func(t *testing.T) {
		u := openMeteredGate(t)
		wantWord(t, "call", u.pays(t, 1100), "held")
		u.approves(t, "boss")
		u.claiming, u.most = func() { u.others(t, 1); u.most = 2000 }, 1000
		wantWord(t, "call with a grant", u.pays(t, 1100), "made")
		wantWord(t, "used", u.used(t), "2 1101")
		wantWord(t, "ticket", string(u.ticket(t).State), string(approval.StateDone))
	})
	t.Run("then of others", func(t *testing.T) {
		u := openMeteredGate(t)
		u.tier = 1300
		wantWord(t, "call", u.pays(t, 1100), "held")
		u.approves(t, "boss")
		u.others(t, 300)
		wantWord(t, "call with a grant of boss", u.pays(t, 1100), "held")
		if k := u.ticket(t); !slices.Equal(k.Roles, []string{"chief"}) {
			t.Errorf("asked of %v", k.Roles)
		}
		u.approves(t, "chief")
		wantWord(t, "call with a grant of chief", u.pays(t, 1100), "made")
		wantWord(t, "used", u.used(t), "2 1400")
	})
}

// The run of a ticket does not stand against the ticket: not in another tier, and
// not when the agent asks for its tickets.
func TestOwnRunIsNotCountedAgainstItself(t *testing.T) {
	u := openMeteredGate(t)
	u.tier, u.cap = 1500, 1900
	wantWord(t, "call", u.pays(t, 1200), "held")
	u.approves(t, "boss")
	wantWord(t, "call with a grant", u.pays(t, 1200), "made")
	word, reply := u.came(t.Context(), t, 1200)
	if word != "made" || !u.outcomes[2].Replayed || len(u.sent) != 1 {
		t.Errorf("the identical call: %s, %+v, sent %d times", word, u.outcomes[2], len(u.sent))
	}
	if reply != nil && !strings.Contains(string(reply.Result), `"status":"replayed"`) {
		t.Errorf("answered %s", reply.Result)
	}
	in := request(t, `{"name":"approval_status","arguments":{}}`)
	in.Credential = identity.Credential{Bearer: "ann-token"}
	if reply, f := u.Call(t.Context(), in); f != nil || !strings.Contains(string(reply.Result), "hello") {
		t.Errorf("approval_status: %v, %v", reply, f)
	}
	u.most = 1300 // by itself the identical call would pass now, as a new one
	wantWord(t, "the identical call", u.pays(t, 1200), signal.CodePolicyDenied)
	wantWord(t, "used", u.used(t), "1 1200")
}

// A call that waits is judged, when people have approved it, by what is used then.
func TestWaitingCallIsJudgedByWhatIsUsedThen(t *testing.T) {
	hold := time.Minute
	for _, tt := range []struct {
		name   string
		others float64
		most   float64 // by then
		race   float64 // what others use just before it is counted
		sums   string  // what the policy counts by then, "" = as before
		word   string
		used   string
		state  approval.State
	}{
		{name: "as before", others: 100, most: 1000, word: "made", used: "2 1200", state: approval.StateDone},
		{name: "too much by now", others: 900, most: 1000, word: signal.CodePolicyDenied, used: "1 900", state: approval.StateSuperseded},
		{name: "nobody is asked any more", others: 100, most: 1500, word: "made", used: "2 1200", state: approval.StateSuperseded},
		{name: "and then somebody is", others: 100, most: 1500, race: 400, word: signal.CodeRateLimited, used: "2 500", state: approval.StateSuperseded},
		{name: "it cannot be counted any more", others: 100, most: 1500, sums: "/nothing", word: signal.CodeSchemaMismatch, used: "1 100", state: approval.StateSuperseded},
	} {
		t.Run(tt.name, func(t *testing.T) {
			withMeteredGate(t, proxy.Settings{Hold: &hold}, func(t *testing.T, u *meteredGate) {
				u.cap = 1900
				came := make(chan string, 1)
				go func() { came <- u.pays(t, 1100) }()
				synctest.Wait()
				u.others(t, tt.others)
				u.mu.Lock()
				u.most = tt.most
				u.mu.Unlock()
				if tt.sums != "" {
					u.meters = []policy.Meter{{Name: "day", Window: 24 * time.Hour, Sum: tt.sums}}
				}
				if tt.race > 0 {
					u.reserving = func() { u.others(t, tt.race) }
				}
				u.approves(t, "boss")
				wantWord(t, "call", <-came, tt.word)
				wantWord(t, "used", u.used(t), tt.used)
				wantWord(t, "ticket", string(u.ticket(t).State), string(tt.state))
			})
		})
	}
}

// A call that runs without its agent counts when it runs, once, however often the
// ticket worker has to try.
func TestResumedCallCounts(t *testing.T) {
	withMeteredGate(t, proxy.Settings{}, func(t *testing.T, u *meteredGate) {
		u.most = 0
		wantWord(t, "call", u.pays(t, 100), "held")
		u.forwardErr = &registry.ForwardError{Kind: registry.Unavailable}
		u.approves(t, "boss")
		time.Sleep(10 * time.Second)
		synctest.Wait()
		wantWord(t, "used while the server is down", u.used(t), "0 0")
		if len(u.sent) == 0 {
			t.Error("the ticket worker has not tried")
		}
		u.mu.Lock()
		u.forwardErr = nil
		u.mu.Unlock()
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		wantWord(t, "ticket", string(u.ticket(t).State), string(approval.StateDone))
		wantWord(t, "used", u.used(t), "1 100")
		wantWord(t, "its agent comes back", u.pays(t, 100), "made")
		wantWord(t, "used", u.used(t), "1 100")
	})
}

// A call that toolgate ends because it stops has an answer, which says whether it may have
// been made. The use of one that was not sent is given back.
func TestShutdown(t *testing.T) {
	for _, tc := range []struct {
		name       string
		sent       bool
		code, used string
	}{
		{"before it was sent", false, signal.CodeUpstreamUnavailable, "0 0"},
		{"after", true, signal.CodeToolTimeout, "1 100"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			u := openMeteredGate(t)
			ctx, stop := context.WithCancelCause(t.Context())
			u.sending = func(ctx context.Context) (json.RawMessage, error) {
				stop(proxy.ErrShutdown)
				return nil, &registry.ForwardError{Kind: registry.Cancelled, Sent: tc.sent, Err: ctx.Err()}
			}
			word, _ := u.came(ctx, t, 100)
			wantWord(t, "code", word, tc.code)
			wantWord(t, "used", u.used(t), tc.used)
		})
	}
}

// A caller that has gone is not counted: nothing of its call was sent.
func TestCallersThatHaveGone(t *testing.T) {
	u := openMeteredGate(t)
	ctx, stop := context.WithCancel(t.Context())
	stop()
	word, _ := u.came(ctx, t, 100)
	wantWord(t, "gone before it was judged", word, signal.CodeCancelled)
	ctx, stop = context.WithCancel(t.Context())
	u.reserving = stop
	word, _ = u.came(ctx, t, 100)
	wantWord(t, "gone before it was counted", word, signal.CodeCancelled)
	ctx, stop = context.WithCancel(t.Context())
	u.sending = func(ctx context.Context) (json.RawMessage, error) {
		stop()
		return nil, &registry.ForwardError{Kind: registry.Cancelled, Err: ctx.Err()}
	}
	word, _ = u.came(ctx, t, 100)
	wantWord(t, "gone before it was sent", word, signal.CodeCancelled)
	wantWord(t, "used", u.used(t), "0 0")
}

// What cannot be counted is refused, whether it is allowed or held, and asked of
// nobody.
func TestUncountableCall(t *testing.T) {
	u := openMeteredGate(t)
	u.tier, u.cap = 1e300, 1e300
	for _, n := range []string{`"100"`, "null", "-100", "1e99"} {
		for _, most := range []float64{1000, -1000} {
			u.most = most
			wantWord(t, n, u.pays(t, n), signal.CodeSchemaMismatch)
		}
	}
	if list, err := u.tickets.List(t.Context(), approval.Filter{}); len(list) != 0 || err != nil {
		t.Errorf("asked: %v, %v", list, err)
	}
	wantWord(t, "used", u.used(t), "0 0")
}

// A store that others write to all the time refuses, and says when to come again.
func TestNoTurnToCount(t *testing.T) {
	withMeteredGate(t, proxy.Settings{}, func(t *testing.T, u *meteredGate) {
		tx, err := u.db.Write.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		word, _ := u.came(t.Context(), t, 100)
		if err := tx.Rollback(); err != nil {
			t.Fatal(err)
		}
		wantWord(t, "call", word, signal.CodeOverloaded)
		wantWord(t, "used", u.used(t), "0 0")
		wantWord(t, "call", u.pays(t, 100), "made")
	})
}

// A policy that wants calls counted does not judge where nobody counts; one that
// does not costs the store nothing.
func TestMetersNeedAStore(t *testing.T) {
	u := openMeteredGate(t)
	g, err := proxy.New(proxy.Options{Identifier: u.bench, Policy: u, Limiter: u, Tickets: u, Recorder: u, Upstreams: u})
	if err != nil {
		t.Fatal(err)
	}
	if _, f := g.Call(t.Context(), request(t, plain)); f == nil || f.Kernel.Code != signal.CodeInternal || len(u.sent) != 0 {
		t.Errorf("nobody counts, and the call came to %v, sent %v", f, u.sent)
	}
	u.meters, u.readErr, u.reserveErr = nil, errors.New("asked"), errors.New("asked")
	u.Gate.SetPolicy(u.bench)
	wantWord(t, "a policy without meters", u.pays(t, 1), "made")
}

// What a meter adds to a call whose controls answer from memory: a read and a
// durable write of the store.
func BenchmarkMeteredCall(b *testing.B) {
	for _, unmetered := range []bool{true, false} {
		b.Run(fmt.Sprintf("metered=%v", !unmetered), func(b *testing.B) {
			u := openMeteredGate(b)
			u.most = 1e12
			if unmetered {
				u.meters = nil
				u.SetPolicy(u.bench)
			}
			in := request(b, plain)
			in.Credential = identity.Credential{Bearer: "ann-token"}
			for b.Loop() {
				if _, f := u.Call(b.Context(), in); f != nil {
					b.Fatal(f)
				}
			}
		})
	}
}
