package approval_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/internal/testkit/postgres"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/approval"
)

func account() *approval.Account {
	return &approval.Account{
		ID: "crd_1", Type: "oauth", Issuer: "https://as.example.org", Account: "ann@web", Scopes: []string{"read", "write"}, Until: noon.Add(time.Hour),
	}
}

// connected is the transfer of a requester who is connected as change leaves the account.
func connected(change func(*approval.Held)) approval.Held {
	held := transfer(hundred)
	held.Principal.Issuer, held.RunsAs = "https://idp.example.org", account()
	if change != nil {
		change(&held)
	}
	return held
}

// accounts are the credentials with which an approved call comes, and whether it runs.
var accounts = map[string]struct {
	change func(*approval.Held)
	runs   bool
}{
	"the same credential":                      {nil, true},
	"the same with more scopes":                {func(h *approval.Held) { h.RunsAs.Scopes = []string{"admin", "read", "write"} }, true},
	"the same, renewed":                        {func(h *approval.Held) { h.RunsAs.Until = noon.Add(2 * time.Hour) }, true},
	"a new credential of the same kind":        {func(h *approval.Held) { h.RunsAs.ID = "crd_2" }, true},
	"missing":                                  {func(h *approval.Held) { h.RunsAs, h.Unconnected = nil, "ann is not connected" }, false},
	"that of the configuration":                {func(h *approval.Held) { h.RunsAs = nil }, false},
	"narrowed":                                 {func(h *approval.Held) { h.RunsAs.Scopes = []string{"read"} }, false},
	"of unknown scopes":                        {func(h *approval.Held) { h.RunsAs.Scopes = nil }, false},
	"a new one with fewer scopes":              {func(h *approval.Held) { h.RunsAs.ID, h.RunsAs.Scopes = "crd_2", []string{"write"} }, false},
	"of another issuer":                        {func(h *approval.Held) { h.RunsAs.Issuer = "https://evil.example.org" }, false},
	"of another account":                       {func(h *approval.Held) { h.RunsAs.Account = "bob@web" }, false},
	"of an unknown account":                    {func(h *approval.Held) { h.RunsAs.Account = "" }, false},
	"of another type":                          {func(h *approval.Held) { h.RunsAs.Type = "command" }, false},
	"of a person with the name of another":     {func(h *approval.Held) { h.Principal.Issuer = "https://other.example.org" }, false},
	"of a person of the configuration's names": {func(h *approval.Held) { h.Principal.Issuer = "" }, false},
}

