package rego_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/toolgate/toolgate/policy/rego"
)

// TestQuery holds that what topdown is given to remember rules and to find data, in
// place of its own, changes no answer. The reference is plain OPA.
func TestQuery(t *testing.T) {
	const rules = `package toolgate
import rego.v2
allow contains {"rule": "told", "reason": json.marshal(told)}
twice(x) := y if y := to_number(x) * 2
kind(x) := type_name(x)
complete := "one" if input.arguments.n == 1 else := "two" if input.arguments.n == 2
fallback := "set" if input.arguments.n == 9
default fallback := "unset"
named[key] := value if some key, value in data.names
several contains data.list[_]
counted := count(several) + count(data.names)
`
	const data = `{"names": {"0": "zero", "one": {"deep": [{"er": 1}]}, "null": null}, "list": ["a", "b", {"c": "d"}], "flag": false}`
	for told, want := range map[string]string{
		`data.names["0"]`:                `"zero"`,
		`data.names[0]`:                  `"zero"`, // as OPA's store has it
		`data.list["1"]`:                 `"b"`,
		`data.list[1]`:                   `"b"`,
		`data.list[2].c`:                 `"d"`,
		`[x | x := data.list[7]]`:        `[]`,
		`[x | x := data.nowhere.at.all]`: `[]`,
		`[x | x := data.names[true]]`:    `[]`,
		`[x | x := data.names[["0"]]]`:   `[]`,
		`data.names.one.deep[0].er`:      `1`,
		`data.names["null"]`:             `null`,
		`data.flag`:                      `false`,
		`[data.names[k] | some k in ["0", "null", "gone"]]`:                         `["zero",null]`,
		`[twice(i) | some i in numbers.range(1, 100); i % 49 == 0]`:                 `[98,196]`,
		`sum([twice(i) | some i in numbers.range(1, 200)]) + twice(1) + twice(200)`: `40602`,
		`[kind(x) | some x in [1, "1", [1], {1}, null, {"1": 1}, 1]]`:               `["number","string","array","set","null","object","number"]`,
		`[x | some n in [1, 2, 3]; x := complete with input.arguments as {"n": n}]`: `["one","two"]`,
		`[fallback, [x | x := fallback with input.arguments.n as 9], fallback]`:     `["unset",["set"],"unset"]`,
		`[named["0"], named, named.one.deep]`:                                       `["zero",{"0":"zero","null":null,"one":{"deep":[{"er":1}]}},[{"er":1}]]`,
		`["a" in several, several["b"], several]`:                                   `[true,"b",["a","b",{"c":"d"}]]`,
		`[counted, [x | x := counted with data.names as {}], counted]`:              `[6,[3],6]`,
		`[data.names["0"], [x | x := data.names["0"] with data.names as {"0": 7}]]`: `["zero",[7]]`,
		`[x | x := data.list with data.list[0] as "z"]`:                             ``,
	} {
		dir := t.TempDir()
		for name, text := range map[string]string{"data.json": data, "p.rego": rules + "told := " + told + "\n"} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		e, err := rego.LoadUntried(t.Context(), rego.Options{Path: dir, Timeout: testTimeout})
		if err != nil {
			t.Errorf("%s: %v", told, err)
			continue
		}
		in := input("r", "t", `{"n": 3}`)
		for range 2 { // the second evaluation has the memory of the first
			got, err := e.DecideFully(t.Context(), in)
			plain, fault := e.Reference().Decide(t.Context(), in)
			if (err == nil) != (fault == nil) || got.Rule != plain.Rule || got.Reason != plain.Reason {
				t.Errorf("%s: got %s, %v, plain OPA %s, %v", told, got.Reason, err, plain.Reason, fault)
			}
			if want != "" && got.Reason != want {
				t.Errorf("%s: got %s, want %s", told, got.Reason, want)
			}
		}
	}
}
