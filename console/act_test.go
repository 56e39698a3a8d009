package console_test

import (
	"context"
	"errors"
	"iter"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/console"
	"github.com/toolgate/toolgate/console/people"
	"github.com/toolgate/toolgate/policy"
)

// An approver reads the records of calls that it may decide on, and no others: not
// those of its own calls either.
func TestApproverReadsWhatItMayDecide(t *testing.T) {
	var lines []string
	l := newListener(t, func(o *console.Options) {
		o.Audit = func(context.Context, int, bool) iter.Seq2[[]byte, error] {
			return func(yield func([]byte, error) bool) {
				for _, line := range lines {
					if !yield([]byte(line), nil) {
						return
					}
				}
			}
		}
	})
	k := l.hold(`{"amount":500}`)
	lines = []string{`{"n":1}`, `{"n":2,"ticket":"` + k.ID + `"}`, `{"n":3,"ticket":"apr_other"}`, `{"n":4,"ticket":"` + k.ID + `"}`, `no record`}
	for token, want := range map[string]string{"t-audit": strings.Join(lines, "\n") + "\n", "t-ann": lines[1] + "\n" + lines[3] + "\n", "t-self": ""} {
		if w := l.ask("GET", "/v1/audit/tail?n=100", "", as(token)...); w.Code != 200 || w.Body.String() != want {
			t.Errorf("%s reads %d %q, want %q", token, w.Code, w.Body, want)
		}
	}
	if w := l.ask("GET", "/v1/audit/tail?n=1", "", as("t-ann")...); w.Body.String() != lines[3]+"\n" {
		t.Errorf("the last record: %q", w.Body)
	}
}

// Every act that changes no ticket is recorded with who, from where and how.
func TestActsAreRecorded(t *testing.T) {
	l := newListener(t, nil)
	k := l.hold(`{"amount":500}`)
	json := []string{"Content-Type", "application/json"}
	l.ask("POST", "/v1/approvals/"+k.ID+"/approve", `{}`, append(as("t-self"), json...)...)
	l.ask("POST", "/v1/approvals/"+k.ID+"/deny", `{}`, append(as("t-ann"), json...)...)
	l.ask("GET", "/v1/audit/tail", "", as("t-audit")...)
	l.ask("GET", "/v1/audit/tail", "", as("t-agent")...)
	b := newBrowser(l).signIn("t-ann")
	b.do("POST", "/console/logout", b.form("/console/login"))
	want := []people.Act{
		{Name: audit.EventVoteRefused, Source: "192.0.2.1", Credential: "bearer", Ticket: k.ID, Reason: "SELF_APPROVAL"},
		{Name: audit.EventVoteRefused, Source: "192.0.2.1", Credential: "bearer", Ticket: k.ID, Reason: "REASON_REQUIRED"},
		{Name: audit.EventTrailRead, Source: "192.0.2.1", Credential: "bearer"},
		{Name: audit.EventTrailRead, Source: "192.0.2.1", Credential: "bearer", Reason: "NOT_AUDITOR"},
		{Name: audit.EventSignIn, Source: "192.0.2.1", Credential: "token"},
		{Name: audit.EventSignOut, Source: "192.0.2.1", Credential: "session"},
	}
	subjects := make([]string, len(l.acts))
	for i, a := range l.acts {
		subjects[i] = a.Principal.Subject
	}
	if diff := cmp.Diff(want, l.acts, cmpopts.IgnoreFields(people.Act{}, "Principal")); diff != "" || !slices.Equal(subjects, []string{"agent", "ann", "aud", "agent", "ann", "ann"}) {
		t.Errorf("acts of %v (-want +got):\n%s", subjects, diff)
	}
}

// What must not happen without a record does not happen.
func TestNoActWithoutRecord(t *testing.T) {
	l := newListener(t, nil)
	l.unrecorded = errors.New("disk full")
	refused(t, l.ask("GET", "/v1/audit/tail", "", as("t-audit")...), 503, "AUDIT_UNAVAILABLE")
	b := newBrowser(l)
	if w := b.do("POST", "/console/login", b.form("/console/login", "token", "t-ann")); w.Code != http.StatusServiceUnavailable || b.signedIn() {
		t.Errorf("signed in without a record: %d", w.Code)
	}
	l = newListener(t, func(o *console.Options) {
		o.TrailRight = func(context.Context, policy.Principal) (policy.TrailRight, error) {
			return policy.TrailAll, errors.New("failed")
		}
	})
	refused(t, l.ask("GET", "/v1/audit/tail", "", as("t-audit")...), 403, "NOT_AUDITOR")
}
