package rest_test

import (
	"context"
	"encoding/json"
	"errors"
	"iter"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/audit/index"
	"github.com/toolgate/toolgate/console"
	"github.com/toolgate/toolgate/console/people"
	"github.com/toolgate/toolgate/console/tickets"
	"github.com/toolgate/toolgate/internal/keys"
	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/approval"
	"github.com/toolgate/toolgate/policy/stop"
)

// desk is held calls that are named after what happens to them.
type desk struct{}

var faults = map[string]error{
	"apr_absent": approval.ErrNotFound, "apr_broken": errors.New("planted"), "apr_expired": approval.ErrExpired, "apr_done": approval.ErrNotPending,
	"apr_voted": approval.ErrAlreadyVoted, "apr_stale": approval.ErrStaleDigest, "apr_own": approval.ErrSelfApproval, "apr_reason": approval.ErrReasonRequired,
}

func ticketOf(id string) approval.Ticket {
	at := time.Unix(1e9, 0).UTC()
	return approval.Ticket{
		Held: approval.Held{
			Principal: alice, Server: "demo", Tool: "held", Exposed: "demo__held", Arguments: json.RawMessage(`{"n":1}`),
			Approval: policy.Approval{Roles: []string{"approver"}, Quorum: 1},
		},
		ID: id, State: approval.StateApproved, ArgumentBytes: 7, Created: at, Expires: at.Add(time.Minute),
		Votes:   []approval.Ballot{{Subject: "ann", Approve: true, Reason: "fine", At: at}},
		History: []approval.Change{{At: at, Who: "alice", To: approval.StateProposed}, {At: at, Who: "ann", From: approval.StateProposed, To: approval.StateApproved}},
	}
}

func (desk) List(_ context.Context, f approval.Filter) ([]approval.Ticket, error) {
	if f.Limit == 500 {
		return nil, errors.New("planted")
	}
	return []approval.Ticket{ticketOf("apr_1")}, nil
}

func (desk) Get(_ context.Context, id string) (approval.Ticket, error) {
	if err := faults[id]; id == "apr_absent" || id == "apr_broken" {
		return approval.Ticket{}, err
	}
	k := ticketOf(id)
	if id == "apr_answered" {
		k.State, k.Result, k.Tags = approval.StateDone, json.RawMessage(`{"content":[{"type":"text","text":"`+strings.Repeat("x", 9000)+`"}]}`), map[string]string{"urgency": "high"}
	}
	return k, nil
}

func brief(context.Context, approval.Ticket) (tickets.Briefing, error) {
	used := policy.Reading{Calls: 1, Sum: "2.5"}
	return tickets.Briefing{Offered: true, Description: "d", Risk: "high", Notice: "n", Waiting: true, Budgets: []tickets.Budget{
		{Meter: "m", Window: "24h", Adds: "amount", Asset: "USD", Per: json.RawMessage(`["USD"]`), Before: used, With: used}, {Meter: "n", Window: "1h", Before: used, With: used},
	}}, nil
}

func (desk) Decide(_ context.Context, v approval.Vote) (approval.Ticket, error) {
	return ticketOf(v.ID), faults[v.ID]
}

func (desk) Reconcile(_ context.Context, f approval.Finding) (approval.Ticket, error) {
	k := ticketOf(f.ID)
	k.State = approval.StateDone
	return k, faults[f.ID]
}

func (desk) Similar(context.Context, string) (approval.Ticket, error) {
	return approval.Ticket{}, approval.ErrNotFound
}

// Follow tells one change, and ends.
func (desk) Follow(context.Context, int64) iter.Seq2[approval.Event, error] {
	return func(yield func(approval.Event, error) bool) {
		yield(approval.Event{Seq: 1, Change: approval.Change{Who: "agent", To: approval.StateProposed, Digest: "sha256:0"}, Ticket: ticketOf("apr_1")}, nil)
	}
}

// wallet has the connections gr_1 and, which nobody can revoke, gr_broken and gr_unrecorded, all of ann.
type wallet struct{ broken bool }

func (w *wallet) Services() []console.Service { return nil }

