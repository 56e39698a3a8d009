package console

import (
	"fmt"
	"io"
	"net/http"
	"strings"
)

func live(w http.ResponseWriter, _ *http.Request) error {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = io.WriteString(w, "ok\n") // a reader that went away needs no answer
	return nil
}

// ready is 200 when calls are served, else 503: also when the question is
// verbose, so that both see the same.
func (c *Console) ready(w http.ResponseWriter, r *http.Request) error {
	s := c.opts.Status()
	code := http.StatusOK
	if !s.Ready {
		code = http.StatusServiceUnavailable
	}
	if strings.Contains(r.Header.Get("Accept"), "application/json") {
		if s.Upstreams == nil {
			s.Upstreams = []Upstream{}
		}
		if s.Warnings == nil {
			s.Warnings = []string{}
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		return answer(w, s)
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(code)
	_, _ = io.WriteString(w, statusText(s, r.URL.Query().Has("verbose"))) // a reader that went away needs no answer
	return nil
}

func statusText(s Status, verbose bool) string {
	text := "ready\n"
	if !s.Ready {
		text = "not ready\n"
	}
	if !verbose {
		return text
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%spolicy %s\n", text, Visible(s.Revision))
	if s.Shadow != "" {
		fmt.Fprintf(&b, "shadow %s\n", Visible(s.Shadow))
	}
	for _, u := range s.Upstreams {
		fmt.Fprintf(&b, "upstream %s %s, tools %d", Visible(u.Name), Visible(u.State), u.Tools)
		if u.Quarantined > 0 {
			fmt.Fprintf(&b, ", quarantined %d", u.Quarantined)
		}
		if u.Error != "" {
			fmt.Fprintf(&b, ": %s", Visible(u.Error))
		}
		b.WriteByte('\n')
		for _, warning := range u.Warnings {
			fmt.Fprintf(&b, "warning: %s: %s\n", Visible(u.Name), Visible(warning))
		}
	}
	for _, warning := range s.Warnings {
		fmt.Fprintf(&b, "warning: %s\n", Visible(warning))
	}
	return b.String()
}
