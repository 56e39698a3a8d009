// Package judgement reads and writes policy judgements in the audit trail: the input
// that a policy judged and the decision that it made. A record that Decode has read
// can be judged again, by the same policy or by another one, and Compare says
// whether the decisions agree.
//
//	again, err := judgement.Again(ctx, engine, record)
//	if err == nil && again.Difference != judgement.Same {
//		log.Printf("%s: was %v, now %v", record.DecisionID, again.Was.Effect, again.Now.Effect)
//	}
//
// Every function is safe for concurrent use.
package judgement

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/policy"
)

// Judge is a policy. Implementations must be safe for concurrent use.
type Judge interface {
	Decide(ctx context.Context, in *policy.Input) (policy.Decision, error)
	Meters(t policy.Tool) []policy.Meter
	Revision() string
}

// independentJudge is a Judge that knows whether its verdict on in is the same whatever
// values the named members of its arguments have; no name stands for all arguments. It may
// answer false when it does not know.
type independentJudge interface {
	Independent(ctx context.Context, in *policy.Input, members ...string) bool
}

// Masked stands in a record for each value that audit.arguments masks.
const Masked = "[masked]"

// The reasons why a record cannot be judged again.
var (
	// ErrNotAsked is returned for records of events that no policy judged.
	ErrNotAsked = errors.New("the policy was not asked")
	// ErrElsewhere is returned for tickets, and for the outcome of a call whose
	// decision record holds the input.
	ErrElsewhere = errors.New("the decision record of the call holds the input")
	// ErrExcerpt is returned for a refused call whose arguments are recorded as their
	// digest, length and an excerpt.
	ErrExcerpt = errors.New("the record holds an excerpt of the arguments: they were large, and the call was refused")
	// ErrKept is returned for a call whose arguments are recorded masked or as a keyed
	// digest (audit.arguments).
	ErrKept = errors.New("the record does not hold the arguments: audit.arguments masks them or keeps their digest")
	// ErrNoInput is returned for a decision without its input.
	ErrNoInput = errors.New("the record does not hold what the policy judged: an older toolgate wrote it, or the verdict is toolgate's own")
	// ErrUncounted is returned for a call that a meter of the policy applies to and
	// that was not metered at the time.
	ErrUncounted = errors.New("the policy counts what was not counted then")
)

// RuleFailed is the rule of a denial by a policy that failed to judge.
const RuleFailed = "policy_error"

// Retrial is one recorded decision, judged again.
type Retrial struct {
	Input      *policy.Input
	Was        *policy.Decision // as recorded
	Now        policy.Decision
	Failed     error // with which the judge denies; nil = it judged
	Difference Difference
}

// Silent reports whether err, from Again or Decode, is about a record that holds no
// judgement of its own, so that nothing is lost when it is skipped.
func Silent(err error) bool { return errors.Is(err, ErrNotAsked) || errors.Is(err, ErrElsewhere) }

// Again judges the recorded decision of r by j. The error says why r cannot be
// judged again: an error of Decode, ErrUncounted, or that of ctx. A record with masked
// arguments is judged again only by a Judge whose verdict depends on none of them, and a
// record with the digest of the arguments where it does not depend on the arguments.
func Again(ctx context.Context, j Judge, r *audit.Record) (*Retrial, error) {
	in, was, err := Decode(r)
	if c, ok := j.(independentJudge); ok && errors.Is(err, ErrKept) && c.Independent(ctx, in, maskedMembers(r.Arguments)...) {
		err = nil
	}
	if err == nil {
		err = checkMeters(j.Meters(in.Tool), in)
	}
	if err != nil {
		return nil, err
	}
	now, failed := j.Decide(ctx, in)
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return &Retrial{Input: in, Was: was, Now: now, Failed: failed, Difference: Compare(was, &now)}, nil
}

// maskedMembers returns the names of the members of arguments that hold a masked value.
func maskedMembers(arguments json.RawMessage) (names []string) {
	var members map[string]json.RawMessage
	_ = json.Unmarshal(arguments, &members) // other values have no members
	for name, value := range members {
		if bytes.Contains(value, []byte(Masked)) {
			names = append(names, name)
		}
	}
	return names
}

