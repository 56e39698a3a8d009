package console_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/console"
	"github.com/toolgate/toolgate/console/people"
	"github.com/toolgate/toolgate/policy"
)

// lobby has the sessions ses_1 of eve, with a connection to web, and ses_2 of ann. It implements
// console.ClientSessions.
type lobby struct {
	ended []string
	gone  bool // they end before anybody ends them
}

func (l *lobby) List(context.Context) ([]console.ClientSession, error) {
	return []console.ClientSession{
		{ID: "ses_1", Principal: "eve", Transport: "http", Client: "cli\u202e/1", Connections: []console.SessionConnection{{Server: "web", PID: 7}}},
		{ID: "ses_2", Principal: "ann", Transport: "sse", Connections: []console.SessionConnection{}},
	}, nil
}

func (l *lobby) End(_ context.Context, id string) (bool, error) {
	if l.gone {
		return false, nil
	}
	l.ended = append(l.ended, id)
	return true, nil
}

func lobbied(t *testing.T, change func(*console.Options)) (*listener, *lobby) {
	t.Helper()
	rooms := new(lobby)
	return newListener(t, func(o *console.Options) {
		o.May = func(_ context.Context, p policy.Principal, right policy.Right) (bool, error) {
			return right == policy.Operates && p.Has("operator"), nil
		}
		o.Sessions = rooms
		if change != nil {
			change(o)
		}
	}), rooms
}

// Operators see the sessions, and choose from them.
func TestClientSessions(t *testing.T) {
	l, _ := lobbied(t, nil)
	for query, want := range map[string][]string{"": {"ses_2", "ses_1"}, "?principal=eve": {"ses_1"}, "?server=web": {"ses_1"}, "?server=pay": nil, "?limit=1": {"ses_2"}} {
		body := l.ask("GET", "/v1/sessions"+query, "", as("t-oda")...).Body.String()
		var found []string
		for _, part := range strings.Split(body, `"id":"`)[1:] {
			found = append(found, part[:5])
		}
		if !cmp.Equal(found, want) || strings.Contains(body, "\u202e") || strings.Contains(body, `"next"`) != (query == "?limit=1") {
			t.Errorf("%s: %s", query, body)
		}
	}
	refused(t, l.ask("GET", "/v1/sessions", "", as("t-ann")...), 403, "NOT_OPERATOR")
	refused(t, l.ask("GET", "/v1/sessions", "", as("t-nobody")...), 401, "UNAUTHENTICATED")
	for _, query := range []string{"?all=true", "?limit=1001", "?limit=x", "?cursor=", "?principal=a&principal=b"} {
		refused(t, l.ask("GET", "/v1/sessions"+query, "", as("t-oda")...), 400, "BAD_REQUEST")
	}
}

// A session is ended after its record, and answered.
func TestEndClientSession(t *testing.T) {
	l, rooms := lobbied(t, nil)
	w := l.ask("DELETE", "/v1/sessions/ses_1", "", as("t-oda")...)
	if w.Code != 200 || !strings.Contains(w.Body.String(), `"id":"ses_1"`) || !cmp.Equal(rooms.ended, []string{"ses_1"}) {
		t.Errorf("%d %s, ended %v", w.Code, w.Body, rooms.ended)
	}
	want := []people.Act{{Name: audit.EventSessionEnded, Principal: staff["t-oda"], Source: "192.0.2.1", Credential: "bearer", Removed: []string{"session ses_1 of eve"}}}
	if diff := cmp.Diff(want, l.acts); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for name, tc := range map[string]struct {
		token, id  string
		gone       bool
		unrecorded error
		status     int
		code       string
		recorded   string // reason in the record, "" = there is none
	}{
		"another role":       {"t-ann", "ses_1", false, nil, 403, "NOT_OPERATOR", "NOT_OPERATOR"},
		"nobody":             {"t-nobody", "ses_1", false, nil, 401, "UNAUTHENTICATED", ""},
		"no such session":    {"t-oda", "ses_3", false, nil, 404, "NO_SESSION", ""},
		"it is over by then": {"t-oda", "ses_1", true, nil, 404, "NO_SESSION", "none"},
		"it is not recorded": {"t-oda", "ses_1", false, errors.New("disk full"), 503, "AUDIT_UNAVAILABLE", "none"},
	} {
		t.Run(name, func(t *testing.T) {
			l, rooms := lobbied(t, nil)
			l.unrecorded, rooms.gone = tc.unrecorded, tc.gone
			refused(t, l.ask("DELETE", "/v1/sessions/"+tc.id, "", as(tc.token)...), tc.status, tc.code)
			if len(rooms.ended) > 0 {
				t.Errorf("ended %v", rooms.ended)
			}
			if tc.recorded == "NOT_OPERATOR" && (len(l.acts) != 1 || l.acts[0].Reason != tc.recorded || l.acts[0].Removed != nil) || tc.recorded == "" && len(l.acts) > 0 {
				t.Errorf("recorded %+v", l.acts)
			}
		})
	}
}
