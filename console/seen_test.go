package console_test

import (
	"context"
	"errors"
	"iter"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/console"
	"github.com/toolgate/toolgate/console/people"
	"github.com/toolgate/toolgate/policy"
)

// arrivals are records of calls and of sign-ins; text stands where others choose one.
func arrivals(text string) console.AuditTail {
	return func(_ context.Context, _ int, _ bool) iter.Seq2[[]byte, error] {
		return func(yield func([]byte, error) bool) {
			for _, line := range []string{
				`{"kind":"open","time":"2026-03-01T08:00:00Z"}`,
				`{"kind":"event","time":"2026-03-01T08:01:00Z","principal":{"subject":"oda"},"event":{"name":"sign_in","source":"192.0.2.7","credential":"token"}}`,
				`{"kind":"decision","time":"2026-03-01T08:02:00Z","principal":{"subject":"eve","roles":["a"]}}`,
				`{"kind":"outcome","time":"2026-03-01T08:02:01Z","principal":{"subject":"eve","person":"Eve","roles":["a"]}}`,
				`{"kind":"outcome","time":"2026-03-01T08:03:00Z","principal":{"subject":"ann","tenant":"north","roles":["b"]}}`,
				`{"kind":"outcome","time":"2026-03-01T08:04:00Z","principal":{"subject":"eve","person":"Eve","roles":["c","d"]}}`,
				`no record`,
				`{"kind":"event","time":"2026-03-01T08:05:00Z","principal":{"subject":""},"event":{"name":"credential_refused","reason":"expired` + text + `","count":3}}`,
				`{"kind":"event","time":"2026-03-01T08:06:00Z","principal":{"subject":"oda"},"event":{"name":"trail_read"}}`,
			} {
				if !yield([]byte(line), nil) {
					return
				}
			}
		}
	}
}

func seeing(t *testing.T, tail console.AuditTail) *listener {
	t.Helper()
	return newListener(t, func(o *console.Options) {
		o.Audit, o.Tokens = tail, new(purse)
		o.May = func(_ context.Context, p policy.Principal, right policy.Right) (bool, error) {
			return right == policy.Operates && p.Has("operator"), nil
		}
	})
}

// Who reads the whole trail sees who called and who signed in or was refused, which is recorded.
func TestSeen(t *testing.T) {
	l := seeing(t, arrivals(`\u202e`))
	w := l.ask("GET", "/v1/audit/seen", "", as("t-audit")...)
	want := `{"since":"2026-03-01T08:00:00Z","principals":[{"subject":"eve","person":"Eve","roles":["c","d"],"calls":2,"last":"2026-03-01T08:04:00Z"},{"subject":"ann","tenant":"north","roles":["b"],"calls":1,"last":"2026-03-01T08:03:00Z"}],` +
		`"sign_ins":[{"at":"2026-03-01T08:05:00Z","event":"credential_refused","reason":"expired\\u202e","count":3},{"at":"2026-03-01T08:01:00Z","event":"sign_in","subject":"oda","source":"192.0.2.7","credential":"token"}]}` + "\n"
	if diff := cmp.Diff(want, w.Body.String()); w.Code != 200 || diff != "" {
		t.Errorf("%d (-want +got):\n%s", w.Code, diff)
	}
	if diff := cmp.Diff([]people.Act{{Name: audit.EventTrailRead, Principal: staff["t-audit"], Source: "192.0.2.1", Credential: "bearer", Added: []string{"search principals and sign-ins"}}}, l.acts); diff != "" {
		t.Errorf("recorded (-want +got):\n%s", diff)
	}
	audit := newBrowser(l).signIn("t-audit")
	audit.shows("/console/access/seen", []string{"<b>oda</b> signed in by token", "<b>somebody</b> showed a credential that was refused, 3 times: expired\\u202e", ">eve, of Eve<", ">ann (north)<", "c, d"}, []string{"trail_read"})
}

// Nobody else sees it, and nobody without a record.
func TestNotSeen(t *testing.T) {
	for name, tc := range map[string]struct {
		token, query string
		tail         console.AuditTail
		unrecorded   error
		status       int
		code         string
	}{
		"an approver":        {"t-ann", "", arrivals(""), nil, 403, "NOT_AUDITOR"},
		"nobody":             {"t-nobody", "", arrivals(""), nil, 401, "UNAUTHENTICATED"},
		"a parameter":        {"t-audit", "?limit=1", arrivals(""), nil, 400, "BAD_REQUEST"},
		"it is not recorded": {"t-audit", "", arrivals(""), errors.New("disk full"), 503, "AUDIT_UNAVAILABLE"},
		"a trail that fails": {"t-audit", "", func(context.Context, int, bool) iter.Seq2[[]byte, error] {
			return func(yield func([]byte, error) bool) { yield(nil, errors.New("gone")) }
		}, nil, 500, "INTERNAL_ERROR"},
	} {
		t.Run(name, func(t *testing.T) {
			l := seeing(t, tc.tail)
			l.unrecorded = tc.unrecorded
			refused(t, l.ask("GET", "/v1/audit/seen"+tc.query, "", as(tc.token)...), tc.status, tc.code)
		})
	}
	l := seeing(t, func(_ context.Context, _ int, _ bool) iter.Seq2[[]byte, error] {
		return func(yield func([]byte, error) bool) {
			for i := range 300 {
				line := `{"kind":"outcome","time":"` + time.Unix(int64(i), 0).UTC().Format(time.RFC3339) + `","principal":{"subject":"s` + time.Unix(int64(i), 0).UTC().Format("0405") + `"}}`
				if !yield([]byte(line), nil) {
					return
				}
			}
		}
	})
	if got := accepted(t, l.ask("GET", "/v1/audit/seen", "", as("t-audit")...))["principals"].([]any); len(got) != 100 {
		t.Errorf("%d principals are shown, want the latest 100", len(got))
	}
}
