package mcp_test

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/toolgate/toolgate/proxy"
	"github.com/toolgate/toolgate/proxy/mcp"
	"github.com/toolgate/toolgate/signal"
)

// Open lists sessions without the IDs that their clients show, and clients without sessions.
func TestOpen(t *testing.T) {
	var ended keys
	srv, d := newServer(t, newGate(), func(o *mcp.Options) { o.Ended = ended.add })
	alice := open(t, srv, "alice")
	bob := &far{t: t, url: srv.URL + "/mcp/demo", who: "bob"}
	req := bob.request(http.MethodPost, modernLine("1", "tools/list", ""))
	for name, value := range map[string]string{"Mcp-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/list"} {
		req.Header.Set(name, value)
	}
	if res, body := bob.do(req); res.StatusCode != http.StatusOK {
		t.Fatalf("%d %s", res.StatusCode, body)
	}
	found := map[string]mcp.OpenSession{}
	for _, o := range d.Open() {
		found[o.Owner.Subject] = o
		if o.Key == alice.session || o.Used.IsZero() || o.Began.IsZero() {
			t.Errorf("%+v", o)
		}
	}
	if o := found["alice"]; len(found) != 2 || o.Revision != "2025-11-25" || o.Transport != "http" || o.Route != "" || o.Calls != 0 || !strings.Contains(o.Client, "/") {
		t.Errorf("alice: %+v of %d", o, len(found))
	}
	if o := found["bob"]; o.Revision != "2026-07-28" || o.Route != "demo" || o.Client != "test/1" {
		t.Errorf("bob: %+v", o)
	}
	if !d.EndSession(found["bob"].Key) || len(d.Open()) != 1 || ended.count() != 1 {
		t.Errorf("bob is left: %+v, %d ended", d.Open(), ended.count())
	}
	if d.EndSession(found["bob"].Key) || d.EndSession(alice.session) || d.EndSession("") {
		t.Error("a session that is not there was ended")
	}
}

// A session that a person ends is over for its client. Its calls are cancelled, with the cause that lets
// the gate answer them, before its end is reported.
func TestEndSession(t *testing.T) {
	g := newGate()
	g.behave["wait"] = func(ctx context.Context, g *fakeGate, _ *proxy.Call, _ json.RawMessage) (json.RawMessage, *proxy.Failure) {
		g.started <- struct{}{}
		<-ctx.Done()
		return nil, g.fail(signal.CodeToolTimeout, context.Cause(ctx).Error())
	}
	var ended keys
	srv, d := newServer(t, g, func(o *mcp.Options) { o.Ended = ended.add })
	alice, other := open(t, srv, "alice"), open(t, srv, "alice")
	answered := make(chan string, 1)
	go func() {
		_, body := alice.post(waitCall)
		answered <- body
	}()
	<-g.started
	for _, o := range d.Open() {
		if o.Calls == 1 && !d.EndSession(o.Key) {
			t.Error("it was not there")
		}
	}
	if body := <-answered; !strings.Contains(body, proxy.ErrSessionEnded.Error()) {
		t.Errorf("the call ends with %q", body)
	}
	for client, want := range map[*far]int{alice: http.StatusNotFound, other: http.StatusOK} {
		if got := client.status(http.MethodPost, ping); got != want {
			t.Errorf("status %d, want %d", got, want)
		}
	}
	if ended.count() != 1 || len(d.Open()) != 1 {
		t.Errorf("%d ended, %d are open", ended.count(), len(d.Open()))
	}
}
