package audit_test

import (
	"testing"

	"github.com/toolgate/toolgate/audit"
)

func TestFilter(t *testing.T) {
	call := &audit.Record{Kind: audit.KindOutcome, Outcome: audit.Denied, Exposed: "wallet__pay", DecisionID: "dec_1", TraceID: "trc_1",
		Server: "wallet", Code: "POLICY_DENIED", Policy: audit.Policy{Rule: "limit"}, Arguments: []byte(`{"to":"bob","a/b":[1.50,{"x":null}]}`),
		Principal: audit.Principal{Subject: "ann", Person: "ann@example.org", Roles: []string{"clerk", "lead"}}}
	event := &audit.Record{Kind: audit.KindEvent, Ticket: "apr_1", Event: &audit.Event{Name: audit.EventSignIn}}
	for _, c := range []struct {
		name        string
		f           audit.Filter
		call, event bool
	}{
		{"nothing is asked", audit.Filter{}, true, true},
		{"kind", audit.Filter{Kinds: []string{"outcome", "decision"}}, true, false},
		{"outcome", audit.Filter{Outcomes: []string{"denied"}}, true, false},
		{"another outcome", audit.Filter{Outcomes: []string{"allowed"}}, false, false},
		{"subject", audit.Filter{Principals: []string{"bob", "ann"}}, true, false},
		{"one of its roles", audit.Filter{Roles: []string{"lead"}}, true, false},
		{"no role of it", audit.Filter{Roles: []string{"auditor"}}, false, false},
		{"tool", audit.Filter{Tools: []string{"wallet__*"}}, true, false},
		{"part of a name", audit.Filter{Tools: []string{"wallet"}}, false, false},
		{"everything with a name", audit.Filter{Tools: []string{"*"}}, true, true},
		{"event", audit.Filter{Tools: []string{"sign*"}}, false, true},
		{"person", audit.Filter{Persons: []string{"ann@example.org"}}, true, false},
		{"server", audit.Filter{Servers: []string{"wallet"}}, true, false},
		{"rule", audit.Filter{Rules: []string{"limit"}}, true, false},
		{"code", audit.Filter{Codes: []string{"POLICY_DENIED"}}, true, false},
		{"argument", audit.Filter{Argument: "/to=bob"}, true, false},
		{"an element", audit.Filter{Argument: "/a~1b/0=1.50"}, true, false},
		{"a deep one", audit.Filter{Argument: "/a~1b/1/x=null"}, true, false},
		{"another value", audit.Filter{Argument: "/to=ann"}, false, false},
		{"no such argument", audit.Filter{Argument: "/from="}, false, false},
		{"ticket", audit.Filter{Tickets: []string{"apr_1"}}, false, true},
		{"id", audit.Filter{ID: "trc_1"}, true, false},
		{"all at once", audit.Filter{Roles: []string{"lead"}, Outcomes: []string{"denied"}, ID: "dec_2"}, false, false},
	} {
		if got := c.f.Match(call); got != c.call {
			t.Errorf("%s: the call %v, want %v", c.name, got, c.call)
		}
		if got := c.f.Match(event); got != c.event {
			t.Errorf("%s: the event %v, want %v", c.name, got, c.event)
		}
	}
	for _, bad := range []audit.Filter{{Tools: []string{"a", "["}}, {Argument: "/to"}, {Argument: "to=bob"}} {
		if bad.Check() == nil {
			t.Errorf("%+v is accepted", bad)
		}
	}
}
