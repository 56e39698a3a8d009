package rego_test

import (
	"strings"
	"testing"

	"github.com/toolgate/toolgate/policy"
)

func TestTrailRight(t *testing.T) {
	for name, c := range map[string]struct {
		rules string
		roles []string
		want  policy.TrailRight
		fails bool
	}{
		"no rule, auditor":           {"", []string{"x", "auditor"}, policy.TrailAll, false},
		"no rule, approver":          {"", []string{"approver"}, policy.TrailDecides, false},
		"no rule, agent":             {"", []string{"agent"}, policy.TrailNone, false},
		"a rule names another role":  {`trail := "all" if "boss" in input.principal.roles`, []string{"boss"}, policy.TrailAll, false},
		"a rule takes the constants": {`trail := "all" if "boss" in input.principal.roles`, []string{"auditor"}, policy.TrailNone, false},
		"another value":              {`trail := "some"`, []string{"auditor"}, policy.TrailNone, true},
		"a failing rule":             {`trail := "all" if to_number(input.principal.subject) > 1`, []string{"auditor"}, policy.TrailNone, true},
	} {
		t.Run(name, func(t *testing.T) {
			e := load(t, "p.rego", module("decision := {\"effect\": \"deny\"}\n"+c.rules))
			got, err := e.TrailRight(t.Context(), policy.Principal{Subject: "p", Roles: c.roles})
			if got != c.want || (err != nil) != c.fails {
				t.Errorf("got %q, %v; want %q, error %v", got, err, c.want, c.fails)
			}
		})
	}
	e := load(t, "p.rego", module(`trail := "all"`+"\n"+`decision := {"effect": "allow"}`))
	if right, err := e.TrailRight(t.Context(), policy.Principal{}); right != policy.TrailNone || err == nil {
		t.Errorf("nobody reads the trail: %q, %v", right, err)
	}
}

// TestRightsOfPeople: each right has a rule of its own, and a holder where no rule is.
func TestRightsOfPeople(t *testing.T) {
	holders := map[policy.Right]string{policy.Operates: "operator", policy.Stops: "operator", policy.Definitions: "operator", policy.Connections: "operator",
		policy.ReadsArguments: "auditor", policy.Exports: "auditor"}
	for _, right := range policy.Rights {
		for name, c := range map[string]struct {
			rules       string
			roles       []string
			want, fails bool
		}{
			"no rule, its holder":       {"", []string{"x", holders[right]}, true, false},
			"no rule, approver":         {"", []string{"approver"}, false, false},
			"no rule, agent":            {"", []string{"agent"}, false, false},
			"a rule names another role": {`RIGHT if "boss" in input.principal.roles`, []string{"boss"}, true, false},
			"a rule takes the constant": {`RIGHT if "boss" in input.principal.roles`, []string{holders[right]}, false, false},
			"no boolean":                {`RIGHT := "all"`, []string{holders[right]}, false, true},
			"a failing rule":            {`RIGHT if to_number(input.principal.subject) > 1`, []string{holders[right]}, false, true},
		} {
			t.Run(string(right)+", "+name, func(t *testing.T) {
				e := load(t, "p.rego", module("decision := {\"effect\": \"deny\"}\n"+strings.ReplaceAll(c.rules, "RIGHT", string(right))))
				got, err := e.May(t.Context(), policy.Principal{Subject: "p", Roles: c.roles}, right)
				if got != c.want || (err != nil) != c.fails {
					t.Errorf("got %v, %v; want %v, error %v", got, err, c.want, c.fails)
				}
				if may, err := e.May(t.Context(), policy.Principal{}, right); may || err == nil {
					t.Errorf("nobody has the right: %v, %v", may, err)
				}
			})
		}
	}
	e := load(t, "p.rego", module("decision := {\"effect\": \"deny\"}\n"+`operates if "boss" in input.principal.roles`+"\n"+`trail := "all" if "clerk" in input.principal.roles`))
	for _, right := range policy.Rights {
		role := map[string]string{"operator": "boss", "auditor": "clerk"}[holders[right]]
		if may, err := e.May(t.Context(), policy.Principal{Subject: "p", Roles: []string{role}}, right); !may || err != nil {
			t.Errorf("%s has no %s: %v", role, right, err)
		}
	}
}
