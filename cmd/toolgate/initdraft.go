package main

import (
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"

	strict "github.com/go-json-experiment/json"

	"github.com/toolgate/toolgate/policy"
)

// The roles that init drafts. An agent with the first two may call every tool.
const (
	roleReader   = "reader"   // tools that only read, and nothing outside their server
	roleWriter   = "writer"   // all other tools; a person decides on those that may destroy
	roleApprover = "approver" // no tools: it decides on calls that are held
)

// draftedTool is a tool with its place in the drafted policy.
type draftedTool struct {
	Name        string          `json:"name"`                  // under which agents call it
	Annotations json.RawMessage `json:"annotations,omitempty"` // claims of its server
	Role        string          `json:"role"`
	Held        bool            `json:"held"` // a person decides on every call

	reads    bool // its server says that it changes nothing
	argument bool // it has a required argument
}

// claims are the annotations of a tool that say what it may do. They are what its server
// says, and nothing holds the server to them.
type claims struct {
	ReadOnly    *bool `json:"readOnlyHint"`
	Destructive *bool `json:"destructiveHint"`
	OpenWorld   *bool `json:"openWorldHint"`
}

// draftTool finds the place of a tool. What its server does not say, or says in a form
// that has two readings, is what MCP takes for granted: the tool writes, may destroy and
// reaches the open world.
func draftTool(t policy.Tool, definition json.RawMessage) draftedTool {
	var c claims
	if len(t.Annotations) > 0 && strict.Unmarshal(t.Annotations, &c) != nil {
		c = claims{}
	}
	is := func(claim *bool, otherwise bool) bool { return claim == nil && otherwise || claim != nil && *claim }
	d := draftedTool{Name: t.Exposed, Annotations: t.Annotations, Role: roleWriter, reads: is(c.ReadOnly, false) && !is(c.Destructive, false)}
	if d.reads && !is(c.OpenWorld, true) {
		d.Role = roleReader
	}
	d.Held = !d.reads && is(c.Destructive, true)
	var input struct{ InputSchema struct{ Required []string } }
	d.argument = json.Unmarshal(definition, &input) != nil || len(input.InputSchema.Required) > 0
	return d
}

// policyFiles returns the default policy with data that gives the drafted roles their
// tools, a decision table that holds it to them, and a page that explains it.
func policyFiles(tools []draftedTool) (files []plannedFile, err error) {
	data, err := document(policyData(tools))
	table, failed := document(policyTable(tools))
	files = []plannedFile{
		{"policy/README.md", 0o644, []byte(reports().Render("drafted-policy", tools, false))},
		{"policy/data.json", 0o644, data}, {"policy/roles_test.json", 0o644, table},
	}
	rules, unread := bundled()
	for _, name := range slices.Sorted(maps.Keys(rules)) {
		if strings.HasSuffix(name, ".rego") && !strings.HasSuffix(name, "_test.rego") {
			files = append(files, plannedFile{"policy/" + name, 0o644, rules[name]})
		}
	}
	return files, errors.Join(err, failed, unread)
}

// policyData returns the data of the drafted policy.
func policyData(tools []draftedTool) object {
	granted, held := map[string]object{roleReader: {}, roleWriter: {}}, object{}
	for _, t := range tools {
		granted[t.Role][t.Name] = true
		if t.Held {
			held[t.Name] = object{"hold": true}
		}
	}
	return object{
		"roles": object{
			roleReader: object{"tools": granted[roleReader]}, roleWriter: object{"tools": granted[roleWriter]}, roleApprover: object{"tools": object{}},
		},
		"tools":    held,
		"approval": object{"roles": []string{roleApprover}, "quorum": 1},
		"trail":    object{"auditor": "all", roleApprover: "decides"},
	}
}

// policyTable returns the decision table of the drafted policy: what each role may do with
// each tool.
func policyTable(tools []draftedTool) object {
	cases, effect := []object{}, map[bool]string{true: "hold", false: "allow"}
	for _, t := range tools {
		for _, role := range []string{roleReader, roleWriter, roleApprover} {
			want := "deny"
			if role == t.Role {
				want = effect[t.Held]
			}
			cases = append(cases, object{"name": role + ": " + t.Name, "input": object{"principal": object{"roles": []string{role}}, "tool": object{"exposed": t.Name}}, "want": want})
		}
	}
	return object{"cases": cases}
}
