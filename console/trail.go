package console

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/a-h/templ"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/audit/notary"
	"github.com/toolgate/toolgate/console/page"
	"github.com/toolgate/toolgate/console/people"
	"github.com/toolgate/toolgate/console/tickets"
	"github.com/toolgate/toolgate/policy"
)

// An ExportQuery selects records of the trail and the form in which they are exported.
type ExportQuery struct {
	Format       string    // jsonl, csv or ocsf
	Since, Until time.Time // zero = everything
	Kind         string    // "" = any, as for the members below
	Outcome      string
	Principal    string // subject
	Tool         string // exposed name, method or event; * stands for anything
	Ticket       string
}

const (
	verifyPath = "/v1/audit/verify"
	verifyKind = "verify"
)

var (
	exportForms  = map[string]string{"jsonl": "application/jsonl", "ocsf": "application/jsonl", "csv": "text/csv"}
	mayNotExport = page.Problem{Status: http.StatusForbidden, Code: "NOT_EXPORTER", Detail: "the policy does not let you export the audit trail", Hint: "see data.exports of the policy"}
)

// trail are the pages about the audit trail.
type trail struct {
	*people.Site
	approvals tickets.Approvals
	lines     AuditTail
	verifier  func(ctx context.Context, report func(Progress)) (notary.Verified, error)  // Options.Verify
	records   func(ctx context.Context, q ExportQuery) (iter.Seq2[[]byte, error], error) // Options.Export
	anchors   func() (all []notary.AnchorState, unsigned error)                          // Options.Anchors
	jobs      *jobs
}

// Routes are the routes and pages that verify and export the trail.
func (t *trail) Routes(g *people.Guard) page.Routes {
	tail := page.Routes{"/v1/audit/tail": {http.MethodGet: g.As(t.tail)}}
	if t.verifier == nil || t.records == nil || t.anchors == nil {
		return tail
	}
	all := page.Routes{
		auditPath:                          {http.MethodGet: g.Visit(people.Shows(t.page))},
		auditPath + "/export":              {http.MethodPost: g.Submit(t.submitExport)},
		verificationsPath:                  {http.MethodPost: g.Submit(people.Leads(t.submitVerify))},
		verificationsPath + "/{id}":        {http.MethodGet: g.Visit(people.Shows(t.verificationPage))},
		verificationsPath + "/{id}/cancel": {http.MethodPost: g.Submit(t.jobs.cancels(verifyKind, verificationsPath))},
		"/v1/audit/anchors":                {http.MethodGet: g.As(page.NoQuery(page.Answers(t.evidenceFor)))},
		"/v1/audit/export":                 {http.MethodGet: g.As(t.export)},
	}
	maps.Copy(all, tail)
	maps.Copy(all, t.jobs.routes(g, verifyPath, verifyKind, t.beginVerifying))
	return all
}

// An evidence is where the trail of this process is witnessed.
type evidence struct {
	Anchors []notary.AnchorState `json:"anchors"`
	// Unsigned says why the last checkpoint was not signed or kept, "" = it was.
	Unsigned string `json:"unsigned,omitempty"`
}

// evidenceFor returns where the trail is witnessed, for those who may read it whole.
func (t *trail) evidenceFor(r *http.Request, p policy.Principal) (e evidence, err error) {
	if t.TrailRight(r.Context(), p) != policy.TrailAll {
		return e, people.NotAuditor
	}
	all, unsigned := t.anchors()
	e.Anchors = append([]notary.AnchorState{}, all...)
	for i := range e.Anchors {
		e.Anchors[i].Fault = page.Visible(e.Anchors[i].Fault)
	}
	if unsigned != nil {
		e.Unsigned = page.Visible(unsigned.Error())
	}
	return e, nil
}

// beginVerifying begins to verify the trail, for those who may read it whole.
func (t *trail) beginVerifying(w http.ResponseWriter, r *http.Request, p policy.Principal) error {
	job, err := t.verify(r, p)
	return begun(w, verifyPath, job, err)
}

// verify begins to verify the trail for p. It is recorded first.
func (t *trail) verify(r *http.Request, p policy.Principal) (Job, error) {
	act := people.Act{Name: audit.EventVerified, Principal: p}
	if t.TrailRight(r.Context(), p) != policy.TrailAll {
		return Job{}, t.RecordRefusal(r, act, people.NotAuditor)
	}
	if err := t.Record(r, act); err != nil {
		return Job{}, err
	}
	return t.jobs.start(verifyKind, personOf(p), func(ctx context.Context, report func(Progress)) (any, error) {
		return t.verifier(ctx, report)
	})
}

// export writes records of the trail.
func (t *trail) export(w http.ResponseWriter, r *http.Request, p policy.Principal) error {
	q := ExportQuery{Format: "jsonl"}
	if err := page.ReadQuery(r.URL, map[string]func(string) error{
		"format": page.String(&q.Format), "since": t.Moment(&q.Since), "until": t.Moment(&q.Until), "kind": page.String(&q.Kind), "outcome": page.String(&q.Outcome),
		"principal": page.String(&q.Principal), "tool": page.String(&q.Tool), "ticket": page.String(&q.Ticket),
	}); err != nil {
		return err
	}
	return t.exportTo(w, r, p, q)
}

