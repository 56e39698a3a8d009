package proxy_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/approval"
	"github.com/toolgate/toolgate/policy/identity"
	"github.com/toolgate/toolgate/policy/limit"
	"github.com/toolgate/toolgate/proxy"
	"github.com/toolgate/toolgate/registry"
	"github.com/toolgate/toolgate/signal"
)

// till is a gate with real tickets and a real store of usage. Its policy knows one
// meter, the sum of n: calls pass up to most, are held by boss up to tier, by chief
// up to cap, and denied above.
type till struct {
	*bench
	*limit.Usage
	tickets         *approval.Tickets
	steward         *proxy.Steward
	most, tier, cap float64
	unmetered       bool

	readErr, reserveErr, returnErr error
	reserving                      func() // before a call is counted, once
	claiming                       func() // before a ticket is claimed, once
	limits                         []*policy.Limit
	rate                           func(sum float64) *policy.Limit
	sending                        func(context.Context) (json.RawMessage, error)
}

var dayMeter = []policy.Meter{{Name: "day", Window: 24 * time.Hour, Sum: "/n"}}

// newTill makes one with a steward, if stewarded. Its store is closed with the test.
func newTill(t *testing.T, path string, s proxy.Settings, stewarded bool) *till {
	t.Helper()
	u := &till{bench: newBench(t), most: 1000, tier: 1e9, cap: 1e9}
	db, err := store.Open(t.Context(), path, store.Migrations())
	if err != nil {
		t.Fatal(err)
	}
	u.Usage = limit.NewUsage(db, nil)
	if u.tickets, err = approval.New(t.Context(), db, approval.Options{TTL: 10 * time.Minute}); err != nil {
		t.Fatal(err)
	}
	if s.Hold == nil {
		s.Hold = new(time.Duration(0))
	}
	auth, err := identity.New(annAndLocal)
	if err != nil {
		t.Fatal(err)
	}
	u.Gate, err = proxy.New(proxy.Options{
		Identifier: auth, Policy: u, Limiter: u, Usage: u, Tickets: u, Waiter: u.tickets, Book: u.tickets, Recorder: u, Upstreams: u, Settings: s,
	})
	if err != nil {
		t.Fatal(err)
	}
	if stewarded {
		if u.steward, err = proxy.NewSteward(proxy.StewardOptions{Gate: u.Gate, Ledger: u.tickets}); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		var err error
		if u.steward != nil {
			err = u.steward.Close(context.Background())
		}
		if err := errors.Join(err, u.tickets.Close(), db.Close()); err != nil {
			t.Error(err)
		}
	})
	return u
}

func openTill(t *testing.T) *till {
	t.Helper()
	return newTill(t, freshState(t), proxy.Settings{}, false)
}

// emptyState is a store that nobody has used yet: to copy one is quicker than to
// make one.
var emptyState = sync.OnceValues(func() (content []byte, err error) {
	dir, err := os.MkdirTemp("", "till-*")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	path := filepath.Join(dir, "state.db")
	db, err := store.Open(context.Background(), path, store.Migrations())
	if err != nil {
		return nil, err
	}
	if err := db.Close(); err != nil {
		return nil, err
	}
	return os.ReadFile(path)
})

func freshState(t *testing.T) string {
	t.Helper()
	content, err := emptyState()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "state.db")
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// inTill runs a test in a bubble, with a steward.
func inTill(t *testing.T, s proxy.Settings, test func(t *testing.T, u *till)) {
	t.Helper()
	path := freshState(t)
	synctest.Test(t, func(t *testing.T) {
		u := newTill(t, path, s, true)
		synctest.Wait()
		test(t, u)
	})
}

func (u *till) Meters(policy.Tool) []policy.Meter {
	if u.unmetered {
		return nil
	}
	return dayMeter
}

