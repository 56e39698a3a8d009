package console

import (
	"fmt"
	"io"
	"net/http"
	"net/http/pprof"
	runtimepprof "runtime/pprof"
	"strconv"
	"strings"
	"time"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/console/page"
	"github.com/toolgate/toolgate/console/people"
	"github.com/toolgate/toolgate/internal/text"
	"github.com/toolgate/toolgate/policy"
)

// health is what monitors and operators ask of the process.
type health struct {
	*people.Guard
	status   func() Status
	watches  func(p policy.Principal) bool // Options.Watches
	registry http.Handler                  // Options.Metrics
	profiles func(p policy.Principal) bool // Options.Profiles
}

func live(w http.ResponseWriter, _ *http.Request) error {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = io.WriteString(w, "ok\n") // a reader that went away needs no answer
	return nil
}

// Routes are the routes for monitors, and of profiles.
func (h *health) Routes(g *people.Guard) page.Routes {
	return page.Routes{
		"/livez":              {http.MethodGet: live},
		"/readyz":             {http.MethodGet: h.ready},
		"/metrics":            {http.MethodGet: h.metrics},
		"/debug/pprof/{name}": {http.MethodGet: g.As(h.profile)},
	}
}

// A Sight says how many of the tools that serve callers with one role see.
type Sight struct {
	Role    string `json:"role"`
	Visible int    `json:"tools"`
	Total   int    `json:"of"`
	Duty    string `json:"duty,omitempty"`   // what the role is for, where none is visible: "reads the audit trail"
	Reason  string `json:"reason,omitempty"` // why none is visible, of a role without a duty
	Hint    string `json:"hint,omitempty"`   // what to do then
}

// Blind reports that there are tools, none of them is visible, and the role has no duty.
func (s Sight) Blind() bool { return s.Visible == 0 && s.Total > 0 && s.Duty == "" }

// String returns s as people read it.
func (s Sight) String() string {
	if s.Duty != "" {
		return fmt.Sprintf("%s, none for %s, which %s", text.Count(s.Total, "tool"), s.Role, s.Duty)
	}
	line := fmt.Sprintf("%s, %d visible to %s", text.Count(s.Total, "tool"), s.Visible, s.Role)
	if s.Reason != "" {
		line += ": " + s.Reason
	}
	return line
}

// ready is 200 when calls are served, else 503: also when the question is
// verbose, so that both see the same. Details are for those who may watch toolgate.
func (h *health) ready(w http.ResponseWriter, r *http.Request) error {
	if !r.URL.Query().Has("verbose") {
		return h.readiness(w, r, h.watches(policy.Principal{}))
	}
	return h.watched(func(w http.ResponseWriter, r *http.Request) error { return h.readiness(w, r, true) })(w, r)
}

// watched serves those who may watch toolgate.
func (h *health) watched(show page.Handler) page.Handler {
	if h.watches(policy.Principal{}) {
		return show
	}
	return h.As(func(w http.ResponseWriter, r *http.Request, p policy.Principal) error {
		if !h.watches(p) {
			return page.Problem{Status: http.StatusForbidden, Code: "NOT_WATCHER", Detail: "you may not read the metrics and the status of toolgate", Hint: "toolgate.metrics_role names the role that may"}
		}
		return show(w, r)
	})
}

