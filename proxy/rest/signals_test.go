package rest_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/identity"
	"github.com/toolgate/toolgate/proxy"
	"github.com/toolgate/toolgate/proxy/bus"
	"github.com/toolgate/toolgate/proxy/rest"
	"github.com/toolgate/toolgate/signal"
)

// say publishes a TEXT signal of who's and gives its id.
func (d *door) say(who policy.Principal, text string) string {
	d.t.Helper()
	s, err := signal.CreateText(text, signal.ModuleRef{Tier: 4, Module: "gate", Function: "test"}, "trc_1", nil)
	if err != nil {
		d.t.Fatal(err)
	}
	d.bus.Publish(who, s)
	return s.ID()
}

// TestSignals: one event per signal, whole, in order, under the signal's id.
func TestSignals(t *testing.T) {
	d := open(t, nil)
	ear := d.listen("alice")
	for _, text := range []string{"one", "two\nlines", `"three"`} {
		id := d.say(alice, text)
		lines := strings.Split(ear.event(), "\n")
		if len(lines) != 3 || lines[0] != "id: "+id || lines[1] != "event: signal" || !strings.HasPrefix(lines[2], "data: ") {
			t.Fatalf("event %q", lines)
		}
		var n signal.JSONRPCNotification
		if err := json.Unmarshal([]byte(strings.TrimPrefix(lines[2], "data: ")), &n); err != nil || n.Method != signal.MethodSignal {
			t.Errorf("data %q: %v", lines[2], err)
		}
		var params struct{ Signal signal.Signal }
		if err := json.Unmarshal(n.Params, &params); err != nil || params.Signal.Body()["text"] != text {
			t.Errorf("params %s: %v", n.Params, err)
		}
	}
}

// TestNobodyElsesSignals: a listener receives signals of its own principal, and an
// unknown caller receives none.
func TestNobodyElsesSignals(t *testing.T) {
	d := open(t, nil)
	ear := d.listen("bob")
	d.job("alice", echoJob)
	d.say(alice, "a secret")
	d.say(policy.Principal{Subject: "bob", Tenant: "elsewhere"}, "another's")
	id := d.say(bob, "mine")
	if got := ear.event(); !strings.HasPrefix(got, "id: "+id+"\n") {
		t.Errorf("bob heard %q", got)
	}
	for _, who := range []string{"", "mallory"} {
		if got := d.do(who, http.MethodGet, "/v1/signals", ""); got.status != 401 {
			t.Errorf("%q: status %d", who, got.status)
		}
	}
}

// TestTooManyStreams: one principal's streams are counted, and those that have
// ended are not.
func TestTooManyStreams(t *testing.T) {
	d := open(t, nil)
	first := d.listen("alice")
	d.listen("alice")
	if got := d.do("alice", http.MethodGet, "/v1/signals", ""); got.status != 429 || got.text("/code") != "OVERLOADED" {
		t.Errorf("the third: status %d: %s", got.status, got.body)
	}
	d.listen("bob")
	first.end()
	await(t, "room for a stream after one was closed", func() bool {
		sub, err := d.bus.Subscribe(alice)
		if err == nil {
			sub.Close()
		}
		return err == nil
	})
}

// TestSlowReader: who does not keep up is told so and dropped, and whoever
// publishes never waits.
func TestSlowReader(t *testing.T) {
	d := open(t, nil)
	d.bus.Close()
	slow := bus.New(bus.Options{Depth: 2})
	t.Cleanup(slow.Close)
	d.gate.bus = slow
	ear := d.listen("alice")
	big := strings.Repeat("x", 1<<20)
	n := 0
	for ; slow.Listening(alice); n++ { // into a connection that nobody reads
		if d.say(alice, big); n > 500 {
			t.Fatal("the reader was not dropped")
		}
	}
	var last string
	heard := 0
	for {
		event := ear.event()
		if event == "" {
			break
		}
		last = event
		heard++
	}
	if !strings.HasPrefix(last, "event: dropped\ndata: {") || heard > n {
		t.Errorf("heard %d of %d, the last %.60q", heard, n, last)
	}
	if next := d.listen("alice"); next == nil {
		t.Error("the listener cannot come back")
	}
}

// TestStuckReader: a connection that takes nothing is given up, and does not
// hold up the end of the program.
func TestStuckReader(t *testing.T) {
	d := open(t, func(_ *gate, o *rest.Options) { o.IOTimeout = 50 * time.Millisecond })
	d.listen("alice")
	big := strings.Repeat("x", 1<<20)
	for range 40 {
		d.say(alice, big)
	}
	ctx, stop := context.WithTimeout(t.Context(), patience/2)
	defer stop()
	if err := d.handler.Drain(ctx); err != nil {
		t.Errorf("the stream is not given up: %v", err)
	}
}

