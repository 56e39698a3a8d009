package rest_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/proxy/rest"
)

// serve answers one POST of alice's without a network.
func serve(h http.Handler, path, body string) *httptest.ResponseRecorder {
	req := httptest.NewRequest(http.MethodPost, "http://localhost"+path, strings.NewReader(body))
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer alice-token")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, req)
	return w
}

func bare(t testing.TB) (*gate, *rest.Handler) {
	t.Helper()
	g := newGate(t, 0)
	h, err := rest.New(rest.Options{Gate: g, Refuser: g, ToolIO: g.ToolIO, Artifacts: g, Bus: g})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.Close)
	return g, h
}

// FuzzBodies: whatever is sent, the answer is JSON under a status of the
// table, and what reaches a tool stands in what was sent.
func FuzzBodies(f *testing.F) {
	for _, seed := range []string{
		echoJob, `{"query":"a"}`, `{"tool":"demo__held"}`, `{"tool":"demo__echo","args":{"n":1,"N":2}}`, `{`, `[]`, "{\"tool\":\"demo__echo\",\"args\":{\r\n}}",
		`{"jsonrpc":"2.0","id":"1","method":"tools/call","params":{"name":"demo__echo","arguments":{"a":[1, 2]}}}`, `{"jsonrpc":"2.0","method":"ping"}`,
	} {
		f.Add(seed)
	}
	g, h := bare(f)
	g.visible = func(_ policy.Principal, t policy.Tool) bool { return t.Name != "wait" } // nobody would end it
	known := map[int]bool{200: true, 202: true, 400: true, 403: true, 404: true, 413: true, 422: true, 429: true, 502: true}
	f.Fuzz(func(t *testing.T, body string) {
		for _, path := range []string{"/v1/jobs", "/v1/rpc"} {
			before := len(g.reached())
			w := serve(h, path, body)
			if !known[w.Code] || w.Body.Len() > 0 && !json.Valid(w.Body.Bytes()) || w.Body.Len() == 0 && w.Code != 202 {
				t.Errorf("%s: status %d: %q", path, w.Code, w.Body)
			}
			flat := strings.NewReplacer("\n", " ", "\r", " ").Replace(body)
			for _, sent := range g.reached()[before:] {
				if sent != "{}" && !strings.Contains(flat, sent) {
					t.Errorf("%s: a tool got %q of %q", path, sent, body)
				}
			}
		}
	})
}

// BenchmarkJob is the door's share of a call: road and tools are the fakes of
// these tests.
func BenchmarkJob(b *testing.B) {
	_, h := bare(b)
	b.ReportAllocs()
	for b.Loop() {
		if w := serve(h, "/v1/jobs", echoJob); w.Code != http.StatusOK {
			b.Fatal(w.Code, w.Body)
		}
	}
}
