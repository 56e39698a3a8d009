package mcp_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/toolgate/toolgate/proxy/mcp"
)

// TestMinRevision is the table of which clients are served when the operator serves none of an
// older revision, and of what is counted as deprecated.
func TestMinRevision(t *testing.T) {
	initialize := func(revision string) string {
		return `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"` + revision + `","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`
	}
	for _, tt := range []struct {
		least, asked string
		served       bool
	}{
		{"", "2024-11-05", true}, {"", "2025-03-26", true}, {"2025-06-18", "2024-11-05", false}, {"2025-06-18", "2025-03-26", false}, {"2025-06-18", "2025-06-18", true},
		{"2025-06-18", "2025-11-25", true}, {"2025-06-18", "2099-01-01", true}, {"2026-07-28", "2025-11-25", false}, {"2026-07-28", "2099-01-01", false},
	} {
		t.Run(tt.least+" and "+tt.asked, func(t *testing.T) {
			var counted []string
			srv, _ := newServer(t, newGate(), func(o *mcp.Options) {
				o.MinRevision, o.Deprecated = tt.least, func(feature string) { counted = append(counted, feature) }
			})
			h := &far{t: t, url: srv.URL + "/mcp", who: "alice"}
			_, body := h.do(h.request(http.MethodPost, initialize(tt.asked)))
			if served := strings.Contains(body, `"serverInfo"`); served != tt.served || !served && !strings.Contains(body, "UNSUPPORTED_VERSION") {
				t.Errorf("initialize: %s", body)
			}
			req := h.request(http.MethodPost, echoCall)
			req.Header.Set("Mcp-Protocol-Version", "2025-03-26")
			if _, body := h.do(req); strings.Contains(body, "UNSUPPORTED_VERSION") != (tt.least > "2025-03-26") {
				t.Errorf("a call of 2025-03-26: %s", body)
			}
			if tt.least == "" {
				return
			}
			sse := h.request(http.MethodGet, "")
			sse.URL.Path = "/sse"
			if res, body := h.do(sse); res.StatusCode != http.StatusBadRequest || !strings.Contains(body, "UNSUPPORTED_VERSION") {
				t.Errorf("HTTP+SSE: %d %s", res.StatusCode, body)
			}
			if len(counted) > 0 {
				t.Errorf("what was refused is counted: %v", counted)
			}
		})
	}
}