// checkMeters returns ErrUncounted with the name of the first meter that in has no
// reading of. The record does not say what a meter of that name counted then.
func checkMeters(meters []policy.Meter, in *policy.Input) error {
	if !in.Calls() {
		return nil
	}
	for _, m := range meters {
		if _, ok := in.Usage[m.Name]; !ok {
			return fmt.Errorf("%w: data.usage[%q].%s", ErrUncounted, in.Tool.Exposed, m.Name)
		}
	}
	return nil
}

// Difference names the part in which two decisions differ; "" means that they agree.
type Difference string

// The differences, the most serious first. Decisions that differ in several parts
// have the first of them.
const (
	Same          Difference = ""
	ByEffect      Difference = "effect"      // allow, hold or deny
	ByRule        Difference = "rule"        // the same effect by another rule
	ByObligations Difference = "obligations" // approval, limit or redaction
)

// Compare returns the part in which now differs from was. Reasons, remedies, labels
// and revisions are not compared, nor is the order of roles and pointers.
func Compare(was, now *policy.Decision) Difference {
	switch {
	case was.Effect != now.Effect:
		return ByEffect
	case was.Rule != now.Rule:
		return ByRule
	case !sameApproval(was.Approval, now.Approval), !sameLimit(was.Limit, now.Limit), !sameTexts(was.Redact, now.Redact), !sameTexts(was.Scopes, now.Scopes):
		return ByObligations
	}
	return Same
}

// Equal reports whether a and b agree in everything that Compare compares, and in
// reason and remedy.
func Equal(a, b *policy.Decision) bool {
	return Compare(a, b) == Same && a.Reason == b.Reason && a.Remedy == b.Remedy
}

func sameApproval(a, b *policy.Approval) bool {
	if a == nil || b == nil {
		return a == b
	}
	return sameTexts(a.Roles, b.Roles) && max(1, a.Quorum) == max(1, b.Quorum) && maps.Equal(a.Each, b.Each) && a.TTL == b.TTL &&
		(a.Hold == nil) == (b.Hold == nil) && (a.Hold == nil || *a.Hold == *b.Hold) && a.ExecuteOnApprove == b.ExecuteOnApprove
}

func sameLimit(a, b *policy.Limit) bool {
	if a == nil || b == nil {
		return a == b
	}
	return *a == *b
}

func sameTexts(a, b []string) bool {
	return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}

// Verdict is the part of a decision by which reports group changes.
type Verdict struct {
	Effect policy.Effect `json:"effect"`
	Rule   string        `json:"rule"` // "" = the policy named none
}

// String gives effect and rule as people read them.
func (v Verdict) String() string {
	if v.Rule == "" {
		return string(v.Effect)
	}
	return string(v.Effect) + " (" + v.Rule + ")"
}

// VerdictOf returns the verdict of d.
func VerdictOf(d *policy.Decision) Verdict { return Verdict{d.Effect, d.Rule} }

// Compare orders verdicts by effect, the strictest last, then by rule.
func (v Verdict) Compare(o Verdict) int {
	return cmp.Or(v.Effect.Compare(o.Effect), cmp.Compare(v.Rule, o.Rule))
}

// PrincipalName names a principal in a report: tenant/subject, or the subject alone.
func PrincipalName(p *policy.Principal) string {
	if p.Tenant == "" {
		return p.Subject
	}
	return p.Tenant + "/" + p.Subject
}

// SubjectName names the thing that was judged: a tool as agents call it, or a method
// and its server.
func SubjectName(in *policy.Input) string {
	server := ""
	switch {
	case in.Calls():
		return in.Tool.Exposed
	case in.Resource != nil:
		server = in.Resource.Server
	case in.Prompt != nil:
		server = in.Prompt.Server
	case in.Server != nil:
		server = in.Server.Name
	}
	return strings.TrimSpace(in.Action + " " + server)
}
