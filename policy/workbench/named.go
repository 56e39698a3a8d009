package workbench

import (
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/util"

	defaults "github.com/toolgate/toolgate/policy/bundle"
	"github.com/toolgate/toolgate/policy/rego"
)

// A NamedTool is a tool that the data of a policy names.
type NamedTool struct {
	Name string // exposed
	Path string // in data, such as data.thresholds.manage_wallet
}

// keyedByTool are the members of data in the published form that have a member for each
// tool.
var keyedByTool = []string{"facts", "known", "models", "pixels", "thresholds", "tools", "unmetered", "usage"}

// NamedTools returns the tools that data names in the form of docs/schemas/policy-data.json,
// sorted by path, without those that the embedded default policy names: toolgate ships them,
// and not everybody uses them. Of data in another form it returns those of usage and facts.
func NamedTools(e *rego.Engine) []NamedTool {
	shipped := shippedTools()
	data, declared := e.Source()
	return slices.DeleteFunc(namedTools(data, declared), func(t NamedTool) bool { return shipped[t.Name] })
}

func namedTools(data map[string]any, declared []string) (named []NamedTool) {
	add := func(v any, path ...string) {
		members, _ := v.(map[string]any)
		for _, name := range slices.Sorted(maps.Keys(members)) {
			named = append(named, NamedTool{name, rego.PathOf(append(slices.Clone(path), name)...)})
		}
	}
	for _, name := range keyedByTool {
		if slices.Contains(declared, name) || name == "usage" || name == "facts" {
			add(data[name], name)
		}
	}
	roles, _ := data["roles"].(map[string]any)
	for role, v := range roles {
		if entry, ok := v.(map[string]any); ok && slices.Contains(declared, "roles") {
			add(entry["tools"], "roles", role, "tools")
			deny, _ := entry["deny"].(map[string]any)
			add(deny["tools"], "roles", role, "deny", "tools")
		}
	}
	slices.SortFunc(named, func(a, b NamedTool) int { return strings.Compare(a.Path, b.Path) })
	return named
}

// shippedTools are the tools that the data of the embedded default policy names.
var shippedTools = sync.OnceValue(func() map[string]bool {
	var data map[string]any
	raw, err := defaults.Files.ReadFile("data.json")
	if err != nil || util.UnmarshalJSON(raw, &data) != nil { // a test loads it
		return nil
	}
	names := map[string]bool{}
	for _, t := range namedTools(data, append([]string{"roles"}, keyedByTool...)) {
		names[t.Name] = true
	}
	return names
})

// GivenRoles returns the roles that data.roles has, and that data.directory gives, sorted; nil
// for a policy without data.roles, which may know any role.
func GivenRoles(e *rego.Engine) []string {
	data, _ := e.Source()
	if roles, _ := data["roles"].(map[string]any); roles == nil {
		return nil
	}
	directory, _ := data["directory"].(map[string]any)
	subjects, _ := directory["subjects"].(map[string]any)
	inherits, _ := directory["inherits"].(map[string]any)
	groups, _ := directory["groups"].(map[string]any)
	roles := append(e.Roles(), slices.Collect(maps.Keys(inherits))...)
	for _, v := range subjects {
		entry, _ := v.(map[string]any)
		roles = append(roles, textsIn(entry["roles"])...)
	}
	for _, list := range slices.Concat(slices.Collect(maps.Values(groups)), slices.Collect(maps.Values(inherits))) {
		roles = append(roles, textsIn(list)...)
	}
	slices.Sort(roles)
	return slices.Compact(roles)
}

// KnowsRole reports whether a role makes a difference to the policy: it is one of GivenRoles,
// approves, has a right of people, or is a text in a rule.
func KnowsRole(e *rego.Engine, role string) bool {
	data, _ := e.Source()
	for _, name := range []string{"trail", "operators", "stops", "definitions", "arguments", "exports", "connections"} {
		if members, _ := data[name].(map[string]any); members[role] != nil {
			return true
		}
	}
	known := !e.Answers("trail") && (role == "auditor" || role == "approver") || !e.Answers("operates") && role == "operator"
	for _, m := range e.Modules() {
		ast.WalkTerms(m, func(t *ast.Term) bool {
			known = known || t.Value.Compare(ast.String(role)) == 0
			return known
		})
	}
	return known || slices.Contains(GivenRoles(e), role) || Approvers(e)[role] != ""
}

// Approvers returns the roles that approve held calls, with a place where the policy names
// each: data.approval, the approval or a threshold of a tool, or a rule that writes them out.
func Approvers(e *rego.Engine) map[string]string {
	data, _ := e.Source()
	places := map[string]string{}
	add := func(approval any, where string) {
		members, _ := approval.(map[string]any)
		quorum, _ := members["quorum"].(map[string]any)
		for _, role := range append(textsIn(members["roles"]), slices.Collect(maps.Keys(quorum))...) {
			places[role] = where
		}
	}
	for name, m := range e.Modules() {
		ast.WalkTerms(m, func(t *ast.Term) bool {
			if approval := rego.MembersOf(t)["approval"]; approval != nil && approval.IsGround() {
				if v, err := ast.JSON(approval.Value); err == nil {
					add(v, strings.TrimPrefix(name, "/"))
				}
			}
			return false
		})
	}
	tools, _ := data["tools"].(map[string]any)
	for name, v := range tools {
		entry, _ := v.(map[string]any)
		add(entry["approval"], rego.PathOf("tools", name, "approval"))
	}
	thresholds, _ := data["thresholds"].(map[string]any)
	for name, v := range thresholds {
		list, _ := v.([]any)
		for _, entry := range list {
			add(entry, rego.PathOf("thresholds", name))
		}
	}
	add(data["approval"], "data.approval")
	return places
}

// textsIn returns the texts of a list.
func textsIn(v any) (out []string) {
	list, _ := v.([]any)
	for _, one := range list {
		if text, ok := one.(string); ok {
			out = append(out, text)
		}
	}
	return out
}
