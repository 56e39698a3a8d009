package proxy_test

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/policy/approval"
	"github.com/toolgate/toolgate/proxy"
	"github.com/toolgate/toolgate/registry"
)

// waiting is a bench whose calls are held: the first claim makes a ticket, the
// next ones get what claims say. It is its own client.
type waiting struct {
	*bench
	claims []approval.Claim
	// answer is what the client says to a question; nil waits until the question
	// is taken back.
	answer *registry.Answer
	// decided ends the wait for people; nil = they do not decide.
	decided chan struct{}

	waits  int
	asked  []registry.Question
	mu     sync.Mutex // protects the field below
	events []string
}

const consoleURL = "https://toolgate.example"

func newWaiting(t *testing.T, s proxy.Settings, first approval.Claim, later ...approval.Claim) *waiting {
	t.Helper()
	w := &waiting{bench: newBench(t), claims: append([]approval.Claim{first}, later...)}
	w.decision = held
	if s.Hold == nil {
		s.Hold = new(time.Duration(0))
	}
	g, err := proxy.New(proxy.Options{
		Identifier: w, Policy: w, Limiter: w, Tickets: w, Waiter: w, Recorder: w, Settings: s,
		Upstreams: upstreams{bench: w.bench, catalogue: registry.NewCatalogue([]string{"web"}, searcher)},
	})
	if err != nil {
		t.Fatal(err)
	}
	w.Gate = g
	return w
}

func (w *waiting) Claim(context.Context, approval.Held) (approval.Claim, error) {
	c := w.claims[0]
	if len(w.claims) > 1 {
		w.claims = w.claims[1:]
	}
	return c, nil
}

