package proxy_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/internal/keys"
	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/approval"
	"github.com/toolgate/toolgate/policy/identity"
	"github.com/toolgate/toolgate/proxy"
	"github.com/toolgate/toolgate/proxy/hold"
	"github.com/toolgate/toolgate/registry"
	"github.com/toolgate/toolgate/signal"
)

// workerGate is a gate with its ticket worker, real tickets and real identities. It runs in
// a bubble, so that hours pass at once.
type workerGate struct {
	*bench
	tickets *approval.Tickets
	auth    *identity.Authenticator
	worker  *hold.Worker
	current *registry.Catalogue
	at      []time.Duration // of each arrival at the upstream, since the test began
	forward func(context.Context) (json.RawMessage, error)
	then    *policy.Decision // what the policy says from the second question on
	ended   []string         // waits for people
	askers  []string         // for whom tickets were made
	begun   time.Time
	grants  people // of callers
}

var annAndLocal = identity.Config{
	Tokens: []identity.Token{{Subject: "ann", Roles: []string{"r"}, SHA256: identity.HashToken("ann-token")}}, Local: true, LocalRole: "r",
}

func openWorkerGate(t *testing.T, path string, s proxy.Settings) *workerGate {
	t.Helper()
	db, err := store.Open(t.Context(), path, store.Migrations())
	if err != nil {
		t.Fatal(err)
	}
	return newWorkerGate(t, db, nil, s)
}

// newWorkerGate is openWorkerGate on a database, which the gate closes.
func newWorkerGate(t *testing.T, db *store.DB, secrets *keys.Dir, s proxy.Settings) *workerGate {
	t.Helper()
	m := &workerGate{bench: newBench(t), current: registry.NewCatalogue([]string{"web"}, searcher), begun: time.Now()}
	asked := *held.Approval
	asked.ExecuteOnApprove = true
	m.decision = held
	m.decision.Approval = &asked
	var err error
	if m.tickets, err = approval.New(t.Context(), db, approval.Options{TTL: 10 * time.Minute, Keys: secrets}); err != nil {
		t.Fatal(err)
	}
	if m.auth, err = identity.New(annAndLocal); err != nil {
		t.Fatal(err)
	}
	if s.Hold == nil {
		s.Hold = new(time.Duration(0))
	}
	m.Gate, err = proxy.New(proxy.Options{
		Identifier: m.auth, Policy: m, Limiter: m, Tickets: m.tickets, Waiter: m.tickets, Book: m.tickets, Recorder: m, Upstreams: m, Settings: s,
		Credentials: &m.grants, Stops: &m.brake,
	})
	if err != nil {
		t.Fatal(err)
	}
	m.worker, err = hold.NewWorker(hold.Options{Shutdown: proxy.ErrShutdown, Gate: m.Gate, Ledger: m.tickets, OnDecided: func(s approval.State, d time.Duration) {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.ended = append(m.ended, fmt.Sprint(s, " ", d.Round(time.Second)))
	}, OnCreated: func(who policy.Principal) {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.askers = append(m.askers, who.Subject)
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(m.worker.Close(context.Background()), m.tickets.Close(), db.Close()); err != nil {
			t.Error(err)
		}
	})
	return m
}

// withWorkerGate runs a test with a gate of its own.
func withWorkerGate(t *testing.T, test func(t *testing.T, m *workerGate)) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "state.db")
	synctest.Test(t, func(t *testing.T) {
		m := openWorkerGate(t, path, proxy.Settings{})
		synctest.Wait() // the ticket worker listens
		test(t, m)
	})
}

func (m *workerGate) set(change func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change()
}

func (m *workerGate) Decide(_ context.Context, in *policy.Input) (policy.Decision, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.judged = append(m.judged, string(in.Arguments))
	d := m.decision
	if m.then != nil {
		m.decision = *m.then
	}
	return d, m.decideErr
}

func (m *workerGate) Visible(context.Context, policy.Principal, policy.Tool) (bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return !m.hidden, nil
}

func (m *workerGate) View(_ context.Context, route string, _ registry.Downstream) registry.View {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.current.View(route)
}

