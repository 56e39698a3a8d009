package proxy_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/approval"
	"github.com/toolgate/toolgate/policy/limit"
	"github.com/toolgate/toolgate/proxy"
	"github.com/toolgate/toolgate/registry"
	"github.com/toolgate/toolgate/signal"
)

// ticketGate is a bench with a list of tickets.
type ticketGate struct {
	*bench
	tickets []approval.Ticket
	readErr error
	ended   []string // tickets that were superseded
}

func newTicketGate(t *testing.T, tools []*registry.Tool, tickets ...approval.Ticket) *ticketGate {
	t.Helper()
	s := &ticketGate{bench: newBench(t), tickets: tickets}
	g, err := proxy.New(proxy.Options{
		Identifier: s, Policy: s, Limiter: s, Tickets: s, Recorder: s, Book: s,
		Upstreams: upstreams{bench: s.bench, catalogue: registry.NewCatalogue([]string{"web"}, tools...)},
		Settings:  proxy.Settings{ConsoleURL: consoleURL},
	})
	if err != nil {
		t.Fatal(err)
	}
	s.Gate = g
	return s
}

func (s *ticketGate) Get(_ context.Context, id string) (approval.Ticket, error) {
	for _, t := range s.tickets {
		if t.ID == id {
			return t, s.readErr
		}
	}
	return approval.Ticket{}, errors.Join(approval.ErrNotFound, s.readErr)
}

func (s *ticketGate) Answering(_ context.Context, p policy.Principal) (mine []approval.Ticket, err error) {
	for _, t := range s.tickets {
		if t.Principal.Subject == p.Subject && t.Principal.Tenant == p.Tenant && t.State != approval.StateSuperseded && t.State != approval.StateExpired {
			t.Arguments = nil
			mine = append(mine, t)
		}
	}
	return mine, s.readErr
}

func (s *ticketGate) Supersede(_ context.Context, id, who, reason string) error {
	for i, t := range s.tickets {
		if t.ID == id && (t.State == approval.StateProposed || t.State == approval.StateApproved) {
			s.tickets[i].State, s.ended = approval.StateSuperseded, append(s.ended, id+" "+who)
			return nil
		}
	}
	return approval.ErrNotLive
}

// slip is a ticket of subject's for web__find.
func slip(id, subject string, state approval.State) approval.Ticket {
	return approval.Ticket{
		Held: approval.Held{
			Principal: policy.Principal{Subject: subject}, Server: "web", Tool: "find", Exposed: "web__find",
			Arguments: json.RawMessage(`{"n":1}`), Digest: "sha256:d", Approval: policy.Approval{Roles: []string{"boss"}}, Rule: "H", Reason: "large",
		},
		ID: id, State: state, Created: time.Unix(1e9, 0), Expires: time.Unix(2e9, 0), DecisionReason: "too dear", Note: "it said no",
		Result: json.RawMessage(`{"content":[{"type":"text","text":"paid"}]}`),
	}
}

func (s *ticketGate) status(t *testing.T, args string) (*proxy.Reply, *proxy.Failure) {
	t.Helper()
	return s.call(t, `{"name":"approval_status","arguments":`+args+`}`)
}

