package rego

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/open-policy-agent/opa/v1/ast"

	"github.com/toolgate/toolgate/policy"
)

// decodeDecision reads what a policy answered. Whatever is not a well formed
// decision is an error, unknown members included: a misspelt obligation must
// not become none.
func decodeDecision(v ast.Value) (policy.Decision, error) {
	var d policy.Decision
	err := decisionMembers.read(&d, v, "decision")
	if err == nil {
		err = checkDecision(&d)
	}
	if err != nil {
		return policy.Decision{}, err
	}
	return d, nil
}

// obligations are the members of a decision that not every effect has.
var obligations = []string{"approval", "limit", "redact"}

// members reads the members of an object into a T, each by its name.
type members[T any] map[string]func(to *T, v ast.Value) error

// read reads v into to. A member that is not in m is an error: a misspelt obligation
// must not become none.
func (m members[T]) read(to *T, v ast.Value, what string) error {
	return eachMember(v, what, func(name string, v ast.Value) error { return m.readMember(to, name, v) })
}

func (m members[T]) readMember(to *T, name string, v ast.Value) error {
	if read := m[name]; read != nil {
		return read(to, v)
	}
	return errors.New("is not known")
}

// into returns the reader of a member that is the field of a T.
func into[T, V any](field func(*T) *V, read func(ast.Value) (V, error)) func(*T, ast.Value) error {
	return func(to *T, v ast.Value) (err error) {
		*field(to), err = read(v)
		return err
	}
}

var (
	decisionMembers = members[policy.Decision]{
		"effect":   into(func(d *policy.Decision) *policy.Effect { return &d.Effect }, text[policy.Effect]),
		"rule":     into(func(d *policy.Decision) *string { return &d.Rule }, text[string]),
		"reason":   into(func(d *policy.Decision) *string { return &d.Reason }, text[string]),
		"remedy":   into(func(d *policy.Decision) *string { return &d.Remedy }, text[string]),
		"approval": into(func(d *policy.Decision) **policy.Approval { return &d.Approval }, decodeApproval),
		"limit":    into(func(d *policy.Decision) **policy.Limit { return &d.Limit }, decodeLimit),
		"redact":   into(func(d *policy.Decision) *[]string { return &d.Redact }, texts),
	}
	approvalMembers = members[policy.Approval]{
		"roles":              into(func(a *policy.Approval) *[]string { return &a.Roles }, roleNames),
		"quorum":             decodeQuorum,
		"ttl":                into(func(a *policy.Approval) *time.Duration { return &a.TTL }, duration),
		"hold":               into(func(a *policy.Approval) **time.Duration { return &a.Hold }, patience),
		"execute_on_approve": into(func(a *policy.Approval) *bool { return &a.ExecuteOnApprove }, boolean),
	}
	limitMembers = members[policy.Limit]{
		"rate":  into(func(l *policy.Limit) *string { return &l.Rate }, rate),
		"burst": into(func(l *policy.Limit) *int { return &l.Burst }, count),
		"key":   into(func(l *policy.Limit) *string { return &l.Key }, text[string]),
	}
)

// checkDecision checks what only shows in the whole decision.
func checkDecision(d *policy.Decision) error {
	switch d.Effect {
	case policy.Hold:
		if d.Approval == nil || len(d.Approval.Roles) == 0 {
			return errors.New("decision: hold names no role that may approve")
		}
	case policy.Allow:
		if d.Approval != nil {
			return errors.New("decision: allow with an approval (hint: effect hold)")
		}
	case policy.Deny:
		d.Approval, d.Limit, d.Redact = nil, nil, nil
	default:
		return fmt.Errorf("decision: effect %q is none of allow, deny, hold", d.Effect)
	}
	if d.Limit != nil && d.Limit.Key == "" {
		d.Limit.Key = d.Rule
	}
	for _, p := range d.Redact {
		if !isPointer(p) {
			return fmt.Errorf("decision: redact %q is not a JSON Pointer", p)
		}
	}
	return nil
}

func decodeApproval(v ast.Value) (*policy.Approval, error) {
	a := new(policy.Approval)
	err := approvalMembers.read(a, v, "approval")
	if err == nil && a.Each != nil {
		each := slices.Sorted(maps.Keys(a.Each))
		if roles := slices.Sorted(slices.Values(a.Roles)); a.Roles != nil && !slices.Equal(slices.Compact(roles), each) {
			err = errors.New("approval: roles and quorum name other roles (hint: leave out roles)")
		}
		a.Roles = each
	}
	return a, err
}