func (m *workerGate) Forward(ctx context.Context, t *registry.Tool, out registry.Outgoing) (json.RawMessage, error) {
	m.mu.Lock()
	m.at = append(m.at, time.Since(m.begun))
	forward := m.forward
	m.mu.Unlock()
	if forward != nil {
		return forward(ctx)
	}
	return upstreams{bench: m.bench}.Forward(ctx, t, out)
}

// arrivals gives when calls came to the upstream.
func (m *workerGate) arrivals() []time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.at)
}

// ask makes a call that is held, as ann, and gives its ticket.
func (m *workerGate) ask(t *testing.T, args string) string {
	t.Helper()
	in := request(t, `{"name":"web__find","arguments":`+args+`}`)
	in.Credential, in.Client, in.Era = identity.Credential{Bearer: "ann-token"}, "agent/1", "2025-11-25"
	in.Tags = map[string]string{"urgency": "high"}
	reply, f := m.Call(t.Context(), in)
	if f != nil || reply.Ticket == "" {
		t.Fatalf("got %v, %v, want a ticket", reply, f)
	}
	return reply.Ticket
}

func (m *workerGate) approve(t *testing.T, id string) {
	t.Helper()
	boss := policy.Principal{Subject: "bo", Roles: []string{"boss"}}
	if _, err := m.tickets.Decide(t.Context(), approval.Vote{ID: id, Approver: boss, Approve: true}); err != nil {
		t.Fatal(err)
	}
}