// readiness answers whether calls are served, with details of the status or without.
func (h *health) readiness(w http.ResponseWriter, r *http.Request, details bool) error {
	s := h.status()
	code := http.StatusOK
	switch {
	case !s.Ready:
		code, s.Status = http.StatusServiceUnavailable, "not ready"
	case len(s.Degraded) > 0:
		s.Status = "degraded"
	default:
		s.Status = "ready"
	}
	if !details {
		s = Status{Ready: s.Ready, Status: s.Status}
	}
	if strings.Contains(r.Header.Get("Accept"), "application/json") {
		s.Upstreams, s.Sights, s.Warnings = append([]Upstream{}, s.Upstreams...), append([]Sight{}, s.Sights...), append([]string{}, s.Warnings...) // none is [], not null
		return page.AnswerAs(w, code, s)
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(code)
	lines := []string{s.Status}
	if r.URL.Query().Has("verbose") {
		lines = append(lines, s.lines()...)
	}
	_, _ = io.WriteString(w, strings.Join(lines, "\n")+"\n") // a reader that went away needs no answer
	return nil
}

// lines are the details of s as text.
func (s *Status) lines() (lines []string) {
	add := func(parts ...string) { lines = append(lines, strings.Join(parts, "")) }
	if len(s.Degraded) > 0 {
		add("degraded without ", strings.Join(page.VisibleAll(s.Degraded), ", "))
	}
	add("policy ", page.Visible(s.Revision))
	if s.Shadow != "" {
		add("shadow ", page.Visible(s.Shadow))
	}
	for _, u := range s.Upstreams {
		quarantined := ""
		if u.Quarantined > 0 {
			quarantined = fmt.Sprintf(", quarantined %d", u.Quarantined)
		}
		add("upstream ", page.Visible(u.Name), " ", page.Visible(u.State), fmt.Sprintf(", tools %d", u.Tools), quarantined,
			page.Prefixed(", sandbox ", page.Visible(u.Sandbox)), page.Prefixed(": ", page.Visible(u.Error)))
		for _, warning := range u.Warnings {
			add("warning: ", page.Visible(u.Name), ": ", page.Visible(page.OneLine(warning)))
		}
	}
	for _, sight := range s.Sights {
		mark := ""
		if sight.Blind() {
			mark = "warning: "
		}
		add(mark, page.Visible(sight.String()))
		if sight.Hint != "" {
			add("hint: ", page.Visible(sight.Hint))
		}
	}
	for _, warning := range s.Warnings {
		add("warning: ", page.Visible(warning))
	}
	return lines
}

func (h *health) metrics(w http.ResponseWriter, r *http.Request) error {
	return h.watched(func(w http.ResponseWriter, r *http.Request) error {
		h.registry.ServeHTTP(w, r)
		return nil
	})(w, r)
}

// maxProfile bounds the time over which a profile is taken.
const maxProfile = time.Minute

// profile answers with the profile of toolgate that the path names, for those who may
// take profiles. It is recorded first. Close ends it early.
func (h *health) profile(w http.ResponseWriter, r *http.Request, p policy.Principal) error {
	name := r.PathValue("name")
	act := people.Act{Name: audit.EventProfile, Principal: p, Added: []string{page.Visible(name)}}
	if h.profiles == nil || !h.profiles(p) {
		return h.RecordRefusal(r, act, page.Problem{Status: http.StatusForbidden, Code: "NOT_PROFILER", Detail: "you may not take profiles", Hint: "toolgate.pprof_role names the role that may"})
	}
	// The command line is left out, because it may hold a token.
	take := map[string]http.HandlerFunc{"profile": pprof.Profile, "trace": pprof.Trace}[name]
	if take == nil && runtimepprof.Lookup(name) != nil {
		take = pprof.Handler(name).ServeHTTP
	}
	if take == nil {
		return page.Problem{Status: http.StatusNotFound, Code: "NO_PROFILE", Detail: "there is no profile of this name", Hint: "profile, trace, heap, allocs, goroutine, block, mutex and threadcreate are there"}
	}
	if text := r.FormValue("seconds"); text != "" {
		if n, err := strconv.Atoi(text); err != nil || n < 1 || n > int(maxProfile.Seconds()) {
			return page.Problem{Status: http.StatusBadRequest, Code: "BAD_QUERY", Detail: "seconds must be from 1 to 60"}
		}
	}
	if err := h.Record(r, act); err != nil {
		return err
	}
	h.Log.Info("taking a profile", "profile", name, "subject", p.Subject)
	ctx, stop := h.UntilClosed(r.Context())
	defer stop()
	take(w, r.WithContext(ctx))
	return nil
}
