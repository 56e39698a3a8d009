package rego_test

import (
	"encoding/json"
	"errors"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/docs/schemas"
	"github.com/toolgate/toolgate/internal/schema"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/rego"
)

// TestMembersOfInput is the table of what a policy may read of input. What no
// request has is an error that names file, line and what is there.
func TestMembersOfInput(t *testing.T) {
	for _, c := range []struct{ condition, want string }{
		{`input.tool.nmae == "x"`, "p.rego:4: undefined ref: input.tool.nmae\nhint: did you mean name? there is annotations, exposed, fingerprint, name, risk, server"},
		{`input.princpal.subject == "x"`, "p.rego:4: undefined ref: input.princpal.subject\nhint: did you mean principal? there is action"},
		{`input.principal.role == "x"`, "did you mean roles?"},
		{`some x in input.principal.groups; x == "a"`, "there is actors, client, client_id, issuer, may_act, person, roles, scopes, subject, tenant"},
		{`input.resource.url == "x"`, "did you mean uri?"},
		{`input.prompt.uri == "x"`, "there is name, server"},
		{`input.server.tool[_] == "x"`, "did you mean tools?"},
		{`input.request.tme == "x"`, "did you mean time?"},
		{`input.args.amount > 1`, "undefined ref: input.args.amount"},
		{`input.tool.exposed == 7`, "p.rego:4: match error"},
		{`input.tool.name.first == "x"`, "p.rego:4: undefined ref: input.tool.name.first"},
		{`not input.tool.nmae`, "did you mean name?"},
		{`count([t | t := input.tool.nmae]) > 0`, "did you mean name?"},
		{`object.get(input.tool, "nam", "") == "x"`, ""}, // the only way around it, and one that is seen
		{`input.arguments.any.thing[_].goes > 1`, ""},
		{`input.tool.annotations.readOnlyHint == true`, ""},
		{`input.usage.day.sum + input.usage.day.calls > 1`, ""},
		{`input.facts.whatever.it == "is"`, ""},
		{`input.action == "tools/call"; input.tool.server; input.tool.fingerprint; input.tool.risk; input.principal.client; input.principal.tenant`, ""},
		{`input.request.id; input.request.transport; input.request.era; input.request.trace_id; input.server.asks; input.server.name`, ""},
	} {
		rule := module("decision := {\"effect\": \"allow\"} if {\n" + c.condition + "\n}")
		_, err := rego.LoadUntried(t.Context(), rego.Options{Path: writeFiles(t, "p.rego", rule)})
		if got := errorText(err); c.want == "" && err != nil || !strings.Contains(got, c.want) {
			t.Errorf("%s: got %q, want %q", c.condition, got, c.want)
		}
		if faults := (rego.Faults)(nil); c.want != "" && (!errors.As(err, &faults) || faults[0].File != "p.rego" || faults[0].Row != 4) {
			t.Errorf("%s: got %#v, want a fault at p.rego:4", c.condition, err)
		}
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// TestStrict holds that what OPA calls strict is what a policy is held to.
func TestStrict(t *testing.T) {
	for _, c := range []struct{ rules, want string }{
		{`decision := {"effect": "allow"} if { x := 1; true }`, "p.rego:3: assigned var x unused"},
		{`f(x) := 1` + "\n" + `decision := {"effect": "allow"} if f(2) == 1`, "p.rego:3: unused argument x"},
		{`import data.other` + "\n" + `decision := {"effect": "allow"}`, "p.rego:3: import data.other unused"},
		{`decision := {"effect": "allow"} if any([true])`, "p.rego:3: deprecated built-in function calls in expression: any"},
		{`decision := {"effect": "allow"} if { input := {"tool": 1}; input.tool == 1 }`, "p.rego:3: variables must not shadow input"},
	} {
		e, err := tryLoad(t, "p.rego", module(c.rules))
		if e != nil || !strings.Contains(errorText(err), c.want) {
			t.Errorf("%s: got %q, want %q", c.rules, errorText(err), c.want)
		}
	}
}

func document(t *testing.T, name string) (map[string]any, *schema.Schema) {
	t.Helper()
	raw, err := schemas.Files.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	s, err := schema.Compile(raw)
	if err != nil {
		t.Fatal(err)
	}
	var doc map[string]any
	if err := json.Unmarshal(raw, &doc); err != nil {
		t.Fatal(err)
	}
	return doc, s
}

// TestInputSchemaIsTheType holds that the schema has each member of the types
// and no other: a member that is forgotten here could be read by no policy.
func TestInputSchemaIsTheType(t *testing.T) {
	doc, _ := document(t, "policy-input.json")
	types := map[string]reflect.Type{
		"": reflect.TypeFor[policy.Input](), "principal": reflect.TypeFor[policy.Principal](), "tool": reflect.TypeFor[policy.Tool](),
		"resource": reflect.TypeFor[policy.Resource](), "prompt": reflect.TypeFor[policy.Prompt](),
		"server": reflect.TypeFor[policy.Server](), "request": reflect.TypeFor[policy.Request](),
	}
	members := doc["properties"].(map[string]any)
	for name, typ := range types {
		object := doc
		if name != "" {
			object = members[name].(map[string]any)
		}
		want := jsonNames(typ)
		got := slices.Sorted(maps.Keys(object["properties"].(map[string]any)))
		if diff := cmp.Diff(want, got); diff != "" || object["additionalProperties"] != false {
			t.Errorf("%q (-type +schema):\n%s", name, diff)
		}
	}
}

func jsonNames(typ reflect.Type) []string {
	var names []string
	for f := range typ.Fields() {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "-" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// TestInputKeepsItsSchema holds what is written of every kind of request to the
// schema, and that the schema refuses what no request is.
func TestInputKeepsItsSchema(t *testing.T) {
	_, s := document(t, "policy-input.json")
	call := input("r", "t", `{"amount":1e30}`)
	call.Tool.Annotations = json.RawMessage(`{"readOnlyHint":true}`)
	call.Principal.Tenant = "acme"
	call.Request.Tags = map[string]string{"urgency": "high", "domain": "code", "complexity": "simple", "confidence": "1.0", "grounding": "0.5"}
	call.Usage = map[string]policy.Reading{"day": {Calls: 3, Sum: "12345678901234567890.5"}}
	who, request := policy.Principal{Subject: "a"}, policy.Request{ID: "1", Transport: "http", Time: time.Unix(0, 0)}
	for _, in := range []*policy.Input{
		call,
		{Action: "resources/read", Resource: &policy.Resource{Server: "s", URI: "file:///"}, Principal: who, Request: request},
		{Action: "prompts/get", Prompt: &policy.Prompt{Server: "s", Name: "p"}, Principal: who, Request: request},
		{Action: "tasks/get", Server: &policy.Server{Name: "s", Tools: []string{"t"}}, Principal: who, Request: request},
		{Action: "roots/list", Server: &policy.Server{Name: "s", Asks: "roots/list"}, Principal: who, Request: request},
	} {
		raw, err := json.Marshal(in)
		if err != nil {
			t.Fatal(err)
		}
		if found, err := s.Validate(raw); err != nil || len(found) > 0 {
			t.Errorf("%s: %v, %v", raw, found, err)
		}
	}
	for _, bad := range []string{`{}`, `{"action":"tools/call","principal":{"subject":"a","roles":[]},"arguments":{},"request":{"id":"","transport":"","era":"","trace_id":"","time":""}}`} {
		if found, err := s.Validate([]byte(bad)); err != nil || len(found) == 0 {
			t.Errorf("%s: got %v, %v; want faults", bad, found, err)
		}
	}
}

// TestDecisionSchema holds that the schema of decisions and the engine agree on
// what a decision is.
func TestDecisionSchema(t *testing.T) {
	_, s := document(t, "policy-decision.json")
	for answer, good := range map[string]bool{
		`{"effect":"allow"}`: true,
		`{"effect":"deny","rule":"r","reason":"x","remedy":"y"}`:                                      true,
		`{"effect":"hold","approval":{"roles":["a"],"quorum":2,"ttl":"15m","hold":"0s"}}`:             true,
		`{"effect":"hold","approval":{"roles":["a"],"execute_on_approve":true}}`:                      true,
		`{"effect":"allow","limit":{"rate":"5/1m","burst":2,"key":"k"},"redact":["/a/0","","/~0~1"]}`: true,
		`{"effect":"deny","scopes":["a","b:c"]}`:                                                      true,
		`{"effect":"deny","scopes":[]}`:                                                               false,
		`{"effect":"deny","scopes":["two words"]}`:                                                    false,
		`{"effect":"allow","scopes":["a"]}`:                                                           false,
		`{"effect":"hold","approval":{"roles":["a"]},"scopes":["a"]}`:                                 false,
		`{"effect":"allowed"}`:                                                                        false,
		`{}`:                                                                                          false,
		`{"rule":"r"}`:                                                                                false,
		`{"effect":"hold"}`:                                                                           false,
		`{"effect":"hold","approval":{"roles":[]}}`:                                                   false,
		`{"effect":"hold","approval":{"roles":[""]}}`:                                                 false,
		`{"effect":"hold","approval":{"roles":["a"],"quorum":0}}`:                                     false,
		`{"effect":"hold","approval":{"roles":["a"],"ttl":5}}`:                                        false,
		`{"effect":"hold","approval":{"roles":["a"],"who":"b"}}`:                                      false,
		`{"effect":"allow","approval":{"roles":["a"]}}`:                                               false,
		`{"effect":"allow","limit":{"burst":1}}`:                                                      false,
		`{"effect":"allow","limit":{"rate":"0/1m"}}`:                                                  false,
		`{"effect":"allow","redact":["a"]}`:                                                           false,
		`{"effect":"allow","redact":["/~2"]}`:                                                         false,
		`{"effect":"allow","obligation":{}}`:                                                          false,
		`{"effect":"allow","rule":7}`:                                                                 false,
		`"allow"`:                                                                                     false,
	} {
		found, err := s.Validate([]byte(answer))
		if err != nil || (len(found) == 0) != good {
			t.Errorf("schema, %s: got %v, %v; good is %v", answer, found, err, good)
		}
		e, err := rego.LoadUntried(t.Context(), rego.Options{Timeout: testTimeout, Path: writeFiles(t, "p.rego", module("decision := data.answer"), "data.json", `{"answer":`+answer+`}`)})
		if err != nil {
			t.Fatal(err)
		}
		d, err := e.Decide(t.Context(), input("r", "t", "{}"))
		if (err == nil) != good || (len(d.Scopes) > 0) != (good && strings.Contains(answer, "scopes")) {
			t.Errorf("engine, %s: got %+v, %v; good is %v", answer, d, err, good)
		}
	}
}
