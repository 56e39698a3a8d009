package rego_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	oparego "github.com/open-policy-agent/opa/v1/rego"
	"github.com/open-policy-agent/opa/v1/storage/inmem"
	"pgregory.net/rapid"

	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/rego"
)

// Conditions of generated policies: known ones, unknown ones, ones that fail
// on some arguments, and every way Rego has to combine them.
var atoms = []string{
	`input.tool.exposed == "t"`,
	`input.tool.exposed != "u"`,
	`startswith(input.tool.name, "t")`,
	`input.tool.risk == "high"`,
	`input.tool.annotations.readOnlyHint`,
	`"r" in input.principal.roles`,
	`data.roles[input.principal.roles[_]].tools[input.tool.exposed]`,
	`input.principal.subject == "a"`,
	`input.principal.client != "c"`,
	`input.principal.tenant`,
	`input.arguments.x == 1`,
	`input.arguments.x > 1`,
	`input.arguments.y in ["p", "q"]`,
	`is_number(input.arguments.x)`,
	`input.arguments.z.k`,
	`input.arguments[input.tool.exposed]`,
	`input.request.transport == "http"`,
	`input.usage.sum > 1`,
	`to_number(input.arguments.y) > 1`,
	`regex.match("^a", input.arguments.y)`,
	`count(input.arguments) > 1`,
	`count(object.keys(input)) == 4`,
	`object.get(input, ["arguments", "x"], 7) == 7`,
	`input[_] == "x"`,
	`every k, v in input.arguments { k != v }`,
	`some k, v in input.arguments; v == 1; k == "x"`,
	`{ i := input; i.arguments.x == 1 }`,
	`1 / (input.arguments.x - 1) > 0`,
	`count({k | some k, _ in input.arguments}) > 0`,
	`walk(input, [p, v]); count(p) == 2; v == 1`,
	`input.nothing`,
	`to_number(input.tool.exposed) > 1`,
	`to_number(input.tool.name) > 1`,
	`twice == 1`,
	`twice == 2`,
	`once == 1`,
	`true`,
	`false`,
}

// condition is one line of a rule's body.
func condition(t *rapid.T, depth int, helpers int) string {
	switch kind := rapid.IntRange(0, 9).Draw(t, "kind"); {
	case kind == 0 && helpers > 0:
		return fmt.Sprintf("not h%d", rapid.IntRange(0, helpers-1).Draw(t, "helper"))
	case kind == 1 && helpers > 0:
		return fmt.Sprintf("h%d", rapid.IntRange(0, helpers-1).Draw(t, "helper"))
	case kind == 2 && helpers > 0:
		return fmt.Sprintf(`h%d with input.arguments as {"x": 1, "y": "p"}`, rapid.IntRange(0, helpers-1).Draw(t, "helper"))
	case kind == 3 && depth > 0:
		return "count([1 | " + condition(t, depth-1, helpers) + "]) > 0"
	}
	atom := rapid.SampledFrom(atoms).Draw(t, "atom")
	if strings.HasPrefix(atom, "{") {
		return strings.Trim(atom, "{} ")
	}
	if !strings.ContainsAny(atom, ";:") && !strings.HasPrefix(atom, "every") && !strings.Contains(atom, "_") && rapid.Bool().Draw(t, "not") {
		return "not " + atom
	}
	return atom
}

func body(t *rapid.T, helpers int) string {
	lines := make([]string, rapid.IntRange(1, 3).Draw(t, "lines"))
	for i := range lines {
		line := condition(t, 1, helpers)
		// Variables must not meet across lines.
		for _, v := range []string{"k", "v", "p", "i"} {
			line = replaceWord(line, v, fmt.Sprintf("%s%d", v, i))
		}
		lines[i] = line
	}
	return "{\n\t" + strings.Join(lines, "\n\t") + "\n}"
}

// replaceWord replaces variables, which stand alone, not members and strings.
func replaceWord(s, from, to string) string {
	var out strings.Builder
	for i := 0; i < len(s); {
		if strings.HasPrefix(s[i:], from) && (i == 0 || !wordByte(s[i-1])) && (i+len(from) == len(s) || !wordByte(s[i+len(from)])) {
			out.WriteString(to)
			i += len(from)
			continue
		}
		out.WriteByte(s[i])
		i++
	}
	return out.String()
}

