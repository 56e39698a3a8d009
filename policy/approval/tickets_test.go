package approval_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/toolgate/toolgate/internal/keys"
	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/internal/testkit/postgres"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/approval"
)

// world is one store with a clock that only the test moves.
type world struct {
	*approval.Tickets
	t    testing.TB
	path string

	mu  sync.Mutex // protects the fields below
	now time.Time
}

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func (w *world) clock() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.now
}

// pass moves the clock; a negative d steps it back.
func (w *world) pass(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.now = w.now.Add(d)
}

func openStore(t testing.TB, path string) *store.DB {
	t.Helper()
	db, err := postgres.State(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db
}

// openTickets opens tickets on the store of a path, with the keys next to it.
func openTickets(t testing.TB, path string, o approval.Options) (*approval.Tickets, error) {
	t.Helper()
	if o.Keys == nil {
		o.Keys = ring(t, path)
	}
	if o.Dir == "" {
		o.Dir = filepath.Join(filepath.Dir(path), "instances")
	}
	return approval.New(t.Context(), openStore(t, path), o)
}

// ring opens the keys next to the store of a path.
func ring(t testing.TB, path string) *keys.Dir {
	t.Helper()
	dir, err := keys.Open(filepath.Join(filepath.Dir(path), "keys"))
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// All tests of the package, with a server.
func TestOnPostgreSQL(t *testing.T) { postgres.Again(t) }

func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{t: t, now: noon, path: filepath.Join(t.TempDir(), "state.db")}
	w.Tickets = w.open(approval.Options{})
	return w
}

// open starts tickets of another handle on the world's file, with its clock.
func (w *world) open(o approval.Options) *approval.Tickets {
	w.t.Helper()
	if o.Now == nil {
		o.Now = w.clock
	}
	tickets, err := openTickets(w.t, w.path, o)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		if err := tickets.Close(); err != nil {
			w.t.Error(err)
		}
	})
	return tickets
}

func digest(arguments string) string {
	sum := sha256.Sum256([]byte(arguments))
	return "sha256:" + hex.EncodeToString(sum[:])
}

// transfer is the held call of most tests.
func transfer(arguments string) approval.Held {
	return approval.Held{
		Principal: policy.Principal{Subject: "agent", Roles: []string{"treasurer"}},
		Server:    "standard", Tool: "manage_wallet", Exposed: "manage_wallet", Fingerprint: "sha256:f0",
		Arguments: []byte(arguments), Digest: digest(arguments), Revision: "sha256:r0",
		Rule: "over_threshold", Reason: "amount above 100",
		Approval:   policy.Approval{Roles: []string{"approver"}, TTL: 10 * time.Minute},
		DecisionID: "dec_1", TraceID: "trc_1",
	}
}

func person(subject string, roles ...string) policy.Principal {
	return policy.Principal{Subject: subject, Roles: roles}
}

var (
	ann = person("ann", "approver")
	bob = person("bob", "approver")
)

// claim makes the call and wants the outcome.
func (w *world) claim(held approval.Held, want approval.ClaimOutcome) approval.Ticket {
	w.t.Helper()
	return claimOn(w.t, w.Tickets, held, want)
}

func claimOn(t testing.TB, tickets *approval.Tickets, held approval.Held, want approval.ClaimOutcome) approval.Ticket {
	t.Helper()
	c, err := tickets.Claim(t.Context(), held)
	if err != nil {
		t.Fatalf("claim: %v", err)
	}
	if c.Outcome != want {
		t.Fatalf("claim: outcome %q of a ticket that is %q, want %q", c.Outcome, c.Ticket.State, want)
	}
	return c.Ticket
}

func (w *world) approve(id string, by policy.Principal) approval.Ticket {
	w.t.Helper()
	return w.decide(approval.Vote{ID: id, Approver: by, Approve: true})
}

func (w *world) deny(id string, by policy.Principal) approval.Ticket {
	w.t.Helper()
	return w.decide(approval.Vote{ID: id, Approver: by, Reason: "not today"})
}

func (w *world) decide(v approval.Vote) approval.Ticket {
	w.t.Helper()
	k, err := w.Decide(w.t.Context(), v)
	if err != nil {
		w.t.Fatal(err)
	}
	return k
}

func (w *world) finish(id string, s approval.State, result, note string) {
	w.t.Helper()
	var raw []byte
	if result != "" {
		raw = []byte(result)
	}
	if err := w.Finish(w.t.Context(), id, s, raw, note); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) get(id string) approval.Ticket {
	w.t.Helper()
	k, err := w.Get(context.Background(), id)
	if err != nil {
		w.t.Fatal(err)
	}
	return k
}

func (w *world) wantState(id string, want approval.State) {
	w.t.Helper()
	if got := w.get(id).State; got != want {
		w.t.Fatalf("ticket is %q, want %q", got, want)
	}
}

const (
	hundred = `{"action":"transfer","amount":500}`
	other   = `{"action":"transfer","amount":501}`
	answer  = `{"content":[{"type":"text","text":"sent"}]}`
)

func TestOneRunAndItsReplay(t *testing.T) {
	w := newWorld(t)
	k := w.claim(transfer(hundred), approval.Pending)
	if again := w.claim(transfer(hundred), approval.Pending); again.ID != k.ID || again.Attached != 1 {
		t.Fatalf("an identical call got ticket %s attached %d, want %s attached 1", again.ID, again.Attached, k.ID)
	}
	w.approve(k.ID, ann)
	granted := w.claim(transfer(hundred), approval.Granted)
	if string(granted.Arguments) != hundred {
		t.Errorf("granted arguments %s", granted.Arguments)
	}
	w.claim(transfer(hundred), approval.InFlight)
	w.finish(k.ID, approval.StateDone, answer, "")
	for range 2 {
		if got := w.claim(transfer(hundred), approval.Replay); string(got.Result) != answer {
			t.Errorf("replayed %s", got.Result)
		}
	}
	w.pass(10 * time.Minute)
	if fresh := w.claim(transfer(hundred), approval.Pending); fresh.ID == k.ID {
		t.Error("a call after the ticket's life was answered by the old ticket")
	}
}