// The tool is listed and served for those who have tickets, on every route, and
// for nobody else; an upstream's of the name goes before it.
func TestWhoIsOfferedTheStatus(t *testing.T) {
	theirs := *searcher
	theirs.Name, theirs.Exposed = "approval_status", "approval_status"
	for _, tt := range []struct {
		name    string
		tools   []*registry.Tool
		tickets []approval.Ticket
		readErr error
		offered bool
		code    string
	}{
		{"own", []*registry.Tool{searcher}, []approval.Ticket{slip("apr_1", "ann", approval.StateProposed)}, nil, true, ""},
		{"none", []*registry.Tool{searcher}, nil, nil, false, signal.CodeToolNotFound},
		{"another's", []*registry.Tool{searcher}, []approval.Ticket{slip("apr_1", "bob", approval.StateProposed)}, nil, false, signal.CodeToolNotFound},
		{"over", []*registry.Tool{searcher}, []approval.Ticket{slip("apr_1", "ann", approval.StateSuperseded)}, nil, false, signal.CodeToolNotFound},
		{"a store that fails", []*registry.Tool{searcher}, []approval.Ticket{slip("apr_1", "ann", approval.StateProposed)}, errors.New("disk"), false, signal.CodeInternal},
		{"an upstream's", []*registry.Tool{searcher, &theirs}, []approval.Ticket{slip("apr_1", "ann", approval.StateProposed)}, nil, false, ""},
	} {
		s := newTicketGate(t, tt.tools, tt.tickets...)
		s.readErr = tt.readErr
		for _, route := range []string{"", "web"} {
			offered := false
			for _, tool := range s.List(t.Context(), &proxy.Call{Route: route}, s.who) {
				offered = offered || tool.Server == proxy.StatusServer
			}
			found := s.Find(t.Context(), &proxy.Call{Route: route}, s.who, proxy.StatusName)
			if offered != tt.offered || (found != nil && found.Server == proxy.StatusServer) != tt.offered {
				t.Errorf("%s on %q: listed %t, found %v", tt.name, route, offered, found)
			}
		}
		_, f := s.status(t, `{}`)
		code := ""
		if f != nil {
			code = f.Kernel.Code
		}
		if code != tt.code || len(s.outcomes) != 1 {
			t.Errorf("%s: called: %q, %d records", tt.name, code, len(s.outcomes))
		}
		if upstreams := map[bool]int{true: 1}[tt.name == "an upstream's"]; len(s.sent) != upstreams {
			t.Errorf("%s: %d calls upstream", tt.name, len(s.sent))
		}
	}
}

// Each state in words and as data; nothing runs, and the record says who asked.
func TestWhatTheStatusSays(t *testing.T) {
	running := slip("apr_1", "ann", approval.StateProposed)
	running.Execute = true
	for _, tt := range []struct {
		ticket approval.Ticket
		status string
		says   string
		link   bool
	}{
		{slip("apr_1", "ann", approval.StateProposed), "pending", "call web__find again with exactly the same arguments", true},
		{running, "pending", "as soon as it is approved", true},
		{slip("apr_1", "ann", approval.StateApproved), "approved", "call web__find again with exactly the same arguments", true},
		{slip("apr_1", "ann", approval.StateDispatching), "running", "being made now", true},
		{slip("apr_1", "ann", approval.StateDenied), "denied", "too dear", false},
		{slip("apr_1", "ann", approval.StateExpired), "expired", "nobody approved it in time", false},
		{slip("apr_1", "ann", approval.StateSuperseded), "superseded", "taken back", false},
		{slip("apr_1", "ann", approval.StateFailed), "failed", "it said no", false},
		{slip("apr_1", "ann", approval.StateUnknown), "unknown", "not known", false},
		{slip("apr_1", "ann", approval.StateDone), "replayed", "paid", true},
	} {
		s := newTicketGate(t, []*registry.Tool{searcher}, tt.ticket, slip("apr_2", "ann", approval.StateDenied))
		s.decision = held
		reply, f := s.status(t, `{"ticket":"apr_1"}`)
		if f != nil {
			t.Fatalf("%s: %v", tt.status, f)
		}
		status, link := stateOf(t, reply)
		if status != tt.status || !strings.Contains(string(reply.Result), tt.says) || (link != "") != tt.link || reply.Ticket != "apr_1" {
			t.Errorf("%s: status %q, link %q, ticket %s: %s", tt.ticket.State, status, link, reply.Ticket, reply.Result)
		}
		r := s.outcomes[0]
		if len(s.sent) > 0 || len(s.outcomes) != 1 || r.Outcome != audit.Allowed || r.Exposed != proxy.StatusName || r.Ticket != "apr_1" ||
			r.Principal.Subject != "ann" || r.Policy.Rule == "" || r.Replayed != (tt.ticket.State == approval.StateDone) {
			t.Errorf("%s: sent %v, records %+v", tt.status, s.sent, s.outcomes)
		}
	}
}

