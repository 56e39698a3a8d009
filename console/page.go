package console

import (
	"bytes"
	"context"
	_ "embed"
	"net/http"
	"time"

	"github.com/a-h/templ"
)

//go:embed style.css
var styleText []byte

const approvalsPath = "/console/approvals"

// stamp returns t for programs.
func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// pageCSP allows a page our style sheet and forms that are sent to us.
const pageCSP = "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'; style-src 'self'"

// appCSP also allows the pages of approvals our scripts, which may not evaluate
// text, and requests to us.
const appCSP = pageCSP + "; script-src 'self'; connect-src 'self'"

// render answers with a page, whole or not at all.
func render(w http.ResponseWriter, csp string, status int, page templ.Component) error {
	var body bytes.Buffer
	if err := page.Render(context.Background(), &body); err != nil { // a reader that goes away is no error
		return err
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Security-Policy", csp)
	w.WriteHeader(status)
	_, _ = body.WriteTo(w) // a reader that went away needs no answer
	return nil
}

// The scripts of the pages. The first two are as their makers publish them, see
// docs/evidence/dependencies.md; the policy of every page forbids them to evaluate text.
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
