package advice_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/advice"
	"github.com/toolgate/toolgate/console"
	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/limit"
	"github.com/toolgate/toolgate/policy/rego"
	"github.com/toolgate/toolgate/policy/workbench"
	"github.com/toolgate/toolgate/registry/config"
)

const rules = `package toolgate

import rego.v2

# METADATA
# title: Payers pay little
# labels:
#   rule: little
decision := {"effect": "allow", "rule": "little"} if {
	"payer" in input.principal.roles
	input.tool.name == "pay"
	input.arguments.amount <= 10
}

decision := {"effect": "hold", "rule": "much", "reason": "much", "approval": {"roles": ["boss"]}} if {
	"payer" in input.principal.roles
	input.tool.name == "pay"
	input.arguments.amount > 10
}
`

// desk gives advice about rules, which lie at path; the tools are of a server a.
func desk(t *testing.T, tools ...string) (d *advice.Desk, path string) {
	t.Helper()
	dir := t.TempDir()
	path = filepath.Join(dir, "p.rego")
	if err := os.WriteFile(path, []byte(rules), 0o600); err != nil {
		t.Fatal(err)
	}
	engine, err := rego.Load(t.Context(), rego.Options{Path: dir})
	if err != nil {
		t.Fatal(err)
	}
	db, err := store.Open(t.Context(), filepath.Join(t.TempDir(), "state.db"), store.Migrations())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	cfg := new(config.Config)
	cfg.Identity.Tokens = []config.Token{{Subject: "ann", Roles: []string{"payer"}}}
	return advice.New(advice.Options{
		Engine: func() *rego.Engine { return engine }, Source: func() rego.Options { return rego.Options{Path: dir} }, Config: func() *config.Config { return cfg },
		Tools: func() (all []policy.Tool) {
			for _, name := range tools {
				all = append(all, policy.Tool{Server: "a", Name: name, Exposed: name})
			}
			return all
		},
		Roles: func() []string { return []string{"payer", "reader"} }, Shadow: func() string { return "" }, Served: func() []console.ServedPolicy { return nil }, Usage: limit.NewUsage(db, nil), Trail: t.TempDir(),
	}), path
}

// What a person asks about one call: a subject has the roles of its token.
func TestAsking(t *testing.T) {
	d, _ := desk(t, "pay", "read")
	for name, tc := range map[string]struct {
		call   console.SupposedCall
		answer string // "" = it cannot be judged
		may    string
		roles  []string // that may call it, where the caller may not
	}{
		"a little":        {console.SupposedCall{Roles: []string{"payer"}, Tool: "pay", Arguments: json.RawMessage(`{"amount":3}`)}, "yes", "", nil},
		"much":            {console.SupposedCall{Subject: "ann", Tool: "pay", Arguments: json.RawMessage(`{"amount":30}`)}, "held", "", nil},
		"something":       {console.SupposedCall{Subject: "ann", Tool: "pay"}, "no", "held for boss", nil},
		"another role":    {console.SupposedCall{Roles: []string{"reader"}, Tool: "pay", Arguments: json.RawMessage(`{"amount":3}`)}, "no", "", []string{"payer"}},
		"an unknown tool": {console.SupposedCall{Roles: []string{"payer"}, Tool: "fly"}, "", "", nil},
	} {
		t.Run(name, func(t *testing.T) {
			a, err := d.CanI(t.Context(), tc.call)
			if a.Answer != tc.answer || (tc.answer == "") != errors.Is(err, console.ErrBadCall) || !strings.Contains(strings.Join(a.May, "\n"), tc.may) {
				t.Errorf("%+v, %v", a, err)
			}
			x, err := d.Explain(t.Context(), tc.call)
			var roles []string
			for _, r := range x.Roles {
				roles = append(roles, r.Role)
			}
			if (err == nil) != (tc.answer != "") || !slices.Equal(roles, tc.roles) || err == nil && x.Decision.Effect != a.Decision.Effect {
				t.Errorf("%+v, %v", x, err)
			}
		})
	}
}

// A matrix comes in pages of tools.
func TestMatrixPages(t *testing.T) {
	d, _ := desk(t, "pay", "read", "write")
	var seen []string
	q := console.MatrixQuery{Limit: 2}
	for {
		m, err := d.Matrix(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range m.Cells {
			seen = append(seen, c.Role+" "+c.Tool+" "+string(c.May))
		}
		if q.After = m.Next; m.Next == "" {
			break
		}
	}
	want := []string{"payer pay sometimes", "payer read never", "reader pay never", "reader read never", "payer write never", "reader write never"}
	if !slices.Equal(seen, want) {
		t.Errorf("%q", seen)
	}
	m, err := d.Matrix(t.Context(), console.MatrixQuery{Subject: "ann", Tools: []string{"pay"}, Limit: 9})
	if err != nil || len(m.Cells) != 1 || m.Cells[0].Caller() != "ann (payer)" || m.Cells[0].May != workbench.Sometimes {
		t.Errorf("%+v, %v", m, err)
	}
}

// The state says what is wrong, also that another policy lies at its place, or none that could serve.
func TestState(t *testing.T) {
	d, path := desk(t, "pay", "read")
	has := func(code, where string) bool {
		t.Helper()
		s, err := d.State(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(s.Findings, func(f console.Finding) bool { return f.Code == code && f.Where == where })
	}
	if !has("uncovered-tool", "tool read") || has("uncovered-tool", "tool pay") || has("not-serving", "") {
		t.Error("findings of the policy that serves")
	}
	for text, code := range map[string]string{rules + "\n# another\n": "not-serving", "package toolgate\n\ndecision := {": "rego_parse_error"} {
		other, at := desk(t, "pay")
		if err := os.WriteFile(at, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := other.State(t.Context())
		if err != nil || !slices.ContainsFunc(s.Findings, func(f console.Finding) bool { return f.Code == code }) {
			t.Errorf("%s: %+v, %v", code, s, err)
		}
	}
	if err := os.Remove(path); err != nil || !has("uncovered-tool", "tool read") {
		t.Errorf("what was found is not kept: %v", err)
	}
}
