package rego

import (
	"cmp"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"
)

// paths are what of data the rules read: the members that they name, and below
// anyMember those under names that they do not know.
type paths struct {
	whole   bool // everything below is read
	members map[string]*paths
}

const anyMember = "[…]"

// readByEngine are parts of data that toolgate itself looks at.
var readByEngine = []ast.Ref{ast.MustParseRef("data.usage"), ast.MustParseRef("data.system")}

// refuseObserve refuses data that asks for constraints on trial, which policies
// before had: read by nothing, they would be a trial that nobody holds.
func (f files) refuseObserve(data map[string]any, from func([]string) string) error {
	tools, _ := data["tools"].(map[string]any)
	var found Faults
	for _, tool := range slices.Sorted(maps.Keys(tools)) {
		settings, _ := tools[tool].(map[string]any)
		if _, ok := settings["observe"]; !ok {
			continue
		}
		u := unread{files: f, from: from}
		u.say([]string{"tools", tool, "observe"}, "")
		one := u.found[0]
		one.Level, one.Message = LevelError, "data"+dotted([]string{"tools", tool, "observe"})+" is no longer supported"
		one.Hint = "try a changed policy beside the one that serves: policy.shadow"
		found = append(found, one)
	}
	return found.errorOf("reading policy data")
}

// pathsOf walks every compiled rule.
func pathsOf(c *ast.Compiler) *paths {
	root := new(paths)
	add := func(r ast.Ref) bool {
		if len(r) > 0 && r[0].Equal(ast.DefaultRootDocument) && len(c.GetRules(r.GroundPrefix())) == 0 {
			root.add(r[1:])
		}
		return false
	}
	for _, m := range c.Modules {
		ast.WalkRefs(m, add)
	}
	for _, r := range readByEngine {
		add(r)
	}
	return root
}

func (p *paths) add(r ast.Ref) {
	for _, t := range r {
		name := anyMember
		if s, ok := t.Value.(ast.String); ok {
			name = string(s)
		}
		if p.members == nil {
			p.members = make(map[string]*paths)
		}
		if p.members[name] == nil {
			p.members[name] = new(paths)
		}
		p = p.members[name]
	}
	p.whole = true
}

// mostUnread bounds what is said of data: one slip is often in many places.
const mostUnread = 20

// lintData finds members of data that no rule reads: a right, a limit or a list
// that was written, and does nothing.
func (f files) lintData(c *ast.Compiler, data map[string]any, from func([]string) string) []Finding {
	u := &unread{files: f, from: from}
	u.walk(pathsOf(c), data, nil)
	return u.found
}

// unread is a search of data for what no rule reads.
type unread struct {
	files files
	from  func([]string) string // where a path of the overlay was written; may be nil
	found []Finding
}

func (u *unread) walk(p *paths, data map[string]any, at []string) {
	for _, name := range slices.Sorted(maps.Keys(data)) {
		path := append(slices.Clip(at), name)
		next := p.below(name)
		switch below, object := data[name].(map[string]any); {
		case len(u.found) >= mostUnread:
			return
		case next == nil:
			u.say(path, nearest(name, slices.Collect(maps.Keys(p.members))))
		case object && !next.whole:
			u.walk(next, below, path)
		}
	}
}

func (u *unread) say(path []string, near string) {
	f := Finding{Level: LevelNote, Code: codeData, Message: "no rule reads data" + dotted(path)}
	if near != "" {
		f.Level, f.Hint = LevelWarning, "did you mean "+near+"?"
	}
	f.File, f.Row = u.files.setAt(path)
	if f.File == "" && u.from != nil {
		f.File = u.from(path)
	}
	u.found = append(u.found, f)
}

// below is what is read of the member of this name; nil = nothing.
func (p *paths) below(name string) *paths {
	named, other := p.members[name], p.members[anyMember]
	if named == nil || other == nil {
		return cmp.Or(named, other)
	}
	return named.with(other)
}

// with is what either of two reads.
func (p *paths) with(q *paths) *paths {
	out := &paths{whole: p.whole || q.whole, members: maps.Clone(p.members)}
	for name, more := range q.members {
		if have := out.members[name]; have != nil {
			more = have.with(more)
		}
		if out.members == nil {
			out.members = make(map[string]*paths)
		}
		out.members[name] = more
	}
	return out
}

var plainName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// dotted is a path below a document, as Rego writes it.
func dotted(path []string) string {
	var b strings.Builder
	for _, name := range path {
		if plainName.MatchString(name) {
			b.WriteString("." + name)
		} else {
			b.WriteString("[" + ast.String(name).String() + "]")
		}
	}
	return b.String()
}
