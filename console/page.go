package console

import (
	"bytes"
	_ "embed"
	"html/template"
	"net/http"
)

//go:embed page.html
var pageText string

//go:embed style.css
var styleText []byte

var pageTemplate = template.Must(template.New("page").Funcs(template.FuncMap{"visible": Visible}).Parse(pageText))

// page says how things stand, in counts: whoever reads it has shown no token.
func (c *Console) page(w http.ResponseWriter, r *http.Request) error {
	data := struct {
		Status
		Version string
		Held    int
		Counted bool
	}{Status: c.opts.Status(), Version: c.opts.Version}
	if c.opts.Held != nil {
		n, err := c.opts.Held(r.Context())
		if err != nil {
			return err
		}
		data.Held, data.Counted = n, true
	}
	var body bytes.Buffer
	if err := pageTemplate.Execute(&body, data); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Security-Policy", csp+"; style-src 'self'")
	_, _ = body.WriteTo(w) // a reader that went away needs no answer
	return nil
}

func style(w http.ResponseWriter, _ *http.Request) error {
	w.Header().Set("Content-Type", "text/css; charset=utf-8")
	_, _ = w.Write(styleText) // a reader that went away needs no answer
	return nil
}
