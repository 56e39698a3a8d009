package rego_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"

	"github.com/toolgate/toolgate/internal/testkit/parts"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/rego"
)

func TestVisible(t *testing.T) {
	const roles = `{"roles": {"r": {"tools": {"t": true}}}}`
	const granted = "granted if { some r in input.principal.roles; data.roles[r].tools[input.tool.exposed] }\n"
	for name, c := range map[string]struct {
		rules   string
		visible bool
		fails   bool
	}{
		"allowed":                   {`decision := {"effect": "allow"}`, true, false},
		"held":                      {`decision := {"effect": "hold", "approval": {"roles": ["a"]}}`, true, false},
		"denied":                    {`decision := {"effect": "deny"}`, false, false},
		"undefined":                 {`decision := {"effect": "allow"} if input.tool.exposed == "other"`, false, false},
		"denied by default":         {"default decision := {\"effect\": \"deny\"}\ndecision := {\"effect\": \"allow\"} if input.tool.exposed == \"other\"", false, false},
		"allowed for some":          {`decision := {"effect": "allow"} if input.arguments.x == 1`, true, false},
		"allowed when not":          {`decision := {"effect": "allow"} if not input.arguments.x == 1`, true, false},
		"denied either way":         {"decision := {\"effect\": \"deny\", \"rule\": \"a\"} if input.arguments.x == 1\ndecision := {\"effect\": \"deny\", \"rule\": \"b\"} if not input.arguments.x == 1", true, false},
		"reason from arguments":     {`decision := {"effect": "deny", "reason": input.arguments.x}`, true, false},
		"effect from arguments":     {`decision := {"effect": input.arguments.x}`, true, false},
		"decision from arguments":   {`decision := input.arguments.x`, true, false},
		"else chain over arguments": {"decision := {\"effect\": \"deny\"} if input.arguments.x == 1\nelse := {\"effect\": \"deny\"}", true, false},
		"else chain that allows":    {"decision := {\"effect\": \"deny\"} if input.arguments.x == 1\nelse := {\"effect\": \"allow\"} if input.arguments.y == 1", true, false},
		"replaces arguments":        {`decision := {"effect": "deny"} if input.arguments.x == 1 with input.arguments as {}`, true, false},
		"role lacks tool":           {granted + `decision := {"effect": "allow"} if { granted; input.arguments.x == 1; input.tool.exposed != "t" }`, true, false},
		"role lacks tool, first":    {granted + `decision := {"effect": "allow"} if { granted; input.tool.exposed != "t"; input.arguments.x == 1 }`, false, false},
		"role has tool":             {granted + `decision := {"effect": "allow"} if { granted; input.arguments.x == 1 }`, true, false},
		"depends on the transport":  {`decision := {"effect": "allow"} if input.request.transport == "stdio"`, true, false},
		"depends on usage":          {`decision := {"effect": "allow"} if input.usage.sum < 5`, true, false},
		"says shown":                {"decision := {\"effect\": \"deny\"}\nvisible := true", true, false},
		"says hidden":               {"decision := {\"effect\": \"allow\"}\nvisible := false", false, false},
		"says nothing of it":        {"decision := {\"effect\": \"deny\"}\nvisible if input.tool.exposed == \"other\"", false, false},
		"needs the call":            {"decision := {\"effect\": \"allow\"}\nvisible if not input.arguments.x", true, false},
		"needs the request":         {"decision := {\"effect\": \"allow\"}\nvisible if input.request.transport == \"http\"", false, false},
		"says neither":              {"decision := {\"effect\": \"allow\"}\nvisible := \"yes\"", false, true},
		"cannot say":                {"decision := {\"effect\": \"allow\"}\nvisible if to_number(input.tool.exposed) > 1", false, true},
	} {
		t.Run(name, func(t *testing.T) {
			e := load(t, "p.rego", module(c.rules), "data.json", roles)
			in := input("r", "t", "")
			for range 2 { // once worked out, once remembered
				got, err := e.Visible(t.Context(), in.Principal, in.Tool)
				if got != c.visible || (err != nil) != c.fails {
					t.Errorf("got %v, %v; want %v, error %v", got, err, c.visible, c.fails)
				}
				other := policy.Tool{Server: "s", Name: "other", Exposed: "other"}
				want, _ := e.Visible(t.Context(), in.Principal, other)
				seen, err := e.Seen(t.Context(), in.Principal, []policy.Tool{in.Tool, other})
				if !slices.Equal(seen, []bool{c.visible, want}) || (err != nil) != c.fails {
					t.Errorf("a list sees %v, %v; want %v", seen, err, []bool{c.visible, want})
				}
			}
		})
	}
	e := load(t, "p.rego", module(`decision := {"effect": "allow"}`))
	if ok, err := e.Visible(t.Context(), policy.Principal{}, policy.Tool{}); ok || err == nil {
		t.Errorf("nobody sees a tool: %v, %v", ok, err)
	}
	if ok, err := e.Visible(t.Context(), input("r", "", "").Principal, policy.Tool{Annotations: json.RawMessage(`{`)}); ok || err == nil {
		t.Errorf("broken annotations: %v, %v", ok, err)
	}
}