// decodeQuorum reads a number of approvals, or an object with one for each role:
// these roles may then approve, and the quorum is the sum.
func decodeQuorum(a *policy.Approval, v ast.Value) (err error) {
	if _, ok := v.(ast.Object); !ok {
		a.Quorum, err = count(v)
		return err
	}
	a.Each = make(map[string]int)
	return eachMember(v, "by role", func(role string, v ast.Value) error {
		n, err := count(v)
		if err == nil && role == "" {
			err = errors.New("a role has no name")
		}
		a.Each[role] = n
		a.Quorum += n
		return err
	})
}

func decodeLimit(v ast.Value) (*policy.Limit, error) {
	l := new(policy.Limit)
	err := limitMembers.read(l, v, "limit")
	if err == nil && l.Rate == "" {
		err = errors.New("limit: rate is missing")
	}
	return l, err
}

// eachMember calls f for every member of an object and says where f failed.
func eachMember(v ast.Value, what string, f func(name string, v ast.Value) error) error {
	o, ok := v.(ast.Object)
	if !ok {
		return fmt.Errorf("%s is %s, not an object", what, ast.ValueName(v))
	}
	return o.Iter(func(k, v *ast.Term) error {
		name, ok := k.Value.(ast.String)
		if !ok {
			return fmt.Errorf("%s: member %v is not named by a string", what, k)
		}
		if err := f(string(name), v.Value); err != nil {
			return fmt.Errorf("%s: %s: %w", what, string(name), err)
		}
		return nil
	})
}

func text[T ~string](v ast.Value) (T, error) {
	s, ok := v.(ast.String)
	if !ok {
		return "", fmt.Errorf("is %s, not a string", ast.ValueName(v))
	}
	return T(s), nil
}

// texts reads an array or a set of strings.
func texts(v ast.Value) (out []string, err error) {
	err = eachElement(v, "a list", func(t *ast.Term) error {
		s, err := text[string](t.Value)
		out = append(out, s)
		return err
	})
	return out, err
}

func roleNames(v ast.Value) ([]string, error) {
	out, err := texts(v)
	if err == nil && slices.Contains(out, "") {
		err = errors.New("has an empty string, not a name")
	}
	return out, err
}

// eachElement calls f for every element of an array or a set.
func eachElement(v ast.Value, what string, f func(*ast.Term) error) error {
	switch v := v.(type) {
	case *ast.Array:
		return v.Iter(f)
	case ast.Set:
		return v.Iter(f)
	}
	return fmt.Errorf("is %s, not %s", ast.ValueName(v), what)
}

// count reads a whole number from 1 that fits everywhere.
func count(v ast.Value) (int, error) {
	n, ok := v.(ast.Number)
	if !ok {
		return 0, fmt.Errorf("is %s, not a number", ast.ValueName(v))
	}
	i, ok := n.Int()
	if !ok || i < 1 || i > 1<<30 {
		return 0, fmt.Errorf("is %v, not a whole number from 1", n)
	}
	return i, nil
}

func boolean(v ast.Value) (bool, error) {
	b, ok := v.(ast.Boolean)
	if !ok {
		return false, fmt.Errorf("is %s, not true or false", ast.ValueName(v))
	}
	return bool(b), nil
}

func duration(v ast.Value) (time.Duration, error) {
	s, err := text[string](v)
	if err != nil {
		return 0, err
	}
	d, err := time.ParseDuration(s)
	if err != nil || d <= 0 {
		return 0, fmt.Errorf("is %q, not a duration above zero (hint: 15m)", s)
	}
	return d, nil
}

// patience reads a duration that may be 0.
func patience(v ast.Value) (*time.Duration, error) {
	s, err := text[string](v)
	if err != nil {
		return nil, err
	}
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 {
		return nil, fmt.Errorf("is %q, not a duration of at least 0 (hint: 45s)", s)
	}
	return &d, nil
}

func rate(v ast.Value) (string, error) {
	s, err := text[string](v)
	if _, _, ok := policy.ParseRate(s); err == nil && !ok {
		err = errors.New("is not count/duration (hint: 60/1m)")
	}
	return s, err
}

// isPointer reports whether s is a JSON Pointer (RFC 6901).
func isPointer(s string) bool { return jsontext.Pointer(s).IsValid() }
