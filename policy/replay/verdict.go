package replay

import (
	"cmp"
	"slices"

	"github.com/toolgate/toolgate/policy"
)

// Difference says in what two verdicts differ; "" = in nothing that counts.
type Difference string

// The differences, the heaviest first: what differs in several is named by the
// first of them.
const (
	Same          Difference = ""
	ByEffect      Difference = "effect"      // allow, hold or deny
	ByRule        Difference = "rule"        // the same for another reason
	ByObligations Difference = "obligations" // approval, limit or what is redacted
)

// Compare says in what now differs from was. Words for people and labels do not
// count, and neither does the order of roles and pointers.
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

func sameApproval(a, b *policy.Approval) bool {
	if a == nil || b == nil {
		return a == b
	}
	return sameTexts(a.Roles, b.Roles) && max(1, a.Quorum) == max(1, b.Quorum) && a.TTL == b.TTL &&
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

// Verdict is the part of a decision by which changes are told.
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

// VerdictOf is the verdict of d.
func VerdictOf(d *policy.Decision) Verdict { return Verdict{d.Effect, d.Rule} }

// compare orders verdicts: by effect, the strictest last, then by rule.
func (v Verdict) compare(o Verdict) int {
	return cmp.Or(cmp.Compare(weight(v.Effect), weight(o.Effect)), cmp.Compare(v.Rule, o.Rule))
}

func weight(e policy.Effect) int {
	return slices.Index([]policy.Effect{policy.Allow, policy.Hold, policy.Deny}, e)
}
