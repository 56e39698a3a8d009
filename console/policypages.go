package console

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/a-h/templ"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/console/page"
	"github.com/toolgate/toolgate/console/people"
	"github.com/toolgate/toolgate/internal/text"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/rejudge/replay"
	"github.com/toolgate/toolgate/policy/rejudge/shadow"
	"github.com/toolgate/toolgate/policy/workbench"
)

const (
	policyPath  = "/console/policy"
	matrixPath  = policyPath + "/matrix"
	askPath     = policyPath + "/ask"
	trialsPath  = policyPath + "/try"
	cellsOfPage = 10 // tools
)

// frame is the shell of a page about the policy, for those who operate servers. The page is not fetched
// anew when a ticket changes: what it shows is dear, or is being edited.
func (a *advice) frame(ctx context.Context, v people.Visitor, title string) (page.Shell, error) {
	if !a.May(ctx, v.Principal, policy.Operates) {
		return page.Shell{}, people.NotOperator
	}
	return a.Shell(ctx, v, title, policyPath, "")
}

type policyStatePage struct {
	page.Shell
	PolicyState
	Try  bool // the visitor may try policies
	Asks bool // and see what a shadow policy would decide
}

// page shows the policy that serves and what is wrong with it.
func (a *advice) page(r *http.Request, v people.Visitor) (view templ.Component, err error) {
	var d policyStatePage
	if d.Shell, err = a.frame(r.Context(), v, "Policy"); err != nil {
		return nil, err
	}
	if d.PolicyState, err = a.policy.State(r.Context()); err != nil {
		return nil, err
	}
	d.Try = mayTry(a.Site, r, v.Principal) == nil
	d.Asks = d.Try && a.shadow != nil
	return policyView(d), nil
}

type matrixPage struct {
	page.Shell
	PolicyMatrix
	Query MatrixQuery
}

// one returns the member of a list with at most one, "" for none.
func one(list []string) string { return strings.Join(list, "") }

// matrixPage shows who may call what.
func (a *advice) matrixPage(r *http.Request, v people.Visitor) (view templ.Component, err error) {
	d := matrixPage{Query: MatrixQuery{Limit: cellsOfPage}}
	if err := page.ReadQuery(r.URL, map[string]func(string) error{
		"role":    func(value string) error { d.Query.Roles = named(value); return nil },
		"subject": page.String(&d.Query.Subject),
		"tool":    func(value string) error { d.Query.Tools = named(value); return nil },
		"cursor":  page.String(&d.Query.After),
	}); err != nil {
		return nil, err
	}
	if d.Shell, err = a.frame(r.Context(), v, "Who may what"); err != nil {
		return nil, err
	}
	if d.PolicyMatrix, err = a.policy.Matrix(r.Context(), d.Query); err != nil {
		return nil, err
	}
	if d.Next != "" {
		d.Next = page.WithCursor(r.URL, d.Next)
	}
	return matrixView(d), nil
}

// named is a list of one name, none for "".
func named(name string) []string {
	if name == "" {
		return nil
	}
	return []string{name}
}

type askPage struct {
	page.Shell
	Call    SupposedCall
	Answer  *PolicyExplanation // nil = nothing was asked
	Refused *page.Problem      // why it could not be judged
}

// askPage says why a call would be decided so.
func (a *advice) askPage(r *http.Request, v people.Visitor) (view templ.Component, err error) {
	var d askPage
	if err := page.ReadQuery(r.URL, map[string]func(string) error{
		"role":      func(value string) error { d.Call.Roles = named(value); return nil },
		"subject":   page.String(&d.Call.Subject),
		"tool":      page.String(&d.Call.Tool),
		"arguments": func(value string) error { d.Call.Arguments = json.RawMessage(value); return nil },
	}); err != nil {
		return nil, err
	}
	if d.Shell, err = a.frame(r.Context(), v, "Ask the policy"); err != nil {
		return nil, err
	}
	if d.Call.Tool != "" {
		x, err := a.judge.Explain(r.Context(), d.Call)
		p := page.ProblemOf(judged(err))
		switch {
		case err == nil:
			d.Answer = &x
		case p.Status == http.StatusBadRequest:
			d.Refused = &p
		default:
			return nil, err
		}
	}
	return askView(d), nil
}

type tryPageData struct {
	page.Shell
	Files map[string][]byte // of the policy that serves
	Jobs  []Job
}

// tryPage shows the files of the policy that serves, to be changed and tried.
func (a *advice) tryPage(r *http.Request, v people.Visitor) (view templ.Component, err error) {
	var d tryPageData
	if d.Shell, err = a.frame(r.Context(), v, "Try a change"); err != nil {
		return nil, err
	}
	if err := mayTry(a.Site, r, v.Principal); err != nil {
		return nil, err
	}
	if d.Files, err = a.policy.Files(r.Context()); err != nil {
		return nil, err
	}
	d.Jobs = a.jobs.list(tryKind, personOf(v.Principal))
	return tryView(d), nil
}