func (w *wallet) List(context.Context) (all []console.Connection, err error) {
	if w.broken {
		return nil, errors.New("planted")
	}
	for id, server := range map[string]string{"gr_1": "web", "gr_broken": "web", "gr_unrecorded": "unrecorded"} {
		all = append(all, console.Connection{
			ID: id, Server: server, Issuer: "https://as.example", Account: "octo-ann", Scopes: []string{"repo"}, Created: time.Unix(1e9, 0).UTC(), Until: time.Unix(2e9, 0).UTC(),
			State: "live", Person: console.Person{Subject: "ann"},
		})
	}
	return all, nil
}

func (w *wallet) Revoke(_ context.Context, id string) (bool, error) {
	if id == "gr_broken" {
		return false, errors.New("planted")
	}
	return true, nil
}

func connectionProbes() []probe {
	const one, all = "/v1/connections/gr_1", "/v1/connections"
	return []probe{
		{200, "ann", "GET", all, "", nil}, {200, "oda", "GET", all + "?subject=ann", "", nil}, {400, "oda", "GET", all + "?all=1", "", nil},
		{401, "", "GET", all, "", nil}, {403, "ann", "GET", all + "?all=true", "", nil},
		{200, "ann", "GET", one, "", nil}, {401, "", "GET", one, "", nil}, {404, "eve", "GET", one, "", nil},
		{200, "ann", "DELETE", one, "", nil}, {401, "", "DELETE", one, "", nil}, {404, "eve", "DELETE", one, "", nil},
		{500, "ann", "DELETE", "/v1/connections/gr_broken", "", nil}, {503, "ann", "DELETE", "/v1/connections/gr_unrecorded", "", nil},
	}
}

// someStops are stops that are all in force, but for one.
type someStops struct{ broken, unrecorded bool }

func (l *someStops) List(context.Context) ([]stop.State, error) {
	if l.broken {
		return nil, errors.New("planted")
	}
	s := stop.Stop{ID: "stp_1", Kind: stop.Role, Name: "r", Reason: "because", By: "oda", At: time.Unix(1e9, 0).UTC()}
	return []stop.State{{Stop: s, Confirmed: []string{"process 1 on a"}, Waiting: []string{}}}, nil
}

func (l *someStops) Add(ctx context.Context, s stop.Stop) (stop.State, error) {
	if s.Name == "broken" {
		return stop.State{}, errors.New("planted")
	}
	s.ID, s.At = "stp_2", time.Unix(1e9, 0).UTC()
	return stop.State{Stop: s, Confirmed: []string{}, Waiting: []string{"process 1 on a"}}, nil
}

func (l *someStops) Resume(context.Context, string) error { return nil }

func stopProbes() []probe {
	const all, good = "/v1/stop", `{"kind":"role","name":"r","reason":"because","for":"1h"}`
	return []probe{
		{200, "ann", "GET", all, "", nil}, {401, "", "GET", all, "", nil},
		{201, "oda", "POST", all, good, nil}, {201, "oda", "POST", all, `{"kind":"all","reason":"because"}`, nil},
		{400, "oda", "POST", all, `{"kind":"role","reason":"because"}`, nil}, {401, "", "POST", all, good, nil}, {403, "ann", "POST", all, good, nil},
		{413, "oda", "POST", all, `{"reason":"` + strings.Repeat("x", 70_000) + `"}`, nil}, {415, "oda", "POST", all, good, []string{"Content-Type: text/plain"}},
		{500, "oda", "POST", all, `{"kind":"role","name":"broken","reason":"because"}`, nil}, {503, "oda", "POST", all, `{"kind":"role","name":"unrecorded","reason":"because"}`, nil},
		{200, "oda", "DELETE", all + "/stp_1", "", nil}, {401, "", "DELETE", all + "/stp_1", "", nil}, {403, "ann", "DELETE", all + "/stp_1", "", nil}, {404, "oda", "DELETE", all + "/stp_9", "", nil},
	}
}

// found is an index in which the calls dec_1, dec_broken and dec_starting can be found.
type found struct{}

func (found) Search(_ context.Context, q index.Query) (index.Page, error) {
	return index.Page{Calls: []index.Call{{
		ID: "dec_1", Time: time.Unix(1e9, 0).UTC(), Instance: "a", DecisionSeq: 1, OutcomeSeq: 2, Principal: "alice", Person: "ann", Roles: []string{"r"}, Method: "m", Tool: "demo__held", Server: "demo",
		Effect: "allow", Rule: "r", Outcome: "failed", Code: "C", Stage: "forward", Ticket: "apr_1", Account: "octo-ann", DurationMS: 1.5,
	}}, Next: "c", BehindMS: 3}, faultOf(q.ID)
}

