package console_test

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/audit/index"
	"github.com/toolgate/toolgate/console"
	"github.com/toolgate/toolgate/policy"
)

// A pane is an open page that receives events. One that is stuck takes nothing after the first.
type pane struct {
	header http.Header
	mu     sync.Mutex
	status int
	got    strings.Builder
	stuck  chan struct{} // nil = it is not
	ended  chan struct{}
}

func (p *pane) Header() http.Header { return p.header }

func (p *pane) WriteHeader(status int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.status = status
}

func (p *pane) Write(text []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stuck != nil && p.got.Len() > 0 {
		<-p.stuck
		return 0, http.ErrHandlerTimeout
	}
	return p.got.Write(text)
}

func (p *pane) Flush() {}

func (p *pane) text() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.got.String()
}

// opens opens a stream of events, until the end of the test.
func (b *browser) opens(target string, stuck chan struct{}) *pane {
	b.t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	r := httptest.NewRequestWithContext(ctx, http.MethodGet, target, nil)
	r.Host = b.host
	r.AddCookie(&http.Cookie{Name: "__Host-toolgate", Value: b.cookies["__Host-toolgate"]})
	p := &pane{header: http.Header{}, stuck: stuck, ended: make(chan struct{})}
	go func() {
		defer close(p.ended)
		b.ServeHTTP(p, r)
	}()
	b.t.Cleanup(func() {
		stop()
		<-p.ended
	})
	return p
}

// shows waits until a pane has words.
func (p *pane) shows(t *testing.T, words string) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !strings.Contains(p.text(), words); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the page never has %q: %s", words, p.text())
		}
	}
}

// ends waits until nothing more comes.
func (p *pane) ends(t *testing.T) {
	t.Helper()
	select {
	case <-p.ended:
	case <-time.After(10 * time.Second):
		t.Errorf("the stream does not end: %s", p.text())
	}
}

// The calls that come are shown to those who may list them, once in their last state.
func TestOpenListOfCalls(t *testing.T) {
	right := policy.TrailAll
	var mu sync.Mutex
	x := &calls{coming: make(chan index.Call)}
	l := newListener(t, func(o *console.Options) {
		o.Calls = x
		o.TrailRight = func(_ context.Context, p policy.Principal) (policy.TrailRight, error) {
			mu.Lock()
			defer mu.Unlock()
			if p.Has("auditor") {
				return right, nil
			}
			return trailRight(t.Context(), p)
		}
	})
	ann, aud := newBrowser(l).signIn("t-ann"), newBrowser(l).signIn("t-audit")
	for target, status := range map[string]int{"?cursor=MSBh": 400, "?until=1h": 400, "?x=1": 400, "?text=word": 403, "?argument=/to%3Dbob": 403} {
		if w := ann.do("GET", "/console/calls/events"+target, nil); w.Code != status {
			t.Errorf("%s: %d %s", target, w.Code, w.Body)
		}
	}
	if w := newBrowser(l).signIn("t-eve").do("GET", "/console/calls/events", nil); w.Code != 403 {
		t.Errorf("eve: %d %s", w.Code, w.Body)
	}
	if text := aud.do("GET", "/console/calls?outcome=denied&since=1h", nil).Body.String(); !strings.Contains(text, `data-hx-sse:connect="/console/calls/events?outcome=denied&amp;since=1h"`) {
		t.Errorf("the page does not follow: %s", text)
	}
	for _, still := range []string{"?follow=false", "?cursor=MSBh", "?until=1h"} {
		if text := aud.do("GET", "/console/calls"+still, nil).Body.String(); strings.Contains(text, "sse:connect") {
			t.Errorf("%s follows: %s", still, text)
		}
	}

	l.acts = nil
	p := aud.opens("/console/calls/events?outcome=&tool=t", nil)
	p.shows(t, `href="/console/calls/dec_1"`)
	if len(l.acts) != 1 || l.acts[0].Name != audit.EventTrailRead || l.acts[0].Credential != "session" || !slices.Equal(l.acts[0].Added, []string{"search tool=t"}) {
		t.Errorf("acts %+v", l.acts)
	}
	x.coming <- index.Call{ID: "dec_2", Principal: "under<way", Time: l.Now()}
	p.shows(t, "under&lt;way")
	x.coming <- index.Call{ID: "dec_2", Principal: "ended", Time: l.Now(), Outcome: "denied"}
	x.coming <- index.Call{ID: "dec_2", Principal: "late", Time: l.Now()}
	p.shows(t, "ended")
	for i := range 60 {
		x.coming <- index.Call{ID: fmt.Sprintf("dec_%d", 100+i), Time: l.Now().Add(time.Duration(i) * time.Second), Outcome: "allowed"}
	}
	p.shows(t, `id="dec_159"`)
	lists := strings.Split(p.text(), "<table")
	if last := lists[len(lists)-1]; strings.Count(last, "<tr id=") != 50 || strings.Contains(last, `"dec_109"`) || strings.Index(last, `"dec_159"`) > strings.Index(last, `"dec_158"`) || strings.Contains(p.text(), "late") || !strings.Contains(last, "?cursor="+index.CursorAfter(index.Call{ID: "dec_110", Time: l.Now().Add(10 * time.Second)})+"&amp;tool=t") {
		t.Errorf("the last list: %s", last)
	}
	mu.Lock()
	right = policy.TrailNone
	mu.Unlock()
	x.coming <- index.Call{ID: "dec_3", Principal: "secret"}
	p.ends(t)
	if strings.Contains(p.text(), "secret") {
		t.Error("a reader without a right got a call")
	}

	x.ticket = l.hold(`{}`).ID
	p = ann.opens("/console/calls/events", nil)
	p.shows(t, "dec_1")
	x.coming <- index.Call{ID: "dec_4", Ticket: "apr_of_others", Time: l.Now()}
	x.coming <- index.Call{ID: "dec_5", Ticket: x.ticket, Time: l.Now()}
	p.shows(t, "dec_5")
	if strings.Contains(p.text(), "dec_4") {
		t.Error("ann sees a call that is not hers to decide")
	}
	ann.do("POST", "/console/logout", ann.form("/console/approvals"))
	x.coming <- index.Call{ID: "dec_6", Ticket: x.ticket, Time: l.Now()}
	p.ends(t)
	if strings.Contains(p.text(), "dec_6") {
		t.Error("who signed out got a call")
	}
}

