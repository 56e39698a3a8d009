package proxy

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strings"
	"time"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/replay"
	"github.com/toolgate/toolgate/signal"
)

// baseRecord is what a passage knows of itself, whatever became of it.
func (p *passage) baseRecord() *audit.Record {
	r := &audit.Record{
		CallID: p.callID, DecisionID: p.decisionID, TraceID: p.traceID, ParentID: p.parentID,
		Principal: recorded(p.principal),
		Transport: p.in.Transport, Era: p.in.Era, Route: p.in.Route, Session: p.in.Session, RequestID: p.id,
		Exposed: p.name, ArgumentsSHA256: strings.TrimPrefix(p.digest, "sha256:"),
		Ticket: p.ticket.ID, Task: p.wanted,
		Policy: audit.Policy{
			Effect: string(p.decision.Effect), Rule: p.decision.Rule,
			Reason: p.decision.Reason, Remedy: p.decision.Remedy, Revision: p.decision.Revision,
			Obligations: replay.Obligations(&p.decision),
		},
	}
	if p.method.action != "" {
		r.Method, r.Server = p.in.Message.Method, p.server
	}
	if p.task != nil && p.task.tool != nil {
		r.Tool, r.Exposed, r.Fingerprint = p.task.tool.Name, p.task.tool.Exposed, p.task.tool.Fingerprint
	}
	if p.tool != nil {
		r.Server, r.Tool, r.Exposed, r.Fingerprint = p.tool.Server, p.tool.Name, p.tool.Exposed, p.tool.Fingerprint
	}
	return r
}

// recorded is p as the trail has it.
func recorded(p policy.Principal) audit.Principal {
	return audit.Principal{Subject: p.Subject, Roles: p.Roles, Client: p.Client, Tenant: p.Tenant}
}

// judged is what goes to the upstream if it goes: the arguments of a tool call,
// the params of any other request.
func (p *passage) judged() json.RawMessage {
	if p.method.action != "" {
		return p.params
	}
	return p.args
}

// decisionRecord is what must be kept before the call is made.
func (p *passage) decisionRecord() *audit.Record {
	r := p.baseRecord()
	p.recordJudged(r)
	r.Stage = p.stage
	p.recorded = true
	return r
}

// recordJudged adds what the policy judged, so that it can be judged again.
func (p *passage) recordJudged(r *audit.Record) {
	r.Arguments = p.judged()
	if p.asked != nil {
		r.Input = replay.Rest(p.asked, r)
	}
}

// outcomeRecord is what the call came to. It carries the decision, so that a
// refusal can be explained; what was judged stands in it only when no decision
// record holds it.
func (p *passage) outcomeRecord(f *Failure, now time.Time) *audit.Record {
	r := p.baseRecord()
	if !p.recorded {
		p.recordJudged(r)
	}
	r.Stage = p.stage
	r.DurationMS = float64(now.Sub(p.now).Microseconds()) / 1000
	r.Outcome = p.word(f)
	if f != nil {
		r.Code, r.Error = f.Kernel.Code, f.Reason
		return r
	}
	r.Stage = "close"
	r.Replayed = p.replayed
	r.ResultBytes = len(p.reply.Result)
	sum := sha256.Sum256(p.reply.Result)
	r.ResultSHA256 = hex.EncodeToString(sum[:])
	return r
}

// outcomes gives the word for each refusal; a code without a row is failed.
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

func (p *passage) word(f *Failure) audit.Outcome {
	if f != nil {
		if o, ok := outcomes[f.Kernel.Code]; ok {
			return o
		}
		return audit.Failed
	}
	if p.decision.Effect == policy.Hold && p.reply.Kernel.Status == signal.StatusSkip {
		return audit.Held
	}
	return audit.Allowed
}

// unrecorded is what a caller hears when the outcome could not be recorded. A
// call that may have been made must not look like one to try again.
func (p *passage) unrecorded(f *Failure) *Failure {
	if f != nil && f.Kernel.Code == signal.CodeAuditUnavailable {
		return f
	}
	if !p.sent {
		return p.fail(signal.CodeAuditUnavailable, "the outcome could not be recorded; the call was not made")
	}
	out := p.fail(signal.CodeAuditUnavailable, "the call may have been made, and its outcome could not be recorded; the result is withheld")
	out.Kernel.RetryEligible = false
	return out.remedy("find out whether the call took effect before making it again")
}
