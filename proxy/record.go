package proxy

import (
	"context"
	"strings"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/internal/text"
	"github.com/toolgate/toolgate/policy/judgement"
	"github.com/toolgate/toolgate/signal"
)

// record writes the decision to the audit trail. No record, no call: what was
// taken for it, a grant included, is given back when it is closed.
func (c *call) record(ctx context.Context) *Failure {
	c.recorded = true
	if err := c.gate.opts.Recorder.Write(audit.KindDecision, c.fill(&c.entry, true)); err != nil {
		c.gate.opts.Log.Error("writing the decision record", "decision", c.decisionID, "error", err)
		return c.fail(signal.CodeAuditUnavailable, "the decision could not be recorded, so the call was not made").remedy(callLater).
			because(signal.ProcessingError("the audit log took no record", auditLog, nil, nil))
	}
	return nil
}

// auditLog is the origin of errors about records.
var auditLog = signal.ModuleRef{Tier: 0, Module: "audit", Function: "decision"}

// fill makes r a record of what is known of c, whatever its outcome; with
// judged also of what the policy judged, so that it can be judged again.
func (c *call) fill(r *audit.Record, judged bool) *audit.Record {
	who := &c.principal
	if !who.Valid() {
		who = c.caller()
	}
	*r = audit.Record{
		CallID: c.signalID, DecisionID: c.decisionID, TraceID: c.traceID, ParentID: c.parentID,
		Principal: audit.Principal{Subject: who.Subject, Person: who.Person, Roles: who.Roles, Client: who.Client, Tenant: who.Tenant},
		Transport: c.in.Transport, Era: c.in.Era, Route: c.in.Route, Session: c.in.Session, RequestID: c.id, Tags: c.in.Tags,
		Method: c.method, Server: c.server, Exposed: c.name, About: c.body,
		Accepted: c.in.Message != nil && c.in.Message.Vouches(c.body), ArgumentsSHA256: strings.TrimPrefix(c.digest, "sha256:"),
		Ticket: c.ticket.ID, Task: c.task, Stage: c.source.Function,
		Policy: audit.Policy{
			Effect: string(c.decision.Effect), Rule: c.decision.Rule,
			Reason: c.decision.Reason, Remedy: c.decision.Remedy, Revision: c.decision.Revision,
			Obligations: c.obligations,
		},
	}
	if c.tool != nil {
		r.Tool, r.Exposed, r.Fingerprint = c.tool.Name, c.tool.Exposed, c.tool.Fingerprint
	}
	if c.credential != nil {
		r.Credential = (*audit.Credential)(runsAs(c.credential))
	}
	if judged {
		r.Arguments = c.body
		if c.asked != nil {
			r.Input = judgement.EncodeInput(c.asked, r)
		}
	}
	return r
}

// The words for refusals: that of its code, else that of its category, else failed.
var (
	outcomes = map[string]audit.Outcome{
		signal.CodeToolNotFound: audit.Unknown, signal.CodeNotFound: audit.Unknown,
		signal.CodeSessionLost: audit.Denied, signal.CodeCancelled: audit.Cancelled,
	}
	categories = map[signal.Category]audit.Outcome{signal.Input: audit.Invalid, signal.Policy: audit.Denied, signal.Resource: audit.Limited}
)

// Bounds of what a refused call leaves in the trail, in bytes: so that callers cannot
// fill the disk with what they may not do.
const (
	wholeArguments = 4 << 10 // arguments up to this size are recorded whole
	excerptBytes   = 1 << 10 // of larger ones
	recordedText   = 512     // of a name, an id or a reason
)

// shorten bounds the record of a refused call. Large arguments are recorded as their
// digest, their length and an excerpt, and cannot be judged again.
func shorten(r *audit.Record) {
	for _, field := range []*string{&r.Exposed, &r.Method, &r.RequestID, &r.Error} {
		*field = text.Clip(*field, recordedText, "")
	}
	if len(r.Task) > wholeArguments {
		r.Task = nil
	}
	if n := len(r.Arguments); n > wholeArguments {
		r.ArgumentsBytes, r.ArgumentsExcerpt = n, text.Clip(string(r.Arguments[:excerptBytes+1]), excerptBytes, "")
		r.Arguments, r.Input = nil, nil
	}
}
