package clients

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/toolgate/toolgate/internal/text"
	"github.com/toolgate/toolgate/internal/tree"
	"github.com/toolgate/toolgate/registry/config"
)

// A reader turns the tree of one file into toolgate's own form.
type reader struct {
	*tree.Report
	client  Client   // whose form the servers have; zero = not known
	own     bool     // the file of the servers has settings too
	given   []string // variables of inputs that somebody gives a value
	inputs  []Input  // that the file describes
	asked   string   // ID of the dialect that somebody says the file has; "" = none
	foreign bool     // the file is a client's, and names of servers are made to fit
	leftOut []string // servers whose transport toolgate does not have
	noted   []string // what has been said and need not be said again
}

// Options returns options with which config reads the files of clients, too.
func Options(o config.Options) config.Options {
	o.Translate = func(root *tree.Node, report *tree.Report) []string {
		r := &reader{Report: report}
		return r.translate(root)
	}
	o.Workspace = Workspace
	return o
}

// translate leaves in root what is for us: its servers, in toolgate's own form and under
// mcpServers (or servers), and the settings. What other clients keep next to them is no fault,
// unless it looks like a misspelling of what would then be lost.
func (r *reader) translate(root *tree.Node) (leftOut []string) {
	settings := slices.DeleteFunc(slices.Clone(root.Members), func(m *tree.Node) bool { return m.Key != "toolgate" && m.Key != "$schema" })
	servers := r.servers(root)
	if root.Members = settings; servers != nil {
		root.Members = append(root.Members, servers)
	}
	return r.leftOut
}

// servers returns the servers of a file in toolgate's own form, nil when it has none.
func (r *reader) servers(root *tree.Node) *tree.Node {
	var found []*tree.Node // values that hold servers, from the longest way to one on
	for _, path := range Containers() {
		n := root.At(path...)
		if n == nil || !holdsServers(path[len(path)-1], n) || slices.ContainsFunc(found, func(c *tree.Node) bool { return strings.HasPrefix(c.Path, n.Path+".") }) {
			continue // mcp is not beside mcp.servers
		}
		if found = append(found, n); len(found) > 1 {
			first, second := found[0], n
			if second.KeyAt < first.KeyAt {
				first, second = second, first
			}
			r.Fault(second.Named(), fmt.Sprintf("conflicts with %q: they are synonyms", first.Path), "join them")
		}
	}
	var servers *tree.Node
	if len(found) > 0 {
		servers = found[0]
	}
	r.client, r.own = r.recognise(root, servers), root.Get("toolgate") != nil
	if servers == nil {
		servers = r.described(root)
	}
	if servers == nil || servers.Path != "" { // a file that describes servers has nothing else
		r.reportForeign(root, found)
	}
	if servers == nil {
		return nil
	}
	if servers.Path != "servers" {
		servers.Key = "mcpServers"
	}
	r.fitNames(servers)
	servers.Members = slices.DeleteFunc(servers.Members, r.rewrite)
	for _, s := range servers.Members {
		if s.Kind == tree.Object {
			r.admit(root, s)
		}
	}
	r.filterTools(root, servers)
	return servers
}

// holdsServers reports whether n, under a container's key, has servers. Of keys that
// mean something else to other programs, their values have to look like it.
func holdsServers(key string, n *tree.Node) bool {
	if key != "mcp" && key != "extensions" && n.Path != "mcp.servers" {
		return true
	}
	return len(n.Members) > 0 && !slices.ContainsFunc(n.Members, func(m *tree.Node) bool { return m.Kind != tree.Object })
}

// recognise finds the dialect of a file, unless somebody has named it.
func (r *reader) recognise(root, servers *tree.Node) Client {
	if c, ok := Lookup(r.asked); ok {
		return c
	}
	shape := Shape{Path: root.File.Path, Format: root.File.FormatOf(), Schema: root.Get("$schema").Written()}
	for _, m := range root.Members {
		shape.Root = append(shape.Root, m.Key)
	}
	for _, entry := range slices.Concat(servers.Each(), servers.Elements()) {
		for _, m := range entry.Members {
			shape.Entries = append(shape.Entries, m.Key)
			if m.Key == "type" {
				shape.Entries = append(shape.Entries, "type="+m.Text)
			}
		}
	}
	c, _ := Recognise(shape)
	return c
}