func (u *till) Decide(_ context.Context, in *policy.Input) (policy.Decision, error) {
	u.maybePanic("decide")
	day, there := in.Usage["day"]
	sum, err := day.Sum.Float64()
	if !there || err != nil {
		return policy.Decision{}, fmt.Errorf("no usage: %v, %w", in.Usage, err)
	}
	var args struct{ N float64 }
	if err := json.Unmarshal(in.Arguments, &args); err != nil {
		return policy.Decision{Effect: policy.Allow, Rule: "odd", Revision: "sha256:p"}, nil
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.judged = append(u.judged, string(day.Sum))
	d := policy.Decision{Effect: policy.Allow, Rule: "below", Revision: "sha256:p"}
	if u.rate != nil {
		d.Limit = u.rate(sum)
	}
	switch total := sum + args.N; {
	case total > u.cap:
		d.Effect, d.Rule = policy.Deny, "cap"
	case total > u.tier:
		d.Effect, d.Rule, d.Approval = policy.Hold, "tier", &policy.Approval{Roles: []string{"chief"}, ExecuteOnApprove: u.steward != nil}
	case total > u.most:
		d.Effect, d.Rule, d.Approval = policy.Hold, "most", &policy.Approval{Roles: []string{"boss"}, ExecuteOnApprove: u.steward != nil}
	}
	return d, nil
}

func (u *till) Spend(now time.Time, p policy.Principal, t policy.Tool, l *policy.Limit) *limit.Exceeded {
	u.mu.Lock()
	u.limits = append(u.limits, l)
	u.mu.Unlock()
	return u.bench.Spend(now, p, t, l)
}

func (u *till) Read(ctx context.Context, use *limit.Use) (map[string]policy.Reading, error) {
	if u.readErr != nil {
		return nil, u.readErr
	}
	return u.Usage.Read(ctx, use)
}

func (u *till) Reserve(ctx context.Context, use *limit.Use, judged map[string]policy.Reading, again func(map[string]policy.Reading) bool) (*limit.Reservation, error) {
	if u.reserveErr != nil {
		return nil, u.reserveErr
	}
	once(&u.reserving)
	return u.Usage.Reserve(ctx, use, judged, again)
}

func (u *till) Return(ctx context.Context, r *limit.Reservation) error {
	if u.returnErr != nil {
		return u.returnErr
	}
	return u.Usage.Return(ctx, r)
}

// once does what is to be done, and forgets it.
func once(do *func()) {
	if f := *do; f != nil {
		*do = nil
		f()
	}
}

func (u *till) Claim(ctx context.Context, h approval.Held) (approval.Claim, error) {
	u.maybePanic("approve")
	once(&u.claiming)
	return u.tickets.Claim(ctx, h)
}

func (u *till) Release(ctx context.Context, id string) error { return u.tickets.Release(ctx, id) }

func (u *till) Finish(ctx context.Context, id string, s approval.State, result []byte, note string) error {
	return u.tickets.Finish(ctx, id, s, result, note)
}

func (u *till) View(_ context.Context, route string, _ registry.Downstream) registry.View {
	return registry.NewCatalogue([]string{"web"}, searcher).View(route)
}

func (u *till) Forward(ctx context.Context, t *registry.Tool, out registry.Outgoing) (json.RawMessage, error) {
	if u.sending != nil {
		return u.sending(ctx)
	}
	return upstreams{bench: u.bench}.Forward(ctx, t, out)
}

// pays makes a call as ann and says in a word what it came to.
func (u *till) pays(t *testing.T, n any) string {
	t.Helper()
	word, _ := u.came(t.Context(), t, n)
	return word
}

func (u *till) came(ctx context.Context, t *testing.T, n any) (string, *proxy.Reply) {
	t.Helper()
	in := request(t, fmt.Sprintf(`{"name":"web__find","arguments":{"n":%v}}`, n))
	in.Credential, in.Era = identity.Credential{Bearer: "ann-token"}, "2025-11-25"
	reply, f := u.Call(ctx, in)
	switch {
	case f != nil:
		return f.Kernel.Code, reply
	case reply.RetryAfter > 0:
		return "held", reply
	}
	return "made", reply
}

// used is what ann has used.
func (u *till) used(t *testing.T) string {
	t.Helper()
	use, err := limit.Measure(policy.Principal{Subject: "ann"}, "web__find", "", json.RawMessage(`{"n":0}`), dayMeter)
	if err != nil {
		t.Fatal(err)
	}
	got, err := u.Usage.Read(context.Background(), use)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprint(got["day"].Calls, " ", got["day"].Sum)
}

// others lets another process of ann's use n.
func (u *till) others(t *testing.T, n float64) {
	t.Helper()
	use, err := limit.Measure(policy.Principal{Subject: "ann"}, "web__find", "", fmt.Appendf(nil, `{"n":%v}`, n), dayMeter)
	if err == nil {
		_, err = u.Usage.Reserve(context.Background(), use, nil, func(map[string]policy.Reading) bool { return true })
	}
	if err != nil {
		t.Error(err)
	}
}

// ticket gives ann's newest ticket.
func (u *till) ticket(t *testing.T) approval.Ticket {
	t.Helper()
	list, err := u.tickets.List(t.Context(), approval.Filter{Limit: 1})
	if err != nil || len(list) != 1 {
		t.Fatalf("tickets %v, %v", list, err)
	}
	return list[0]
}

func (u *till) approves(t *testing.T, role string) {
	t.Helper()
	boss := policy.Principal{Subject: "bo", Roles: []string{role}}
	if _, err := u.tickets.Decide(t.Context(), approval.Vote{ID: u.ticket(t).ID, Approver: boss, Approve: true}); err != nil {
		t.Fatal(err)
	}
}

func wantWord(t *testing.T, what, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%s: %s, want %s", what, got, want)
	}
}

