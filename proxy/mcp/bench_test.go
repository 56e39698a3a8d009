package mcp_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/proxy/mcp"
)

// BenchmarkDoor is one tools/call through the HTTP door in process, with a
// gate that does nothing and without a network.
func BenchmarkDoor(b *testing.B) { benchmarkDoor(b, nil) }

// BenchmarkDoorObserved is the same with every envelope in the envelope log.
func BenchmarkDoorObserved(b *testing.B) {
	l, err := audit.OpenEnvelopes(b.TempDir(), audit.EnvelopeOptions{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = l.Close() })
	benchmarkDoor(b, func(o *mcp.Options) { o.Observe = l.Write })
}

func benchmarkDoor(b *testing.B, change func(*mcp.Options)) {
	d := newDoor(b, newGate(), change)
	session := record(d, "alice", "", initialize).Header().Get("Mcp-Session-Id")
	body := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"demo__echo","arguments":{"text":"` + strings.Repeat("x", 1000) + `"}}}`
	b.ReportAllocs()
	for b.Loop() {
		record(d, "alice", session, body)
	}
}

// BenchmarkHTTP is the same over loopback, one client.
func BenchmarkHTTP(b *testing.B) {
	srv, _ := newServer(b, newGate(), nil)
	benchmarkPost(b, srv)
}

// BenchmarkBareHTTP is a server that answers without looking, for comparison.
func BenchmarkBareHTTP(b *testing.B) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Mcp-Session-Id", "x")
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"jsonrpc":"2.0","id":1,"result":{"content":[]}}`)
	}))
	b.Cleanup(srv.Close)
	benchmarkPost(b, srv)
}

func benchmarkPost(b *testing.B, srv *httptest.Server) {
	h := open(b, srv, "alice")
	body := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"demo__echo","arguments":{"text":"` + strings.Repeat("x", 1000) + `"}}}`
	b.ReportAllocs()
	for b.Loop() {
		h.post(body)
	}
}