// reportForeign reports the members of a file that are not ours: each of a few, many
// together.
func (r *reader) reportForeign(root *tree.Node, found []*tree.Node) {
	known := []string{"mcpServers", "servers", "toolgate"}
	if r.foreign && root.Get("toolgate") != nil {
		r.Warn(root.Get("toolgate").Named(), "settings of toolgate are not imported", "")
	}
	var ignored []*tree.Node
	choosing := r.choosing(root)
	for _, m := range root.Members {
		near := text.Nearest(m.Key, known)
		switch {
		case slices.Contains(known, m.Key) || m.Key == "$schema" || m.Key == "inputs" || admits(root, m):
		case slices.ContainsFunc(found, func(c *tree.Node) bool { return c == m || strings.HasPrefix(c.Path, m.Path+".") }):
		case slices.Contains(choosing, m.Key):
		case m.Key == "projects" && root.Get("mcpServers") != nil:
			r.Warn(m.Named(), "the servers of single projects are not read", "name the file of a project, .mcp.json")
		case near != "" && (near != "servers" || len(found) == 0): // others have a server of their own
			r.Fault(m.Named(), "unknown key", fmt.Sprintf("did you mean %q?", near))
		case len(found) == 0 && (m.Get("command") != nil || m.Get("url") != nil):
			r.Fault(m.Named(), `is a server outside of "mcpServers"`, `put it into "mcpServers": { … }`)
		default:
			ignored = append(ignored, m)
		}
	}
	const few = 4
	if rest := len(ignored) - 1; rest >= few {
		r.Warn(ignored[0].Named(), fmt.Sprintf("is ignored, as are %d other members that hold no servers", rest), "")
		return
	}
	for _, m := range ignored {
		r.Warn(m.Named(), "is ignored", "")
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

// admits reports whether a member of a file has a list that says which servers may be used.
func admits(root, m *tree.Node) bool {
	for _, a := range read().Admission {
		if a.Path[0] == m.Key && root.At(a.Path...) != nil {
			return true
		}
	}
	return false
}

// fitNames gives servers names that toolgate accepts: those of a list, which become members,
// and those in a file that no operator of toolgate has written.
func (r *reader) fitNames(servers *tree.Node) {
	// The list of a client that has no other form always counts.
	if servers.Kind == tree.Array && (r.client.List != "" || slices.ContainsFunc(servers.Items, func(s *tree.Node) bool { return s.Get("name") != nil })) {
		r.nameElements(servers)
	}
	if !r.foreign && servers.Path != "" {
		return
	}
	for _, s := range servers.Each() {
		fit := fitName(s.Key)
		switch {
		case fit == s.Key || fit == "":
			continue
		case servers.Get(fit) != nil:
			r.Fault(s.Named(), fmt.Sprintf("would be called %q, as another server is", fit), "give them different names")
		default:
			r.Warn(s.Named(), fmt.Sprintf("is called %q: names have letters, digits, \"_\", \".\" and \"-\"", fit), "")
			s.Key, s.Former = fit, s.Key
		}
	}
}

// nameElements makes members of a list of servers, by their names.
func (r *reader) nameElements(servers *tree.Node) {
	items := servers.Items
	servers.Kind, servers.Items = tree.Object, nil
	for _, item := range items {
		name := item.Get("name")
		fit := fitName(name.Written())
		switch {
		case fit == "":
			r.Fault(item, `has no "name"`, "every server of a list has a name")
			continue
		case servers.Get(fit) != nil:
			r.Fault(name, fmt.Sprintf("a server before it is called %q too", fit), "give them different names")
			continue
		case fit != name.Text:
			r.Warn(name, fmt.Sprintf("is read as %q: names have letters, digits, \"_\", \".\" and \"-\"", fit), "")
		}
		item.Key, item.KeyAt, item.Former = fit, item.Offset, name.Text
		item.Members = slices.DeleteFunc(item.Members, func(m *tree.Node) bool { return m == name })
		servers.Members = append(servers.Members, item)
	}
}
