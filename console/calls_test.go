package console_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"iter"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/audit/index"
	"github.com/toolgate/toolgate/console"
	"github.com/toolgate/toolgate/policy"
)

// calls is an index with one call, whose records have arguments.
type calls struct {
	ticket string
	asked  index.Query
	fault  error
	coming chan index.Call
}

func (c *calls) Search(_ context.Context, q index.Query) (index.Page, error) {
	c.asked = q
	if q.Decidable != nil && !q.Decidable(c.ticket) {
		return index.Page{Calls: []index.Call{}}, c.fault
	}
	return index.Page{Calls: []index.Call{{ID: "dec_1", Ticket: c.ticket}}, Next: "n", BehindMS: 7}, c.fault
}

func (c *calls) Call(_ context.Context, id string) (w index.Whole, err error) {
	if id != "dec_1" {
		return w, index.ErrNotFound
	}
	return index.Whole{
		Call:     index.Call{ID: "dec_1", Ticket: c.ticket},
		Decision: json.RawMessage(`{"v":1,"arguments":{"to":"bob"},"arguments_sha256":"ab","input":{"to":"bob"},"hash":"h"}`),
		Outcome:  json.RawMessage(`{"v":1,"arguments_excerpt":"bob","task":{"to":"bob"},"hash":"i"}`),
		Changes:  []json.RawMessage{json.RawMessage(`{"v":1,"change":{"to":"approved","digest":"sha256:ab"},"arguments_sha256":"ab"}`)},
	}, c.fault
}

func (c *calls) Follow(ctx context.Context, _ index.Query) iter.Seq2[index.Call, error] {
	return func(yield func(index.Call, error) bool) {
		for {
			select {
			case <-ctx.Done():
				return
			case call := <-c.coming:
				if !yield(call, nil) {
					return
				}
			}
		}
	}
}

// newCalls is a listener with an index. Auditors and the role reader read arguments.
func newCalls(t *testing.T) (*listener, *calls) {
	x := &calls{coming: make(chan index.Call)}
	l := newListener(t, func(o *console.Options) {
		o.Calls = x
		o.May = func(_ context.Context, p policy.Principal, right policy.Right) (bool, error) {
			return right == policy.ReadsArguments && p.Subject == "aud", nil
		}
	})
	return l, x
}

func TestCallsNeedRights(t *testing.T) {
	l, x := newCalls(t)
	mine := l.hold(`{}`).ID
	for _, c := range []struct {
		who, ticket, path string
		status            int
		code              string
		found             bool
		acts              string // name, reason, call and query of each
	}{
		{"t-audit", "", "/v1/calls", 200, "", true, "trail_read|| "},
		{"t-audit", "", "/v1/calls?tool=a%1bb&since=2026-03-01T00:00:00Z&principal=p", 200, "", true, `trail_read||search principal=p since=2026-03-01T00:00:00Z tool=a\u001bb `},
		{"t-audit", "", "/v1/calls?argument=/to=bob&text=secret+word", 200, "", true, "trail_read||search argument=/to text arguments_read||search argument=/to text "},
		{"t-ann", mine, "/v1/calls", 200, "", true, "trail_read|| "},
		{"t-ann", "apr_of_others", "/v1/calls", 200, "", false, "trail_read|| "},
		{"t-self", mine, "/v1/calls", 200, "", false, "trail_read|| "}, // the requester
		{"t-ann", mine, "/v1/calls?text=secret", 403, "NOT_READER", false, "arguments_read|NOT_READER|search text "},
		{"t-ann", mine, "/v1/calls?argument=/to=bob", 403, "NOT_READER", false, "arguments_read|NOT_READER|search argument=/to "},
		{"t-eve", mine, "/v1/calls", 403, "NOT_AUDITOR", false, "trail_read|NOT_AUDITOR| "},
		{"t-eve", mine, "/v1/calls/dec_1", 403, "NOT_AUDITOR", false, "trail_read|NOT_AUDITOR|search id=dec_1 "},
		{"t-audit", "", "/v1/calls/dec_1", 200, "", true, "trail_read||search id=dec_1 arguments_read||call dec_1 "},
		{"t-ann", mine, "/v1/calls/dec_1", 200, "", true, "trail_read||search id=dec_1 "},
		{"t-ann", "", "/v1/calls/dec_1", 404, "NOT_FOUND", false, "trail_read||search id=dec_1 "},
		{"t-ann", "apr_of_others", "/v1/calls/dec_1", 404, "NOT_FOUND", false, "trail_read||search id=dec_1 "},
		{"t-audit", "", "/v1/calls/dec_2", 404, "NOT_FOUND", false, "trail_read||search id=dec_2 "},
		{"", "", "/v1/calls", 401, "UNAUTHENTICATED", false, ""},
	} {
		x.ticket, l.acts = c.ticket, nil
		w := l.ask("GET", c.path, "", as(c.who)...)
		if c.code != "" {
			refused(t, w, c.status, c.code)
		} else if w.Code != c.status || strings.Contains(w.Body.String(), `"id":"dec_1"`) != c.found {
			t.Errorf("%s %s of %q: %d %s", c.who, c.path, c.ticket, w.Code, w.Body)
		}
		acts := ""
		for _, a := range l.acts {
			acts += strings.Join([]string{a.Name, a.Reason, strings.Join(a.Added, "|")}, "|") + " "
		}
		if acts != c.acts {
			t.Errorf("%s %s: acts %q, want %q", c.who, c.path, acts, c.acts)
		}
	}
	l.unrecorded = errors.New("disk full")
	for _, path := range []string{"/v1/calls", "/v1/calls/dec_1"} {
		refused(t, l.ask("GET", path, "", as("t-audit")...), 503, "AUDIT_UNAVAILABLE")
	}
}

