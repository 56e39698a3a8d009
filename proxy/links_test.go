package proxy_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/signal"
)

// What a tool's result links to is read at the tool's server, by the session and by the
// principal that was given it, judged and recorded as any resource. A resource that
// another server lists stays that server's.
func TestLinkedResources(t *testing.T) {
	s := newAggregate(t, backends()...)
	link := func(uri string) string { return `{"type":"resource_link","name":"n","uri":"` + uri + `"}` }
	ask := func(session, subject, uri string) string {
		t.Helper()
		s.got, s.inputs, s.outcomes = nil, nil, nil
		s.who = policy.Principal{Subject: subject, Roles: []string{"r"}}
		in := relayed(t, "", "resources/read", `{"uri":"`+uri+`"}`)
		in.Session = session
		if _, f := s.Relay(t.Context(), in); f != nil {
			if f.Kernel.Code != signal.CodeNotFound {
				return f.Kernel.Code
			}
			return "nobody"
		}
		sent := s.got[len(s.got)-1]
		server, _, _ := strings.Cut(sent, " ")
		if r := s.inputs[len(s.inputs)-1].Resource; r == nil || r.Server != server || r.URI != uri || s.outcomes[0].Server != server {
			t.Errorf("%s: judged %+v, recorded %+v", uri, r, s.outcomes[0])
		}
		return server
	}
	long := "long:" + strings.Repeat("x", 2<<10)
	s.bench.result = `{"content":[` + strings.Join([]string{link("file:///a"), link("both:"), link("t:7"), link(long), `{"type":"text","text":"resource_link"}`, `{"type":"resource_link"}`}, ",") + `]}`
	in := request(t, plain)
	in.Session = "first"
	if got := ask("first", "ann", "file:///a"); got != "nobody" {
		t.Fatalf("before the call: %s", got)
	}
	s.who = policy.Principal{Subject: "ann", Roles: []string{"r"}}
	if _, f := s.Call(t.Context(), in); f != nil {
		t.Fatal(f)
	}
	for _, tt := range []struct{ session, subject, uri, want string }{
		{"first", "ann", "file:///a", "web"}, {"second", "ann", "file:///a", "web"}, {"", "ann", "file:///a", "web"},
		{"first", "bob", "file:///a", "nobody"}, {"second", "bob", "file:///a", "nobody"},
		{"first", "ann", "t:7", "web"},   // the template of another server describes it, too
		{"third", "ann", long, "nobody"}, // too long to be remembered
	} {
		if got := ask(tt.session, tt.subject, tt.uri); got != tt.want {
			t.Errorf("%s of %q reads %.20s at %s, want %s", tt.subject, tt.session, tt.uri, got, tt.want)
		}
	}
	if _, f := s.enumerate(t, "resources/list", ""); f != nil {
		t.Fatal(f)
	}
	listing := relayed(t, "", "resources/list", `{}`).Session // of enumerate
	if got := ask(listing, "ann", "both:"); got != "a" {
		t.Errorf("a listed resource is read at %s", got)
	}
	s.ListChanged("a", "notifications/resources/list_changed")
	if got := ask("first", "ann", "file:///a"); got != "web" {
		t.Errorf("after a change of lists: %s", got)
	}
	s.EndSession("first")
	if got := ask("first", "ann", "file:///a"); got != "web" {
		t.Errorf("after the session: %s", got)
	}

	// What is remembered is bounded: the latest stay.
	var many []string
	for i := range 1_100 {
		many = append(many, link(fmt.Sprint("n:", i)))
	}
	s.bench.result = `{"content":[` + strings.Join(many, ",") + `]}`
	if _, f := s.Call(t.Context(), in); f != nil {
		t.Fatal(f)
	}
	if first, last := ask("first", "ann", "n:0"), ask("first", "ann", "n:1099"); first != "nobody" || last != "web" {
		t.Errorf("the first is read at %s, the last at %s", first, last)
	}
}

// On the route of one server nothing is remembered: its links are read there.
func TestLinksOfOneRoute(t *testing.T) {
	s := newAggregate(t, backends()...)
	s.bench.result = `{"content":[{"type":"resource_link","name":"n","uri":"file:///a"}]}`
	in := request(t, `{"name":"find","arguments":{"n":1}}`)
	in.Route = "web"
	if _, f := s.Call(t.Context(), in); f != nil {
		t.Fatal(f)
	}
	if _, f := s.Relay(t.Context(), relayed(t, "", "resources/read", `{"uri":"file:///a"}`)); f == nil || f.Kernel.Code != signal.CodeNotFound {
		t.Errorf("got %v", f)
	}
}