func (f found) Call(ctx context.Context, id string) (w index.Whole, err error) {
	page, err := f.Search(ctx, index.Query{ID: id})
	line := json.RawMessage(`{"v":1,"seq":1,"kind":"outcome","instance":"a","prev":"0","hash":"1","time":"2001-09-09T01:46:40Z"}`)
	return index.Whole{Call: page.Calls[0], Decision: line, Outcome: line, Changes: []json.RawMessage{line}, Missing: 1}, err
}

func (found) Follow(context.Context, index.Query) iter.Seq2[index.Call, error] {
	return func(yield func(index.Call, error) bool) { yield(index.Call{ID: "dec_1"}, nil) }
}

func faultOf(id string) error {
	return map[string]error{"dec_9": index.ErrNotFound, "dec_broken": errors.New("planted"), "dec_starting": index.ErrStarting}[id]
}

func callProbes() []probe {
	const all, one = "/v1/calls", "/v1/calls/dec_1"
	return []probe{
		{200, "ann", "GET", all + "?principal=alice&person=ann&server=demo&tool=t&outcome=failed&rule=r&code=C&since=24h&until=2030-01-01T00:00:00Z&id=i&ticket=k&limit=5", "", nil},
		{200, "ann", "GET", all + "?follow=true", "", nil}, {400, "ann", "GET", all + "?x=1", "", nil}, {401, "", "GET", all, "", nil}, {403, "eve", "GET", all, "", nil},
		{500, "ann", "GET", all + "?id=dec_broken", "", nil}, {503, "ann", "GET", all + "?id=dec_starting", "", nil},
		{200, "ann", "GET", one, "", nil}, {401, "", "GET", one, "", nil}, {403, "eve", "GET", one, "", nil}, {404, "ann", "GET", "/v1/calls/dec_9", "", nil},
		{500, "ann", "GET", "/v1/calls/dec_broken", "", nil}, {503, "ann", "GET", "/v1/calls/dec_starting", "", nil},
	}
}