// TestConstant holds what is worked out once, and that it stays apart for
// every difference that the policy can see.
func TestConstant(t *testing.T) {
	for name, c := range map[string]struct {
		rule     string
		constant bool
	}{
		"allow":                  {`decision := {"effect": "allow"}`, true},
		"undefined":              {`decision := {"effect": "allow"} if input.tool.exposed == "x"`, true},
		"known first":            {`decision := {"effect": "allow"} if { input.tool.exposed == "x"; input.arguments.y == 1 }`, true},
		"argument":               {`decision := {"effect": "allow"} if input.arguments.y == 1`, false},
		"whole input":            {`decision := {"effect": "deny", "reason": json.marshal(input)}`, false},
		"error after argument":   {"decision := {\"effect\": \"allow\"}\nx if { to_number(input.arguments.y) > 1; false }\ndecision := {\"effect\": \"deny\"} if x", false},
		"dropped after argument": {"decision := {\"effect\": \"allow\"}\nx if { regex.match(\"a\", input.arguments.y); upper(input.tool.exposed) == \"X\" }\ndecision := {\"effect\": \"deny\"} if x", false},
		"else chain, known":      {"decision := {\"effect\": \"deny\"} if input.tool.exposed == \"x\"\nelse := {\"effect\": \"allow\"}", true},
		"conflict":               {"q[1] := 1\nq[1] := input.arguments.y\ndecision := {\"effect\": \"allow\"} if count([k | q[k]]) == 1", false},
		"comprehension":          {`decision := {"effect": "deny", "reason": concat(",", [k | some k, _ in input.arguments])}`, false},
		"with":                   {"x if input.arguments.y == 1\ndecision := {\"effect\": \"allow\"} if x with input.arguments as {\"y\": 1}", false},
	} {
		t.Run(name, func(t *testing.T) {
			dir := writeFiles(t, "p.rego", module(c.rule))
			e := loadUntried(t, dir)
			in := input("r", "t", "")
			if got := e.Constant(t.Context(), in.Principal, in.Tool); got != c.constant {
				t.Errorf("constant is %v, want %v", got, c.constant)
			}
		})
	}
}

