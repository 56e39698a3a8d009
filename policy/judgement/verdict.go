package judgement

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/toolgate/toolgate/policy"
)

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
	case !sameApproval(was.Approval, now.Approval), !sameLimit(was.Limit, now.Limit), !sameTexts(was.Redact, now.Redact):
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
	return cmp.Or(cmp.Compare(weightOf(v.Effect), weightOf(o.Effect)), cmp.Compare(v.Rule, o.Rule))
}

func weightOf(e policy.Effect) int {
	return slices.Index([]policy.Effect{policy.Allow, policy.Hold, policy.Deny}, e)
}

// CompareEffects orders effects, the strictest last.
func CompareEffects(a, b policy.Effect) int { return cmp.Compare(weightOf(a), weightOf(b)) }

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
