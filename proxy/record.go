package proxy

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"time"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/policy/judgement"
	"github.com/toolgate/toolgate/signal"
)

// record writes the decision to the audit trail. No record, no call: what was
// taken for it, a grant included, is given back when it is closed.
func record[R request](r R, ctx context.Context) *Failure {
	c := r.base()
	c.recorded = true
	if err := c.gate.opts.Recorder.Decision(context.WithoutCancel(ctx), c.newRecord(true)); err != nil {
		c.gate.opts.Log.Error("writing the decision record", "decision", c.decisionID, "error", err)
		return c.fail(signal.CodeAuditUnavailable, "the decision could not be recorded, so the call was not made").
			because(signal.ProcessingError("the audit log took no record", auditLog, nil, nil))
	}
	return nil
}

// auditLog is the origin of errors about records.
var auditLog = signal.ModuleRef{Tier: 0, Module: "audit", Function: "decision"}

// newRecord returns a record of what is known of c, whatever became of it; with
// judged also what the policy judged, so that it can be judged again.
func (c *call) newRecord(judged bool) *audit.Record {
	r := &audit.Record{
		CallID: c.signalID, DecisionID: c.decisionID, TraceID: c.traceID, ParentID: c.parentID,
		Principal: audit.Principal{Subject: c.principal.Subject, Roles: c.principal.Roles, Client: c.principal.Client, Tenant: c.principal.Tenant},
		Transport: c.in.Transport, Era: c.in.Era, Route: c.in.Route, Session: c.in.Session, RequestID: c.id,
		Method: c.method, Server: c.server, Exposed: c.name, ArgumentsSHA256: strings.TrimPrefix(c.digest, "sha256:"),
		Ticket: c.ticket.ID, Task: c.task, Stage: c.stage,
		Policy: audit.Policy{
			Effect: string(c.decision.Effect), Rule: c.decision.Rule,
			Reason: c.decision.Reason, Remedy: c.decision.Remedy, Revision: c.decision.Revision,
			Obligations: judgement.EncodeObligations(&c.decision),
		},
	}
	if c.tool != nil {
		r.Tool, r.Exposed, r.Fingerprint = c.tool.Name, c.tool.Exposed, c.tool.Fingerprint
	}
	if judged {
		r.Arguments = c.body
		if c.asked != nil {
			r.Input = judgement.EncodeInput(c.asked, r)
		}
	}
	return r
}

// outcomeRecord returns what the request came to. It carries the decision, so
// that a refusal can be explained, and what was judged only when no decision
// record has it.
func (c *call) outcomeRecord(f *Failure, now time.Time) *audit.Record {
	r := c.newRecord(!c.recorded)
	r.DurationMS = float64(now.Sub(c.start).Microseconds()) / 1000
	r.Outcome = audit.Allowed
	if f != nil {
		r.Outcome, r.Code, r.Error = cmp.Or(outcomes[f.Kernel.Code], audit.Failed), f.Kernel.Code, f.Reason
		return r
	}
	if e := c.reply.Kernel.Error; e != nil && e.Code == signal.CodeApprovalPending {
		r.Outcome = audit.Held
	}
	r.Stage = "close"
	r.Replayed = c.replayed
	r.ResultBytes = len(c.reply.Result)
	sum := sha256.Sum256(c.reply.Result)
	r.ResultSHA256 = hex.EncodeToString(sum[:])
	return r
}

// outcomes maps each refusal to its word; a code without a row is failed.
var outcomes = map[string]audit.Outcome{
	signal.CodeEnvelopeParse:    audit.Invalid,
	signal.CodeEnvelopeInvalid:  audit.Invalid,
	signal.CodeEnvelopeMethod:   audit.Invalid,
	signal.CodeEnvelopeTooLarge: audit.Invalid,
	signal.CodeSchemaMismatch:   audit.Invalid,
	signal.CodeHeaderMismatch:   audit.Invalid,
	signal.CodeEnvelopeParams:   audit.Invalid,
	signal.CodeEnvelopeVersion:  audit.Invalid,
	signal.CodeToolNotFound:     audit.Unknown,
	signal.CodeNotFound:         audit.Unknown,
	signal.CodeUnauthenticated:  audit.Denied,
	signal.CodeSessionLost:      audit.Denied,
	signal.CodePolicyDenied:     audit.Denied,
	signal.CodeToolQuarantined:  audit.Denied,
	signal.CodeApprovalDenied:   audit.Denied,
	signal.CodeApprovalExpired:  audit.Denied,
	signal.CodeRateLimited:      audit.Limited,
	signal.CodeOverloaded:       audit.Limited,
	signal.CodeCancelled:        audit.Cancelled,
}
