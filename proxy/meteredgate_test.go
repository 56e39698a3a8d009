package proxy_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/approval"
	"github.com/toolgate/toolgate/policy/identity"
	"github.com/toolgate/toolgate/policy/limit"
	"github.com/toolgate/toolgate/proxy"
	"github.com/toolgate/toolgate/proxy/hold"
	"github.com/toolgate/toolgate/registry"
)

// meteredGate is a gate with real tickets and a real store of usage. Its policy knows one
// meter, the sum of n: calls pass up to most, are held by boss up to tier, by chief
// up to cap, and denied above.
type meteredGate struct {
	*bench
	*limit.Usage
	db              *store.DB
	tickets         *approval.Tickets
	worker          *hold.Worker
	most, tier, cap float64
	meters          []policy.Meter

	readErr, reserveErr, returnErr error
	reserving                      func() // before a call is counted, once
	claiming                       func() // before a ticket is claimed, once
	limits                         []*policy.Limit
	rate                           func(sum float64) *policy.Limit
	sending                        func(context.Context) (json.RawMessage, error)
}

var dayMeter = []policy.Meter{{Name: "day", Window: 24 * time.Hour, Sum: "/n"}}

// newMeteredGate returns a gate, with a ticket worker if withWorker. Its store is closed
// when the test ends.
func newMeteredGate(t testing.TB, path string, s proxy.Settings, withWorker bool) *meteredGate {
	t.Helper()
	u := &meteredGate{bench: newBench(t), meters: dayMeter, most: 1000, tier: 1e9, cap: 1e9}
	db, err := store.Open(t.Context(), path, store.Migrations())
	if err != nil {
		t.Fatal(err)
	}
	u.db, u.Usage = db, limit.NewUsage(db, nil)
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
	if withWorker {
		if u.worker, err = hold.NewWorker(hold.Options{Shutdown: proxy.ErrShutdown, Gate: u.Gate, Ledger: u.tickets}); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		var err error
		if u.worker != nil {
			err = u.worker.Close(context.Background())
		}
		if err := errors.Join(err, u.tickets.Close(), db.Close()); err != nil {
			t.Error(err)
		}
	})
	return u
}

func openMeteredGate(t testing.TB) *meteredGate {
	t.Helper()
	return newMeteredGate(t, freshState(t), proxy.Settings{}, false)
}

// emptyState is a store that nobody has used yet: to copy one is quicker than to
// make one.
var emptyState = sync.OnceValues(func() (content []byte, err error) {
	dir, err := os.MkdirTemp("", "metered-*")
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

func freshState(t testing.TB) string {
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

// withMeteredGate runs a test in a bubble, with a ticket worker.
func withMeteredGate(t *testing.T, s proxy.Settings, test func(t *testing.T, u *meteredGate)) {
	t.Helper()
	path := freshState(t)
	synctest.Test(t, func(t *testing.T) {
		u := newMeteredGate(t, path, s, true)
		synctest.Wait()
		test(t, u)
	})
}

func (u *meteredGate) Meters(policy.Tool) []policy.Meter {
	return u.meters
}

func (u *meteredGate) Decide(_ context.Context, in *policy.Input) (policy.Decision, error) {
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
		d.Effect, d.Rule, d.Approval = policy.Hold, "tier", &policy.Approval{Roles: []string{"chief"}, ExecuteOnApprove: u.worker != nil}
	case total > u.most:
		d.Effect, d.Rule, d.Approval = policy.Hold, "most", &policy.Approval{Roles: []string{"boss"}, ExecuteOnApprove: u.worker != nil}
	}
	return d, nil
}

func (u *meteredGate) Spend(now time.Time, p policy.Principal, t policy.Tool, l *policy.Limit) *limit.Exceeded {
	u.mu.Lock()
	u.limits = append(u.limits, l)
	u.mu.Unlock()
	return u.bench.Spend(now, p, t, l)
}

func (u *meteredGate) Read(ctx context.Context, use *limit.Use) (map[string]policy.Reading, error) {
	if u.readErr != nil {
		return nil, u.readErr
	}
	return u.Usage.Read(ctx, use)
}

func (u *meteredGate) Reserve(ctx context.Context, use *limit.Use, judged map[string]policy.Reading, again func(map[string]policy.Reading) bool) (*limit.Reservation, error) {
	if u.reserveErr != nil {
		return nil, u.reserveErr
	}
	once(&u.reserving)
	return u.Usage.Reserve(ctx, use, judged, again)
}

func (u *meteredGate) Return(ctx context.Context, r *limit.Reservation) error {
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

func (u *meteredGate) Claim(ctx context.Context, h approval.Held) (approval.Claim, error) {
	u.maybePanic("approve")
	once(&u.claiming)
	return u.tickets.Claim(ctx, h)
}

func (u *meteredGate) Release(ctx context.Context, id string) error {
	return u.tickets.Release(ctx, id)
}

func (u *meteredGate) Finish(ctx context.Context, id string, s approval.State, result []byte, note string) error {
	return u.tickets.Finish(ctx, id, s, result, note)
}

func (u *meteredGate) View(_ context.Context, route string, _ registry.Downstream) registry.View {
	return registry.NewCatalogue([]string{"web"}, searcher).View(route)
}

func (u *meteredGate) Forward(ctx context.Context, t *registry.Tool, out registry.Outgoing) (json.RawMessage, error) {
	if u.sending != nil {
		return u.sending(ctx)
	}
	return upstreams{bench: u.bench}.Forward(ctx, t, out)
}

// pays makes a call as ann and says in a word what it came to.
func (u *meteredGate) pays(t *testing.T, n any) string {
	t.Helper()
	word, _ := u.came(t.Context(), t, n)
	return word
}

func (u *meteredGate) came(ctx context.Context, t *testing.T, n any) (string, *proxy.Reply) {
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
func (u *meteredGate) used(t *testing.T) string {
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
func (u *meteredGate) others(t *testing.T, n float64) {
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
func (u *meteredGate) ticket(t *testing.T) approval.Ticket {
	t.Helper()
	list, err := u.tickets.List(t.Context(), approval.Filter{Limit: 1})
	if err != nil || len(list) != 1 {
		t.Fatalf("tickets %v, %v", list, err)
	}
	return list[0]
}

func (u *meteredGate) approves(t *testing.T, role string) {
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