// exportTo writes records of the trail, for those with the right. It is recorded first.
func (t *trail) exportTo(w http.ResponseWriter, r *http.Request, p policy.Principal, q ExportQuery) error {
	kind, known := exportForms[q.Format]
	if !known {
		return page.BadRequest("there is no such format", "jsonl, csv and ocsf are known")
	}
	ctx, stop := t.UntilClosed(r.Context())
	defer stop()
	lines, err := t.records(ctx, q)
	if err != nil {
		return page.BadRequest(page.Visible(err.Error()), "")
	}
	act := people.Act{Name: audit.EventExported, Principal: p}
	if !t.May(r.Context(), p, policy.Exports) {
		return t.RecordRefusal(r, act, mayNotExport)
	}
	if err := t.Record(r, act); err != nil {
		return err
	}
	page.Stream(t.Log, w, kind, lines, false)
	return nil
}

const (
	tailLines = 10    // when the query does not say
	maxLines  = 10000 // in one request
)

// tail streams the records that p may read, one per line.
func (t *trail) tail(w http.ResponseWriter, r *http.Request, p policy.Principal) error {
	n, follow := tailLines, false
	if err := page.ReadQuery(r.URL, map[string]func(string) error{
		"n":      page.Number(&n, 0, maxLines, fmt.Sprintf("n is a number from 0 to %d", maxLines)),
		"follow": page.Bool(&follow, "follow is 1 or 0"),
	}); err != nil {
		return err
	}
	ctx, stop := t.UntilClosed(r.Context())
	defer stop()
	lines, err := t.readable(ctx, r, p, n, follow)
	if err != nil {
		return err
	}
	page.Stream(t.Log, w, page.JSONLines, lines, follow)
	return nil
}

// readable returns the lines of the trail that p may read: the last n of them, and with
// follow those written later. Reading is recorded first.
func (t *trail) readable(ctx context.Context, r *http.Request, p policy.Principal, n int, follow bool) (iter.Seq2[[]byte, error], error) {
	right := t.TrailRight(ctx, p)
	act := people.Act{Name: audit.EventTrailRead, Principal: p}
	if right == policy.TrailNone {
		return nil, t.RecordRefusal(r, act, people.NotAuditor)
	}
	if err := t.Record(r, act); err != nil {
		return nil, err
	}
	if right == policy.TrailAll {
		return t.lines(ctx, n, follow), nil
	}
	return t.decidable(ctx, p, n, follow), nil
}

// decidable yields the records of the calls that p may decide on: the last n among the
// last maxLines of all, and with follow later ones.
func (t *trail) decidable(ctx context.Context, p policy.Principal, n int, follow bool) iter.Seq2[[]byte, error] {
	may := mayDecide(ctx, t.approvals, p)
	mine := func(line []byte) bool {
		var record struct{ Ticket string }
		return json.Unmarshal(line, &record) == nil && record.Ticket != "" && may(record.Ticket)
	}
	return func(yield func([]byte, error) bool) {
		var last [][]byte
		for line, err := range t.lines(ctx, maxLines, false) {
			if err != nil {
				yield(nil, err)
				return
			}
			if mine(line) {
				last = append(last, slices.Clone(line))
			}
		}
		for _, line := range last[max(0, len(last)-n):] {
			if !yield(line, nil) {
				return
			}
		}
		if !follow {
			return
		}
		for line, err := range t.lines(ctx, 0, true) {
			if (err != nil || mine(line)) && !yield(line, err) {
				return
			}
		}
	}
}

const (
	auditPath         = "/console/audit"
	verificationsPath = auditPath + "/verify"
)

type auditPageData struct {
	page.Shell
	evidence
	Jobs   []Job
	Export bool // the visitor may export
}

// page is where the trail is verified and exported, for those who read it whole.
func (t *trail) page(r *http.Request, v people.Visitor) (view templ.Component, err error) {
	d := auditPageData{Jobs: t.jobs.list(verifyKind, personOf(v.Principal)), Export: t.May(r.Context(), v.Principal, policy.Exports)}
	if d.evidence, err = t.evidenceFor(r, v.Principal); err != nil {
		return nil, err
	}
	d.Shell, err = t.Shell(r.Context(), v, "Audit", auditPath, "")
	return auditView(d), err
}

// submitVerify begins to verify the trail.
func (t *trail) submitVerify(r *http.Request, v people.Visitor) (string, error) {
	job, err := t.verify(r, v.Principal)
	return verificationsPath + "/" + job.ID, err
}

type verificationPage struct {
	page.Shell
	Job
	Found *notary.Verified // nil = it is not known yet
}

// verificationPage shows how far a verification is, or what it came to.
func (t *trail) verificationPage(r *http.Request, v people.Visitor) (view templ.Component, err error) {
	var d verificationPage
	if d.Job, err = t.jobs.find(verifyKind, r.PathValue("id"), personOf(v.Principal), false); err != nil {
		return nil, err
	}
	if d.Shell, err = t.Shell(r.Context(), v, "Verification", auditPath, ""); err != nil {
		return nil, err
	}
	d.Refresh = d.State == JobRunning
	if found, ok := d.Result.(notary.Verified); ok {
		d.Found = &found
	}
	return verificationView(d), nil
}

// submitExport answers with the records that the form selects.
func (t *trail) submitExport(w http.ResponseWriter, r *http.Request, v people.Visitor) error {
	q := ExportQuery{Format: r.PostForm.Get("format"), Kind: r.PostForm.Get("kind"), Outcome: r.PostForm.Get("outcome"),
		Principal: r.PostForm.Get("principal"), Tool: r.PostForm.Get("tool"), Ticket: r.PostForm.Get("ticket")}
	if since := r.PostForm.Get("since"); since != "" {
		if err := t.Moment(&q.Since)(since); err != nil {
			return err
		}
	}
	w.Header().Set("Content-Disposition", `attachment; filename="toolgate-trail.`+map[bool]string{true: "csv", false: "jsonl"}[q.Format == "csv"]+`"`)
	return t.exportTo(w, r, v.Principal, q)
}