// get gives a ticket when some time has passed and all is quiet.
func (m *workerGate) get(t *testing.T, id string, after time.Duration) approval.Ticket {
	t.Helper()
	time.Sleep(after)
	synctest.Wait()
	k, err := m.tickets.Get(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// An agent that does not come back has its call made: the bytes that were
// approved, however deep, once, as itself; and its result is there when it comes back after
// all.
func TestAnApprovedCallRunsWithoutItsAgent(t *testing.T) {
	withWorkerGate(t, func(t *testing.T, m *workerGate) {
		args := `{ "n": 7, "deep":` + strings.Repeat("[", 900) + strings.Repeat("]", 900) + ` }`
		id := m.ask(t, args)
		if k := m.get(t, id, time.Minute); k.State != approval.StateProposed || len(m.arrivals()) != 0 {
			t.Fatalf("%s before anybody approved, arrived %v", k.State, m.arrivals())
		}
		m.approve(t, id)
		if k := m.get(t, id, 10*time.Second); k.State != approval.StateDone || string(k.Result) != m.result {
			t.Errorf("%s with %s (%s), want done with the result", k.State, k.Result, k.Note)
		}
		if diff := cmp.Diff([]string{args}, m.sent); diff != "" {
			t.Errorf("sent (-want +got):\n%s", diff)
		}
		made := m.decisions[len(m.decisions)-1]
		if made.Principal.Subject != "ann" || made.Principal.Client != "agent/1" || made.Ticket != id || made.Transport != "http" || made.Tags["urgency"] != "high" {
			t.Errorf("recorded as %+v", made)
		}
		if again := m.ask(t, args); again != id || len(m.sent) != 1 {
			t.Errorf("called again: ticket %s, sent %v", again, m.sent)
		}
		if diff := cmp.Diff([]string{"ann"}, m.askers); diff != "" {
			t.Errorf("asked: %s", diff)
		}
		if diff := cmp.Diff([]string{"approved 1m0s"}, m.ended); diff != "" {
			t.Errorf("waits (-want +got):\n%s", diff)
		}
	})
}

// Approval alone runs nothing.
func TestAnApprovedCallWaitsForItsAgent(t *testing.T) {
	withWorkerGate(t, func(t *testing.T, m *workerGate) {
		m.decision.Approval.ExecuteOnApprove = false
		id := m.ask(t, `{"n":1}`)
		m.approve(t, id)
		if k := m.get(t, id, 2*time.Minute); k.State != approval.StateApproved || len(m.arrivals()) != 0 {
			t.Errorf("%s, arrived %v", k.State, m.arrivals())
		}
	})
}

// A ticket expires when its time is up, whether or not anybody asks for it: the
// ticket worker watches the time, and subscribers are notified.
func TestTicketsExpireUnasked(t *testing.T) {
	withWorkerGate(t, func(t *testing.T, m *workerGate) {
		m.ask(t, `{"n":1}`)
		time.Sleep(11 * time.Minute)
		synctest.Wait()
		m.mu.Lock()
		defer m.mu.Unlock()
		if diff := cmp.Diff([]string{"expired 10m0s"}, m.ended); diff != "" {
			t.Errorf("waits (-want +got):\n%s", diff)
		}
	})
}

// An agent that waits for its own call gets the result of its own run.
func TestTheAgentGoesBeforeTheSteward(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	synctest.Test(t, func(t *testing.T) {
		m := openWorkerGate(t, path, proxy.Settings{Hold: new(45 * time.Second)})
		time.AfterFunc(20*time.Second, func() {
			waiting, err := m.tickets.List(t.Context(), approval.Filter{States: []approval.State{approval.StateProposed}})
			if err != nil || len(waiting) != 1 {
				t.Errorf("waiting %v, %v", waiting, err)
				return
			}
			m.approve(t, waiting[0].ID)
		})
		in := request(t, plain)
		in.Credential = identity.Credential{Bearer: "ann-token"}
		reply, f := m.Call(t.Context(), in)
		if f != nil || strings.Contains(string(reply.Result), "replayed") || !strings.Contains(string(reply.Result), "hello") {
			t.Errorf("got %v, %v, want the result at first hand", reply, f)
		}
		m.get(t, reply.Ticket, time.Minute)
		if len(m.arrivals()) != 1 {
			t.Errorf("arrived %v", m.arrivals())
		}
	})
}

// When nothing was sent the call is tried again, more and more seldom, until its
// ticket expires; then never.
func TestWhatWasNotSentIsTriedAgain(t *testing.T) {
	withWorkerGate(t, func(t *testing.T, m *workerGate) {
		m.forwardErr = &registry.ForwardError{Kind: registry.Unavailable}
		id := m.ask(t, `{"n":1}`)
		m.approve(t, id)
		if k := m.get(t, id, 8*time.Minute); k.State != approval.StateApproved {
			t.Fatalf("%s, want approved", k.State)
		}
		for i := 2; i < len(m.arrivals()); i++ {
			gap, before := m.arrivals()[i]-m.arrivals()[i-1], m.arrivals()[i-1]-m.arrivals()[i-2]
			if gap > time.Minute+time.Second || gap+time.Second < before {
				t.Errorf("try %d after %s, the one before after %s", i, gap, before)
			}
		}
		if len(m.arrivals()) < 10 || len(m.arrivals()) > 15 {
			t.Errorf("%d tries in 8 minutes", len(m.arrivals()))
		}
		if k := m.get(t, id, 3*time.Minute); k.State != approval.StateExpired {
			t.Errorf("%s, want expired", k.State)
		}
		tries := len(m.arrivals())
		if m.get(t, id, 3*time.Minute); len(m.arrivals()) != tries {
			t.Errorf("%d tries of an expired ticket", len(m.arrivals())-tries)
		}

		id = m.ask(t, `{"n":2}`)
		m.approve(t, id)
		m.get(t, id, time.Minute)
		m.set(func() { m.forwardErr, m.sent = nil, nil })
		if k := m.get(t, id, 2*time.Minute); k.State != approval.StateDone || len(m.sent) != 1 {
			t.Errorf("%s, sent %v, want done as soon as the server is back", k.State, m.sent)
		}
	})
}

// What may have been sent is never sent again.
func TestWhatMayHaveBeenSentIsNotRepeated(t *testing.T) {
	for want, err := range map[approval.State]*registry.ForwardError{
		approval.StateUnknown: {Kind: registry.Timeout, Sent: true},
		approval.StateFailed:  {Kind: registry.Failed, Sent: true, RPC: json.RawMessage(`{"code":1,"message":"no"}`)},
	} {
		withWorkerGate(t, func(t *testing.T, m *workerGate) {
			m.forwardErr = err
			id := m.ask(t, `{"n":1}`)
			m.approve(t, id)
			if k := m.get(t, id, 5*time.Minute); k.State != want || len(m.arrivals()) != 1 {
				t.Errorf("%s after %d arrivals, want %s after one", k.State, len(m.arrivals()), want)
			}
		})
	}
}

// A live ticket whose terms are gone is superseded at once, whether people have
// approved it or not, and its call is not made. What only cannot be had at the
// moment leaves it alone.
func TestTicketsWhoseTermsAreGone(t *testing.T) {
	other := *searcher
	other.Fingerprint = "sha256:g"
	kept := func(name string, change func(*workerGate)) drifted { return drifted{name: name, change: change} }
	for _, tt := range []drifted{
		kept("nothing", func(*workerGate) {}),
		kept("the policy fails", func(m *workerGate) { m.decideErr = errors.New("down") }),
		kept("the server is gone for a while", func(m *workerGate) { m.current = registry.NewCatalogue(nil) }),
		{"the policy denies", func(m *workerGate) { m.decision = policy.Decision{Effect: policy.Deny, Reason: "closed"} }, "the call would be refused by now: closed"},
		{"the policy has changed", func(m *workerGate) { m.decision.Revision = "sha256:q" }, "the policy has changed"},
		{"nobody is asked any more", func(m *workerGate) { m.decision = policy.Decision{Effect: policy.Allow, Revision: "sha256:p"} }, "the call needs no approval any more"},
		{"others are asked", func(m *workerGate) { m.decision.Approval = &policy.Approval{Roles: []string{"cfo"}} }, "others have to approve it by now"},
		{"more are asked", func(m *workerGate) { m.decision.Approval = &policy.Approval{Roles: []string{"boss"}, Quorum: 2} }, "others have to approve it by now"},
		{"the tool is another", func(m *workerGate) { m.current = registry.NewCatalogue([]string{"web"}, &other) }, "the definition of the tool has changed"},
		{"the tool is hidden", func(m *workerGate) { m.hidden = true }, `the call would be refused by now: unknown tool "web__find"`},
		{"the requester is unknown", func(m *workerGate) {
			if err := m.auth.Apply(identity.Config{Configured: true}); err != nil {
				panic(err)
			}
		}, "the requester is not known any more"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			withWorkerGate(t, func(t *testing.T, m *workerGate) {
				m.decision.Approval.ExecuteOnApprove = false
				proposed, approved := m.ask(t, `{"n":1}`), m.ask(t, `{"n":2}`)
				m.approve(t, approved)
				m.set(func() { tt.change(m) })
				m.worker.Recheck()
				for id, was := range map[string]approval.State{proposed: approval.StateProposed, approved: approval.StateApproved} {
					if tt.why != "" {
						was = approval.StateSuperseded
					}
					if k := m.get(t, id, time.Second); k.State != was || k.Note != tt.why {
						t.Errorf("%s (%s), want %s (%s)", k.State, k.Note, was, tt.why)
					}
				}
				if len(m.arrivals()) != 0 {
					t.Errorf("arrived %v", m.arrivals())
				}
			})
		})
	}
}

type drifted struct {
	name   string
	change func(*workerGate)
	why    string // "" = the ticket stays
}

// A call that is made without its agent asks for nothing that no agent has asked
// for: on other terms it ends, and no new ticket is made.
func TestARunAsksNobodyAnew(t *testing.T) {
	for name, change := range map[string]func(*policy.Decision){
		"another policy": func(d *policy.Decision) { d.Revision = "sha256:q" },
		"allowed by now": func(d *policy.Decision) { *d = policy.Decision{Effect: policy.Allow, Revision: "sha256:p"} },
	} {
		t.Run(name, func(t *testing.T) {
			withWorkerGate(t, func(t *testing.T, m *workerGate) {
				id := m.ask(t, `{"n":1}`)
				m.set(func() {
					next := m.decision
					change(&next)
					m.then = &next // the review still sees the old one
				})
				m.approve(t, id)
				m.get(t, id, time.Minute)
				all, err := m.tickets.List(t.Context(), approval.Filter{})
				if err != nil || len(all) != 1 || all[0].State != approval.StateSuperseded || len(m.arrivals()) != 0 {
					t.Errorf("tickets %+v, %v; arrived %v", all, err, m.arrivals())
				}
				refused := m.outcomes[len(m.outcomes)-1]
				if refused.Code != signal.CodeApprovalExpired || refused.Stage != "approve" {
					t.Errorf("the run ended with %s in %s", refused.Code, refused.Stage)
				}
			})
		})
	}
}

// Whom this process cannot speak for it leaves alone: the local principal of a
// process with another role, and whoever has to bring a new token.
func TestWhoIsNotSpokenFor(t *testing.T) {
	for name, who := range map[string]policy.Principal{
		"local with another role": {Subject: "local", Roles: []string{"admin"}},
		"a token that has ended":  {Subject: "joe", Roles: []string{"r"}, Until: time.Date(1999, 1, 1, 0, 0, 0, 0, time.UTC)},
	} {
		t.Run(name, func(t *testing.T) {
			withWorkerGate(t, func(t *testing.T, m *workerGate) {
				c, err := m.tickets.Claim(t.Context(), approval.Held{
					Principal: who, Server: "web", Tool: "find", Exposed: "web__find", Fingerprint: "sha256:f", Arguments: json.RawMessage(`{}`),
					Digest: "sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a", Revision: "sha256:p", Approval: *held.Approval, Execute: true,
				})
				if err != nil {
					t.Fatal(err)
				}
				m.approve(t, c.Ticket.ID)
				m.worker.Recheck()
				if k := m.get(t, c.Ticket.ID, 2*time.Minute); k.State != approval.StateApproved || len(m.arrivals()) != 0 {
					t.Errorf("%s (%s), arrived %v", k.State, k.Note, m.arrivals())
				}
			})
		})
	}
}

// The tickets of another process are its own while it lives, and somebody's when
// it has died.
func TestTheTicketsOfAProcessThatDied(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	synctest.Test(t, func(t *testing.T) {
		a, b := openWorkerGate(t, path, proxy.Settings{}), openWorkerGate(t, path, proxy.Settings{})
		a.forwardErr = &registry.ForwardError{Kind: registry.Unavailable}
		b.decision.Revision = "sha256:p" // the same policy
		id := a.ask(t, `{"n":1}`)
		a.approve(t, id)
		if k := b.get(t, id, time.Minute); k.State != approval.StateApproved || len(b.arrivals()) != 0 {
			t.Fatalf("%s, arrived at the other %v", k.State, b.arrivals())
		}
		if err := errors.Join(a.worker.Close(t.Context()), a.tickets.Close()); err != nil {
			t.Fatal(err)
		}
		if k := b.get(t, id, 20*time.Second); k.State != approval.StateDone || len(b.arrivals()) != 1 {
			t.Errorf("%s, arrived %v, want done by the one that lives", k.State, b.arrivals())
		}
	})
}

// Close waits for the calls under way, cancels them when it must not wait longer,
// and begins none.
func TestClosingTheTicketWorker(t *testing.T) {
	withWorkerGate(t, func(t *testing.T, m *workerGate) {
		m.forward = func(ctx context.Context) (json.RawMessage, error) {
			select {
			case <-ctx.Done():
				return nil, &registry.ForwardError{Kind: registry.Cancelled, Sent: true}
			case <-time.After(30 * time.Second):
				return json.RawMessage(m.result), nil
			}
		}
		slow := m.ask(t, `{"n":1}`)
		m.approve(t, slow)
		m.get(t, slow, 5*time.Second)
		late := m.ask(t, `{"n":2}`)
		ctx, stop := context.WithTimeout(t.Context(), 10*time.Second)
		defer stop()
		begun := time.Now()
		if err := m.worker.Close(ctx); !errors.Is(err, context.DeadlineExceeded) || time.Since(begun) != 10*time.Second {
			t.Errorf("Close = %v after %s", err, time.Since(begun))
		}
		m.approve(t, late)
		if k := m.get(t, slow, time.Minute); k.State != approval.StateUnknown {
			t.Errorf("the one under way is %s, want unknown", k.State)
		}
		if k := m.get(t, late, time.Minute); k.State != approval.StateApproved || len(m.arrivals()) != 1 {
			t.Errorf("the late one is %s, arrived %v", k.State, m.arrivals())
		}
	})
}
