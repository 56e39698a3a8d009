package rego

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"

	"github.com/toolgate/toolgate/internal/text"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/rego/builtin"
)

// Level says how much a finding weighs.
type Level string

// The levels. A policy with an error does not serve.
const (
	LevelError   Level = "error"
	LevelWarning Level = "warning" // it serves, and may do something else than its author thinks
	LevelNote    Level = "note"    // it serves, and could be written better
)

// Finding is one thing that is wrong with a policy, or could be better.
type Finding struct {
	Level   Level  `json:"level"`
	Code    string `json:"code"`           // what kind it is, such as rego_type_error or untyped-comparison
	File    string `json:"file,omitempty"` // below the policy's root; "" = the policy as a whole
	Row     int    `json:"row,omitempty"`  // from 1; 0 = the whole file
	Message string `json:"message"`
	Hint    string `json:"hint,omitempty"` // the mend, where one is known
}

// Where is the place, file:row, as far as there is one.
func (f Finding) Where() string {
	if f.Row == 0 {
		return f.File
	}
	return fmt.Sprintf("%s:%d", f.File, f.Row)
}

// String formats the finding for people: its place, what it is, and on a
// second line the mend.
func (f Finding) String() string {
	text := f.Message
	if at := f.Where(); at != "" {
		text = at + ": " + text
	}
	if f.Hint != "" {
		text += "\nhint: " + f.Hint
	}
	return text
}

// at is a finding at a place of Rego.
func at(l *ast.Location, level Level, code, message, hint string) Finding {
	f := Finding{Level: level, Code: code, Message: message, Hint: hint}
	if l != nil {
		f.File, f.Row = strings.TrimPrefix(l.File, "/"), l.Row
	}
	return f
}

// sortFindings puts findings in the order of their places.
func sortFindings(list []Finding) {
	slices.SortStableFunc(list, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Row, b.Row), cmp.Compare(a.Message, b.Message))
	})
}

// Faults is why a policy was not loaded: every error that was found, each with
// its place. Load returns it wrapped.
type Faults []Finding

// Error is every fault, each as its String.
func (f Faults) Error() string {
	lines := make([]string, len(f))
	for i := range f {
		lines[i] = f[i].String()
	}
	return strings.Join(lines, "\n")
}

// errorOf returns f as the error of doing something, nil when f is empty.
func (f Faults) errorOf(doing string) error {
	if len(f) == 0 {
		return nil
	}
	sortFindings(f)
	return fmt.Errorf("%s:\n%w", doing, f)
}

// faults gives OPA's errors as ours; any other error as it is.
func faults(err error) error {
	var list ast.Errors
	var one *ast.Error
	switch {
	case errors.As(err, &list) && len(list) > 0:
	case errors.As(err, &one):
		list = ast.Errors{one}
	default:
		return err
	}
	out := make(Faults, len(list))
	for i, e := range list {
		message, hint := explainError(e)
		out[i] = at(e.Location, LevelError, e.Code, message, hint)
	}
	sortFindings(out)
	return out
}

// explainError gives the message of e, and how to mend it where OPA knows what
// it would have taken.
func explainError(e *ast.Error) (message, hint string) {
	switch d := e.Details.(type) {
	case *ast.RefErrInvalidDetail:
		if len(d.OneOf) == 0 {
			break
		}
		var names []string
		for _, v := range d.OneOf {
			if s, ok := v.(ast.String); ok {
				names = append(names, string(s))
			}
		}
		have, _ := d.Ref[d.Pos].Value.(ast.String)
		return e.Message, meant(string(have), names)
	case nil:
		name, ok := strings.CutPrefix(e.Message, "undefined function ")
		if why := builtin.Refusals()[name]; ok && why != "" { // OPA knows it
			return e.Message, "toolgate refuses " + name + ": " + why
		}
		return e.Message, ""
	}
	return strings.Join(append([]string{e.Message}, e.Details.Lines()...), "\n\t"), ""
}

// meant is the hint for a name that is not known, where names are.
func meant(have string, names []string) string {
	hint := "there is " + strings.Join(names, ", ")
	if near := text.Nearest(have, names); near != "" {
		hint = "did you mean " + near + "? " + hint
	}
	return hint
}

// Codes of what lint finds.
const (
	codeLanguage   = "old-language"
	codeLabel      = "rule-label"
	codeShape      = "decision-shape"
	codeComparison = "untyped-comparison"
	codeData       = "unread-data"
	codeNever      = "never-fires"
	codeUnused     = "unused-rule"
	codePackage    = "unused-package"
	codeVisible    = "visible-reads-call"
	codeNoVisible  = "no-visible"
	codeKeys       = "computed-keys"
)

var (
	decisionRef = ast.MustParseRef(decisionPath)
	visibleRef  = ast.MustParseRef(visiblePath)
	trailRef    = ast.MustParseRef(trailPath)
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
	effect, set := effectAt(ref)
	return effect, ref.Equal(decisionRef) || set && r.Head.RuleKind() == ast.MultiValue
}

// effectAt returns the effect of the set at ref; false when there is none.
func effectAt(ref ast.Ref) (policy.Effect, bool) {
	for _, s := range verdictSets {
		if ref.Equal(s.ref) {
			return s.effect, true
		}
	}
	return "", false
}

// lintVerdicts looks at a rule that decides, and at each of its else branches.
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

// MembersOf returns the members that an object has in the text of a rule, nil for any other term.
func MembersOf(t *ast.Term) map[string]*ast.Term {
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
		say(what+" has no member "+name, meant(name, members))
	}
	term, said := head["effect"], effect
	if effect == "" && term != nil {
		text, _ := term.Value.(ast.String)
		said = policy.Effect(text)
	}
	switch {
	case effect == "" && term == nil:
		say("the decision has no effect", `"effect": "allow", "hold" or "deny"`)
	case effect == "" && !ast.IsConstant(term.Value):
	case said != policy.Allow && said != policy.Hold && said != policy.Deny:
		say(fmt.Sprintf("%v is no effect", term), `"effect": "allow", "hold" or "deny"`)
	case said == policy.Hold && head["approval"] == nil:
		say("a hold says who may approve", `add "approval": {"roles": ["…"]}`)
	case effect == "" && said == policy.Allow && head["approval"] != nil:
		say("an allow has no approval", `"effect": "hold", if a person is to decide`)
	}
	return found
}
