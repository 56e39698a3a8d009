package rego_test

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/rego"
)

// TestTree holds by what single policies decide, and that it is what full
// evaluation decides: the places where the two could come apart.
func TestTree(t *testing.T) {
	const allow = `decision := {"effect": "allow", "reason": sprintf("%v", [x])} if { `
	for name, c := range map[string]struct {
		rules, arguments string
		by               rego.Served
	}{
		"one condition":                     {`decision := {"effect": "allow"} if input.arguments.x == 1`, `{"x":1.0}`, rego.ByTree},
		"a function fails":                  {`decision := {"effect": "allow"} if startswith(input.arguments.x, "a")`, `{"x":1}`, rego.ByTreeThenWhole},
		"a function fails before false":     {`decision := {"effect": "allow"} if { startswith(input.arguments.x, "a"); input.tool.exposed == "u" }`, `{"x":1}`, rego.ByTreeThenWhole},
		"and does not":                      {`decision := {"effect": "allow"} if { startswith(input.arguments.x, "a"); input.tool.exposed == "u" }`, `{"x":"a"}`, rego.ByTree},
		"fails before any call":             {`decision := {"effect": "deny", "reason": input.arguments.x} if to_number(input.tool.exposed) > 1`, `{"x":"a"}`, rego.ByTreeThenWhole},
		"equal values written apart":        {"x := 1 if input.arguments.a\nx := 1.0 if input.arguments.b\n" + allow + "true }", `{"a":1,"b":1}`, rego.ByTreeThenWhole},
		"one of values written apart":       {"x := 1 if input.arguments.a\nx := 1.0 if input.arguments.b\n" + allow + "true }", `{"b":1}`, rego.ByTree},
		"two values":                        {"x := 1 if input.arguments.a\nx := 2 if input.arguments.b\n" + allow + "true }", `{"a":1,"b":1}`, rego.ByTreeThenWhole},
		"elements written apart":            {allow + `x := {v | some v in input.arguments.list} }`, `{"list":[1,1.0]}`, rego.ByTreeThenWhole},
		"object with two under a key":       {allow + `x := {"k": v | some v in input.arguments.list} }`, `{"list":[1,2]}`, rego.ByTreeThenWhole},
		"data by a number for text":         {allow + `x := data.table[input.arguments.k] }`, `{"k":1}`, rego.ByTreeThenWhole},
		"data by text":                      {allow + `x := data.table[input.arguments.k] }`, `{"k":"1"}`, rego.ByTree},
		"data by a list":                    {allow + `x := data.table[input.arguments.k] }`, `{"k":[1]}`, rego.ByTreeThenWhole},
		"list by text":                      {allow + `x := data.list[input.arguments.k] }`, `{"k":"1"}`, rego.ByTreeThenWhole},
		"list by a number":                  {allow + `x := data.list[input.arguments.k] }`, `{"k":1}`, rego.ByTree},
		"list by a number written oddly":    {allow + `x := data.list[input.arguments.k] }`, `{"k":1e0}`, rego.ByTreeThenWhole},
		"list beyond its end":               {allow + `x := data.list[input.arguments.k] }`, `{"k":9}`, rego.ByTree},
		"data by a known key of another":    {allow + `some k in [1]; x := data.table[k]; input.arguments.x }`, `{"x":1}`, rego.Whole},
		"grouped comprehension":             {allow + `some k in ["a", "b"]; y := [v | some e in input.arguments.list; e.k == k; v := to_number(e.v)]; x := count(y); x > 0 }`, `{"list":[{"k":"a","v":"1"},{"k":"c","v":"x"}]}`, rego.Whole},
		"with":                              {allow + `x := 1; input.arguments.x == 2 with input.arguments as {"x": 2} }`, `{}`, rego.Whole},
		"every stops at what does not hold": {allow + `x := 1; every v in input.arguments.list { startswith(v, "a") } }`, `{"list":["b",1]}`, rego.ByTree},
		"every comes to what fails":         {allow + `x := 1; every v in input.arguments.list { startswith(v, "a") } }`, `{"list":["a",1]}`, rego.ByTreeThenWhole},
		"every of no list":                  {allow + `x := 1; every v in input.arguments.list { v } }`, `{"list":"a"}`, rego.ByTree},
		"every of an empty list":            {allow + `x := 1; every v in input.arguments.list { v } }`, `{"list":[]}`, rego.ByTree},
		"known every with what fails":       {allow + `x := 1; every v in [1, 2] { startswith(input.arguments.s, "a"); v > 1 } }`, `{"s":1}`, rego.ByTreeThenWhole},
		"else after what holds":             {"x := 1 if input.arguments.a\nelse := 2 if startswith(input.arguments.b, \"b\")\n" + allow + "true }", `{"a":1,"b":1}`, rego.ByTree},
		"else after what does not":          {"x := 1 if input.arguments.a\nelse := 2 if startswith(input.arguments.b, \"b\")\n" + allow + "true }", `{"b":1}`, rego.ByTreeThenWhole},
		"arguments that nobody reads":       {`decision := {"effect": "allow"} if input.request.transport == "http"`, `{"x":1,"x":2}`, rego.ByTreeThenWhole},
		"fails beside what holds":           {"x if startswith(input.arguments.s, \"a\")\nx if input.tool.exposed == \"t\"\n" + `decision := {"effect": "allow"} if x`, `{"s":1}`, rego.ByTreeThenWhole},
		"not what holds and fails":          {"f(1)\nf(2) if startswith(input.arguments.s, \"a\")\n" + allow + `x := 1; not { some p in [1, 2]; f(p) } }`, `{"s":1}`, rego.ByTreeThenWhole},
		"every fails before what is false":  {allow + `x := 1; every v in [1, 0] { v != 0; startswith(input.arguments.s, "a") } }`, `{"s":1}`, rego.ByTreeThenWhole},
		"two values for nothing":            {"x := 1 if input.arguments.a\nx := 2 if input.arguments.b\n" + `decision := {"effect": "allow"} if { x > 0; input.tool.exposed == "u" }`, `{"a":1,"b":1}`, rego.ByTreeThenWhole},
		"object without the member":         {allow + `x := 1; {"k": _} := input.arguments.z }`, `{"z":{"l":1}}`, rego.ByTree},
		"default":                           {"default decision := {\"effect\": \"hold\", \"approval\": {\"roles\": [\"a\"]}}\ndecision := {\"effect\": \"allow\"} if input.arguments.x", `{}`, rego.ByTree},
		"no decision":                       {`decision := "yes" if input.arguments.x`, `{"x":1}`, rego.ByTree},
		"a loop in a loop":                  {allow + `x := {u | some v in input.arguments.list; some w in input.arguments.list; u := v + w} }`, `{"list":[1,2,4]}`, rego.ByTree},
		"a rule in a loop":                  {"most := max(input.arguments.list)\n" + allow + `x := [v | some v in input.arguments.list; v < most] }`, `{"list":[1,2,4]}`, rego.ByTree},
		"a function in a loop":              {"f(v) := w if { w := v * 2 }\n" + allow + `x := [u | some v in input.arguments.list; u := f(v) + f(v + 1)] }`, `{"list":[1,2,4]}`, rego.ByTree},
		"all of the input":                  {allow + `x := input }`, `{"a":1}`, rego.ByTree},
	} {
		t.Run(name, func(t *testing.T) {
			e := loadUntried(t, writeFiles(t, "p.rego", module(c.rules), "data.json", `{"table": {"1": "one"}, "list": ["zero", "one"]}`))
			in := input("r", "t", c.arguments)
			if by := e.Serves(t.Context(), in); by != c.by {
				o, _ := e.Outline(t.Context(), in.Principal, in.Tool)
				t.Errorf("decided by %s, want %s %s", by, c.by, o.Whole)
			}
			got, err := e.Decide(t.Context(), in)
			full, fullErr := e.DecideFully(t.Context(), in)
			if diff := cmp.Diff(full, got); diff != "" || (err == nil) != (fullErr == nil) {
				t.Errorf("full %v, got %v (-full +got):\n%s", fullErr, err, diff)
			}
		})
	}
}

