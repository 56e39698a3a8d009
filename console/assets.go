package console

import (
	_ "embed"
	"net/http"
)

// The scripts of the pages. The first two are as their makers publish them, see
// docs/dependencies.md; the policy of every page forbids them to evaluate text.
var (
	//go:embed assets/htmx-4.0.1.min.js
	htmxScript []byte
	//go:embed assets/hx-sse-4.0.1.min.js
	sseScript []byte
	//go:embed console.js
	ownScript []byte
)

// asset serves a script or the style sheet.
func asset(kind string, text []byte) handler {
	return func(w http.ResponseWriter, _ *http.Request) error {
		w.Header().Set("Content-Type", kind+"; charset=utf-8")
		_, _ = w.Write(text) // a reader that went away needs no answer
		return nil
	}
}
