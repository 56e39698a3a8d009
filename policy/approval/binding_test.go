package approval_test

import (
	"errors"
	"testing"
	"time"

	"github.com/toolgate/toolgate/policy/approval"
)

// What a call that differs from the held one is to its ticket.
const (
	another    = "another ticket" // and the old one still waits, for its own call
	supersedes = "supersedes"     // another ticket, and the old one ends
	attaches   = "attaches"       // the same ticket
)

// bindings is the table of what a ticket is bound to. Arguments are compared byte
// for byte: key order and number form make another call, since an upstream may
// read them otherwise. Names twice or in another case never come this far: see
// the receive and validate stages of the road.
var bindings = map[string]struct {
	change func(*approval.Held)
	is     string
}{
	"nothing":                {func(*approval.Held) {}, attaches},
	"amount":                 {args(`{"action":"transfer","amount":100000}`), another},
	"one more member":        {args(`{"action":"transfer","amount":500,"memo":""}`), another},
	"one member less":        {args(`{"action":"transfer"}`), another},
	"key order":              {args(`{"amount":500,"action":"transfer"}`), another},
	"number form":            {args(`{"action":"transfer","amount":5e2}`), another},
	"number form, fraction":  {args(`{"action":"transfer","amount":500.0}`), another},
	"number to text":         {args(`{"action":"transfer","amount":"500"}`), another},
	"white space":            {args(`{"action":"transfer", "amount":500}`), another},
	"an escape":              {args(`{"action":"tr\u0061nsfer","amount":500}`), another},
	"a key in another case":  {args(`{"action":"transfer","Amount":500}`), another},
	"a key twice":            {args(`{"action":"transfer","amount":500,"amount":500}`), another},
	"no arguments":           {args(``), another},
	"subject":                {func(h *approval.Held) { h.Principal.Subject = "agent2" }, another},
	"tenant":                 {func(h *approval.Held) { h.Principal.Tenant = "acme" }, another},
	"server":                 {func(h *approval.Held) { h.Server = "evil" }, another},
	"tool":                   {func(h *approval.Held) { h.Tool = "wallet" }, another},
	"exposed name":           {func(h *approval.Held) { h.Exposed += "__evil" }, another},
	"tool definition":        {func(h *approval.Held) { h.Fingerprint = "sha256:f1" }, supersedes},
	"policy revision":        {func(h *approval.Held) { h.Revision = "sha256:r1" }, supersedes},
	"approver roles":         {func(h *approval.Held) { h.Approval.Roles = []string{"cfo"} }, supersedes},
	"one more approver role": {func(h *approval.Held) { h.Approval.Roles = []string{"approver", "cfo"} }, supersedes},
	"quorum":                 {func(h *approval.Held) { h.Approval.Quorum = 2 }, supersedes},
	"quorum said":            {func(h *approval.Held) { h.Approval.Quorum = 1 }, attaches},
	"session":                {func(h *approval.Held) { h.Session = "s-2" }, attaches},
	"way in":                 {func(h *approval.Held) { h.Transport, h.Era = "rest", "" }, attaches},
	"tags":                   {func(h *approval.Held) { h.Tags = map[string]string{"urgency": "high"} }, attaches},
	"client":                 {func(h *approval.Held) { h.Principal.Client = "other/2" }, attaches},
	"requester's roles":      {func(h *approval.Held) { h.Principal.Roles = []string{"creator"} }, attaches},
	"ids":                    {func(h *approval.Held) { h.DecisionID, h.TraceID = "dec_2", "trc_2" }, attaches},
	"rule and reason":        {func(h *approval.Held) { h.Rule, h.Reason = "other", "said differently" }, attaches},
	"ttl":                    {func(h *approval.Held) { h.Approval.TTL *= 2 }, attaches},
	"hold":                   {func(h *approval.Held) { h.Approval.Hold = new(time.Duration) }, attaches},
	"run when approved":      {func(h *approval.Held) { h.Execute = true }, attaches},
}

