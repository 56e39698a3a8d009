package rego

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
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
var obligations = []string{"approval", "limit", "redact", "scopes"}

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
		"effect":   into(func(d *policy.Decision) *policy.Effect { return &d.Effect }, stringOf[policy.Effect]),
		"rule":     into(func(d *policy.Decision) *string { return &d.Rule }, stringOf[string]),
		"reason":   into(func(d *policy.Decision) *string { return &d.Reason }, stringOf[string]),
		"remedy":   into(func(d *policy.Decision) *string { return &d.Remedy }, stringOf[string]),
		"approval": into(func(d *policy.Decision) **policy.Approval { return &d.Approval }, decodeApproval),
		"limit":    into(func(d *policy.Decision) **policy.Limit { return &d.Limit }, decodeLimit),
		"redact":   into(func(d *policy.Decision) *[]string { return &d.Redact }, texts),
		"scopes":   into(func(d *policy.Decision) *[]string { return &d.Scopes }, scopeNames),
	}
	approvalMembers = members[policy.Approval]{
		"roles":              into(func(a *policy.Approval) *[]string { return &a.Roles }, roleNames),
		"quorum":             decodeQuorum,
		"ttl":                into(func(a *policy.Approval) *time.Duration { return &a.TTL }, duration),
		"hold":               into(func(a *policy.Approval) **time.Duration { return &a.Hold }, waiting),
		"execute_on_approve": into(func(a *policy.Approval) *bool { return &a.ExecuteOnApprove }, boolean),
	}
	limitMembers = members[policy.Limit]{
		"rate":  into(func(l *policy.Limit) *string { return &l.Rate }, rate),
		"burst": into(func(l *policy.Limit) *int { return &l.Burst }, count),
		"key":   into(func(l *policy.Limit) *string { return &l.Key }, stringOf[string]),
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
	if d.Scopes != nil && d.Effect != policy.Deny {
		return fmt.Errorf("decision: %s with scopes (hint: they say what a denied call needs)", d.Effect)
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

func stringOf[T ~string](v ast.Value) (T, error) {
	s, ok := v.(ast.String)
	if !ok {
		return "", fmt.Errorf("is %s, not a string", ast.ValueName(v))
	}
	return T(s), nil
}

// texts reads an array or a set of strings.
func texts(v ast.Value) (out []string, err error) {
	err = eachElement(v, "a list", func(t *ast.Term) error {
		s, err := stringOf[string](t.Value)
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

// scopeNames reads scopes of OAuth (RFC 6749 section 3.3), sorted, none twice.
func scopeNames(v ast.Value) ([]string, error) {
	out, err := texts(v)
	for _, scope := range out {
		if scope == "" || strings.ContainsFunc(scope, func(r rune) bool { return r <= ' ' || r >= 0x7f || r == '"' || r == '\\' }) {
			return nil, fmt.Errorf("has %q, which is no scope", scope)
		}
	}
	if err == nil && len(out) == 0 {
		err = errors.New("is empty")
	}
	slices.Sort(out)
	return slices.Compact(out), err
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
	s, err := stringOf[string](v)
	if err != nil {
		return 0, err
	}
	d, err := time.ParseDuration(s)
	if err != nil || d <= 0 {
		return 0, fmt.Errorf("is %q, not a duration above zero (hint: 15m)", s)
	}
	return d, nil
}

// waiting reads a duration that may be 0.
func waiting(v ast.Value) (*time.Duration, error) {
	s, err := stringOf[string](v)
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
	s, err := stringOf[string](v)
	if _, _, ok := policy.ParseRate(s); err == nil && !ok {
		err = errors.New("is not count/duration (hint: 60/1m)")
	}
	return s, err
}

// isPointer reports whether s is a JSON Pointer (RFC 6901).
func isPointer(s string) bool { return jsontext.Pointer(s).IsValid() }

// verdictSets are the sets in which a policy may answer instead of with one
// decision, the strongest effect first. The position of a set in the list is its
// position in the answer of the query.
var verdictSets = [...]struct {
	effect policy.Effect
	ref    ast.Ref
	other  []string // members of an element besides rule, reason and remedy
}{
	{policy.Deny, ast.MustParseRef("data.toolgate.deny"), []string{"scopes"}},
	{policy.Hold, ast.MustParseRef("data.toolgate.hold"), []string{"approval", "limit", "redact"}},
	{policy.Allow, ast.MustParseRef("data.toolgate.allow"), []string{"limit", "redact"}},
}

// verdicts are what was read of each of verdictSets; nil = nothing was.
type verdicts [len(verdictSets)][]policy.Decision

// decodeSets reads the answer of a policy that answers with sets: deny takes
// precedence over hold, and hold over allow. Nothing in any set is undefined.
// Every element must be well formed, whether or not it decides.
func (f *form) decodeSets(v ast.Value, known *verdicts) (policy.Decision, error) {
	alone := f.alone(known)
	sets, ok := v.(*ast.Array)
	if alone < 0 && (!ok || sets.Len() != len(verdictSets)) {
		return policy.Decision{}, fmt.Errorf("verdicts are %s, not sets", ast.ValueName(v))
	}
	var found verdicts
	for i := range verdictSets {
		if known != nil && known[i] != nil {
			for j := range known[i] {
				found[i] = append(found[i], cloneDecision(&known[i][j]))
			}
			continue
		}
		set := v
		switch {
		case alone < 0:
			set = sets.Elem(i).Value
		case alone != i:
			continue
		}
		var err error
		if found[i], err = decodeSet(set, i, f.order); err != nil {
			return policy.Decision{}, err
		}
	}
	denials, holds, allows := found[0], found[1], found[2]
	switch {
	case len(denials) > 0:
		return joinScopes(denials), nil
	case len(holds) > 0:
		d := holds[0]
		for _, h := range holds[1:] {
			if err := joinApprovals(d.Approval, h.Approval); err != nil {
				return d, fmt.Errorf("holds %q and %q: %w", d.Rule, h.Rule, err)
			}
		}
		return joinObligations(d, append(holds, allows...)), nil
	case len(allows) > 0:
		return joinObligations(allows[0], allows), nil
	}
	return policy.Decision{}, errUndefined
}

// joinScopes returns the first of denials with the scopes of all, or without scopes when one
// of them would deny a token with any scope.
func joinScopes(denials []policy.Decision) policy.Decision {
	first, all := denials[0], []string(nil)
	for _, d := range denials {
		if d.Scopes == nil {
			first.Scopes = nil
			return first
		}
		all = append(all, d.Scopes...)
	}
	slices.Sort(all)
	first.Scopes = slices.Compact(all)
	return first
}

// decodeSet reads the elements of one of verdictSets, in the order of their rules in the
// source: the first one names the decision. Ids that the source does not name
// come last, by id; elements of one rule are ordered by reason and remedy.
func decodeSet(v ast.Value, which int, order map[string]int) ([]policy.Decision, error) {
	s := &verdictSets[which]
	set, ok := v.(ast.Set)
	if !ok {
		return nil, fmt.Errorf("%v: is %s, not a set", s.ref, ast.ValueName(v))
	}
	out := make([]policy.Decision, set.Len())
	for i, t := range set.Slice() {
		d := &out[i]
		d.Effect = s.effect
		err := eachMember(t.Value, "element", func(name string, v ast.Value) error {
			if name == "effect" || slices.Contains(obligations, name) && !slices.Contains(s.other, name) {
				return fmt.Errorf("has no place in an element of %s", s.effect)
			}
			return decisionMembers.readMember(d, name, v)
		})
		if err == nil {
			err = checkDecision(d)
		}
		if err != nil {
			return nil, fmt.Errorf("%v: %w", s.ref, err)
		}
	}
	position := func(rule string) int {
		if at, ok := order[rule]; ok {
			return at
		}
		return len(order)
	}
	slices.SortFunc(out, func(a, b policy.Decision) int {
		return cmp.Or(cmp.Compare(position(a.Rule), position(b.Rule)), cmp.Compare(a.Rule, b.Rule), cmp.Compare(a.Reason, b.Reason), cmp.Compare(a.Remedy, b.Remedy))
	})
	return out, nil
}

// joinApprovals makes a ask for everything that b asks for: the shorter times,
// a call that runs upon approval only if both want it, and everybody that either
// needs. That is the larger quorum of roles that may approve for both; where there
// is no such role, each side has to need approvals of certain roles.
func joinApprovals(a, b *policy.Approval) error {
	shared := slices.DeleteFunc(slices.Clone(a.Roles), func(role string) bool { return !slices.Contains(b.Roles, role) })
	if a.Each == nil && b.Each == nil && len(shared) > 0 {
		a.Roles, a.Quorum = shared, max(a.Quorum, b.Quorum)
	} else if err := joinQuorums(a, b); err != nil {
		return err
	}
	if a.TTL == 0 || b.TTL != 0 {
		a.TTL = min(cmp.Or(a.TTL, b.TTL), b.TTL)
	}
	if a.Hold == nil || b.Hold != nil && *b.Hold < *a.Hold {
		a.Hold = b.Hold
	}
	a.ExecuteOnApprove = a.ExecuteOnApprove && b.ExecuteOnApprove
	return nil
}

// joinQuorums sets a.Each to the larger of both quorums of each role, and a.Roles and
// a.Quorum to match. The error says that a quorum names no single role.
func joinQuorums(a, b *policy.Approval) error {
	each := map[string]int{}
	for _, one := range []*policy.Approval{a, b} {
		if one.Each == nil && len(one.Roles) > 1 {
			return errors.New("no role may approve both (hint: quorum: {role: number})")
		}
		for _, role := range one.Roles {
			n, named := one.Each[role]
			if !named {
				n = max(1, one.Quorum)
			}
			each[role] = max(each[role], n)
		}
	}
	a.Each, a.Roles, a.Quorum = each, slices.Sorted(maps.Keys(each)), 0
	for _, n := range each {
		a.Quorum += n
	}
	return nil
}

// joinObligations adds to d what any of list binds a call to: every value to
// redact, and the limit with the lowest sustained rate.
func joinObligations(d policy.Decision, list []policy.Decision) policy.Decision {
	for _, other := range list {
		d.Redact = append(slices.Clip(d.Redact), other.Redact...)
		a, b := other.Limit, d.Limit
		if a != nil && (b == nil || cmp.Or(cmp.Compare(perSecond(a), perSecond(b)), cmp.Compare(a.Burst, b.Burst), cmp.Compare(a.Rate, b.Rate), cmp.Compare(a.Key, b.Key)) < 0) {
			d.Limit = a
		}
	}
	slices.Sort(d.Redact)
	d.Redact = slices.Compact(d.Redact)
	return d
}

// perSecond is the sustained rate of a limit.
func perSecond(l *policy.Limit) float64 {
	n, per, ok := policy.ParseRate(l.Rate)
	if !ok {
		return 0
	}
	return float64(n) / (float64(per) / float64(time.Second))
}

// labelsOf are the labels in the METADATA of rules, by the id of the rule: the
// one that its labels or its decision say. Where several rules have one id, the
// labels count on which they agree.
func labelsOf(modules map[string]*ast.Module) map[string]map[string]string {
	out := make(map[string]map[string]string)
	for _, m := range modules {
		for _, top := range m.Rules {
			for r := top; r != nil; r = r.Else {
				labels := textLabels(r)
				for id := range idsOf(r, labels) {
					agreed := maps.Clone(labels)
					if had, ok := out[id]; ok {
						maps.DeleteFunc(agreed, func(name, v string) bool { return had[name] != v })
					}
					out[id] = agreed
				}
			}
		}
	}
	maps.DeleteFunc(out, func(_ string, labels map[string]string) bool { return len(labels) == 0 })
	return out
}

// orderOf gives each rule id its position in the source: files by name, then
// rules from top to bottom.
func orderOf(modules map[string]*ast.Module) map[string]int {
	order := make(map[string]int)
	for _, name := range slices.Sorted(maps.Keys(modules)) {
		for _, r := range modules[name].Rules {
			for _, id := range slices.Sorted(maps.Keys(idsOf(r, textLabels(r)))) {
				if _, known := order[id]; !known {
					order[id] = len(order)
				}
			}
		}
	}
	return order
}

// textLabels are the labels of r that are text.
func textLabels(r *ast.Rule) map[string]string {
	out := make(map[string]string)
	for _, a := range r.Annotations {
		for name, v := range a.Labels {
			if s, ok := v.(string); ok {
				out[name] = s
			}
		}
	}
	return out
}

// verdictOf gives the members of the verdict that r has written out: its value,
// or the element that it adds to a set.
func verdictOf(r *ast.Rule) map[string]*ast.Term {
	if r.Head.Value == nil {
		return MembersOf(r.Head.Key)
	}
	return MembersOf(r.Head.Value)
}

func idsOf(r *ast.Rule, labels map[string]string) map[string]bool {
	ids := make(map[string]bool)
	if id := labels["rule"]; id != "" {
		ids[id] = true
	}
	if t := verdictOf(r)["rule"]; t != nil {
		if id, ok := t.Value.(ast.String); ok {
			ids[string(id)] = true
		}
	}
	return ids
}