// The grant of an approved call is spent only where the call runs as approved. Otherwise it is
// kept until the requester's credential is as approved, or the ticket is over.
func TestRunsAsApproved(t *testing.T) {
	t.Parallel()
	for name, tt := range accounts {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			k := w.claim(connected(nil), approval.Pending)
			w.approve(k.ID, ann)
			if tt.runs {
				w.claim(connected(tt.change), approval.Granted)
				return
			}
			for range 2 {
				got := w.claim(connected(tt.change), approval.Unconnected)
				if got.ID != k.ID || got.State != approval.StateNeedsConnection || got.Unconnected == "" {
					t.Fatalf("ticket %s is %s: %q", got.ID, got.State, got.Unconnected)
				}
			}
			got, err := w.Get(t.Context(), k.ID)
			if err != nil || got.State != approval.StateNeedsConnection || !cmp.Equal(got.RunsAs, account()) {
				t.Fatalf("%s as %+v, %v", got.State, got.RunsAs, err)
			}
			w.claim(connected(nil), approval.Granted)
			if got, err = w.Get(t.Context(), k.ID); err != nil || got.State != approval.StateDispatching || got.Unconnected != "" {
				t.Errorf("%s: %q, %v", got.State, got.Unconnected, err)
			}
			var went []approval.State
			for _, c := range got.History {
				went = append(went, c.To)
			}
			want := []approval.State{"proposed", "approved", "needs_connection", "approved", "dispatching"}
			if diff := cmp.Diff(want, went); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// A call without a credential makes no ticket, and changes only one that is approved.
func TestUnconnectedCall(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	missing := connected(accounts["missing"].change)
	if got := w.claim(missing, approval.Unconnected); got.ID != "" {
		t.Errorf("ticket %s was made", got.ID)
	}
	k := w.claim(connected(nil), approval.Pending)
	if got := w.claim(missing, approval.Unconnected); got.ID != k.ID || got.State != approval.StateProposed || got.Attached != 0 {
		t.Errorf("%s is %s with %d calls", got.ID, got.State, got.Attached)
	}
	w.approve(k.ID, ann)
	w.claim(connected(nil), approval.Granted)
	w.finish(k.ID, approval.StateDone, answer, "")
	w.claim(missing, approval.Unconnected)
	w.claim(connected(nil), approval.Replay)
}

// A ticket that needs a connection is live: it is listed as such, runs upon the connection, is
// superseded and expires.
func TestNeedsConnection(t *testing.T) {
	t.Parallel()
	waiting := func(t *testing.T) (*world, approval.Ticket) {
		w := newWorld(t)
		held := connected(nil)
		held.Execute = true
		k := w.claim(held, approval.Pending)
		w.approve(k.ID, ann)
		return w, w.claim(connected(accounts["missing"].change), approval.Unconnected)
	}
	t.Run("lists", func(t *testing.T) {
		w, k := waiting(t)
		other := w.claim(transfer(`{"amount":751}`), approval.Pending)
		w.approve(other.ID, ann)
		for _, f := range []struct {
			filter approval.Filter
			want   []string
		}{
			{approval.Filter{States: []approval.State{approval.StateNeedsConnection}}, []string{k.ID}},
			{approval.Filter{States: []approval.State{approval.StateApproved}}, []string{other.ID}},
			{approval.Filter{States: []approval.State{approval.StateApproved, approval.StateNeedsConnection}}, []string{other.ID, k.ID}},
			{approval.Filter{}, []string{other.ID, k.ID}},
		} {
			found, err := w.List(t.Context(), f.filter)
			var ids []string
			for _, k := range found {
				ids = append(ids, k.ID)
			}
			if err != nil || !cmp.Equal(ids, f.want) {
				t.Errorf("%+v: %v, %v; want %v", f.filter, ids, err, f.want)
			}
		}
		counts, err := approval.Counts(t.Context(), openStore(t, w.path))
		if want := map[approval.State]int{approval.StateApproved: 1, approval.StateNeedsConnection: 1}; err != nil || !cmp.Equal(counts, want) {
			t.Errorf("counts %v, %v", counts, err)
		}
		for name, list := range map[string]func() ([]approval.Ticket, error){
			"runnable":  func() ([]approval.Ticket, error) { return w.Runnable(t.Context()) },
			"answering": func() ([]approval.Ticket, error) { return w.Answering(t.Context(), k.Principal) },
		} {
			found, err := list()
			if err != nil || len(found) == 0 || found[len(found)-1].State != approval.StateNeedsConnection {
				t.Errorf("%s: %v, %v", name, found, err)
			}
		}
		if again, err := w.Repeated(t.Context(), connected(nil)); err != nil || again.State != approval.StateNeedsConnection {
			t.Errorf("repeated: %s, %v", again.State, err)
		}
	})
	t.Run("expires", func(t *testing.T) {
		w, k := waiting(t)
		w.pass(10 * time.Minute)
		if got, err := w.Get(t.Context(), k.ID); err != nil || got.State != approval.StateExpired || got.Unconnected != "" {
			t.Errorf("%s: %q, %v", got.State, got.Unconnected, err)
		}
		w.claim(connected(nil), approval.Expired)
	})
	t.Run("is superseded", func(t *testing.T) {
		w, k := waiting(t)
		if err := w.Supersede(t.Context(), k.ID, "", "x"); err != nil {
			t.Fatal(err)
		}
		w.claim(connected(nil), approval.Pending)
	})
	t.Run("another policy", func(t *testing.T) {
		w, k := waiting(t)
		held := connected(nil)
		held.Revision = "sha256:r1"
		w.claim(held, approval.Pending)
		if got, err := w.Get(t.Context(), k.ID); err != nil || got.State != approval.StateSuperseded {
			t.Errorf("%s, %v", got.State, err)
		}
	})
	t.Run("an approver lost the role", func(t *testing.T) {
		roles := []string{"approver"}
		w := newWorld(t)
		tickets := w.open(approval.Options{Standing: func(subject, _ string) (policy.Principal, bool) {
			return policy.Principal{Subject: subject, Roles: roles}, true
		}})
		w.Tickets = tickets
		k := w.claim(connected(nil), approval.Pending)
		w.approve(k.ID, ann)
		w.claim(connected(accounts["narrowed"].change), approval.Unconnected)
		roles = nil
		w.claim(connected(nil), approval.Pending)
		if got, err := w.Get(t.Context(), k.ID); err != nil || got.State != approval.StateSuperseded {
			t.Errorf("%s, %v", got.State, err)
		}
	})
}

// The MAC of a ticket is over what its call runs as: who can write to the store cannot have it run
// with another credential, nor at all.
func TestForgedAccount(t *testing.T) {
	t.Parallel()
	for name, statement := range map[string]string{
		"another account": `UPDATE approvals SET runs_as = replace(runs_as, 'ann@web', 'bob@web')`,
		"fewer scopes":    `UPDATE approvals SET runs_as = replace(runs_as, '"read",', '')`,
		"no account":      `UPDATE approvals SET runs_as = ''`,
		"connected again": `UPDATE approvals SET unconnected = ''`,
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			k := w.claim(connected(nil), approval.Pending)
			w.approve(k.ID, ann)
			w.claim(connected(accounts["narrowed"].change), approval.Unconnected)
			w.forge(statement)
			w.claim(connected(nil), approval.Unknown)
			if got := w.state(k.ID); got != approval.StateUnknown {
				t.Errorf("the row is %s", got)
			}
		})
	}
}