func args(text string) func(*approval.Held) {
	return func(h *approval.Held) { h.Arguments, h.Digest = []byte(text), digest(text) }
}

// The table holds for a ticket that waits, for a grant that nobody has spent, and
// for a result that would be replayed.
func TestBinding(t *testing.T) {
	for _, state := range []approval.State{approval.StateProposed, approval.StateApproved, approval.StateDone} {
		w := newWorld(t)
		w.Tickets = w.open(approval.Options{MaxLive: 1000})
		for name, row := range bindings {
			t.Run(string(state)+"/"+name, func(t *testing.T) {
				w := &world{t: t, Tickets: w.Tickets}
				held, bystander := transfer(hundred), transfer(other)
				held.Exposed, bystander.Exposed = name, name // apart from the other rows
				k, untouched := w.claim(held, approval.Pending), w.claim(bystander, approval.Pending)
				w.lead(held, k.ID, state)
				row.change(&held)
				c, err := w.Claim(t.Context(), held)
				if err != nil {
					t.Fatal(err)
				}
				if same := c.Ticket.ID == k.ID; same != (row.is == attaches) {
					t.Errorf("the call found the ticket: %v", same)
				}
				want := state
				switch {
				case row.is == supersedes && state != approval.StateDone:
					want = approval.StateSuperseded
				case row.is == attaches && state == approval.StateApproved:
					want = approval.StateDispatching
				}
				w.wantState(k.ID, want)
				w.wantState(untouched.ID, approval.StateProposed)
			})
		}
	}
}

// lead brings the ticket of a call from proposed to a state.
func (w *world) lead(held approval.Held, id string, to approval.State) {
	w.t.Helper()
	if to == approval.StateProposed {
		return
	}
	w.approve(id, ann)
	if to == approval.StateApproved {
		return
	}
	w.claim(held, approval.Granted)
	w.finish(id, to, answer, "")
}

// Parts of a binding cannot be moved from one into the next.
func TestBindingPartsAreApart(t *testing.T) {
	w := newWorld(t)
	held := transfer(hundred)
	held.Server, held.Tool = "standard:manage", "wallet:x"
	k := w.claim(held, approval.Pending)
	held.Server, held.Tool = "standard", "manage:wallet:x"
	if got := w.claim(held, approval.Pending); got.ID == k.ID {
		t.Error("two calls have one ticket")
	}
}

func TestRolesInAnyOrder(t *testing.T) {
	w := newWorld(t)
	held := transfer(hundred)
	held.Approval.Roles = []string{"b", "a"}
	k := w.claim(held, approval.Pending)
	held.Approval.Roles = []string{"a", "b"}
	if got := w.claim(held, approval.Pending); got.ID != k.ID {
		t.Error("the order of the roles made a second ticket")
	}
}

func TestASupersededTicketIsOver(t *testing.T) {
	w := newWorld(t)
	waiting := w.claim(transfer(hundred), approval.Pending)
	changed := transfer(hundred)
	changed.Revision = "sha256:r1"
	w.claim(changed, approval.Pending)
	_, err := w.Decide(t.Context(), approval.Vote{ID: waiting.ID, Approver: ann, Approve: true})
	if !errors.Is(err, approval.ErrNotPending) {
		t.Errorf("deciding on the superseded ticket: %v", err)
	}
	if back := w.claim(transfer(hundred), approval.Pending); back.ID == waiting.ID {
		t.Error("a superseded ticket answered again")
	}
}

// A call that wants to be run when it is approved makes its ticket one that is,
// and no later call takes that back.
func TestAttachingKeepsExecute(t *testing.T) {
	w := newWorld(t)
	k := w.claim(transfer(hundred), approval.Pending)
	eager := transfer(hundred)
	eager.Execute = true
	for _, held := range []approval.Held{eager, transfer(hundred)} {
		if got := w.claim(held, approval.Pending); !got.Execute || !w.get(k.ID).Execute {
			t.Error("the ticket does not run when it is approved")
		}
	}
}
