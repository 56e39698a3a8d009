package rego_test

import (
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
	e := load(t, "p.rego", module(`trail := "all"`+"\n"+`operates := true`+"\n"+`decision := {"effect": "allow"}`))
	if may, err := e.Operates(t.Context(), policy.Principal{}); may || err == nil {
		t.Errorf("nobody operates servers: %v, %v", may, err)
	}
	if right, err := e.TrailRight(t.Context(), policy.Principal{}); right != policy.TrailNone || err == nil {
		t.Errorf("nobody reads the trail: %q, %v", right, err)
	}
}

func TestOperates(t *testing.T) {
	for name, c := range map[string]struct {
		rules       string
		roles       []string
		want, fails bool
	}{
		"no rule, operator":         {"", []string{"x", "operator"}, true, false},
		"no rule, approver":         {"", []string{"approver"}, false, false},
		"a rule names another role": {`operates if "boss" in input.principal.roles`, []string{"boss"}, true, false},
		"a rule takes the constant": {`operates if "boss" in input.principal.roles`, []string{"operator"}, false, false},
		"no boolean":                {`operates := "all"`, []string{"operator"}, false, true},
		"a failing rule":            {`operates if to_number(input.principal.subject) > 1`, []string{"operator"}, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			e := load(t, "p.rego", module("decision := {\"effect\": \"deny\"}\n"+c.rules))
			got, err := e.Operates(t.Context(), policy.Principal{Subject: "p", Roles: c.roles})
			if got != c.want || (err != nil) != c.fails {
				t.Errorf("got %v, %v; want %v, error %v", got, err, c.want, c.fails)
			}
		})
	}
}

func TestStops(t *testing.T) {
	for name, c := range map[string]struct {
		rules       string
		roles       []string
		want, fails bool
	}{
		"no rule, operator":             {"", []string{"x", "operator"}, true, false},
		"no rule, approver":             {"", []string{"approver"}, false, false},
		"no rule, who operates":         {`operates if "boss" in input.principal.roles`, []string{"boss"}, true, false},
		"a rule names another role":     {`stops if "guard" in input.principal.roles`, []string{"guard"}, true, false},
		"a rule takes operators' right": {`stops if "guard" in input.principal.roles`, []string{"operator"}, false, false},
		"no boolean":                    {`stops := "all"`, []string{"operator"}, false, true},
		"a failing rule":                {`stops if to_number(input.principal.subject) > 1`, []string{"operator"}, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			e := load(t, "p.rego", module("decision := {\"effect\": \"deny\"}\n"+c.rules))
			got, err := e.Stops(t.Context(), policy.Principal{Subject: "p", Roles: c.roles})
			if got != c.want || (err != nil) != c.fails {
				t.Errorf("got %v, %v; want %v, error %v", got, err, c.want, c.fails)
			}
			if may, err := e.Stops(t.Context(), policy.Principal{}); may || err == nil {
				t.Errorf("nobody stops calls: %v, %v", may, err)
			}
		})
	}
}