// Without a name the one ticket is meant, or all of one's own are told.
func TestStatusOfAll(t *testing.T) {
	s := newTicketGate(t, []*registry.Tool{searcher}, slip("apr_1", "ann", approval.StateProposed), slip("apr_2", "bob", approval.StateProposed))
	reply, f := s.status(t, `{}`)
	if f != nil || !strings.Contains(string(reply.Result), "apr_1") || reply.Ticket != "apr_1" {
		t.Fatalf("got %v, %v", reply, f)
	}
	s.tickets = append(s.tickets, slip("apr_3", "ann", approval.StateDone))
	reply, f = s.status(t, `{}`)
	if f != nil {
		t.Fatal(f)
	}
	for text, want := range map[string]bool{"apr_1": true, "apr_2": false, "apr_3": true, "paid": false, `"structuredContent":{"tickets":[{`: true} {
		if strings.Contains(string(reply.Result), text) != want {
			t.Errorf("%s: %s", text, reply.Result)
		}
	}
}

// A ticket of somebody else, one of another tenant, and one that never was look
// alike; so does one that the caller cannot name.
func TestTicketsOfOthers(t *testing.T) {
	tenant := slip("apr_3", "ann", approval.StateDone)
	tenant.Principal.Tenant = "other"
	s := newTicketGate(t, []*registry.Tool{searcher}, slip("apr_1", "ann", approval.StateProposed), slip("apr_2", "bob", approval.StateDone), tenant)
	var answers []string
	for _, id := range []string{"apr_2", "apr_3", "apr_9", ""} {
		reply, f := s.status(t, `{"ticket":"`+id+`"}`)
		if f == nil {
			t.Fatalf("%s: %s", id, reply.Result)
		}
		detail, _ := json.Marshal(f.Kernel.Detail)
		answers = append(answers, f.Kernel.Code+f.Reason+f.Remedy+string(detail))
	}
	for i, a := range answers {
		if a != answers[0] || !strings.HasPrefix(a, signal.CodeNotFound) {
			t.Errorf("answer %d is %q, the first is %q", i, a, answers[0])
		}
	}
}

// The result of a call that was made is given as the identical call would get it
// now: not to those who may no longer call it so, or see the tool.
func TestStoredResultsAreJudged(t *testing.T) {
	large := slip("apr_1", "ann", approval.StateDone)
	large.Result = nil
	for _, tt := range []struct {
		name   string
		change func(s *ticketGate)
		code   string
	}{
		{"held", func(s *ticketGate) { s.decision = held }, ""},
		{"allowed", func(*ticketGate) {}, ""},
		{"denied", func(s *ticketGate) { s.decision = policy.Decision{Effect: policy.Deny, Rule: "no"} }, signal.CodePolicyDenied},
		{"a policy that fails", func(s *ticketGate) { s.decideErr = errors.New("rego") }, signal.CodePolicyDenied},
		{"a hidden tool", func(s *ticketGate) { s.hidden = true }, signal.CodeToolNotFound},
		{"a tool that has gone", func(s *ticketGate) { s.tickets[0].Exposed = "web__gone" }, signal.CodeToolNotFound},
		{"a result too large to keep", func(s *ticketGate) { s.tickets[0] = large }, signal.CodeToolFailed},
		{"no quota", func(s *ticketGate) { s.exceeded = &limit.Exceeded{} }, signal.CodeRateLimited},
		{"an argument too many", nil, signal.CodeSchemaMismatch},
	} {
		s := newTicketGate(t, []*registry.Tool{searcher}, slip("apr_1", "ann", approval.StateDone))
		args := `{"ticket":"apr_1"}`
		if tt.change == nil {
			args = `{"ticket":"apr_1","more":1}`
		} else {
			tt.change(s)
		}
		reply, f := s.status(t, args)
		if f != nil && f.Kernel.Code != tt.code || (f == nil) != (tt.code == "") {
			t.Errorf("%s: %v, %v", tt.name, reply, f)
		}
		if f == nil && s.judged[0] != `{"n":1}` {
			t.Errorf("%s: judged %s", tt.name, s.judged)
		}
	}
	s := newTicketGate(t, []*registry.Tool{searcher}, slip("apr_1", "ann", approval.StateDone))
	s.decision = held
	s.decision.Redact = []string{"/content/0/text"}
	if reply, f := s.status(t, `{}`); f != nil || strings.Contains(string(reply.Result), "paid") {
		t.Errorf("what is redacted now: %v, %v", reply, f)
	}
}
