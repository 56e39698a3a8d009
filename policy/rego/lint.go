package rego

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"

	"github.com/toolgate/toolgate/policy"
)

// Codes of what lint finds.
const (
	codeLanguage   = "old-language"
	codeLabel      = "rule-label"
	codeShape      = "decision-shape"
	codeComparison = "untyped-comparison"
	codeData       = "unread-data"
	codeNever      = "never-fires"
	codeUnused     = "unused-rule"
	codeVisible    = "visible-reads-call"
	codeNoVisible  = "no-visible"
	codeOperand    = "unbounded-builtin"
	codeKeys       = "keys-from-call"
)

var (
	decisionRef = ast.MustParseRef(decisionPath)
	visibleRef  = ast.MustParseRef(visiblePath)
)

// lint looks at the modules as they were written, and not at what they come to:
// it costs little and is done at every load.
func lint(modules map[string]*ast.Module) []Finding {
	var found []Finding
	for _, name := range slices.Sorted(maps.Keys(modules)) {
		m := modules[name]
		if m.RegoVersionSpan().Max() < ast.RegoV2 {
			found = append(found, at(m.Package.Location, LevelWarning, codeLanguage,
				"does not import rego.v2, so that a not about a missing argument is undefined instead of true", "add import rego.v2 after the package"))
		}
		for _, r := range m.Rules {
			if effect, ok := effectOfRule(r); ok {
				found = append(found, lintVerdicts(r, effect)...)
			}
		}
		found = append(found, lintComparisons(m)...)
	}
	sortFindings(found)
	return found
}

// effectOfRule is the effect of the set that r adds to, "" for a rule decision;
// false when r gives no verdict.
func effectOfRule(r *ast.Rule) (policy.Effect, bool) {
	ref := r.Ref().GroundPrefix()
	if ref.Equal(decisionRef) {
		return "", true
	}
	for _, s := range verdictSets {
		if ref.Equal(s.ref) && r.Head.RuleKind() == ast.MultiValue {
			return s.effect, true
		}
	}
	return "", false
}

// lintVerdicts looks at a rule that decides, and at every else of it.
func lintVerdicts(r *ast.Rule, effect policy.Effect) []Finding {
	var found []Finding
	if head := verdictOf(r); head != nil && r.Else == nil {
		found = append(found, lintLabel(r, head)...)
	}
	for e := r; e != nil; e = e.Else {
		if head := verdictOf(e); head != nil {
			found = append(found, lintShape(e.Head.Location, head, effect)...)
		}
	}
	return found
}

// written gives the members of an object that is written out; nil for any other
// term.
func written(t *ast.Term) map[string]*ast.Term {
	if t == nil {
		return nil
	}
	o, ok := t.Value.(ast.Object)
	if !ok {
		return nil
	}
	members := make(map[string]*ast.Term, o.Len())
	o.Foreach(func(k, v *ast.Term) {
		if name, ok := k.Value.(ast.String); ok {
			members[string(name)] = v
		}
	})
	return members
}

// lintLabel holds that a rule that decides can be named: in decisions, in the
// decision log, and by whoever explains.
func lintLabel(r *ast.Rule, head map[string]*ast.Term) []Finding {
	label := textLabels(r)["rule"]
	said := "its id"
	if id := head["rule"]; id != nil {
		if s, ok := id.Value.(ast.String); ok {
			said = string(s)
		}
	}
	switch {
	case label == "":
		return []Finding{at(r.Location, LevelNote, codeLabel, "a rule that decides has no METADATA with labels.rule",
			"above it: # METADATA, # title: …, # labels:, #   rule: "+said)}
	case said != "its id" && said != label:
		return []Finding{at(r.Location, LevelWarning, codeLabel, fmt.Sprintf("labels.rule is %q, and the decision says rule %q", label, said), "let both say the same")}
	}
	return nil
}

// membersOf are the members that a verdict may have: of a decision for "", else
// of an element of the set of that effect. decodeMember is the other half.
func membersOf(effect policy.Effect) []string {
	for _, s := range verdictSets {
		if s.effect == effect {
			return append([]string{"rule", "reason", "remedy"}, s.other...)
		}
	}
	return append([]string{"effect", "rule", "reason", "remedy"}, obligations...)
}

// lintShape finds verdicts that the engine refuses whenever they are given.
func lintShape(l *ast.Location, head map[string]*ast.Term, effect policy.Effect) []Finding {
	var found []Finding
	say := func(message, hint string) {
		found = append(found, at(l, LevelWarning, codeShape, message+", so that this rule denies with "+RuleError+" whenever it holds", hint))
	}
	members, what := membersOf(effect), "a decision"
	if effect != "" {
		what = "an element of " + string(effect)
	}
	for _, name := range slices.Sorted(maps.Keys(head)) {
		if slices.Contains(members, name) {
			continue
		}
		hint := "there is " + strings.Join(members, ", ")
		if near := nearest(name, members); near != "" {
			hint = "did you mean " + near + "? " + hint
		}
		say(what+" has no member "+name, hint)
	}
	switch {
	case effect == policy.Hold && head["approval"] == nil:
		say("a hold says who may approve", `add "approval": {"roles": ["…"]}`)
	case effect == "" && head["effect"] == nil:
		say("the decision has no effect", `"effect": "allow", "hold" or "deny"`)
	case effect == "" && ast.IsConstant(head["effect"].Value):
		lintEffect(head, say)
	}
	return found
}

// lintEffect looks at the effect of a decision, and at what it asks for.
func lintEffect(head map[string]*ast.Term, say func(message, hint string)) {
	effect := head["effect"]
	text, _ := effect.Value.(ast.String)
	approval := head["approval"] != nil
	switch e := policy.Effect(text); {
	case e != policy.Allow && e != policy.Hold && e != policy.Deny:
		say(fmt.Sprintf("%v is no effect", effect), `"effect": "allow", "hold" or "deny"`)
	case e == policy.Hold && !approval:
		say("a hold says who may approve", `add "approval": {"roles": ["…"]}`)
	case e == policy.Allow && approval:
		say("an allow has no approval", `"effect": "hold", if a person is to decide`)
	}
}