func wordByte(b byte) bool {
	return b == '.' || b == '"' || b == '_' || b >= '0' && b <= '9' || b >= 'a' && b <= 'z'
}

var verdicts = []string{
	`{"effect": "allow"}`, `{"effect": "allow", "rule": input.tool.exposed}`, `{"effect": "deny", "reason": "no"}`,
	`{"effect": "hold", "approval": {"roles": ["boss"]}}`, `{"effect": "deny", "reason": input.arguments.y}`,
	`{"effect": "deny", "rule": concat("", input.principal.roles)}`, `{"effect": "hold"}`, `{"effect": input.arguments.y}`,
	`{"effect": "allow", "limit": {"rate": "1/1s", "key": input.principal.subject}}`,
}

func generatePolicy(t *rapid.T) string {
	var b strings.Builder
	b.WriteString("package toolgate\nimport " + rapid.SampledFrom([]string{"rego.v1", "rego.v2"}).Draw(t, "language") + "\n")
	if rapid.Bool().Draw(t, "default") {
		b.WriteString("default decision := {\"effect\": \"deny\"}\n")
	}
	b.WriteString("twice := 1 if input.tool.exposed != \"u\"\ntwice := 2 if input.tool.exposed != \"t\"\n")
	b.WriteString("once := 1 if input.arguments.x == 1\nonce := 2 if input.tool.exposed == \"u\"\n")
	helpers := rapid.IntRange(0, 2).Draw(t, "helpers")
	for i := range helpers {
		fmt.Fprintf(&b, "h%d if %s\n", i, body(t, i))
	}
	for range rapid.IntRange(1, 3).Draw(t, "rules") {
		fmt.Fprintf(&b, "decision := %s if %s\n", rapid.SampledFrom(verdicts).Draw(t, "verdict"), body(t, helpers))
		if rapid.IntRange(0, 4).Draw(t, "else") == 0 {
			fmt.Fprintf(&b, "else := %s if %s\n", rapid.SampledFrom(verdicts).Draw(t, "verdict"), body(t, helpers))
		}
	}
	return b.String()
}

func generateInput(t *rapid.T) *policy.Input {
	pick := func(name string, values ...string) string { return rapid.SampledFrom(values).Draw(t, name) }
	return &policy.Input{
		Principal: policy.Principal{
			Subject: pick("subject", "a", "b"), Client: pick("client", "", "c"), Tenant: pick("tenant", "", "x"),
			Roles: rapid.SampledFrom([][]string{nil, {"r"}, {"s"}, {"s", "r"}}).Draw(t, "roles"),
		},
		Tool: policy.Tool{
			Server: "s", Name: "t", Exposed: pick("exposed", "t", "u", "x"), Risk: pick("risk", "", "high"),
			Annotations: json.RawMessage(pick("annotations", ``, `{}`, `{"readOnlyHint":true}`)),
		},
		Arguments: json.RawMessage(pick("arguments", `{}`, `{"x":1}`, `{"x":2,"y":"p"}`, `{"x":"1","y":"5,0"}`, `{"x":null,"y":1}`,
			`{"y":"allow"}`, `{"z":{"k":true}}`, `{"t":true,"x":1.0}`, `{"z":{"k":false},"y":"a"}`)),
		Request: policy.Request{ID: "1", Transport: pick("transport", "http", "stdio")},
	}
}

const propertyData = `{"roles": {"r": {"tools": {"t": true, "u": false}}, "s": {"tools": {"x": true}}}}`