// TestDocumentForPeople drives the admin listener through every operation and status of its
// document.
func TestDocumentForPeople(t *testing.T) {
	staff := map[string]policy.Principal{"ann-token": {Subject: "ann", Roles: []string{"approver"}}, "eve-token": {Subject: "eve"}, "oda-token": {Subject: "oda", Roles: []string{"operator"}},
		"tom-token": {Subject: "tom", Roles: []string{"operator", "approver"}}, "una-token": {Subject: "una", Roles: []string{"operator", "approver"}}}
	accounts, stops, advisers, tools, sessions, weights, tokens := new(wallet), new(someStops), new(adviser), new(shelf), new(lobby), new(scales), new(purse)
	servers := []console.Upstream{{Name: "web", State: "ready", Transport: "stdio", Restarts: 1}, {Name: "broken", State: "failed", Transport: "http"}, {Name: "unrecorded", State: "ready", Transport: "http"}}
	tail := func(context.Context, int, bool) iter.Seq2[[]byte, error] {
		return func(yield func([]byte, error) bool) {
			if yield([]byte(`{"v":1}`), nil) && accounts.broken {
				yield(nil, errors.New("planted"))
			}
		}
	}
	db, err := store.Open(t.Context(), filepath.Join(t.TempDir(), "state.db"), store.Migrations())
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	opts := console.Options{Options: people.Options{Store: db, Keys: keys.At(t.TempDir()),
		Identify: func(_ context.Context, token string) (policy.Principal, error) {
			if who, ok := staff[token]; ok {
				return who, nil
			}
			return policy.Principal{}, errors.New("nobody")
		},
		Again: func(_ context.Context, p policy.Principal, _ string) (policy.Principal, error) { return p, nil },
		May: func(_ context.Context, p policy.Principal, _ policy.Right) (bool, error) {
			return p.Has("operator"), nil
		},
		Record: func(a people.Act) error {
			if a.Principal.Subject == "una" || a.Server == "unrecorded" || strings.HasPrefix(strings.Join(a.Added, ""), "role unrecorded") || strings.HasPrefix(strings.Join(a.Removed, ""), "session ses_unrecorded") || stops.unrecorded {
				return errors.New("disk full")
			}
			return nil
		},
		TrailRight: func(_ context.Context, p policy.Principal) (policy.TrailRight, error) {
			if p.Has("approver") {
				return policy.TrailAll, nil
			}
			return policy.TrailNone, nil
		},
	}, Version: "1.2.3", Approvals: desk{}, Reconciler: desk{}, Feed: desk{}, Archive: desk{}, Brief: brief, Audit: tail, Status: func() console.Status { return console.Status{Upstreams: servers} },
		Stderr: func(string) []string { return []string{"ready"} },
		Restart: func(_ context.Context, server string) (console.Upstream, error) {
			if server == "broken" {
				return console.Upstream{}, errors.New("broken")
			}
			return servers[0], nil
		},
		Connections: accounts, Calls: found{}, Policy: advisers, Judge: advisers, Verify: verifyUntilCancelled, Export: exportOne,
		Shadow: advisers.shadow, Anchors: anchorsNow, TrialText: func(console.PolicyTrial) string { return "" },
		Latency: func(string) *console.Latency { return &console.Latency{Calls: 1, MedianMS: 1, P99MS: 2} },
		Stops:   stops, Tools: tools, Sessions: sessions, Limits: weights.limits, Tokens: tokens, Clients: func() (string, []console.Client) {
			return "http://gate/mcp", []console.Client{{ID: "c", Name: "C", Text: "{}"}}
		},
		Held: func(context.Context) (int, error) { return 0, nil }, Metrics: http.NotFoundHandler()}
	c, err := console.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	srv := httptest.NewServer(c)
	defer srv.Close()
	d := &door{t: t, url: srv.URL}
	text := d.do("", "GET", "/v1/openapi.json", "").body
	doc := readDocument(t, []byte(text))
	if plain := strings.Replace(text, `,"x-toolgate-version":"1.2.3"`, "", 1); plain != string(shipped(t, "openapi-admin.json")) {
		t.Error("what is served differs from what is shipped in more than the version")
	}
	const broken = 11 // probes at the end, of lists that are broken
	probes := slices.Concat(consoleProbes(), callProbes(), connectionProbes(), stopProbes(), policyProbes(), toolProbes(), sessionProbes(), limitProbes(), tokenProbes(), []probe{
		{200, "oda", "GET", "/v1/connect", "", nil},
		{400, "ann", "GET", "/v1/connect?x=1", "", nil},
		{401, "", "GET", "/v1/connect", "", nil},
		{503, "oda", "DELETE", "/v1/stop/stp_1", "", nil}, // without a record
		{500, "oda", "DELETE", "/v1/stop/stp_1", "", nil}, // once the lists are broken
		{500, "ann", "GET", "/v1/stop", "", nil},
		{500, "oda", "GET", "/v1/policy", "", nil},
		{500, "oda", "GET", "/v1/tools", "", nil},
		{500, "oda", "GET", "/v1/sessions", "", nil},
		{500, "ann", "GET", "/v1/connect", "", nil},
		{500, "oda", "GET", "/v1/limits", "", nil},
		{500, "oda", "GET", "/v1/tokens", "", nil},
		{500, "tom", "GET", "/v1/audit/seen", "", nil},
		{500, "ann", "GET", "/v1/connections", "", nil},
		{500, "ann", "GET", "/v1/connections/gr_1", "", nil},
	})
	checkJobs(t, d, doc)
	for i, p := range probes {
		accounts.broken = i >= len(probes)-broken
		stops.broken, stops.unrecorded, advisers.broken = accounts.broken, i == len(probes)-broken-1, accounts.broken
		tools.broken, sessions.broken, weights.broken = accounts.broken, accounts.broken, accounts.broken
		tokens.broken = accounts.broken
		got := d.do(p.who, p.method, p.path, p.body, p.headers...)
		if err := doc.check(p.method, p.path, got); err != nil || got.status != p.status {
			t.Errorf("%s %s: status %d, want %d: %v", p.method, p.path, got.status, p.status, err)
		}
		if p.status == 200 && p.path == "/v1/approvals/watch" {
			if err := doc.fits(object{"$ref": "#/components/schemas/TicketChange"}, got.body); err != nil {
				t.Errorf("a line of the watch: %v: %s", err, got.body)
			}
		}
	}
	if diff := cmp.Diff([]string(nil), doc.unseen()); diff != "" {
		t.Errorf("statuses of the document that nothing provoked:\n%s", diff)
	}
}

