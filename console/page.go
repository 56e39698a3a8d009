package console

import (
	"bytes"
	"embed"
	_ "embed"
	"html/template"
	"net/http"
	"slices"
	"sync"

	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/stop"
)

//go:embed *.html
var pageTexts embed.FS

//go:embed style.css
var styleText []byte

// pages returns the templates: one page a file, by its name, and the frame of all.
var pages = sync.OnceValue(func() *template.Template {
	return template.Must(template.New("").Funcs(template.FuncMap{"visible": Visible, "oneLine": oneLine}).ParseFS(pageTexts, "*.html"))
})

// pageCSP allows a page our style sheet and forms that are sent to us.
const pageCSP = "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'; style-src 'self'"

// appCSP also allows the pages of approvals our scripts, which may not evaluate
// text, and requests to us.
const appCSP = pageCSP + "; script-src 'self'; connect-src 'self'"

// render answers with a page, whole or not at all.
func render(w http.ResponseWriter, csp string, status int, name string, data any) error {
	var body bytes.Buffer
	if err := pages().ExecuteTemplate(&body, name, data); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Security-Policy", csp)
	w.WriteHeader(status)
	_, _ = body.WriteTo(w) // a reader that went away needs no answer
	return nil
}

// refusePage answers with err as a page.
func (c *Console) refusePage(w http.ResponseWriter, r *http.Request, err error) error {
	p := c.problem(r, err)
	return render(w, pageCSP, p.Status, "problem.html", struct {
		problem
		InForce []stop.Stop
	}{p, c.banner()})
}

// page shows the status. Its readers have not signed in: where not everybody may watch
// toolgate, it has counts only.
func (c *Console) page(w http.ResponseWriter, r *http.Request) error {
	data := struct {
		Status
		Version string
		Held    int
		InForce []stop.Stop
	}{Status: c.opts.Status(), Version: c.opts.Version, InForce: c.banner()}
	if !c.opts.Watches(policy.Principal{}) {
		data.Upstreams = slices.Clone(data.Upstreams)
		for i := range data.Upstreams {
			data.Upstreams[i].Withheld = nil
		}
	}
	var err error
	if data.Held, err = c.opts.Held(r.Context()); err != nil {
		return err
	}
	return render(w, pageCSP, http.StatusOK, "page.html", data)
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
