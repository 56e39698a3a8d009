package console_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/console"
	"github.com/toolgate/toolgate/console/people"
	"github.com/toolgate/toolgate/policy"
)

// profiled is a listener where operators take profiles.
func profiled(t *testing.T) *listener {
	return newListener(t, func(o *console.Options) {
		o.Profiles = func(p policy.Principal) bool { return p.Has("operator") }
	})
}

// A profile is recorded, then taken. gzip is the form that go tool pprof reads.
func TestProfile(t *testing.T) {
	for path, magic := range map[string]string{"heap": "\x1f\x8b", "profile?seconds=1": "\x1f\x8b", "trace?seconds=1": "go 1.", "goroutine?debug=2": "goroutine "} {
		l := profiled(t)
		w := l.ask("GET", "/debug/pprof/"+path, "", as("t-oda")...)
		if body := w.Body.String(); w.Code != http.StatusOK || len(body) < len(magic) || body[:len(magic)] != magic {
			t.Errorf("%s: %d %.80q", path, w.Code, body)
		}
		name, _, _ := strings.Cut(path, "?")
		want := []people.Act{{Name: audit.EventProfile, Principal: staff["t-oda"], Source: "192.0.2.1", Credential: "bearer", Added: []string{name}}}
		if diff := cmp.Diff(want, l.acts); diff != "" {
			t.Errorf("%s (-want +got):\n%s", path, diff)
		}
	}
}

// Nobody takes a profile without the role or without a record, one that is not there, or
// one that takes more than a minute.
func TestNoProfile(t *testing.T) {
	for name, tc := range map[string]struct {
		token, path string
		unrecorded  error
		status      int
		code        string
		recorded    int
	}{
		"another role":       {"t-ann", "heap", nil, 403, "NOT_PROFILER", 1},
		"another role, long": {"t-ann", "profile?seconds=3600", nil, 403, "NOT_PROFILER", 1},
		"nobody":             {"t-nobody", "heap", nil, 401, "UNAUTHENTICATED", 0},
		"no such profile":    {"t-oda", "cmdline", nil, 404, "NO_PROFILE", 0},
		"the list":           {"t-oda", "", nil, 404, "NOT_FOUND", 0},
		"it is not recorded": {"t-oda", "heap", errors.New("disk full"), 503, "AUDIT_UNAVAILABLE", 1},
		"too long":           {"t-oda", "profile?seconds=61", nil, 400, "BAD_QUERY", 0},
		"too long, of heap":  {"t-oda", "heap?seconds=61", nil, 400, "BAD_QUERY", 0},
		"no number":          {"t-oda", "trace?seconds=1e9", nil, 400, "BAD_QUERY", 0},
	} {
		t.Run(name, func(t *testing.T) {
			l := profiled(t)
			l.unrecorded = tc.unrecorded
			refused(t, l.ask("GET", "/debug/pprof/"+tc.path, "", as(tc.token)...), tc.status, tc.code)
			if len(l.acts) != tc.recorded {
				t.Errorf("recorded %+v", l.acts)
			}
		})
	}
	off := newListener(t, nil)
	refused(t, off.ask("GET", "/debug/pprof/heap", "", as("t-oda")...), 403, "NOT_PROFILER")
}

// The end of the listener ends a profile.
func TestProfileEnds(t *testing.T) {
	l := profiled(t)
	w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "http://127.0.0.1/debug/pprof/trace?seconds=60", nil)
	r.Header.Set("Authorization", "Bearer t-oda")
	l.Console.Close()
	began := time.Now()
	l.ServeHTTP(w, r)
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("took %v", took)
	}
}
