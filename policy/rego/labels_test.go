package rego_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestLabels holds that a decision has the labels of the rule that made it,
// whether it comes from memory, from a tree or from a whole evaluation.
func TestLabels(t *testing.T) {
	e := load(t, "p.rego", module(`
# METADATA
# title: known
# labels: {rule: known, team: a}
decision := {"effect": "allow", "rule": "known"} if input.tool.exposed == "known"

# METADATA
# labels: {rule: small, team: b, weight: 3}
decision := {"effect": "allow", "rule": "small"} if { input.tool.exposed != "known"; input.arguments.x == 1 }

# METADATA
# labels: {team: c, level: high}
decision := {"effect": "deny", "rule": "twice"} if { input.tool.exposed != "known"; input.arguments.x == 2 }

# METADATA
# labels: {team: c, level: low}
decision := {"effect": "deny", "rule": "twice", "reason": "again"} if { input.tool.exposed != "known"; input.arguments.x == 3 }

decision := {"effect": "deny", "rule": "bare"} if { input.tool.exposed != "known"; input.arguments.x == 4 }
`))
	for _, c := range []struct {
		tool, arguments string
		want            map[string]string
	}{
		{"known", `{}`, map[string]string{"rule": "known", "team": "a"}},
		{"t", `{"x":1}`, map[string]string{"rule": "small", "team": "b"}},
		{"t", `{"x":2}`, map[string]string{"team": "c"}},
		{"t", `{"x":3}`, map[string]string{"team": "c"}},
		{"t", `{"x":4}`, nil},
		{"t", `{"x":5}`, nil},
	} {
		in := input("r", c.tool, c.arguments)
		got, err := e.Decide(t.Context(), in)
		if diff := cmp.Diff(c.want, got.Labels); diff != "" || err != nil {
			t.Errorf("%s %s: %v (-want +got):\n%s", c.tool, c.arguments, err, diff)
		}
		full, _ := e.DecideFully(t.Context(), in)
		if diff := cmp.Diff(full, got); diff != "" {
			t.Errorf("%s %s (-full +got):\n%s", c.tool, c.arguments, diff)
		}
	}
}
