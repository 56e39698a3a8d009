package console_test

import (
	"context"
	"errors"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/console"
	"github.com/toolgate/toolgate/console/people"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/stop"
)

// heldStops are stops that one process enforces, and another does not.
type heldStops struct {
	all []stop.State
}

func (l *heldStops) List(context.Context) ([]stop.State, error) { return slices.Clone(l.all), nil }

func (l *heldStops) Add(_ context.Context, s stop.Stop) (stop.State, error) {
	s.ID = "stp_" + s.Name
	state := stop.State{Stop: s, Confirmed: []string{"process 1 on a"}, Waiting: []string{"process 2 on <b>"}}
	l.all = append(l.all, state)
	return state, nil
}

func (l *heldStops) Resume(_ context.Context, id string) error {
	n := len(l.all)
	if l.all = slices.DeleteFunc(l.all, func(s stop.State) bool { return s.ID == id }); len(l.all) == n {
		return stop.ErrNotFound
	}
	return nil
}

func (l *heldStops) inForce() (all []stop.Stop) {
	for _, s := range l.all {
		all = append(all, s.Stop)
	}
	return all
}

// stopped is a listener where operators stop calls.
func stopped(t *testing.T, change func(*console.Options)) (*listener, *heldStops) {
	t.Helper()
	held := new(heldStops)
	return newListener(t, func(o *console.Options) {
		o.May = func(_ context.Context, p policy.Principal, _ policy.Right) (bool, error) {
			return p.Has("operator"), nil
		}
		o.Stops, o.InForce = held, held.inForce
		o.Knows = func(kind stop.Kind, name string) bool { return name != "slip" }
		if change != nil {
			change(o)
		}
	}), held
}

const roleStop = `{"kind":"role","name":"x","reason":"incident 7","for":"1h"}`