// However many lists are open, the index is read once for all of them, and one that takes nothing keeps no
// call from the others.
func TestOpenListsShareOneFeed(t *testing.T) {
	const pages, many = 10, 2000
	dir := t.TempDir()
	trail, err := audit.Open(filepath.Join(dir, "audit"), audit.Options{Durability: audit.OS, Checkpoint: 5 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	x := index.New(index.Options{Trail: filepath.Join(dir, "audit"), Owner: "trail", File: filepath.Join(dir, "index", "calls.db"), Lock: filepath.Join(dir, "lock"), Poll: 5 * time.Millisecond})
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		x.Run(ctx)
	}()
	t.Cleanup(func() {
		stop()
		<-done
		_ = trail.Close()
	})
	for _, err = x.Search(ctx, index.Query{}); err != nil; _, err = x.Search(ctx, index.Query{}) {
		time.Sleep(5 * time.Millisecond)
	}
	l := newListener(t, func(o *console.Options) { o.Calls, o.Now = x, time.Now })
	aud, stuck := newBrowser(l).signIn("t-audit"), make(chan struct{})
	aud.opens("/console/calls/events", stuck).shows(t, "There are no such calls.")
	t.Cleanup(func() { close(stuck) })
	var open []*pane
	for range pages {
		p := aud.opens("/console/calls/events?outcome=denied", nil)
		p.shows(t, "There are no such calls.") // one after the other: the test counts acts
		open = append(open, p)
	}
	for i := range many {
		r := &audit.Record{DecisionID: fmt.Sprintf("dec_%d", i), Principal: audit.Principal{Subject: "agent"}, Exposed: "web__search", Outcome: audit.Denied}
		if err := trail.Write(audit.KindOutcome, r); err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range open {
		p.shows(t, fmt.Sprintf(`id="dec_%d"`, many-1))
	}
	var running bytes.Buffer
	if err := pprof.Lookup("goroutine").WriteTo(&running, 2); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(running.String(), "index.(*Index).runFeed("); n != 1 {
		t.Errorf("%d feeds read the index for %d pages", n, pages)
	}
}