// A ticket from before its server asked each caller for a credential is no grant for a caller
// without one.
func TestUnconnectedSinceTheApproval(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	held := transfer(hundred)
	k := w.claim(held, approval.Pending)
	w.approve(k.ID, ann)
	missing := held
	missing.Unconnected = "ann is not connected"
	if got := w.claim(missing, approval.Unconnected); got.State != approval.StateNeedsConnection {
		t.Errorf("%s", got.State)
	}
	w.claim(held, approval.Granted)
}

// As TestTicketsBehindTheTrail, for a ticket that needs a connection.
func TestNeedsConnectionBehindTheTrail(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		word   approval.State
		unsent bool
		want   approval.ClaimOutcome
	}{
		"connected again, not stored":       {approval.StateApproved, true, approval.Granted},
		"a grant that was not spent":        {approval.StateDispatching, true, approval.Granted},
		"a grant that may be spent":         {approval.StateDispatching, false, approval.Unknown},
		"a run that ended":                  {approval.StateDone, true, approval.Unknown},
		"it was superseded, and not stored": {approval.StateSuperseded, true, approval.Unknown},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			k := w.claim(connected(nil), approval.Pending)
			w.approve(k.ID, ann)
			w.claim(connected(accounts["missing"].change), approval.Unconnected)
			last := w.get(k.ID).History
			word := approval.Word{Seq: last[len(last)-1].Seq + 1, State: c.word, Unsent: c.unsent}
			tickets := w.open(approval.Options{LastWord: func(context.Context, string, time.Time) (approval.Word, error) { return word, nil }})
			want := c.want
			if postgres.Used() {
				want = approval.Unknown
			}
			if got, err := tickets.Claim(t.Context(), connected(nil)); err != nil || got.Outcome != want {
				t.Errorf("claimed: %q, %v; want %q", got.Outcome, err, want)
			}
		})
	}
}