// proofGate identifies alice by the first proof that it sees.
type proofGate struct {
	rest.Gate
	first *atomic.Pointer[identity.DPoP]
}

func (g proofGate) Identify(_ context.Context, c identity.Credential) (policy.Principal, *proxy.Failure) {
	if g.first.CompareAndSwap(nil, c.DPoP); c.DPoP == nil || c.DPoP != g.first.Load() {
		return policy.Principal{}, &proxy.Failure{Kernel: &signal.KernelError{Code: signal.CodeUnauthenticated}}
	}
	return alice, nil
}

// TestStreamsEnd with their client, their credential and the handler.
func TestStreamsEnd(t *testing.T) {
	beat := func(_ *gate, o *rest.Options) { o.Heartbeat = 20 * time.Millisecond }
	t.Run("heartbeat", func(t *testing.T) {
		ear := open(t, beat).listen("alice")
		for range 3 {
			if got := ear.block(); got != ": heartbeat" {
				t.Fatalf("heard %q", got)
			}
		}
	})
	t.Run("client", func(t *testing.T) {
		d := open(t, nil)
		d.listen("alice").end()
		await(t, "the subscription ends", func() bool { return !d.bus.Listening(alice) })
	})
	t.Run("credential", func(t *testing.T) {
		d := open(t, beat)
		ear, other := d.listen("alice"), d.listen("bob")
		if err := d.who.Apply(known("bob")); err != nil {
			t.Fatal(err)
		}
		if got := ear.event(); got != "" {
			t.Errorf("after the token was revoked: %q", got)
		}
		id := d.say(bob, "still here")
		if got := other.event(); !strings.HasPrefix(got, "id: "+id) {
			t.Errorf("another's stream: %q", got)
		}
	})
	t.Run("proof", func(t *testing.T) { // it was judged when the stream began, and is none for another request
		var proof atomic.Pointer[identity.DPoP]
		d := open(t, func(g *gate, o *rest.Options) {
			beat(g, o)
			o.Gate = proofGate{g, &proof}
		})
		ear := d.listen("", "Authorization: DPoP token")
		for range 3 {
			if got := ear.block(); got != ": heartbeat" {
				t.Fatalf("heard %q", got)
			}
		}
	})
	t.Run("busy credential", func(t *testing.T) {
		d := open(t, beat)
		ear := d.listen("alice")
		if err := d.who.Apply(known("bob")); err != nil {
			t.Fatal(err)
		}
		await(t, "a stream ends that is never silent", func() bool {
			d.say(alice, "again")
			return !d.bus.Listening(alice)
		})
		ear.end()
	})
	t.Run("handler", func(t *testing.T) {
		d := open(t, nil)
		ear := d.listen("alice")
		d.handler.Close()
		if got := ear.event(); got != "" {
			t.Errorf("after Close: %q", got)
		}
		ctx, stop := context.WithTimeout(t.Context(), patience)
		defer stop()
		if err := d.handler.Drain(ctx); err != nil {
			t.Errorf("draining: %v", err)
		}
		if got := d.do("alice", http.MethodGet, "/v1/signals", ""); got.status != 503 {
			t.Errorf("a new stream: status %d", got.status)
		}
	})
	t.Run("bus", func(t *testing.T) {
		d := open(t, nil)
		ear := d.listen("alice")
		d.bus.Close()
		if got := ear.event(); got != "" {
			t.Errorf("after the bus has closed: %q", got)
		}
		if got := d.do("alice", http.MethodGet, "/v1/signals", ""); got.status != 503 {
			t.Errorf("a new stream: status %d", got.status)
		}
		if got := d.do("carol", http.MethodGet, "/v1/signals", ""); got.status != 500 || strings.Contains(got.body, "planted") {
			t.Errorf("a broken bus: status %d: %s", got.status, got.body)
		}
	})
	t.Run("connection goes on", func(t *testing.T) {
		d := open(t, nil)
		ear := d.listen("alice")
		d.bus.Close()
		if _, err := io.Copy(io.Discard, ear.lines); err != nil {
			t.Errorf("the stream was cut: %v", err)
		}
		if got := d.job("alice", `{"query":"a"}`); got.status != 200 {
			t.Errorf("status %d", got.status)
		}
	})
}
