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

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/approval"
	"github.com/toolgate/toolgate/policy/identity"
	"github.com/toolgate/toolgate/proxy"
	"github.com/toolgate/toolgate/registry"
	"github.com/toolgate/toolgate/signal"
)

// holdingGate is a gate whose tickets answer as a test sets: claims in turn, and the last one
// from then on. People decide when decide is called.
type holdingGate struct {
	*bench
	current *registry.Catalogue // what upstreams offer

	claims   []approval.Claim
	claimed  []approval.Held
	at       time.Time // when people decide
	missing  error     // of Supersede
	replaced []string  // tickets that were superseded, and why
	waitErr  error
	change   func() // what happens while people think
}

// newHoldingGate makes a gate at which people decide after some time; the policy holds
// everything.
func newHoldingGate(t *testing.T, after time.Duration, s proxy.Settings) *holdingGate {
	t.Helper()
	d := &holdingGate{bench: newBench(t), current: registry.NewCatalogue([]string{"web"}, searcher), at: time.Now().Add(after)}
	d.decision = held
	d.claims = []approval.Claim{pendingClaim(), {Ticket: ticket(approval.StateDispatching), Outcome: approval.Granted}}
	g, err := proxy.New(proxy.Options{
		Identifier: d, Policy: d, Limiter: d, Tickets: d, Waiter: d, Book: d, Recorder: d, Upstreams: d, Settings: s, Stops: &d.brake,
	})
	if err != nil {
		t.Fatal(err)
	}
	d.Gate = g
	return d
}

func (d *holdingGate) Claim(_ context.Context, h approval.Held) (approval.Claim, error) {
	d.claimed = append(d.claimed, h)
	c := d.claims[0]
	if len(d.claims) > 1 {
		d.claims = d.claims[1:]
	}
	return c, d.claimErr
}

func (d *holdingGate) Wait(ctx context.Context, _ string) error {
	if d.waitErr != nil {
		return d.waitErr
	}
	if len(d.claimed) > 1 { // a new ticket, and nobody decides on it
		<-ctx.Done()
		return ctx.Err()
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(time.Until(d.at)):
	}
	if d.change != nil {
		d.change()
	}
	return nil
}

func (d *holdingGate) Get(context.Context, string) (approval.Ticket, error) {
	return approval.Ticket{}, approval.ErrNotFound
}

func (d *holdingGate) Answering(context.Context, policy.Principal) ([]approval.Ticket, error) {
	return nil, nil
}

func (d *holdingGate) Supersede(_ context.Context, id, _, reason string) error {
	if d.missing == nil {
		d.replaced = append(d.replaced, id+": "+reason)
	}
	return d.missing
}

func (d *holdingGate) View(_ context.Context, route string, _ registry.Downstream) registry.View {
	return d.current.View(route)
}

func (d *holdingGate) Forward(ctx context.Context, t *registry.Tool, out registry.Outgoing) (json.RawMessage, error) {
	return upstreams{bench: d.bench}.Forward(ctx, t, out)
}

const never = 24 * time.Hour

