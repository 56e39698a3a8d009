package console

import (
	"context"
	"maps"
	"net/http"
	"time"

	"github.com/toolgate/toolgate/audit/notary"
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
	mayNotExport = problem{Status: http.StatusForbidden, Code: "NOT_EXPORTER", Detail: "the policy does not let you export the audit trail", Hint: "see data.exports of the policy"}
)

// trailRoutes are the routes and pages that verify and export the trail.
func (c *Console) trailRoutes() map[string]map[string]handler {
	routes := map[string]map[string]handler{
		auditPath:                          {http.MethodGet: c.visit(shows(c.auditPage))},
		auditPath + "/export":              {http.MethodPost: c.submit(c.submitExport)},
		verificationsPath:                  {http.MethodPost: c.submit(leads(c.submitVerify))},
		verificationsPath + "/{id}":        {http.MethodGet: c.visit(shows(c.verificationPage))},
		verificationsPath + "/{id}/cancel": {http.MethodPost: c.submit(c.cancelJob(verifyKind, verificationsPath))},
		"/v1/audit/anchors":                {http.MethodGet: c.as(answers(c.showAnchors))},
		"/v1/audit/export":                 {http.MethodGet: c.as(c.export)},
	}
	maps.Copy(routes, c.jobRoutes(verifyPath, verifyKind, c.beginVerifying))
	return routes
}

// An evidence is where the trail of this process is witnessed.
type evidence struct {
	Anchors []notary.AnchorState `json:"anchors"`
	// Unsigned says why the last checkpoint was not signed or kept, "" = it was.
	Unsigned string `json:"unsigned,omitempty"`
}

// evidenceFor returns where the trail is witnessed, for those who may read it whole.
func (c *Console) evidenceFor(ctx context.Context, p policy.Principal) (e evidence, err error) {
	if c.trailRight(ctx, p) != policy.TrailAll {
		return e, notAuditor
	}
	all, unsigned := c.opts.Anchors()
	e.Anchors = append([]notary.AnchorState{}, all...)
	for i := range e.Anchors {
		e.Anchors[i].Fault = Visible(e.Anchors[i].Fault)
	}
	if unsigned != nil {
		e.Unsigned = Visible(unsigned.Error())
	}
	return e, nil
}

func (c *Console) showAnchors(r *http.Request, p policy.Principal) (any, error) {
	if err := readQuery(r.URL, nil); err != nil {
		return nil, err
	}
	return c.evidenceFor(r.Context(), p)
}

// beginVerifying begins to verify the trail, for those who may read it whole.
func (c *Console) beginVerifying(w http.ResponseWriter, r *http.Request, p policy.Principal) error {
	job, err := c.verify(r, p)
	if err != nil {
		return err
	}
	return begun(w, verifyPath, job)
}

// verify begins to verify the trail for p. It is recorded first.
func (c *Console) verify(r *http.Request, p policy.Principal) (Job, error) {
	act := Act{Name: ActTrailVerified, Principal: p}
	if c.trailRight(r.Context(), p) != policy.TrailAll {
		return Job{}, c.recordRefusal(r, act, notAuditor)
	}
	if err := c.record(r, act); err != nil {
		return Job{}, err
	}
	return c.jobs.start(verifyKind, personOf(p), func(ctx context.Context, report func(Progress)) (any, error) {
		return c.opts.Verify(ctx, report)
	})
}

// export writes records of the trail.
func (c *Console) export(w http.ResponseWriter, r *http.Request, p policy.Principal) error {
	q := ExportQuery{Format: "jsonl"}
	if err := readQuery(r.URL, map[string]func(string) error{
		"format": anyText(&q.Format), "since": c.moment(&q.Since), "until": c.moment(&q.Until), "kind": anyText(&q.Kind), "outcome": anyText(&q.Outcome),
		"principal": anyText(&q.Principal), "tool": anyText(&q.Tool), "ticket": anyText(&q.Ticket),
	}); err != nil {
		return err
	}
	return c.exportTo(w, r, p, q)
}

// exportTo writes records of the trail, for those with the right. It is recorded first.
func (c *Console) exportTo(w http.ResponseWriter, r *http.Request, p policy.Principal, q ExportQuery) error {
	kind, known := exportForms[q.Format]
	if !known {
		return badRequest("there is no such format", "jsonl, csv and ocsf are known")
	}
	ctx, stop := c.untilClosed(r.Context())
	defer stop()
	lines, err := c.opts.Export(ctx, q)
	if err != nil {
		return badRequest(Visible(err.Error()), "")
	}
	act := Act{Name: ActTrailExported, Principal: p}
	if !c.may(r.Context(), p, policy.Exports) {
		return c.recordRefusal(r, act, mayNotExport)
	}
	if err := c.record(r, act); err != nil {
		return err
	}
	c.stream(w, kind, lines, false)
	return nil
}
