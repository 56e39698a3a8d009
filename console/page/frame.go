package page

import (
	"bytes"
	"context"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/a-h/templ"

	"github.com/toolgate/toolgate/policy/stop"
)

// A Place is a page that the navigation lists.
type Place struct{ Path, Name string }

// A Shell is what every page has around its content.
type Shell struct {
	Title         string
	Environment   string // name of this toolgate among others, "" = none
	At            string // path of the place that the page belongs to
	Path          string // of the page itself, to fetch it anew; "" = it is not
	Places        []Place
	Subject, CSRF string // of the visitor; Subject "" = nobody has signed in
	Enter         bool   // the page offers to sign in
	Alone         bool   // nobody has to sign in, and nobody decides
	InForce       []stop.Stop
	Follows       bool // the page follows a feed of its own, and not tickets
	Refresh       bool // the page shows work that goes on: a browser fetches it again
	Awaiting      int  // tickets that wait for the visitor's vote
}

// Finds reports whether the visitor finds the place with a path.
func (s *Shell) Finds(path string) bool {
	return slices.ContainsFunc(s.Places, func(p Place) bool { return p.Path == path })
}

// Live reports whether the page follows tickets.
func (s *Shell) Live() bool { return s.Subject != "" && !s.Alone && s.Path != "" }

// moves reports whether the page follows anything, for which it needs scripts.
func (s *Shell) moves() bool { return s.Live() || s.Follows }

// windowTitle names the page, after the number of tickets that wait.
func (s *Shell) windowTitle() string {
	title := s.Title + " · toolgate" + Prefixed(" ", s.Environment)
	if s.Awaiting > 0 {
		title = "(" + strconv.Itoa(s.Awaiting) + ") " + title
	}
	return title
}

// Stamp returns t for programs.
func Stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// PlainCSP allows a page our style sheet and forms that are sent to us.
const PlainCSP = "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'; style-src 'self'"

// ScriptCSP also allows the pages of approvals our scripts, which may not evaluate
// text, and requests to us.
const ScriptCSP = PlainCSP + "; script-src 'self'; connect-src 'self'"

// Render answers with a page, whole or not at all.
func Render(w http.ResponseWriter, csp string, status int, page templ.Component) error {
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

// Asset serves a script or the style sheet.
func Asset(kind string, text []byte) Handler {
	return func(w http.ResponseWriter, _ *http.Request) error {
		w.Header().Set("Content-Type", kind+"; charset=utf-8")
		_, _ = w.Write(text) // a reader that went away needs no answer
		return nil
	}
}

// csp lets nothing in and nobody frame; the page adds its own style sheet.
const csp = "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"

// Secure sets the headers of every answer: a page may load nothing, unless Render lets it.
func Secure(h http.Header) {
	h.Set("Content-Security-Policy", csp)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "same-origin") // with no-referrer, browsers post our own forms with Origin null
	h.Set("Cache-Control", "no-store")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
}
