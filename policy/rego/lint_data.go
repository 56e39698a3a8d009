package rego

import (
	"maps"
	"regexp"
	"slices"

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
func lintData(c *ast.Compiler, data map[string]any) []Finding {
	var found []Finding
	pathsOf(c).unread(data, "data", func(path, near string) bool {
		f := Finding{Level: LevelNote, Code: codeData, Message: "no rule reads " + path}
		if near != "" {
			f.Level, f.Hint = LevelWarning, "did you mean "+near+"?"
		}
		found = append(found, f)
		return len(found) < mostUnread
	})
	return found
}

// unread calls say for each path of data that is not read, with the member that
// it was perhaps meant to be, until say reports false.
func (p *paths) unread(data map[string]any, at string, say func(path, near string) bool) bool {
	for _, name := range slices.Sorted(maps.Keys(data)) {
		next, known := p.members[name]
		other := p.members[anyMember]
		switch {
		case next == nil && other == nil:
			if !say(memberPath(at, name), nearest(name, slices.Collect(maps.Keys(p.members)))) {
				return false
			}
			continue
		case !known:
			next = other
		case other != nil:
			next = &paths{whole: next.whole || other.whole, members: joined(next.members, other.members)}
		}
		below, ok := data[name].(map[string]any)
		if ok && !next.whole && !next.unread(below, memberPath(at, name), say) {
			return false
		}
	}
	return true
}

func joined(a, b map[string]*paths) map[string]*paths {
	out := maps.Clone(a)
	if out == nil {
		return b
	}
	for name, p := range b {
		if have := out[name]; have != nil {
			p = &paths{whole: have.whole || p.whole, members: joined(have.members, p.members)}
		}
		out[name] = p
	}
	return out
}

var plainName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// memberPath is the path of a member, as Rego writes it.
func memberPath(path, name string) string {
	if plainName.MatchString(name) {
		return path + "." + name
	}
	return path + "[" + ast.String(name).String() + "]"
}
