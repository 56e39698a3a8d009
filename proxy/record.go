package proxy

import (
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
	rec := newRecord(r)
	c.addJudged(rec)
	rec.Stage, c.recorded = c.stage, true
	if err := c.gate.opts.Recorder.Decision(context.WithoutCancel(ctx), rec); err != nil {
		c.gate.opts.Log.Error("writing the decision record", "decision", c.decisionID, "error", err)
		return c.fail(signal.CodeAuditUnavailable, "the decision could not be recorded, so the call was not made").
			because(signal.ProcessingError("the audit log took no record", auditLog, nil, nil))
	}
	return nil
}

// auditLog is the origin of errors about records.
var auditLog = signal.ModuleRef{Tier: 0, Module: "audit", Function: "decision"}

// newRecord returns a record of what is known of r, whatever became of it.
func newRecord(r request) *audit.Record {
	c := r.base()
	rec := &audit.Record{
		CallID: c.signalID, DecisionID: c.decisionID, TraceID: c.traceID, ParentID: c.parentID,
		Principal: audit.Principal{Subject: c.principal.Subject, Roles: c.principal.Roles, Client: c.principal.Client, Tenant: c.principal.Tenant},
		Transport: c.in.Transport, Era: c.in.Era, Route: c.in.Route, Session: c.in.Session, RequestID: c.id,
		Exposed: c.name, ArgumentsSHA256: strings.TrimPrefix(c.digest, "sha256:"),
		Policy: audit.Policy{
			Effect: string(c.decision.Effect), Rule: c.decision.Rule,
			Reason: c.decision.Reason, Remedy: c.decision.Remedy, Revision: c.decision.Revision,
			Obligations: judgement.EncodeObligations(&c.decision),
		},
	}
	r.describe(rec)
	return rec
}

func (t *toolCall) describe(r *audit.Record) {
	r.Ticket, r.Task = t.hold.ticket.ID, t.task
	if t.tool != nil {
		r.Server, r.Tool, r.Exposed, r.Fingerprint = t.tool.Server, t.tool.Name, t.tool.Exposed, t.tool.Fingerprint
	}
}

func (r *relayed) describe(rec *audit.Record) {
	rec.Ticket = r.ticket.ID
	if r.method.action != "" {
		rec.Method, rec.Server = r.in.Message.Method, r.server
	}
	if r.task != nil && r.task.tool != nil {
		rec.Tool, rec.Exposed, rec.Fingerprint = r.task.tool.Name, r.task.tool.Exposed, r.task.tool.Fingerprint
	}
}

// addJudged adds what the policy judged, so that it can be judged again.
func (c *call) addJudged(r *audit.Record) {
	r.Arguments = c.body
	if c.asked != nil {
		r.Input = judgement.EncodeInput(c.asked, r)
	}
}

// outcomeRecord returns what the request came to. It carries the decision, so
// that a refusal can be explained, and what was judged only when no decision
// record has it.
func outcomeRecord(req request, f *Failure, now time.Time) *audit.Record {
	c, r := req.base(), newRecord(req)
	if !c.recorded {
		c.addJudged(r)
	}
	r.Stage = c.stage
	r.DurationMS = float64(now.Sub(c.start).Microseconds()) / 1000
	r.Outcome = c.outcome(f)
	if f != nil {
		r.Code, r.Error = f.Kernel.Code, f.Reason
		return r
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

func (c *call) outcome(f *Failure) audit.Outcome {
	if f != nil {
		if o, ok := outcomes[f.Kernel.Code]; ok {
			return o
		}
		return audit.Failed
	}
	if e := c.reply.Kernel.Error; e != nil && e.Code == signal.CodeApprovalPending {
		return audit.Held
	}
	return audit.Allowed
}