// A stop and its end are recorded, then made, and answered with who enforces it.
func TestStopOverREST(t *testing.T) {
	l, held := stopped(t, nil)
	w := l.ask("POST", "/v1/stop", roleStop, as("t-oda")...)
	if w.Code != 201 || !strings.Contains(w.Body.String(), `"confirmed":["process 1 on a"],"waiting":["process 2 on`) {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	want := stop.Stop{ID: "stp_x", Kind: stop.Role, Name: "x", Reason: "incident 7", By: "oda", Until: l.Now().Add(time.Hour)}
	if diff := cmp.Diff([]stop.Stop{want}, held.inForce()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if w = l.ask("GET", "/v1/stop", "", as("t-ann")...); w.Code != 200 || !strings.Contains(w.Body.String(), `{"stops":[{"id":"stp_x"`) {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if w = l.ask("POST", "/v1/stop", `{"kind":"tool","name":"slip","reason":"r"}`, as("t-oda")...); w.Code != 201 || !strings.Contains(w.Body.String(), `"unknown":true`) {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	l.acts, held.all = l.acts[:1], held.all[:1]
	if w = l.ask("DELETE", "/v1/stop/stp_x", "", as("t-oda")...); w.Code != 200 || len(held.all) != 0 {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	acts := []people.Act{
		{Name: audit.EventStopped, Principal: staff["t-oda"], Source: "192.0.2.1", Credential: "bearer", Added: []string{"role x: incident 7, until 2026-03-01T13:00:00Z"}},
		{Name: audit.EventResumed, Principal: staff["t-oda"], Source: "192.0.2.1", Credential: "bearer", Removed: []string{"stp_x, role x"}},
	}
	if diff := cmp.Diff(acts, l.acts); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Nobody stops or resumes calls without the right, without a record, or in words that say nothing.
func TestNoStop(t *testing.T) {
	failing := func(o *console.Options) {
		o.May = func(context.Context, policy.Principal, policy.Right) (bool, error) {
			return true, errors.New("the policy fails")
		}
	}
	noPolicy := func(o *console.Options) { o.May = nil }
	for name, tc := range map[string]struct {
		token, body string // body "" resumes
		change      func(*console.Options)
		unrecorded  error
		status      int
		code        string
		recorded    string // reason in the record, "" = there is none
	}{
		"another role":            {"t-ann", roleStop, nil, nil, 403, "NOT_STOPPER", "NOT_STOPPER"},
		"another role resumes":    {"t-ann", "", nil, nil, 403, "NOT_STOPPER", "NOT_STOPPER"},
		"the policy fails":        {"t-oda", roleStop, failing, nil, 403, "NOT_STOPPER", "NOT_STOPPER"},
		"no policy":               {"t-oda", roleStop, noPolicy, nil, 403, "NOT_STOPPER", "NOT_STOPPER"},
		"nobody":                  {"t-nobody", roleStop, nil, nil, 401, "UNAUTHENTICATED", ""},
		"it is not recorded":      {"t-oda", roleStop, nil, errors.New("disk full"), 503, "AUDIT_UNAVAILABLE", "none"},
		"its end is not recorded": {"t-oda", "", nil, errors.New("disk full"), 503, "AUDIT_UNAVAILABLE", "none"},
		"no reason":               {"t-oda", `{"kind":"all"}`, nil, nil, 400, "BAD_REQUEST", ""},
		"another kind":            {"t-oda", `{"kind":"team","name":"x","reason":"r"}`, nil, nil, 400, "BAD_REQUEST", ""},
		"no time":                 {"t-oda", `{"kind":"all","reason":"r","for":"0s"}`, nil, nil, 400, "BAD_REQUEST", ""},
		"another member":          {"t-oda", `{"kind":"all","reason":"r","until":"x"}`, nil, nil, 400, "BAD_REQUEST", ""},
	} {
		t.Run(name, func(t *testing.T) {
			l, held := stopped(t, tc.change)
			l.unrecorded = tc.unrecorded
			held.all = []stop.State{{Stop: stop.Stop{ID: "stp_1", Kind: stop.All}}}
			if tc.body == "" {
				refused(t, l.ask("DELETE", "/v1/stop/stp_1", "", as(tc.token)...), tc.status, tc.code)
			} else {
				refused(t, l.ask("POST", "/v1/stop", tc.body, as(tc.token)...), tc.status, tc.code)
			}
			if len(held.all) != 1 {
				t.Errorf("in force: %+v", held.all)
			}
			if tc.recorded == "NOT_STOPPER" && (len(l.acts) != 1 || l.acts[0].Reason != tc.recorded) || tc.recorded == "" && len(l.acts) > 0 {
				t.Errorf("recorded %+v", l.acts)
			}
		})
	}
	l, _ := stopped(t, nil)
	refused(t, l.ask("DELETE", "/v1/stop/stp_1", "", as("t-oda")...), 404, "NO_STOP")
	l = newListener(t, nil)
	refused(t, l.ask("POST", "/v1/stop", roleStop, as("t-oda")...), 404, "NOT_FOUND")
}

// The page does what the resource does, for the session of its form alone.
func TestStopPage(t *testing.T) {
	l, held := stopped(t, nil)
	oda := newBrowser(l).signIn("t-oda")
	submit := func(b *browser, path string, form url.Values, status int) string {
		t.Helper()
		w := b.do("POST", path, form)
		if w.Code != status {
			t.Errorf("%s: %d, want %d: %s", path, w.Code, status, w.Body)
		}
		return w.Body.String()
	}
	fields := []string{"kind", "role", "name", " x ", "reason", "a <b>", "for", ""}
	submit(oda, "/console/stop", oda.form("/console/stop", append(fields, "csrf", "x")...), 403)
	submit(newBrowser(l), "/console/stop", url.Values{"kind": {"all"}, "reason": {"r"}}, 401)
	ann := newBrowser(l).signIn("t-ann")
	if page := ann.do("GET", "/console/stop", nil).Body.String(); strings.Contains(page, `action="/console/stop"`) {
		t.Errorf("who may not stop is offered to: %s", page)
	}
	form := ann.form("/console/approvals", fields...) // it has the field of her session
	submit(ann, "/console/stop", form, 403)
	if len(held.all) != 0 {
		t.Fatalf("in force: %+v", held.all)
	}
	submit(oda, "/console/stop", oda.form("/console/stop", fields...), 303)
	if s := held.all[0].Stop; s.Name != "x" || s.Reason != "a <b>" || !s.Until.IsZero() || s.By != "oda" {
		t.Errorf("in force: %+v", s)
	}
	page := oda.do("GET", "/console/stop", nil).Body.String()
	for _, want := range []string{"role x", "a &lt;b&gt;", "not confirmed by process 2 on &lt;b&gt;", "Calls are stopped"} {
		if !strings.Contains(page, want) {
			t.Errorf("the page does not say %q: %s", want, page)
		}
	}
	form = ann.form("/console/approvals", "id", "stp_x")
	submit(ann, "/console/stop/resume", form, 403)
	submit(oda, "/console/stop/resume", url.Values{"id": {"stp_x"}}, 403)
	if len(held.all) != 1 {
		t.Fatal("resumed")
	}
	submit(oda, "/console/stop/resume", oda.form("/console/stop", "id", "stp_x"), 303)
	submit(oda, "/console/stop/resume", oda.form("/console/stop", "id", "stp_x"), 404)
	if len(held.all) != 0 {
		t.Errorf("in force: %+v", held.all)
	}
}

// Every page says that calls are stopped; those before a sign-in say why only where everybody may
// watch toolgate.
func TestStopBanner(t *testing.T) {
	for _, everybody := range []bool{true, false} {
		l, held := stopped(t, func(o *console.Options) { o.Watches = func(policy.Principal) bool { return everybody } })
		k := l.hold(`{"n":1}`)
		ann := newBrowser(l).signIn("t-ann")
		held.all = []stop.State{{Stop: stop.Stop{ID: "stp_1", Kind: stop.Role, Name: "x", Reason: "incident 7"}}}
		for _, path := range []string{"/console/approvals", "/console/approvals?view=history", "/console/approvals/" + k.ID, "/console/approvals/apr_none", "/console/stop", "/console/login"} {
			if page := ann.do("GET", path, nil).Body.String(); !strings.Contains(page, "Calls are stopped") || !strings.Contains(page, "incident 7") {
				t.Errorf("%s: %s", path, page)
			}
		}
		for path, b := range map[string]*browser{"/console/": newBrowser(l), "/console/login": newBrowser(l)} {
			page := b.do("GET", path, nil).Body.String()
			if !strings.Contains(page, "Calls are stopped") || strings.Contains(page, "incident 7") != everybody {
				t.Errorf("%s, where everybody watches %v: %s", path, everybody, page)
			}
		}
		held.all = nil
		if page := ann.do("GET", "/console/approvals", nil).Body.String(); strings.Contains(page, "Calls are stopped") {
			t.Errorf("nothing is stopped: %s", page)
		}
	}
}