// fileField is the prefix of the names of fields that have the text of a file.
const fileField = "file:"

// submitTry begins to try the files of a form: an archive, or else their texts.
func (a *advice) submitTry(r *http.Request, v people.Visitor) (string, error) {
	if err := a.admitTry(r, v.Principal); err != nil {
		return "", err
	}
	candidate := Candidate{Files: map[string][]byte{}}
	if err := a.Moment(&candidate.Since)(r.PostForm.Get("since")); err != nil {
		return "", err
	}
	for name, values := range r.PostForm {
		if file, ok := strings.CutPrefix(name, fileField); ok {
			candidate.Files[file] = []byte(strings.ReplaceAll(values[0], "\r\n", "\n")) // as browsers send lines
		}
	}
	if archive, head, err := r.FormFile("archive"); err == nil && head.Size > 0 {
		defer archive.Close()
		candidate.Files = map[string][]byte{}
		if unpack(candidate.Files, archive) != nil {
			return "", badCandidate
		}
	}
	if err := checkCandidate(candidate.Files); err != nil {
		return "", err
	}
	job, err := a.try(r, v.Principal, candidate)
	return trialsPath + "/" + job.ID, err
}

type trialPage struct {
	page.Shell
	Job
	Trial *PolicyTrial // nil = there is none yet
	Text  string       // of Trial, as Markdown; "" = nobody writes it
}

// trialPage shows how far a trial is, or what it came to.
func (a *advice) trialPage(r *http.Request, v people.Visitor) (view templ.Component, err error) {
	var d trialPage
	if d.Job, err = a.jobs.find(tryKind, r.PathValue("id"), personOf(v.Principal), false); err != nil {
		return nil, err
	}
	if d.Shell, err = a.frame(r.Context(), v, "Trial"); err != nil {
		return nil, err
	}
	d.Refresh = d.State == JobRunning
	if t, ok := d.Result.(PolicyTrial); ok {
		if d.Trial = &t; a.trialText != nil {
			d.Text = a.trialText(t)
		}
	}
	return trialView(d), nil
}

// A changeGroup is a group of changed verdicts.
type changeGroup struct {
	Name string
	*replay.Changes
}

// changes returns the groups of a replay that have changes.
func changes(r *replay.Report) (all []changeGroup) {
	for _, g := range []changeGroup{
		{"Another effect", &r.Changed}, {"The same effect by another rule, or with other obligations", &r.Adjusted}, {"Failed then, and no change of the policy", &r.Failed},
	} {
		if g.Count > 0 {
			all = append(all, g)
		}
	}
	return all
}

// summary says what a replay came to.
func summary(r *replay.Report) string {
	if r.Judged == 0 {
		return "No recorded decision could be judged again."
	}
	return fmt.Sprintf("%d of %s would come out otherwise.", r.Changed.Count+r.Adjusted.Count, text.Count(r.Judged, "recorded decision"))
}

// testsLine says how the tests of a policy ended.
func testsLine(t *workbench.TestReport) string {
	return fmt.Sprintf("%d passed, %d failed, %d could not be judged", t.Count(workbench.Passed), t.Count(workbench.Failed), t.Count(workbench.Errored))
}

// mayLook is the class of an answer.
func mayLook(m workbench.May) string {
	return map[workbench.May]string{workbench.Always: "done", workbench.Never: "failed"}[m]
}

// askAddress is the address that asks about a call.
func askAddress(role, tool string) string {
	return askPath + "?" + url.Values{"role": {role}, "tool": {tool}, "arguments": {"{}"}}.Encode()
}

// percent is the share of a job that is done, 0 to 100.
func (j *Job) percent() int64 {
	if j.All <= 0 {
		return 0
	}
	return min(100, 100*j.Done/j.All)
}

// ran is how long a job has run.
func (j *Job) ran(now time.Time) time.Duration {
	if !j.Ended.IsZero() {
		now = j.Ended
	}
	return now.Sub(j.Started).Round(time.Second)
}

// readFiles is readForm for multipart forms of twice candidateBytes, which it holds in memory.
func readFiles(w http.ResponseWriter, r *http.Request) error {
	r.Body = http.MaxBytesReader(w, r.Body, 2*candidateBytes)
	return page.ReadFields(r, "multipart/form-data", func() error { return r.ParseMultipartForm(3 * candidateBytes) }, tooLargePolicy)
}

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
	act := people.Act{Name: audit.EventTrailRead, Principal: p, Added: []string{"search disagreements of the shadow policy"}}
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
