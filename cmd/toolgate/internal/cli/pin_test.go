package cli

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/toolgate/toolgate/console"
)

// The path of a tool leads to it, whatever its name.
func TestToolPath(t *testing.T) {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/tools/{server}/{name}", func(w http.ResponseWriter, r *http.Request) { w.Header().Set("Name", r.PathValue("name")) })
	srv := httptest.NewServer(mux)
	defer srv.Close()
	for _, name := range []string{"search", ".", "..", "a.b", "a/b", "~", "%2E"} {
		res, err := http.Get(srv.URL + toolPath(console.Tool{Server: "web", Name: name}))
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if got := res.Header.Get("Name"); got != name {
			t.Errorf("tool %q: status %d, name %q", name, res.StatusCode, got)
		}
	}
}
