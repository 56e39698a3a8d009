package page_test

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/toolgate/toolgate/console/page"
)

// A person who comes to the listener of agents learns where to go, and nothing else.
func TestForAgents(t *testing.T) {
	handler := page.ForAgents("https://gate.example/mcp", "https://gate.example:8788/console/")
	for path, want := range map[string]int{"/": 200, "/mcp": 404, "/<script>": 404} {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, &http.Request{Method: http.MethodGet, URL: &url.URL{Path: path}})
		body := w.Body.String()
		if w.Code != want || !strings.Contains(body, "<code>https://gate.example/mcp</code>") || !strings.Contains(body, `href="https://gate.example:8788/console/"`) || strings.Contains(body, "<script") {
			t.Errorf("%s: %d %s", path, w.Code, body)
		}
		if csp := w.Header().Get("Content-Security-Policy"); !strings.HasPrefix(csp, "default-src 'none'; frame-ancestors 'none'") || strings.Contains(csp, "unsafe") {
			t.Errorf("%s: CSP %q", path, csp)
		}
	}
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, &http.Request{Method: http.MethodGet, URL: &url.URL{Path: page.StylePath}})
	if w.Code != 200 || !strings.HasPrefix(w.Header().Get("Content-Type"), "text/css") {
		t.Errorf("the style: %d %v", w.Code, w.Header())
	}
}
