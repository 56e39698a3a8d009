package mcp_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/proxy/eventlog"
	"github.com/toolgate/toolgate/proxy/mcp"
)

// TestReplayRoom: what is kept has bounds; the newest is what stays.
func TestReplayRoom(t *testing.T) {
	big := strings.Repeat("x", 10_000)
	for _, tt := range []struct {
		name   string
		replay eventlog.Limits
		want   []int // status of coming back to each of four calls, the oldest first
	}{
		{"room for all", eventlog.Limits{}, []int{200, 200, 200, 200}},
		{"session", eventlog.Limits{Session: 25_000}, []int{400, 400, 200, 200}},
		{"total", eventlog.Limits{Total: 25_000}, []int{400, 400, 200, 200}},
		{"stream", eventlog.Limits{Stream: 5_000}, []int{400, 400, 400, 400}}, // the answer is kept, what is before it not
	} {
		t.Run(tt.name, func(t *testing.T) {
			g := newGate()
			g.behave["report"] = func(ctx context.Context, g *fakeGate, in *proxyCall, args raw) (raw, *proxyFailure) {
				in.Progress(json.RawMessage(`{"progress":1}`))
				return json.RawMessage(`{"content":[],"big":"` + big + `"}`), nil
			}
			srv, _ := newServer(t, g, func(o *mcp.Options) { o.EventLog = tt.replay })
			h := open(t, srv, "alice")
			var ids []string
			for range 4 {
				f := h.flow(h.request(http.MethodPost, reportCall))
				prime, _ := f.next()
				if rest, _ := f.take(100); len(rest) != 2 {
					t.Errorf("the call got %d events", len(rest))
				}
				ids = append(ids, prime.id)
			}
			var got []int
			for _, id := range ids {
				res, _ := h.do(h.after(id))
				got = append(got, res.StatusCode)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("coming back (-want +got):\n%s", diff)
			}
		})
	}
}

// TestReplayShares: whoever has the most loses what is kept, whoever it was that came
// last, and others lose nothing.
func TestReplayShares(t *testing.T) {
	g := newGate()
	g.behave["report"] = func(ctx context.Context, g *fakeGate, in *proxyCall, args raw) (raw, *proxyFailure) {
		in.Progress(json.RawMessage(`{"progress":1}`))
		return json.RawMessage(`{"content":[],"big":"` + strings.Repeat("x", 10_000) + `"}`), nil
	}
	srv, _ := newServer(t, g, func(o *mcp.Options) { o.EventLog = eventlog.Limits{Total: 50_000} })
	first := func(h *far) string {
		f := h.flow(h.request(http.MethodPost, reportCall))
		prime, _ := f.next()
		f.take(100)
		return prime.id
	}
	wants := func(h *far, id string, want int) {
		t.Helper()
		if res, _ := h.do(h.after(id)); res.StatusCode != want {
			t.Errorf("coming back: status %d, want %d", res.StatusCode, want)
		}
	}
	bob := open(t, srv, "bob")
	early := first(bob)
	alice := open(t, srv, "alice")
	hers := first(alice)
	for range 3 {
		agent := open(t, srv, "alice")
		for range 5 {
			first(agent)
		}
	}
	late := first(bob)
	wants(bob, early, http.StatusOK)
	wants(bob, late, http.StatusOK)
	wants(alice, hers, http.StatusBadRequest)
}

// TestReplayMemory: clients that never come back do not make the door grow.
func TestReplayMemory(t *testing.T) {
	g := newGate()
	g.behave["report"] = func(ctx context.Context, g *fakeGate, in *proxyCall, args raw) (raw, *proxyFailure) {
		for range 400 {
			in.Progress(json.RawMessage(`{"progress":1,"message":"` + strings.Repeat("x", 4000) + `"}`))
		}
		return json.RawMessage(`{"content":[]}`), nil
	}
	d := newDoor(t, g, func(o *mcp.Options) { o.EventLog.Total = 4 << 20 })
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	var sessions []string
	for range 20 {
		session := record(d, "alice", "", initialize).Header().Get("Mcp-Session-Id")
		sessions = append(sessions, session)
		for range 2 {
			record(d, "alice", session, reportCall)
		}
	}
	if grown := int64(heap()) - int64(before); grown > 8<<20 {
		t.Errorf("40 calls of 1.6 MB hold %d bytes, want at most 4 MiB and some", grown)
	}
	for _, session := range sessions {
		req := httptest.NewRequest(http.MethodDelete, "http://localhost/mcp", nil)
		standardHeaders(req, "alice")
		req.Header.Set("Mcp-Session-Id", session)
		d.ServeHTTP(httptest.NewRecorder(), req)
	}
	if grown := int64(heap()) - int64(before); grown > 2<<20 {
		t.Errorf("sessions that ended hold %d bytes", grown)
	}
	runtime.KeepAlive(d)
}

// TestReplayKeep: a stream that is over is forgotten after a while, and its
// session goes on.
func TestReplayKeep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate()
		d, err := mcp.New(mcp.Options{Gate: g, Refuser: g})
		if err != nil {
			t.Fatal(err)
		}
		session := record(d, "alice", "", initialize).Header().Get("Mcp-Session-Id")
		body := record(d, "alice", session, stepsCall).Body.String()
		id := strings.TrimPrefix(body[:strings.Index(body, "\n")], "id: ")
		back := func() int {
			req := httptest.NewRequest(http.MethodGet, "http://localhost/mcp", nil)
			standardHeaders(req, "alice")
			req.Header.Set("Mcp-Session-Id", session)
			req.Header.Set("Last-Event-ID", id)
			rec := httptest.NewRecorder()
			d.ServeHTTP(rec, req)
			return rec.Code
		}
		if got := back(); got != http.StatusOK {
			t.Errorf("at once: status %d, want 200", got)
		}
		time.Sleep(10 * time.Minute)
		if got := back(); got != http.StatusBadRequest {
			t.Errorf("later: status %d, want 400", got)
		}
		if err := d.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}