// TestRemembered holds which principals share what is remembered: those that
// the policy cannot tell apart, and no others.
func TestRemembered(t *testing.T) {
	a := policy.Principal{Subject: "a", Roles: []string{"r", "s"}, Client: "c/1", Tenant: "x"}
	others := map[string]policy.Principal{"subject": a, "roles": a, "client": a, "tenant": a, "person": a, "issuer": a, "client_id": a, "actors": a, "may_act": a}
	change := func(name string, f func(*policy.Principal)) {
		p := others[name]
		f(&p)
		others[name] = p
	}
	change("subject", func(p *policy.Principal) { p.Subject = "b" })
	change("roles", func(p *policy.Principal) { p.Roles = []string{"s", "r"} })
	change("client", func(p *policy.Principal) { p.Client = "c/2" })
	change("tenant", func(p *policy.Principal) { p.Tenant = "y" })
	change("person", func(p *policy.Principal) { p.Person = "b" })
	change("issuer", func(p *policy.Principal) { p.Issuer = "https://b" })
	change("client_id", func(p *policy.Principal) { p.ClientID = "b" })
	change("actors", func(p *policy.Principal) { p.Actors = []string{"b"} })
	change("may_act", func(p *policy.Principal) { p.MayAct = []string{"b"} })
	for _, c := range []struct {
		condition string
		reads     []string
	}{
		{`true`, nil},
		{`input.tool.exposed == "t"`, nil},
		{`"r" in input.principal.roles`, []string{"roles"}},
		{`input.principal.subject == "a"`, []string{"subject"}},
		{`input.principal.client == "c/1"`, []string{"client"}},
		{`input.principal["tenant"] == "x"`, []string{"tenant"}},
		{`not "b" in object.get(input.principal, "actors", [])`, []string{"subject", "roles", "client", "tenant", "person", "issuer", "client_id", "actors", "may_act"}},
		{`not input.principal.person == "b"`, []string{"person", "issuer", "client_id", "actors", "may_act"}},
		{`not "b" in input.principal.actors`, []string{"person", "issuer", "client_id", "actors", "may_act"}},
		{`input["principal"].client != ""`, []string{"client"}},
		{`{ k := "client"; input.principal[k] == "c/1" }`, []string{"subject", "roles", "client", "tenant", "person", "issuer", "client_id", "actors", "may_act"}},
		{`{ some k; input.principal[k] == "c/1" }`, []string{"subject", "roles", "client", "tenant", "person", "issuer", "client_id", "actors", "may_act"}},
		{`{ some k; input[k].client == "c/1" }`, []string{"subject", "roles", "client", "tenant", "person", "issuer", "client_id", "actors", "may_act"}},
		{`{ p := input.principal; p.client == "c/1" }`, []string{"subject", "roles", "client", "tenant", "person", "issuer", "client_id", "actors", "may_act"}},
		{`{ i := input; i.principal.client == "c/1" }`, []string{"subject", "roles", "client", "tenant", "person", "issuer", "client_id", "actors", "may_act"}},
		{`object.get(input, ["principal", "client"], "") == "c/1"`, []string{"subject", "roles", "client", "tenant", "person", "issuer", "client_id", "actors", "may_act"}},
		{`{ walk(input, [path, value]); path[1] == "client"; value == "c/1" }`, []string{"subject", "roles", "client", "tenant", "person", "issuer", "client_id", "actors", "may_act"}},
		{`[input][0].principal.client == "c/1"`, []string{"subject", "roles", "client", "tenant", "person", "issuer", "client_id", "actors", "may_act"}},
		{`{ f(input) }`, []string{"subject", "roles", "client", "tenant", "person", "issuer", "client_id", "actors", "may_act"}},
		{`{ who.client == "c/1" }`, []string{"subject", "roles", "client", "tenant", "person", "issuer", "client_id", "actors", "may_act"}},
		{`count([x | x := input.principal.client]) == 1`, []string{"client"}},
		{`not input.principal.client == "c/1"`, []string{"client"}},
		{`every c in [input.principal.client] { c == "c/1" }`, []string{"client"}},
		{`$"{input.principal.client}" == "c/1"`, []string{"client"}},
		// What waits for data that is not there is the same for all.
		{`data.nothing[input.principal.client] == "x"`, nil},
		{`{ data.nothing; input.principal.client == "c/1" }`, nil},
		{`{ input.principal.client == "c/1"; data.nothing.at.all }`, nil},
		{`{ to_number(input.principal.client) > 1; data.nothing }`, []string{"client"}},
		{`{ not input.principal.client; data.nothing }`, []string{"client"}},
		{`{ [input.principal.client][_] == data.nothing }`, []string{"client"}},
		{`not data.nothing[input.principal.client]`, []string{"client"}},
		{`count([x | x := data.nothing[input.principal.client]]) == 0`, []string{"client"}},
		{`{ data.nothing[input.principal.client] with data.nothing as {"c/1": true} }`, []string{"client"}},
	} {
		rules := "f(x) if x.principal.client == \"c/1\"\nwho := input.principal\n"
		if !contains(c.condition, "f(input)") && !contains(c.condition, "who.") {
			rules = ""
		}
		e := loadUntried(t, writeFiles(t, "p.rego", module(rules+`decision := {"effect": "allow"} if `+c.condition)))
		for name, other := range others {
			t.Run(c.condition+"/"+name, func(t *testing.T) {
				tool := policy.Tool{Exposed: "t", Name: name}
				e.Constant(t.Context(), a, tool)
				before := e.Remembered()
				e.Constant(t.Context(), other, tool)
				if shared, reads := e.Remembered() == before, slices.Contains(c.reads, name); shared == reads {
					t.Errorf("shared is %v, want %v", shared, !reads)
				}
			})
		}
	}
}

// TestOnePrincipalFlushesNobody holds that a caller that gives its client ever
// other names keeps a share of what is remembered, and that calls beyond it are
// judged all the same.
func TestOnePrincipalFlushesNobody(t *testing.T) {
	e, err := rego.Load(t.Context(), rego.Options{CacheSize: 64, Timeout: testTimeout,
		Path: writeFiles(t, "p.rego", module(`decision := {"effect": "allow", "rule": input.principal.client}`))})
	if err != nil {
		t.Fatal(err)
	}
	honest := input("r", "t", `{}`)
	honest.Principal.Subject = "honest"
	if _, err := e.Decide(t.Context(), honest); err != nil {
		t.Fatal(err)
	}
	before := e.Remembered()
	for i := range 1000 {
		in := input("r", "t", `{}`)
		in.Principal.Client = fmt.Sprint("client/", i)
		d, err := e.Decide(t.Context(), in)
		if shown, serr := e.Visible(t.Context(), in.Principal, in.Tool); err != nil || serr != nil || !shown || d.Rule != in.Principal.Client {
			t.Fatalf("got %+v, %v, visible %v, %v", d, err, shown, serr)
		}
	}
	if n := e.Remembered() - before; n != 4 {
		t.Errorf("one principal has %d pairs, want 4", n)
	}
	if _, err := e.Decide(t.Context(), honest); err != nil || e.Remembered() != before+4 {
		t.Errorf("the honest caller was forgotten: %v, %d pairs", err, e.Remembered())
	}
}

