package console

import (
	"net/http"

	"github.com/a-h/templ"

	"github.com/toolgate/toolgate/audit/notary"
	"github.com/toolgate/toolgate/console/page"
	"github.com/toolgate/toolgate/console/people"
	"github.com/toolgate/toolgate/policy"
)

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
	if d.evidence, err = t.evidenceFor(r.Context(), v.Principal); err != nil {
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
