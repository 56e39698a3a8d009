package console

import (
	"errors"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/a-h/templ"

	"github.com/toolgate/toolgate/console/page"
	"github.com/toolgate/toolgate/console/people"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/rejudge/shadow"
)

// A ShadowQuery selects disagreements of shadow policies.
type ShadowQuery struct {
	Candidate string    // beginning of its revision, "" = of the latest
	Since     time.Time // zero = all
	After     string    // decision of the last one that the caller has, "" = none
	Limit     int
}

const (
	shadowPath   = policyPath + "/shadow"
	disagreeings = 50 // in one list, unless asked for otherwise
)

var noCandidate = page.Problem{Status: http.StatusNotFound, Code: "NOT_FOUND", Detail: "no policy with this revision was asked", Hint: "without candidate it is the one that was asked last"}

// A shadowPart is what shadow policies would have decided otherwise, with a part of the disagreements.
type shadowPart struct {
	shadow.Report
	Next string `json:"next,omitempty"` // cursor of more: the candidate and the last decision
}

// shadowFor returns what shadow policies would have decided otherwise. That is of recorded calls: p sees it
// with the rights to try policies, and reading it is recorded first.
func (a *advice) shadowFor(r *http.Request, p policy.Principal) (found shadowPart, err error) {
	var q ShadowQuery
	var part page.Paging
	known := part.Parameters(map[string]func(string) error{"candidate": page.String(&q.Candidate), "since": a.Moment(&q.Since)})
	part.Limit = disagreeings
	if err := page.ReadQuery(r.URL, known); err != nil {
		return found, err
	}
	if part.After != "" { // another candidate may be the latest by now
		q.Candidate, q.After, _ = strings.Cut(part.After, " ")
	}
	q.Limit = part.Limit + 1
	act := people.Act{Name: people.ActTrailRead, Principal: p, Query: "disagreements of the shadow policy"}
	if err := mayTry(a.Site, r, p); err != nil {
		return found, a.RecordRefusal(r, act, err)
	}
	if err := a.Record(r, act); err != nil {
		return found, err
	}
	if found.Report, err = a.shadow(r.Context(), q); errors.Is(err, shadow.ErrNoCandidate) {
		err = noCandidate
	}
	if len(found.Disagreements) > part.Limit {
		found.Disagreements = found.Disagreements[:part.Limit]
		last := found.Disagreements[part.Limit-1]
		found.Next = page.CursorOf(last.Candidate + " " + last.DecisionID)
	}
	for i := range found.Disagreements {
		d := &found.Disagreements[i]
		d.Principal, d.Tool, d.Reason = page.Visible(d.Principal), page.Visible(d.Tool), page.Visible(d.Reason)
		d.Was.Rule, d.Now.Rule = page.Visible(d.Was.Rule), page.Visible(d.Now.Rule)
	}
	return found, err
}

type shadowPage struct {
	page.Shell
	shadowPart
}

// shadowPage shows what shadow policies would have decided otherwise.
func (a *advice) shadowPage(r *http.Request, v people.Visitor) (view templ.Component, err error) {
	var d shadowPage
	if d.shadowPart, err = a.shadowFor(r, v.Principal); err != nil {
		return nil, err
	}
	if d.Next != "" {
		d.Next = page.WithCursor(r.URL, d.Next)
	}
	d.Shell, err = a.frame(r.Context(), v, "Shadow policy")
	return shadowView(d), err
}

// shadowAt returns the address of the page about one candidate.
func shadowAt(candidate string) string {
	return shadowPath + "?" + url.Values{"candidate": {candidate}}.Encode()
}
