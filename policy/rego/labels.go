package rego

import (
	"maps"
	"slices"

	"github.com/open-policy-agent/opa/v1/ast"
)

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
					had, ok := out[id]
					if !ok {
						had = labels
					}
					out[id] = agreed(had, labels)
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
		return written(r.Head.Key)
	}
	return written(r.Head.Value)
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

func agreed(a, b map[string]string) map[string]string {
	out := maps.Clone(a)
	maps.DeleteFunc(out, func(name, v string) bool { return b[name] != v })
	return out
}
