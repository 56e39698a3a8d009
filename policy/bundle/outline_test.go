package bundle_test

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/open-policy-agent/opa/v1/ast"

	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/bundle"
	"github.com/toolgate/toolgate/policy/rego"
	"github.com/toolgate/toolgate/policy/workbench"
)

// written copies the default policy into a directory, with other data.
func written(t testing.TB, data string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(dir, bundle.Files); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "data.json"), []byte(data), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

// fullData says something of every kind, of each tool one thing more than who has it.
const fullData = `{
	"roles": {"r": {"tools": {
		"named": true, "listed": {"arguments": {"x": ["a"]}},
		"typed": {"arguments": {"n": {"min": 0, "max": 9, "integer": true}, "/d/t": {"pattern": "a+", "max_length": 5, "optional": true}}},
		"placed": {"arguments": {"u": {"hosts": ["a.example"]}, "v": {"domains": [".example"]}, "p": {"prefix": ["/a/"]}, "w": {"in": "payees", "not_in": ["b"]}}},
		"modelled": true, "drawn": true, "priced": true, "metered": true, "moving": true, "closing": true, "bound": true, "held": true
	}, "patterns": {"files__*": true}, "deny": {"tools": {"files__delete": true}}}},
	"directory": {"subjects": {"agent-8": {"roles": ["r"]}}},
	"lists": {"payees": {"acct-1": true}},
	"models": {"modelled": ["m"]}, "pixels": {"drawn": 1000},
	"thresholds": {"priced": {"amount": 100}, "moving": {"amount": 100}},
	"unmetered": {"priced": {"action": ["balance"]}, "moving": {"action": ["balance"]}},
	"usage": {"metered": {"day": {"window": "24h", "sum": "/amount", "where": {"/action": ["transfer"]}, "hold": {"sum": 1000, "calls": 9}, "deny": {"sum": 5000}}}},
	"schedules": {"office": {"zone": "Europe/Berlin", "open": [{"days": ["Monday"], "from": "08:00", "to": "17:00"}]}},
	"annotations": {"destructiveHint": "hold"},
	"approval": {"roles": ["approver"]},
	"tools": {
		"moving": {"transfers": {"asset": ["USD"], "destination": {"in": ["acct-1"]}}, "redact": {"*": ["/iban"]}},
		"closing": {"hours": "office"}, "held": {"hold": true},
		"bound": {"arguments": {"x": {"max": 5}}, "limit": {"rate": "5/1m"}}
	}
}`

// TestOutline holds that people can be told the verdicts on a tool before any call,
// whatever data says about the tool.
func TestOutline(t *testing.T) {
	e, err := rego.Load(t.Context(), rego.Options{Path: written(t, fullData), Timeout: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	for tool, want := range map[string]string{
		"named":         "role-has-tool",
		"files__read":   "role-has-tool",
		"files__delete": "role-denies-tool",
		"unknown":       "role-lacks-tool",
		"held":          "tool-needs-approval",
		"listed":        "role-lacks-argument role-has-tool",
		"typed":         "role-lacks-argument role-has-tool",
		"placed":        "role-lacks-argument role-has-tool",
		"modelled":      "model-not-listed role-has-tool",
		"drawn":         "image-too-large role-has-tool",
		"priced":        "amount-not-a-positive-number amount-above-threshold role-has-tool",
		"metered":       "usage-above-limit usage-above-threshold usage-above-threshold role-has-tool",
		"moving":        "transfer-not-permitted amount-not-a-positive-number amount-above-threshold role-has-tool role-has-tool",
		"closing":       "outside-hours role-has-tool",
		"bound":         "argument-not-permitted role-has-tool role-has-tool",
	} {
		o, err := workbench.OutlineOf(t.Context(), e, policy.Principal{Subject: "agent-7", Roles: []string{"r"}},
			policy.Tool{Server: "s", Name: tool, Exposed: tool})
		if err != nil {
			t.Fatal(err)
		}
		var rules []string
		for _, b := range o.Branches {
			rules = append(rules, b.Decision.Rule)
			if b.Decision.Labels["rule"] != b.Decision.Rule {
				t.Errorf("%s: rule %s has the labels %v", tool, b.Decision.Rule, b.Decision.Labels)
			}
		}
		if got := strings.Join(rules, " "); got != want || o.Whole != "" {
			t.Errorf("%s: got %q, whole %q; want %q", tool, got, o.Whole, want)
		}
	}
}

// TestRules holds that every rule id stands in the METADATA of the rules that
// give it, with a title.
func TestRules(t *testing.T) {
	ids := make(map[string]bool)
	for name, m := range modules(t) {
		if isTest(name) {
			continue
		}
		for _, r := range m.Rules {
			verdict, ok := r.Head.Key, r.Head.RuleKind() == ast.MultiValue
			if !ok {
				continue
			}
			o, ok := verdict.Value.(ast.Object)
			if !ok || o.Get(ast.StringTerm("rule")) == nil {
				continue // a set of verdicts that other rules give
			}
			id := string(o.Get(ast.StringTerm("rule")).Value.(ast.String))
			ids[id] = true
			if len(r.Annotations) != 1 || r.Annotations[0].Title == "" || r.Annotations[0].Labels["rule"] != id {
				t.Errorf("%s:%d: %s has no METADATA with a title and its label", name, r.Location.Row, id)
			}
		}
	}
	if len(ids) != 19 {
		t.Errorf("found %d rules: %v", len(ids), slices.Sorted(maps.Keys(ids)))
	}
}