// How long a call waits: the policy goes before the settings, they before the
// client's patience, and nobody waits longer than the client bears.
func TestHowLongACallIsHeld(t *testing.T) {
	span := func(d time.Duration) *time.Duration { return &d }
	clients := []proxy.ClientProfile{
		{Transport: "rest", Hold: span(0)},
		{Name: "claude-code", Hold: span(40 * time.Second), Longest: span(50 * time.Second)},
		{Name: "Visual Studio Code*", Hold: span(2 * time.Minute)},
		{Name: "quiet"},
		{Name: "claude-code", Hold: span(time.Second)}, // the first counts
	}
	for _, tt := range []struct {
		name, client, transport string
		policy, settings        *time.Duration
		want                    time.Duration
	}{
		{name: "nobody says", client: "new/1", want: 45 * time.Second},
		{name: "no name", want: 45 * time.Second},
		{name: "its patience", client: "claude-code/2.1.250", want: 40 * time.Second},
		{name: "in other letters", client: "Claude-Code/2.1.250", want: 40 * time.Second},
		{name: "no version", client: "claude-code", want: 40 * time.Second},
		{name: "behind mcp-remote", client: "claude-code (via mcp-remote 0.1.37)/1", want: 40 * time.Second},
		{name: "another that begins alike", client: "claude-code-action/1", want: 45 * time.Second},
		{name: "the end left open", client: "Visual Studio Code - Insiders/1.107", want: 2 * time.Minute},
		{name: "says nothing of it", client: "quiet/1", want: 45 * time.Second},
		{name: "by transport", transport: "rest", want: 0},
		{name: "settings", client: "claude-code/2", settings: span(20 * time.Second), want: 20 * time.Second},
		{name: "settings: at once", client: "claude-code/2", settings: span(0), want: 0},
		{name: "settings beyond what the client bears", client: "claude-code/2", settings: span(time.Minute), want: 50 * time.Second},
		{name: "policy before settings", client: "new/1", policy: span(5 * time.Second), settings: span(20 * time.Second), want: 5 * time.Second},
		{name: "policy: at once", client: "new/1", policy: span(0), settings: span(20 * time.Second), want: 0},
		{name: "policy beyond what the client bears", client: "claude-code/2", policy: span(time.Hour), want: 50 * time.Second},
		{name: "policy over rest", transport: "rest", policy: span(5 * time.Second), want: 5 * time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newHoldingGate(t, never, proxy.Settings{Hold: tt.settings, Clients: clients})
				asked := *held.Approval
				asked.Hold, d.decision.Approval = tt.policy, &asked
				in := request(t, plain)
				in.Client, in.Transport = tt.client, tt.transport
				begun := time.Now()
				reply, f := d.Call(t.Context(), in)
				if f != nil || reply.RetryAfter == 0 || !strings.Contains(string(reply.Result), `"status":"pending"`) {
					t.Fatalf("got %v, %v, want pending", reply, f)
				}
				if got := time.Since(begun); got != tt.want {
					t.Errorf("held for %s, want %s", got, tt.want)
				}
			})
		})
	}
}

// A decision inside the hold makes the whole thing invisible: the call runs, once,
// and gives its result.
func TestADecisionInTheHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newHoldingGate(t, 13*time.Second, proxy.Settings{})
		begun := time.Now()
		reply, f := d.call(t, plain)
		if f != nil || reply.RetryAfter != 0 || !strings.Contains(string(reply.Result), "hello") {
			t.Fatalf("got %v, %v", reply, f)
		}
		if got := time.Since(begun); got != 13*time.Second || len(d.sent) != 1 || cmp.Diff([]string{"apr_1 done"}, d.finished) != "" {
			t.Errorf("after %s, sent %v, finished %v", got, d.sent, d.finished)
		}
	})
}

// A call that waits for an identical one that runs gets that one's result.
func TestWaitingForTheSameCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newHoldingGate(t, 0, proxy.Settings{})
		running := approval.Claim{Ticket: ticket(approval.StateDispatching), Outcome: approval.InFlight}
		replay := approval.Claim{Ticket: ticket(approval.StateDone), Outcome: approval.Replay}
		replay.Ticket.Result = json.RawMessage(d.result)
		d.claims = []approval.Claim{running, running, running, replay}
		reply, f := d.call(t, plain)
		if f != nil || !strings.Contains(string(reply.Result), `"status":"replayed"`) || len(d.sent) != 0 {
			t.Errorf("got %v, %v, sent %v; want the result of the other", reply, f, d.sent)
		}
		d.claims = []approval.Claim{running}
		begun := time.Now()
		reply, f = d.call(t, plain)
		if f != nil || !strings.Contains(string(reply.Result), `"status":"running"`) || time.Since(begun) != 45*time.Second {
			t.Errorf("after %s: %v, %v, want running when the hold has ended", time.Since(begun), reply, f)
		}
	})
}

// Nothing is spun on: a store that fails and a client that goes away end the wait.
func TestTheWaitEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newHoldingGate(t, never, proxy.Settings{})
		begun := time.Now()
		d.waitErr = errors.New("disk full")
		if reply, f := d.call(t, plain); f != nil || reply.RetryAfter == 0 || time.Since(begun) != 0 {
			t.Errorf("store fails: %v, %v after %s, want pending at once", reply, f, time.Since(begun))
		}
		d.waitErr, d.claims = nil, []approval.Claim{pendingClaim()}
		ctx, stop := context.WithTimeout(t.Context(), 3*time.Second)
		defer stop()
		reply, f := d.Call(ctx, request(t, plain))
		if f != nil || reply.Ticket != "apr_1" || time.Since(begun) != 3*time.Second || len(d.replaced) != 0 {
			t.Errorf("client gone: %v, %v after %s, superseded %v; want a ticket that lives on", reply, f, time.Since(begun), d.replaced)
		}
	})
}