// TestAgentsShareWhatIsKnown holds that thousands of agents with one role cost
// the default policy what one does, until somebody is named in its data.
func TestAgentsShareWhatIsKnown(t *testing.T) {
	for data, want := range map[string]int{``: 1, `{"directory": {"subjects": {"agent-7": {"roles": ["observer"]}}}}`: 2} {
		e, err := rego.Load(t.Context(), rego.Options{Data: json.RawMessage(data), Timeout: testTimeout})
		if err != nil {
			t.Fatal(err)
		}
		before := e.Remembered()
		for _, subject := range []string{"agent-7", "agent-8"} {
			in := input("researcher", "search_internet", `{"query":"x"}`)
			in.Principal.Subject = subject
			if d, err := e.Decide(t.Context(), in); err != nil || d.Effect != policy.Allow {
				t.Fatalf("got %+v, %v", d, err)
			}
		}
		if n := e.Remembered() - before; n != want {
			t.Errorf("data %s: two agents are remembered as %d, want %d", data, n, want)
		}
	}
}

// Rights tell apart exactly the principals that the policy can tell apart.
func TestRights(t *testing.T) {
	base := policy.Principal{Subject: "ann", Roles: []string{"r", "s"}, Client: "c", Tenant: "t", Person: "p", Actors: []string{"a"}}
	change := map[string]func(*policy.Principal){
		"subject": func(p *policy.Principal) { p.Subject = "bob" }, "client": func(p *policy.Principal) { p.Client = "d" },
		"tenant": func(p *policy.Principal) { p.Tenant = "u" }, "roles": func(p *policy.Principal) { p.Roles = []string{"rs"} },
		"person": func(p *policy.Principal) { p.Person = "q" }, "actors": func(p *policy.Principal) { p.Actors = nil },
	}
	for read := range change {
		e := load(t, "p.rego", module(`decision := {"effect": "allow"} if input.principal.`+read+` != null`))
		for name, f := range change {
			other := base.Clone()
			f(&other)
			facts := (read == "person" || read == "actors") && (name == "person" || name == "actors")
			one, claims := e.Rights(base)
			two, _ := e.Rights(other)
			if claims != (read == "client") {
				t.Errorf("a policy that reads %s: claims %v", read, claims)
			}
			if got, want := one != two, read == name || facts; got != want {
				t.Errorf("a policy that reads %s tells %s apart: %v, want %v", read, name, got, want)
			}
		}
	}
}

// A principal that claims many clients makes nobody's view be judged again.
func TestSeenByManyClients(t *testing.T) {
	e := load(t, "p.rego", module("decision := {\"effect\": \"deny\"}\nvisible if input.principal.client != \"x\""))
	tools := []policy.Tool{{Server: "s", Exposed: "t"}}
	see := func(subject, client string) {
		t.Helper()
		if seen, err := e.Seen(t.Context(), policy.Principal{Subject: subject, Roles: []string{"r"}, Client: client}, tools); err != nil || !seen[0] {
			t.Fatalf("%s with %s sees %v, %v", subject, client, seen, err)
		}
	}
	see("ann", "desk")
	for i := range 2000 {
		see("bob", fmt.Sprint("client ", i))
	}
	if !e.Remembers(policy.Principal{Subject: "ann", Roles: []string{"r"}, Client: "desk"}) {
		t.Error("what ann sees is forgotten")
	}
}

// More tools than are remembered are judged all the same, and those known before
// are not mixed up with others.
func TestSeenBeyondTheBound(t *testing.T) {
	parts.Long(t, "judges 65,000 tools")
	e := load(t, "p.rego", module("decision := {\"effect\": \"deny\"}\nvisible if endswith(input.tool.exposed, \"7\")"))
	who := policy.Principal{Subject: "ann", Roles: []string{"r"}}
	for from := 0; from < 70_000; from += 10_000 {
		many := make([]policy.Tool, 10_000)
		for i := range many {
			many[i] = policy.Tool{Server: "s", Exposed: fmt.Sprint(from + i)}
		}
		seen, err := e.Seen(t.Context(), who, many)
		if err != nil {
			t.Fatal(err)
		}
		for i, shown := range seen {
			if want := (from+i)%10 == 7; shown != want {
				t.Fatalf("tool %d is shown: %v, want %v", from+i, shown, want)
			}
		}
	}
}
