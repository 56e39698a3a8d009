package console_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/console"
	"github.com/toolgate/toolgate/console/people"
	"github.com/toolgate/toolgate/policy"
)

// operated is a listener with the servers web and off, of which off is disabled, where
// operators operate. It counts restarts.
func operated(t *testing.T, change func(*console.Options)) (*listener, *[]string) {
	var restarted []string
	l := newListener(t, func(o *console.Options) {
		o.May = func(_ context.Context, p policy.Principal, _ policy.Right) (bool, error) {
			return p.Has("operator"), nil
		}
		o.Restart = func(_ context.Context, server string) (console.Upstream, error) {
			restarted = append(restarted, server)
			return console.Upstream{Name: server, State: "ready"}, nil
		}
		if change != nil {
			change(o)
		}
	})
	l.status.Upstreams = []console.Upstream{{Name: "web", State: "failed"}, {Name: "off", State: "disabled"}}
	return l, &restarted
}

// Operators see the servers and, of one, the end of its stderr. Nobody else does.
func TestServers(t *testing.T) {
	l, _ := operated(t, func(o *console.Options) {
		o.Stderr = func(server string) []string { return []string{"no key for " + server} }
		o.Latency = func(server string) *console.Latency {
			return map[string]*console.Latency{"off": {Calls: 3, MedianMS: 1.5, P99MS: 1250}}[server]
		}
	})
	for path, want := range map[string]string{
		"/v1/servers":     `{"servers":[{"name":"web","state":"failed","tools":0,"quarantined":0,"transport":"","sessions":0},{"name":"off","state":"disabled","tools":0,"quarantined":0,"transport":"","sessions":0,"latency":{"calls":3,"median_ms":1.5,"p99_ms":1250}}]}`,
		"/v1/servers/web": `{"name":"web","state":"failed","tools":0,"quarantined":0,"transport":"","sessions":0,"stderr":["no key for web"]}`,
	} {
		if w := l.ask("GET", path, "", as("t-oda")...); w.Code != http.StatusOK || strings.TrimSpace(w.Body.String()) != want {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
		refused(t, l.ask("GET", path, "", as("t-ann")...), 403, "NOT_OPERATOR")
		refused(t, l.ask("GET", path, "", as("t-nobody")...), 401, "UNAUTHENTICATED")
	}
	for path, want := range map[string]string{"/console/servers": "answers in 1.5ms, 99 % within 1.25s", "/console/servers/off": "1.5ms, 99 % within 1.25s, median of the last 3 calls"} {
		if page := newBrowser(l).signIn("t-oda").do("GET", path, nil).Body.String(); !strings.Contains(page, want) {
			t.Errorf("%s does not say %q: %s", path, want, page)
		}
	}
	refused(t, l.ask("GET", "/v1/servers/other", "", as("t-oda")...), 404, "NO_SERVER")
}

// A restart is recorded, then made, and answered with the server.
func TestRestart(t *testing.T) {
	l, restarted := operated(t, nil)
	w := l.ask("POST", "/v1/servers/web/restart", "", as("t-oda")...)
	if w.Code != http.StatusOK || !strings.Contains(w.Body.String(), `"state":"ready"`) || !cmp.Equal(*restarted, []string{"web"}) {
		t.Errorf("%d %s, restarted %v", w.Code, w.Body, *restarted)
	}
	want := []people.Act{{Name: audit.EventRestarted, Principal: staff["t-oda"], Source: "192.0.2.1", Credential: "bearer", Server: "web"}}
	if diff := cmp.Diff(want, l.acts); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Nobody restarts a server without the right, without a record, or one that does not run.
func TestNoRestart(t *testing.T) {
	failing := func(o *console.Options) {
		o.May = func(context.Context, policy.Principal, policy.Right) (bool, error) {
			return true, errors.New("the policy fails")
		}
	}
	for name, tc := range map[string]struct {
		token, server string
		change        func(*console.Options)
		unrecorded    error
		status        int
		code          string
		recorded      string // reason in the record, "" = there is none
	}{
		"another role":        {"t-ann", "web", nil, nil, 403, "NOT_OPERATOR", "NOT_OPERATOR"},
		"the policy fails":    {"t-oda", "web", failing, nil, 403, "NOT_OPERATOR", "NOT_OPERATOR"},
		"no policy":           {"t-oda", "web", func(o *console.Options) { o.May = nil }, nil, 403, "NOT_OPERATOR", "NOT_OPERATOR"},
		"nobody":              {"t-nobody", "web", nil, nil, 401, "UNAUTHENTICATED", ""},
		"no such server":      {"t-oda", "other", nil, nil, 404, "NO_SERVER", ""},
		"a disabled server":   {"t-oda", "off", nil, nil, 404, "NO_SERVER", ""},
		"it is not recorded":  {"t-oda", "web", nil, errors.New("disk full"), 503, "AUDIT_UNAVAILABLE", "none"},
		"the name of nothing": {"t-oda", "%20", nil, nil, 404, "NO_SERVER", ""},
	} {
		t.Run(name, func(t *testing.T) {
			l, restarted := operated(t, tc.change)
			l.unrecorded = tc.unrecorded
			refused(t, l.ask("POST", "/v1/servers/"+tc.server+"/restart", "", as(tc.token)...), tc.status, tc.code)
			if len(*restarted) > 0 {
				t.Errorf("restarted %v", *restarted)
			}
			if tc.recorded == "NOT_OPERATOR" && (len(l.acts) != 1 || l.acts[0].Reason != tc.recorded || l.acts[0].Server != tc.server) ||
				tc.recorded == "" && len(l.acts) > 0 {
				t.Errorf("recorded %+v", l.acts)
			}
		})
	}
}
