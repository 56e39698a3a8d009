package rego_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
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
size := count(data.list)
clash := 1 if data.list
clash := 2 if data.names
number(_) := input.arguments.n
asked := [x | x := number(1)]
otherwise := 1 if data.absent else := [x | x := number(1)]
chosen := [x | some name in data.choice; x := data.toolgate.inner[name]]
`
	const data = `{"names": {"0": "zero", "one": {"deep": [{"er": 1}]}, "null": null}, "list": ["a", "b", {"c": "d"}], "flag": false, "choice": ["asked"]}`
	const inner = "package toolgate.inner\nimport rego.v2\nasked := [input.arguments.n]\n"
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
		`[size, [x | x := size with data.list as []], size]`:                        `[3,[0],3]`,
		`[size, [twice(i) | some i in numbers.range(1, 60); i == 60], size]`:        `[3,[120],3]`,
		`[asked, otherwise]`: `[[3],[3]]`,
		`clash`:              ``,
		`[x | x := clash; input.arguments.absent]`: ``,
		`chosen`: `[[3]]`,
	} {
		dir := t.TempDir()
		for name, text := range map[string]string{"data.json": data, "inner.rego": inner, "p.rego": rules + "told := " + told + "\n"} {
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

// TestKept holds which rules are evaluated once for a policy: sets and complete rules
// that read only data; and which once for a principal and a tool: those that read these
// too, and that a decision can ask. What fails is not kept, and no value is kept for
// another principal or other data.
func TestKept(t *testing.T) {
	const source = `package toolgate
import rego.v2
allow contains {"rule": "told", "reason": json.marshal([size, who, [x | x := clashes]])} if {
	input.arguments.n == 1
	not nobody
	not asks
	not later
}
size := count(data.list)
through := f(size)
f(x) := x + 1
otherwise := 1 if data.absent else := 2
nothing := data.absent
several contains x if some x in data.list
reads := [x | x := input.arguments.n]
reaches := [x | x := g(1)]
g(_) := input.arguments.n
replaces := [x | x := size with data.list as []]
clash := 1 if data.list
clash := 2 if size > 0
fails := to_number(data.list[0])
first if data.list
first if to_number(data.list[0]) > 0
named[x] := 1 if some x in data.list
part.one := size
part[x] := input.arguments.n if some x in ["two"]
who := [input.principal.subject, input.tool.exposed, input.action] if several
nobody if input.principal.subject == "nobody"
clashes := 1 if input.principal.subject == "two"
clashes := count(data.list) + 1 if input.principal.subject == "two"
asks contains x if x := input.principal[input.arguments.n]
later := input.request.time == ""
unasked := input.principal.subject
`
	ended, end := context.WithCancel(t.Context())
	end()
	for _, list := range []string{`["a"]`, `["a", "b"]`} {
		dir := t.TempDir()
		for name, text := range map[string]string{"data.json": `{"list": ` + list + `}`, "p.rego": source} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		e, err := rego.LoadUntried(t.Context(), rego.Options{Path: dir, Timeout: testTimeout})
		if err != nil {
			t.Fatal(err)
		}
		for subject, wantOfPair := range map[string][]string{"one": {"clashes", "nobody", "who"}, "two": {"nobody", "who"}, "nobody": {"clashes", "nobody", "who"}} {
			in := input("r", "t", `{"n": 1}`)
			in.Principal.Subject = subject
			for range 3 {
				_, _ = e.Decide(ended, in) // in the second round nothing is found in time
				got, err := e.Decide(t.Context(), in)
				plain, fault := e.Reference().Decide(t.Context(), in)
				if (err == nil) != (fault == nil) || got.Rule != plain.Rule || got.Reason != plain.Reason {
					t.Errorf("list %s, subject %s: got %s, %v, plain OPA %s, %v", list, subject, got.Reason, err, plain.Reason, fault)
				}
			}
			always, ofPair := e.Kept(in)
			if want := []string{"nothing", "otherwise", "several", "size", "through"}; !slices.Equal(always, want) || !slices.Equal(ofPair, wantOfPair) {
				t.Errorf("list %s, subject %s: kept are %v and of the pair %v, want %v and %v", list, subject, always, ofPair, want, wantOfPair)
			}
		}
	}
}