// A client that wants progress hears of the wait, and then of the tool: every
// number more than the one before.
func TestProgressOfAWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newHoldingGate(t, 25*time.Second, proxy.Settings{})
		d.steps = []string{`{"progress":0}`, `{"progress":0.001}`, `{"progress":0.5,"total":1}`, `{"progress":"x"}`}
		in := request(t, plain)
		var told []string
		var at []time.Duration
		begun := time.Now()
		in.Progress = func(params json.RawMessage) {
			raw, _ := jsonrpc.Get(params, "progress")
			told, at = append(told, string(raw)), append(at, time.Since(begun))
			if text, _ := jsonrpc.Get(params, "message"); len(told) <= 3 && !strings.Contains(string(text), "boss") {
				t.Errorf("the client is told %s", params)
			}
		}
		if _, f := d.Call(t.Context(), in); f != nil {
			t.Fatal(f)
		}
		const s = time.Second
		if diff := cmp.Diff([]string{"0.001", "0.002", "0.003", "0.5", `"x"`}, told); diff != "" {
			t.Errorf("progress (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff([]time.Duration{0, 10 * s, 20 * s, 25 * s, 25 * s}, at); diff != "" {
			t.Errorf("times (-want +got):\n%s", diff)
		}
	})
}

// What changes while a call waits decides what becomes of it: nothing that the
// policy, the catalogue and the identities of the moment would not let pass is
// sent, and a ticket whose terms are gone is nobody's any more.
func TestACallThatHasWaitedIsJudgedAgain(t *testing.T) {
	changed := *searcher
	changed.Fingerprint, changed.Quarantine = "sha256:g", "the definition has changed"
	stricter := *searcher
	stricter.Input = mustSchema(`{"type":"object","required":["why"]}`)
	offers := func(tools ...*registry.Tool) func(*holdingGate) {
		return func(d *holdingGate) { d.current = registry.NewCatalogue([]string{"web"}, tools...) }
	}
	for _, tt := range []struct {
		name     string
		change   func(*holdingGate)
		code     string // of the refusal, "" when it runs
		stage    string // in which it is refused
		replaced string // why the ticket was superseded
	}{
		{name: "nothing"},
		{name: "the policy denies", change: func(d *holdingGate) { d.decision = policy.Decision{Effect: policy.Deny, Reason: "closed"} },
			code: signal.CodePolicyDenied, stage: "decide", replaced: "apr_1: the call would be refused by now: closed"},
		{name: "the policy fails", change: func(d *holdingGate) { d.decideErr = errors.New("down") }, code: signal.CodePolicyDenied, stage: "decide"},
		{name: "the policy asks nobody", change: func(d *holdingGate) { d.decision = policy.Decision{Effect: policy.Allow} },
			replaced: "apr_1: the call needs no approval any more"},
		{name: "the policy asks nobody, but somebody said no", change: func(d *holdingGate) {
			d.decision, d.missing = policy.Decision{Effect: policy.Allow}, approval.ErrNotLive
		}, code: signal.CodeApprovalExpired, stage: "approve"},
		{name: "the tool is hidden", change: func(d *holdingGate) { d.hidden = true }, code: signal.CodeToolNotFound, stage: "resolve",
			replaced: `apr_1: the call would be refused by now: unknown tool "web__find"`},
		{name: "the tool is gone", change: offers(), code: signal.CodeToolNotFound, stage: "resolve"},
		{name: "the tool has changed", change: offers(&changed), code: signal.CodeToolQuarantined, stage: "resolve",
			replaced: "apr_1: the call would be refused by now: the definition has changed"},
		{name: "the arguments do not fit any more", change: offers(&stricter), code: signal.CodeSchemaMismatch, stage: "validate",
			replaced: "apr_1: the call would be refused by now: missing required argument \"why\""},
		{name: "the credential is not good any more", change: func(d *holdingGate) { d.whoErr = identity.ErrUnauthenticated }, code: signal.CodeUnauthenticated, stage: "identify"},
		{name: "the credential is somebody else's", change: func(d *holdingGate) { d.who.Subject = "bob" }, code: signal.CodeUnauthenticated, stage: "identify"},
		{name: "the credential is of another tenant", change: func(d *holdingGate) { d.who.Tenant = "t" }, code: signal.CodeUnauthenticated, stage: "identify"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newHoldingGate(t, 20*time.Second, proxy.Settings{})
				if tt.change != nil {
					d.change = func() { tt.change(d) }
				}
				in := request(t, plain)
				in.Principal = d.who // as the door identified it before the wait
				_, f := d.Call(t.Context(), in)
				code := ""
				if f != nil {
					code = f.Kernel.Code
				}
				if code != tt.code || (len(d.sent) == 0) != (tt.code != "") {
					t.Errorf("got %v and sent %v, want %q", f, d.sent, tt.code)
				}
				if f != nil && d.outcomes[0].Stage != tt.stage {
					t.Errorf("refused in %s, want %s", d.outcomes[0].Stage, tt.stage)
				}
				if got := strings.Join(d.replaced, ","); !strings.HasPrefix(got, tt.replaced) || (got == "") != (tt.replaced == "") {
					t.Errorf("superseded %q, want %q", got, tt.replaced)
				}
			})
		})
	}
}

