package config

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/toolgate/toolgate/registry/dialect"
)

// ours gives the members of mcp.json that are for us: its servers, in toolgate's own
// form and under mcpServers (or servers), and the settings. What other clients keep
// next to them is no fault, unless it looks like a misspelling of what would then be
// lost.
func (l *loader) ours(root *node) (found []*node) {
	for _, m := range root.members {
		if m.key == "toolgate" || m.key == "$schema" {
			found = append(found, m)
		}
	}
	servers := l.servers(root)
	if servers == nil {
		l.warnings = append(l.warnings, Warning{File: root.file.name, Message: "no server is configured", Hint: `add one under "mcpServers"`})
		return found
	}
	if servers.kind == kindObject && len(servers.members) == 0 && len(l.leftOut) == 0 {
		l.warn(servers, "no server is configured", `add one: "name": { "command": "…" } or { "url": "…" }`)
	}
	return append(found, servers)
}

// servers returns the servers of a file in toolgate's own form, nil when it has none.
func (l *loader) servers(root *node) *node {
	found := containers(root)
	servers := l.container(found)
	l.client, l.own = l.recognise(root, servers), root.get("toolgate") != nil
	if servers == nil {
		servers = l.described(root)
	}
	if servers == nil || servers.path != "" { // a file that describes servers has nothing else
		l.reportForeign(root, found)
	}
	if servers == nil {
		return nil
	}
	if servers.path != "servers" {
		servers.key = "mcpServers"
	}
	l.entries = servers.key
	if servers.kind == kindArray && l.named(servers) {
		l.nameElements(servers)
	}
	if l.foreignFile || servers.path == "" { // described, not named by an operator
		l.fitNames(servers)
	}
	l.rewriteServers(servers)
	l.admit(root, servers)
	l.filterTools(root, servers)
	return servers
}

// containers returns the values of a file that hold servers, each from the longest way to
// it on.
func containers(root *node) (found []*node) {
	for _, path := range dialect.Containers() {
		n := root.at(path...)
		inner := func(c *node) bool { return strings.HasPrefix(c.path, n.path+".") } // mcp is not beside mcp.servers
		if n != nil && holdsServers(path[len(path)-1], n) && !slices.ContainsFunc(found, inner) {
			found = append(found, n)
		}
	}
	return found
}

// container returns the one value with the servers, nil when there is none.
func (l *loader) container(found []*node) *node {
	if len(found) == 0 {
		return nil
	}
	for _, n := range found[1:] {
		first, second := found[0], n
		if second.keyAt < first.keyAt {
			first, second = second, first
		}
		l.fault(second.named(), fmt.Sprintf("conflicts with %q: they are synonyms", first.path), "join them")
	}
	return found[0]
}

// holdsServers reports whether n, under a container's key, has servers. Of keys that
// mean something else to other programs, their values have to look like it.
func holdsServers(key string, n *node) bool {
	if key != "mcp" && key != "extensions" && n.path != "mcp.servers" {
		return true
	}
	return len(n.members) > 0 && !slices.ContainsFunc(n.members, func(m *node) bool { return m.kind != kindObject })
}

// recognise finds the dialect of a file, unless somebody has named it.
func (l *loader) recognise(root, servers *node) dialect.Client {
	if c, ok := dialect.Lookup(l.asked); ok {
		return c
	}
	shape := dialect.Shape{Path: root.file.path, Format: root.file.format(), Schema: root.get("$schema").written()}
	for _, m := range root.members {
		shape.Root = append(shape.Root, m.key)
	}
	for _, entry := range slices.Concat(servers.each(), servers.elements()) {
		for _, m := range entry.members {
			shape.Entries = append(shape.Entries, m.key)
			if m.key == "type" {
				shape.Entries = append(shape.Entries, "type="+m.text)
			}
		}
	}
	c, _ := dialect.Recognise(shape)
	return c
}

// narrowing are the members of a file that say which servers may be used, and others
// that belong to the servers.
var narrowing = []string{"allowedMcpServers", "deniedMcpServers", "inputs"}

// reportForeign reports the members of a file that are not ours: each of a few, many
// together.
func (l *loader) reportForeign(root *node, found []*node) {
	known := []string{"mcpServers", "servers", "toolgate"}
	if l.foreignFile && root.get("toolgate") != nil {
		l.warn(root.get("toolgate").named(), "settings of toolgate are not imported", "")
	}
	var ignored []*node
	choosing := l.choosing(root)
	for _, m := range root.members {
		near := Nearest(m.key, known)
		switch {
		case slices.Contains(known, m.key) || m.key == "$schema" || slices.Contains(narrowing, m.key):
		case slices.ContainsFunc(found, func(c *node) bool { return c == m || strings.HasPrefix(c.path, m.path+".") }):
		case m.key == "mcp" && (m.get("allowed") != nil || m.get("excluded") != nil):
		case slices.Contains(choosing, m.key):
		case m.key == "projects" && root.get("mcpServers") != nil:
			l.warn(m.named(), "the servers of single projects are not read", "name the file of a project, .mcp.json")
		case near != "" && (near != "servers" || len(found) == 0): // others have a server of their own
			l.fault(m.named(), "unknown key", fmt.Sprintf("did you mean %q?", near))
		case len(found) == 0 && (m.get("command") != nil || m.get("url") != nil):
			l.fault(m.named(), `is a server outside of "mcpServers"`, `put it into "mcpServers": { … }`)
		default:
			ignored = append(ignored, m)
		}
	}
	const few = 4
	for i, m := range ignored {
		switch rest := len(ignored) - i - 1; {
		case len(ignored) <= few:
			l.warn(m.named(), "is ignored", "")
		case i == 0:
			l.warn(m.named(), fmt.Sprintf("is ignored, as are %d other members that hold no servers", rest), "")
		}
	}
}

// unfit are the characters that no name of a server has.
var unfit = regexp.MustCompile(`^[^A-Za-z0-9_]+|[^A-Za-z0-9_.-]+`)

// fitName makes a name that servers may have of any other; "" when nothing is left.
func fitName(name string) string {
	name = strings.TrimRight(unfit.ReplaceAllString(strings.TrimSpace(name), "-"), "-")
	name = strings.TrimLeft(name, "-.")
	return name[:min(len(name), 64)]
}

// named reports whether a list of servers has a name for any of them. The list of a client
// that has no other form always counts.
func (l *loader) named(servers *node) bool {
	return l.client.List || slices.ContainsFunc(servers.items, func(s *node) bool { return s.get("name") != nil })
}

// nameElements makes members of a list of servers, by their names.
func (l *loader) nameElements(servers *node) {
	items := servers.items
	servers.kind, servers.items = kindObject, nil
	for _, item := range items {
		name := item.get("name")
		fit := fitName(name.written())
		switch {
		case fit == "":
			l.fault(item, `has no "name"`, "every server of a list has a name")
			continue
		case servers.get(fit) != nil:
			l.fault(name, fmt.Sprintf("a server before it is called %q too", fit), "give them different names")
			continue
		case fit != name.text:
			l.warn(name, fmt.Sprintf("is read as %q: names have letters, digits, \"_\", \".\" and \"-\"", fit), "")
		}
		item.key, item.keyAt, item.former = fit, item.offset, name.text
		item.members = slices.DeleteFunc(item.members, func(m *node) bool { return m == name })
		servers.members = append(servers.members, item)
	}
}