// TestPanicInATree holds that a step that panics leaves the call to a whole
// evaluation.
func TestPanicInATree(t *testing.T) {
	e := load(t, "p.rego", module(`decision := {"effect": "allow"} if input.arguments.x`))
	if by := e.ServesPanicking(t.Context(), input("r", "t", `{"x":1}`)); by != rego.ByTreeThenWhole {
		t.Errorf("decided by %s", by)
	}
}

// FuzzArguments holds that whatever is sent is decided as full evaluation
// decides it, by the default policy and by the reference.
func FuzzArguments(f *testing.F) {
	for _, seed := range []string{
		`{}`, `{"action":"transfer","amount":50}`, `{"action":"transfer","amount":"50"}`, `{"action":"balance"}`, `{"action":["balance"]}`,
		`{"amount":1e400,"action":"transfer"}`, `{"amount":100.0000000000000000001,"action":"transfer"}`, `{"model":"card-1"}`, `[]`, `{"x":1,"x":2}`,
		`{"action":"transfer","amount":1e2,"destination":"ab"}`, `{"action":null,"amount":-0}`, `{"destination":"` + "\xff" + `"}`, ``,
	} {
		f.Add([]byte(seed))
	}
	var engines []*rego.Engine
	for _, path := range []string{"", "testdata/reference"} {
		e, err := rego.Load(f.Context(), rego.Options{Path: path, Timeout: testTimeout})
		if err != nil {
			f.Fatal(err)
		}
		engines = append(engines, e)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		for _, e := range engines {
			for _, x := range [][2]string{{"treasurer", "manage_wallet"}, {"creator", "generate_media"}, {"clerk", "pay"}} {
				in := input(x[0], x[1], "")
				in.Arguments = json.RawMessage(raw)
				got, err := e.Decide(t.Context(), in)
				full, fullErr := e.DecideFully(t.Context(), in)
				constant := e.Serves(t.Context(), in) == rego.ByMemory // arguments are not even read
				if diff := cmp.Diff(full, got); !constant && (diff != "" || (err == nil) != (fullErr == nil)) {
					t.Errorf("%q: full %v, got %v (-full +got):\n%s", raw, fullErr, err, diff)
				}
				if fullErr != nil && got.Effect == policy.Allow && !constant {
					t.Errorf("%q: allowed", raw)
				}
			}
		}
	})
}