// Where nobody keeps a book of tickets, no ticket can be superseded: a call that would by
// then need no approval is not made, because an approver may have denied it.
func TestAWaitWithoutABook(t *testing.T) {
	for _, tt := range []struct {
		effect policy.Effect // by then
		code   string
	}{
		{policy.Allow, signal.CodeApprovalExpired},
		{policy.Deny, signal.CodePolicyDenied},
	} {
		t.Run(string(tt.effect), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newHoldingGate(t, 20*time.Second, proxy.Settings{})
				g, err := proxy.New(proxy.Options{Identifier: d, Policy: d, Limiter: d, Tickets: d, Waiter: d, Recorder: d, Upstreams: d})
				if err != nil {
					t.Fatal(err)
				}
				d.Gate, d.change = g, func() { d.decision = policy.Decision{Effect: tt.effect} }
				if _, f := d.call(t, plain); f == nil || f.Kernel.Code != tt.code || len(d.sent) != 0 || len(d.replaced) != 0 {
					t.Errorf("got %v, sent %v, superseded %v, want %s", f, d.sent, d.replaced, tt.code)
				}
			})
		})
	}
}

// The second judgement is of the second moment, and what it asks for is what the
// ticket is claimed under.
func TestTheSecondJudgementHasItsOwnTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newHoldingGate(t, 20*time.Second, proxy.Settings{})
		c := &clocked{holdingGate: d}
		d.SetPolicy(c)
		d.change = func() {
			next := held
			next.Revision, next.Approval = "sha256:q", &policy.Approval{Roles: []string{"cfo"}}
			d.decision, d.claims = next, []approval.Claim{pendingClaim()}
		}
		begun := time.Now()
		if reply, f := d.call(t, plain); f != nil || reply.RetryAfter == 0 {
			t.Fatalf("got %v, %v, want pending", reply, f)
		}
		if len(c.times) < 2 || !c.times[0].Equal(begun) || !c.times[1].Equal(begun.Add(20*time.Second)) {
			t.Errorf("judged at %v, begun %v", c.times, begun)
		}
		last := d.claimed[len(d.claimed)-1]
		if last.Revision != "sha256:q" || !slices.Equal(last.Approval.Roles, []string{"cfo"}) {
			t.Errorf("claimed under %s, %v", last.Revision, last.Approval.Roles)
		}
	})
}

// clocked keeps the times that a policy was told.
type clocked struct {
	*holdingGate
	mu    sync.Mutex
	times []time.Time
}

func (c *clocked) Decide(ctx context.Context, in *policy.Input) (policy.Decision, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.times = append(c.times, in.Request.Time)
	return c.holdingGate.Decide(ctx, in)
}

// The operator can name tools whose calls run when they are approved; a policy
// can ask for it too.
func TestWhatRunsWhenApproved(t *testing.T) {
	for _, tt := range []struct {
		asked bool
		named []string
		want  bool
	}{{false, nil, false}, {true, nil, true}, {false, []string{"web__find"}, true}, {false, []string{"find"}, false}} {
		t.Run(fmt.Sprint(tt.asked, tt.named), func(t *testing.T) {
			d := newHoldingGate(t, 0, proxy.Settings{Execute: tt.named})
			asked := *held.Approval
			asked.ExecuteOnApprove, d.decision.Approval = tt.asked, &asked
			if _, f := d.call(t, plain); f != nil {
				t.Fatal(f)
			}
			if d.claimed[0].Execute != tt.want {
				t.Errorf("execute %v, want %v", d.claimed[0].Execute, tt.want)
			}
		})
	}
}