// Eleven calls of a hundred under a window of a thousand: the eleventh is held. When
// it is approved it counts; and who comes back for its result gets it, though by
// then it would be too much.
func TestEleventhIsHeld(t *testing.T) {
	u := openTill(t)
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

// Callers that come at once are judged one after the other.
func TestTogetherWithinTheWindow(t *testing.T) {
	u := openTill(t)
	var mu sync.Mutex
	words := map[string]int{}
	var all sync.WaitGroup
	for n := range 64 {
		all.Go(func() {
			word := u.pays(t, fmt.Sprintf("100, \"i\": %d", n))
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
		set   func(*till)
		word  string
		stays bool
		state approval.State // of the ticket, "" = as for any that stays
	}{
		{name: "made", word: "made", stays: true},
		{name: "the tool says no", set: func(u *till) { u.result = `{"isError":true,"content":[]}` }, word: "made", stays: true},
		{name: "over a rate", set: func(u *till) { u.exceeded = &limit.Exceeded{} }, word: signal.CodeRateLimited},
		{name: "arguments break the schema", n: 100.5, word: signal.CodeSchemaMismatch},
		{name: "no record", set: func(u *till) { u.decisionErr = errors.New("full") }, word: signal.CodeAuditUnavailable},
		{name: "no outcome", set: func(u *till) { u.outcomeErr = errors.New("full") }, word: signal.CodeAuditUnavailable, stays: true},
		{name: "neither", set: func(u *till) { u.decisionErr, u.outcomeErr = errors.New("full"), errors.New("full") }, word: signal.CodeAuditUnavailable},
		{name: "panic in limit", set: func(u *till) { u.panicAt = "limit" }, word: signal.CodeInternal},
		{name: "panic in record", set: func(u *till) { u.panicAt = "record" }, word: signal.CodeInternal},
		{name: "panic in forward", set: func(u *till) { u.panicAt = "forward" }, word: signal.CodeInternal, stays: true, state: approval.StateUnknown},
		{name: "server is down", set: func(u *till) { u.forwardErr = &registry.ForwardError{Kind: registry.Unavailable} }, word: signal.CodeUpstreamUnavailable},
		{name: "cancelled before it was sent", set: func(u *till) { u.forwardErr = &registry.ForwardError{Kind: registry.Cancelled} }, word: signal.CodeCancelled},
		{name: "cancelled after", set: func(u *till) { u.forwardErr = &registry.ForwardError{Kind: registry.Cancelled, Sent: true} }, word: signal.CodeCancelled, stays: true, state: approval.StateUnknown},
		{name: "too late", set: func(u *till) { u.forwardErr = &registry.ForwardError{Kind: registry.Timeout, Sent: true} }, word: signal.CodeToolTimeout, stays: true, state: approval.StateUnknown},
		{name: "an error nobody knows", set: func(u *till) { u.forwardErr = errors.New("?") }, word: signal.CodeToolFailed, stays: true, state: approval.StateUnknown},
		{name: "an error of the server", set: func(u *till) {
			u.forwardErr = &registry.ForwardError{Kind: registry.Failed, Sent: true, RPC: json.RawMessage(`{"code":1}`)}
		}, word: signal.CodeToolFailed, stays: true, state: approval.StateFailed},
		{name: "a result that is none", set: func(u *till) { u.result = `7` }, word: signal.CodeOutputInvalid, stays: true, state: approval.StateFailed},
		{name: "the store cannot be written", set: func(u *till) { u.reserveErr = errors.New("full") }, word: signal.CodeInternal},
		{name: "the store cannot be read", set: func(u *till) { u.readErr = errors.New("torn") }, word: signal.CodeInternal},
		{name: "the store fails at last", set: func(u *till) {
			u.forwardErr, u.returnErr = &registry.ForwardError{Kind: registry.Unavailable}, errors.New("full")
		}, word: signal.CodeUpstreamUnavailable, stays: true, state: approval.StateApproved},
	} {
		n := any(100)
		if tt.n != nil {
			n = tt.n
		}
		counted := map[bool]string{true: "1 100", false: "0 0"}[tt.stays]
		t.Run(tt.name+"/allowed", func(t *testing.T) {
			u := openTill(t)
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
			u := openTill(t)
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
			u := openTill(t)
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
	u := openTill(t)
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
			u := openTill(t)
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
		u := openTill(t)
		wantWord(t, "call", u.pays(t, 1100), "held")
		u.approves(t, "boss")
		u.claiming, u.most = func() { u.others(t, 1); u.most = 2000 }, 1000
		wantWord(t, "call with a grant", u.pays(t, 1100), "made")
		wantWord(t, "used", u.used(t), "2 1101")
		wantWord(t, "ticket", string(u.ticket(t).State), string(approval.StateDone))
	})
	t.Run("then of others", func(t *testing.T) {
		u := openTill(t)
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
	u := openTill(t)
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
		word   string
		used   string
		state  approval.State
	}{
		{name: "as before", others: 100, most: 1000, word: "made", used: "2 1200", state: approval.StateDone},
		{name: "too much by now", others: 900, most: 1000, word: signal.CodePolicyDenied, used: "1 900", state: approval.StateSuperseded},
		{name: "nobody is asked any more", others: 100, most: 1500, word: "made", used: "2 1200", state: approval.StateSuperseded},
		{name: "and then somebody is", others: 100, most: 1500, race: 400, word: signal.CodeRateLimited, used: "2 500", state: approval.StateSuperseded},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inTill(t, proxy.Settings{Hold: &hold}, func(t *testing.T, u *till) {
				u.cap = 1900
				came := make(chan string, 1)
				go func() { came <- u.pays(t, 1100) }()
				synctest.Wait()
				u.others(t, tt.others)
				u.mu.Lock()
				u.most = tt.most
				u.mu.Unlock()
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
// steward has to try.
func TestResumedCallCounts(t *testing.T) {
	inTill(t, proxy.Settings{}, func(t *testing.T, u *till) {
		u.most = 0
		wantWord(t, "call", u.pays(t, 100), "held")
		u.forwardErr = &registry.ForwardError{Kind: registry.Unavailable}
		u.approves(t, "boss")
		time.Sleep(10 * time.Second)
		synctest.Wait()
		wantWord(t, "used while the server is down", u.used(t), "0 0")
		if len(u.sent) == 0 {
			t.Error("the steward has not tried")
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

// A caller that has gone is not counted: nothing of its call was sent.
func TestCallersThatHaveGone(t *testing.T) {
	u := openTill(t)
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
	u := openTill(t)
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

// A policy that wants calls counted does not judge where nobody counts; one that
// does not costs the store nothing.
func TestMetersNeedAStore(t *testing.T) {
	u := openTill(t)
	g, err := proxy.New(proxy.Options{Identifier: u.bench, Policy: u, Limiter: u, Tickets: u, Recorder: u, Upstreams: u})
	if err != nil {
		t.Fatal(err)
	}
	if _, f := g.Call(t.Context(), request(t, plain)); f == nil || f.Kernel.Code != signal.CodeInternal || len(u.sent) != 0 {
		t.Errorf("nobody counts, and the call came to %v, sent %v", f, u.sent)
	}
	u.unmetered, u.readErr, u.reserveErr = true, errors.New("asked"), errors.New("asked")
	u.Gate.SetPolicy(u.bench)
	wantWord(t, "a policy without meters", u.pays(t, 1), "made")
}