// TestSameAsFullEvaluation holds, over generated policies and calls, that what
// is remembered changes no decision, that a hidden tool never gets anything
// but a denial, and that OPA's plain evaluation of the JSON input agrees.
func TestSameAsFullEvaluation(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "data.json"), []byte(propertyData), 0o600); err != nil {
		t.Fatal(err)
	}
	var constant, calls, hidden int
	rapid.Check(t, func(t *rapid.T) {
		source := generatePolicy(t)
		if err := os.WriteFile(filepath.Join(dir, "p.rego"), []byte(source), 0o600); err != nil {
			t.Fatal(err)
		}
		e, err := rego.LoadUntried(context.Background(), rego.Options{Path: dir, Timeout: testTimeout})
		if err != nil {
			t.Skip(err) // not every text is a policy
		}
		for range 6 {
			in := generateInput(t)
			full, fullErr := e.DecideFully(context.Background(), in)
			got, err := e.Decide(context.Background(), in)
			if diff := cmp.Diff(full, got); diff != "" || (err == nil) != (fullErr == nil) {
				t.Fatalf("policy:\n%s\ninput: %s\nfull evaluation %v, got %v (-full +got):\n%s", source, asJSON(in), fullErr, err, diff)
			}
			calls++
			if e.Constant(context.Background(), in.Principal, in.Tool) {
				constant++
			}
			shown, err := e.Visible(context.Background(), in.Principal, in.Tool)
			if err != nil {
				t.Fatal(err)
			}
			if !shown {
				hidden++
			}
			if !shown && full.Effect != policy.Deny {
				t.Fatalf("policy:\n%s\ninput: %s\nhidden, but %s", source, asJSON(in), full.Effect)
			}
			if want := plainEffect(source, in); want != got.Effect {
				t.Fatalf("policy:\n%s\ninput: %s\ngot %s, OPA says %s", source, asJSON(in), got.Effect, want)
			}
		}
	})
	t.Logf("%d calls, %d with a constant verdict, %d hidden", calls, constant, hidden)
	if calls > 300 && (constant < calls/20 || hidden < calls/50 || constant == calls) {
		t.Errorf("the generated policies exercise too little")
	}
}

func asJSON(in *policy.Input) []byte {
	raw, err := json.Marshal(in)
	if err != nil {
		panic(err)
	}
	return raw
}

// plainEffect is the verdict by the shortest way there is through OPA.
func plainEffect(source string, in *policy.Input) policy.Effect {
	var data map[string]any
	if err := json.Unmarshal([]byte(propertyData), &data); err != nil {
		panic(err)
	}
	effect, err := plainEval(source, data, in)
	if err != nil {
		return policy.Deny
	}
	return effect
}

func plainEval(source string, data map[string]any, in *policy.Input) (policy.Effect, error) {
	var document map[string]any
	raw := asJSON(in)
	if in.Principal.Roles == nil {
		raw = []byte(strings.Replace(string(raw), `"roles":null`, `"roles":[]`, 1))
	}
	if err := json.Unmarshal(raw, &document); err != nil {
		return "", err
	}
	rs, err := oparego.New(oparego.Query("data.toolgate.decision"), oparego.Module("p.rego", source), oparego.StrictBuiltinErrors(true),
		oparego.Store(inmem.NewFromObject(data)), oparego.Input(document)).Eval(context.Background())
	if err != nil || len(rs) == 0 {
		return policy.Deny, err
	}
	decision, ok := rs[0].Expressions[0].Value.(map[string]any)
	if !ok {
		return "", errors.New("no object")
	}
	effect, _ := decision["effect"].(string)
	_, approval := decision["approval"]
	switch e := policy.Effect(effect); {
	case e == policy.Allow, e == policy.Hold && approval:
		for _, name := range []string{"rule", "reason"} {
			if _, ok := decision[name].(string); decision[name] != nil && !ok {
				return policy.Deny, nil
			}
		}
		return e, nil
	}
	return policy.Deny, nil
}

// TestLRU holds that no more pairs are remembered than asked for.
func TestLRU(t *testing.T) {
	e, err := rego.Load(t.Context(), rego.Options{CacheSize: 4, Timeout: testTimeout})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		in := input("observer", fmt.Sprintf("tool-%d", i%7), `{}`)
		if d, err := e.Decide(t.Context(), in); err != nil || d.Effect != policy.Deny {
			t.Fatalf("got %+v, %v", d, err)
		}
	}
	if n := e.Remembered(); n != 4 {
		t.Errorf("remembers %d pairs, want 4", n)
	}
}