func consoleProbes() []probe {
	var probes []probe
	for _, method := range []string{"GET", "HEAD"} {
		probes = append(probes, probe{200, "", method, "/v1/openapi.json", "", nil}, probe{403, "", method, "/v1/openapi.json", "", []string{"Host: evil.example"}})
	}
	for _, path := range []string{"/v1/approvals", "/v1/approvals/apr_1", "/v1/audit/tail", "/v1/approvals/watch"} {
		probes = append(probes, probe{200, "ann", "GET", path, "", nil}, probe{401, "", "GET", path, "", nil}, probe{403, "ann", "GET", path, "", []string{"Host: evil.example"}})
	}
	probes = append(probes, probe{400, "ann", "GET", "/v1/approvals?x=1", "", nil}, probe{500, "ann", "GET", "/v1/approvals?limit=500", "", nil},
		probe{400, "ann", "GET", "/v1/audit/tail?n=x", "", nil}, probe{403, "eve", "GET", "/v1/audit/tail", "", nil},
		probe{400, "ann", "GET", "/v1/approvals/watch?after=x", "", nil}, probe{200, "ann", "GET", "/v1/approvals?state=denied,done&awaiting=me&before=apr_9&limit=1&tool=t&server=s&principal=p&role=r", "", nil},
		probe{200, "ann", "GET", "/v1/approvals/apr_answered", "", nil}, probe{200, "tom", "GET", "/v1/approvals/apr_answered", "", nil}, probe{503, "una", "GET", "/v1/approvals/apr_answered", "", nil},
		probe{404, "ann", "GET", "/v1/approvals/apr_absent", "", nil}, probe{404, "eve", "GET", "/v1/approvals/apr_1", "", nil},
		probe{500, "ann", "GET", "/v1/approvals/apr_broken", "", nil})
	for _, action := range []string{"approve", "deny", "reconcile"} {
		good := `{}`
		if action == "reconcile" {
			good = `{"outcome":"done","reason":"asked them"}`
		}
		at := func(id string) string { return "/v1/approvals/" + id + "/" + action }
		post := func(status int, who, id, body string, headers ...string) {
			probes = append(probes, probe{status, who, "POST", at(id), body, headers})
		}
		if post(200, "ann", "apr_1", good); action != "reconcile" {
			post(200, "ann", "apr_1", `{"reason":"fine","digest":"sha256:0"}`)
			post(200, "ann", "apr_1", "", "Content-Type: application/json")
		}
		post(400, "ann", "apr_1", `{"why":1}`)
		post(401, "", "apr_1", good)
		post(403, "ann", "apr_own", good)
		post(403, "ann", "apr_1", good, "Origin: http://evil.example")
		post(404, "ann", "apr_absent", good)
		for _, id := range []string{"apr_expired", "apr_done", "apr_voted", "apr_stale"} {
			post(409, "ann", id, good)
		}
		post(413, "ann", "apr_1", `{"reason":"`+strings.Repeat("x", 70_000)+`"}`)
		post(415, "ann", "apr_1", good, "Content-Type: text/plain")
		post(500, "ann", "apr_broken", good)
	}
	for server, status := range map[string]int{"web": 200, "broken": 500, "absent": 404, "unrecorded": 503} {
		probes = append(probes, probe{status, "oda", "POST", "/v1/servers/" + server + "/restart", "", nil})
	}
	for _, path := range []string{"/v1/servers", "/v1/servers/web"} {
		probes = append(probes, probe{200, "oda", "GET", path, "", nil}, probe{401, "", "GET", path, "", nil}, probe{403, "ann", "GET", path, "", nil})
	}
	probes = append(probes, probe{404, "oda", "GET", "/v1/servers/absent", "", nil})
	probes = append(probes, probe{401, "", "POST", "/v1/servers/web/restart", "", nil}, probe{403, "ann", "POST", "/v1/servers/web/restart", "", nil})
	return append(probes, probe{422, "ann", "POST", "/v1/approvals/apr_reason/deny", `{}`, nil},
		probe{422, "ann", "POST", "/v1/approvals/apr_reason/reconcile", `{"outcome":"done"}`, nil})
}