// Without the right to read arguments, a call is shown without them and what tells of them.
func TestArgumentsOfCalls(t *testing.T) {
	l, x := newCalls(t)
	x.ticket = l.hold(`{}`).ID
	got := l.ask("GET", "/v1/calls/dec_1", "", as("t-ann")...).Body.String()
	want := `{"call":{"id":"dec_1","time":"0001-01-01T00:00:00Z","instance":"","principal":"","tool":"","server":"","effect":"","ticket":"` + x.ticket + `","duration_ms":0},` +
		`"decision":{"v":1,"hash":"h"},"outcome":{"v":1,"hash":"i"},"changes":[{"v":1,"change":{"to":"approved","digest":""}}],"missing":0,` +
		`"withheld":["arguments","arguments_excerpt","arguments_sha256","input","task"]}` + "\n"
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	got = l.ask("GET", "/v1/calls/dec_1", "", as("t-audit")...).Body.String()
	for _, part := range []string{`"arguments":{"to":"bob"}`, `"arguments_excerpt":"bob"`, `"digest":"sha256:ab"`} {
		if !strings.Contains(got, part) || strings.Contains(got, "withheld") {
			t.Errorf("%s lacks %s", got, part)
		}
	}
}

func TestQueriesOfCalls(t *testing.T) {
	l, x := newCalls(t)
	all := "principal=p&person=n&server=s&tool=t&outcome=o&rule=r&code=c&id=i&ticket=k&argument=/a%3D1&text=w&limit=3&until=24h&since=2026-02-01T00:00:00%2B01:00"
	out := accepted(t, l.ask("GET", "/v1/calls?"+all, "", as("t-audit")...))
	if diff := cmp.Diff(map[string]any{"calls": out["calls"], "next": "n", "behind_ms": 7.0}, out); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	want := index.Query{Principal: "p", Person: "n", Server: "s", Tool: "t", Outcome: "o", Rule: "r", Code: "c", ID: "i", Ticket: "k", Argument: "/a=1", Text: "w", Limit: 3,
		Until: l.Now().Add(-24 * time.Hour), Since: time.Date(2026, 1, 31, 23, 0, 0, 0, time.UTC)}
	if diff := cmp.Diff(want, x.asked, cmp.Comparer(time.Time.Equal), cmp.FilterPath(func(p cmp.Path) bool { return strings.HasPrefix(p.String(), "changesOf") }, cmp.Ignore())); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for _, query := range []string{"x=1", "principal=a&principal=b", "limit=0", "limit=1001", "limit=x", "since=yesterday", "until=1", "follow=maybe", "argument=a", "cursor=!"} {
		refused(t, l.ask("GET", "/v1/calls?"+query, "", as("t-audit")...), 400, "BAD_REQUEST")
	}
	refused(t, l.ask("GET", "/v1/calls/dec_1?x=1", "", as("t-audit")...), 400, "BAD_REQUEST")
	x.fault = index.ErrStarting
	for _, path := range []string{"/v1/calls", "/v1/calls/dec_1"} {
		w := l.ask("GET", path, "", as("t-audit")...)
		refused(t, w, 503, "INDEX_STARTING")
		if w.Header().Get("Retry-After") == "" {
			t.Errorf("%s: no Retry-After", path)
		}
	}
	refused(t, newListener(t, nil).ask("GET", "/v1/calls", "", as("t-audit")...), 404, "NOT_FOUND")
}

// A stream sends calls until its reader goes, or may see them no longer.
func TestFollowedCalls(t *testing.T) {
	right := policy.TrailAll
	x := &calls{coming: make(chan index.Call)}
	l := newListener(t, func(o *console.Options) {
		o.Calls = x
		o.TrailRight = func(context.Context, policy.Principal) (policy.TrailRight, error) { return right, nil }
	})
	srv := httptest.NewServer(l)
	defer srv.Close()
	u, _ := url.Parse(srv.URL)
	ctx, stop := context.WithTimeout(t.Context(), 20*time.Second)
	defer stop()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, srv.URL+"/v1/calls?follow=true&outcome=denied", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Host = "127.0.0.1:" + u.Port()
	req.Header.Set("Authorization", "Bearer t-audit")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	defer http.DefaultClient.CloseIdleConnections()
	if got := res.Header.Get("Content-Type"); got != "text/event-stream" || res.StatusCode != http.StatusOK {
		t.Fatalf("%d %s", res.StatusCode, got)
	}
	lines := bufio.NewScanner(res.Body)
	x.coming <- index.Call{ID: "dec_1", Outcome: "denied"}
	for lines.Scan() && !strings.HasPrefix(lines.Text(), "data: ") {
	}
	if !strings.Contains(lines.Text(), `"id":"dec_1"`) {
		t.Errorf("line %q", lines.Text())
	}
	if len(l.acts) != 1 || !slices.Equal(l.acts[0].Added, []string{"search outcome=denied"}) {
		t.Errorf("acts %+v", l.acts)
	}
	right = policy.TrailNone
	x.coming <- index.Call{ID: "dec_2"}
	for lines.Scan() { // to the end
		if strings.Contains(lines.Text(), "dec_2") {
			t.Error("a reader without a right got a call")
		}
	}
}