func (w *waiting) Wait(ctx context.Context, _ string) error {
	w.waits++
	select {
	case <-w.decided:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (w *waiting) note(event string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.events = append(w.events, event)
}

func (w *waiting) Ask(ctx context.Context, round []registry.Question) []registry.Answer {
	w.asked = append(w.asked, round...)
	if w.answer != nil {
		return []registry.Answer{*w.answer}
	}
	<-ctx.Done()
	w.note("taken back")
	return []registry.Answer{{Error: json.RawMessage(`{"code":1,"message":"m"}`)}}
}

func (w *waiting) Tell(method string, params json.RawMessage) { w.note(method + " " + string(params)) }

// ask calls as a client of era with capabilities.
func (w *waiting) ask(t *testing.T, era, capabilities string) (*proxy.Reply, *proxy.Failure) {
	t.Helper()
	in := request(t, plain)
	in.Era, in.Capabilities, in.Peer = era, json.RawMessage(capabilities), w
	return w.Call(t.Context(), in)
}

// stateOf is the status that a result's _meta says, "" for a plain result.
func stateOf(t *testing.T, r *proxy.Reply) (status, url string) {
	t.Helper()
	var v struct {
		Meta struct {
			Approval struct {
				Status      string
				ApprovalURL string `json:"approval_url"`
			} `json:"io.toolgate/approval"`
		} `json:"_meta"`
	}
	if err := json.Unmarshal(r.Result, &v); err != nil {
		t.Fatal(err)
	}
	return v.Meta.Approval.Status, v.Meta.Approval.ApprovalURL
}

func made(attached int) approval.Claim {
	c := pendingClaim()
	c.Ticket.State, c.Ticket.Attached, c.Ticket.Exposed = approval.StateProposed, attached, "web__find"
	return c
}

func granted() approval.Claim {
	c := made(0)
	c.Outcome, c.Ticket.State = approval.Granted, approval.StateDispatching
	return c
}

func closed() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}

const shows, asksForms = `{"elicitation":{"url":{}}}`, `{"elicitation":{"form":{}}}`

// What the client answers to the link decides nothing: the call goes on as the
// ticket says, whatever the person clicked.
func TestTheLinkGoesBeforeTheHold(t *testing.T) {
	for _, said := range []string{`{"action":"accept"}`, `{"action":"decline"}`, `{"action":"cancel"}`, `{"approved":true}`} {
		for name, approved := range map[string]bool{"approved": true, "not yet": false} {
			w := newWaiting(t, proxy.Settings{ConsoleURL: consoleURL}, made(0), granted())
			w.answer = &registry.Answer{Result: json.RawMessage(said)}
			if approved {
				w.decided = closed()
			}
			reply, f := w.ask(t, "2026-07-28", shows)
			if f != nil || len(w.asked) != 1 {
				t.Fatalf("%s, %s: %v, asked %d times", said, name, f, len(w.asked))
			}
			status, url := stateOf(t, reply)
			if want := map[bool]string{true: "", false: "pending"}[approved]; status != want || (len(w.sent) == 1) != approved {
				t.Errorf("%s, %s: status %q, sent %d", said, name, status, len(w.sent))
			}
			if !approved && url != consoleURL+"/console/approvals/apr_1" {
				t.Errorf("the pending result leads to %q", url)
			}
			q := w.asked[0]
			if q.Method != "elicitation/create" || !q.Anew || q.Key == "" {
				t.Errorf("asked %+v", q)
			}
			for member, want := range map[string]string{"mode": "url", "url": consoleURL + "/console/approvals/apr_1", "elicitationId": "apr_1"} {
				raw, _ := jsonrpc.Get(q.Params, member)
				if got, _ := jsonrpc.Text(raw); got != want {
					t.Errorf("%s is %s", member, raw)
				}
			}
		}
	}
}

// A client that does not come back to its call gets it made by nobody, even when
// it was approved meanwhile.
func TestAClientThatDoesNotComeBack(t *testing.T) {
	w := newWaiting(t, proxy.Settings{ConsoleURL: consoleURL, Hold: new(time.Minute)}, made(0), granted())
	w.answer, w.decided = &registry.Answer{Error: json.RawMessage(`{"code":1,"message":"late"}`)}, closed()
	reply, f := w.ask(t, "2026-07-28", shows)
	if f != nil {
		t.Fatal(f)
	}
	if status, _ := stateOf(t, reply); status != "pending" || len(w.sent) > 0 || w.waits > 0 {
		t.Errorf("status %q, sent %v, waited %d times", status, w.sent, w.waits)
	}
}

// Who is not asked: clients that cannot show a page, calls that find a ticket,
// and everybody where there is no console.
func TestWhoIsNotShownTheLink(t *testing.T) {
	for _, tt := range []struct {
		name, era, can string
		settings       proxy.Settings
		attached       int
		asked          bool
	}{
		{"may", "2026-07-28", shows, proxy.Settings{ConsoleURL: consoleURL}, 0, true},
		{"no console", "2026-07-28", shows, proxy.Settings{}, 0, false},
		{"found the ticket", "2026-07-28", shows, proxy.Settings{ConsoleURL: consoleURL}, 1, false},
		{"forms only", "2026-07-28", asksForms, proxy.Settings{ConsoleURL: consoleURL}, 0, false},
		{"nothing declared", "2026-07-28", "", proxy.Settings{ConsoleURL: consoleURL}, 0, false},
		{"beside a hold", "2025-11-25", shows, proxy.Settings{ConsoleURL: consoleURL, Hold: new(time.Hour)}, 0, true},
		{"beside no hold", "2025-11-25", shows, proxy.Settings{ConsoleURL: consoleURL}, 0, false},
		{"a revision without pages", "2025-06-18", shows, proxy.Settings{ConsoleURL: consoleURL, Hold: new(time.Hour)}, 0, false},
		{"outside MCP", "", shows, proxy.Settings{ConsoleURL: consoleURL, Hold: new(time.Hour)}, 0, false},
	} {
		w := newWaiting(t, tt.settings, made(tt.attached), granted())
		w.answer, w.decided = &registry.Answer{Result: json.RawMessage(`{"action":"accept"}`)}, closed()
		if _, f := w.ask(t, tt.era, tt.can); f != nil {
			t.Fatalf("%s: %v", tt.name, f)
		}
		if (len(w.asked) == 1) != tt.asked {
			t.Errorf("%s: asked %d times", tt.name, len(w.asked))
		}
	}
}

// Beside the hold the question is taken back when the hold ends, and the client
// hears that it is over only when people have decided.
func TestTheLinkBesideTheHold(t *testing.T) {
	const complete = `notifications/elicitation/complete {"elicitationId":"apr_1"}`
	for name, tt := range map[string]struct {
		answer  *registry.Answer
		decided bool
		want    []string
	}{
		"decided while open":    {nil, true, []string{"taken back", complete}},
		"decided after a click": {&registry.Answer{Result: json.RawMessage(`{"action":"accept"}`)}, true, []string{complete}},
		"not decided":           {nil, false, []string{"taken back"}},
	} {
		w := newWaiting(t, proxy.Settings{ConsoleURL: consoleURL, Hold: new(time.Millisecond)}, made(0), granted())
		w.answer = tt.answer
		if tt.decided {
			w.decided = closed()
		}
		if _, f := w.ask(t, "2025-11-25", shows); f != nil {
			t.Fatalf("%s: %v", name, f)
		}
		if diff := cmp.Diff(tt.want, w.events); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		if (len(w.sent) == 1) != tt.decided {
			t.Errorf("%s: sent %v", name, w.sent)
		}
	}
}

// A peer that panics is the end of its question and of nothing else.
func TestAPeerThatPanics(t *testing.T) {
	w := newWaiting(t, proxy.Settings{ConsoleURL: consoleURL, Hold: new(time.Hour)}, made(0), granted())
	w.decided = closed()
	in := request(t, plain)
	in.Era, in.Capabilities, in.Peer = "2025-11-25", json.RawMessage(shows), panicking{w}
	reply, f := w.Call(t.Context(), in)
	if f != nil || reply == nil || !slices.Equal(w.sent, []string{`{"n":1}`}) {
		t.Errorf("got %v, %v; sent %v", reply, f, w.sent)
	}
}

type panicking struct{ *waiting }

func (panicking) Ask(context.Context, []registry.Question) []registry.Answer {
	panic(errors.New("planted"))
}
