package clients

import (
	"fmt"
	"slices"

	"github.com/toolgate/toolgate/internal/tree"
	"github.com/toolgate/toolgate/registry/config"
)

// admit disables the servers that a client's own lists do not let it use: mcp.allowed
// and mcp.excluded of Gemini CLI, allowedMcpServers and deniedMcpServers of Claude Code.
// A denial takes precedence.
func (r *reader) admit(root, servers *tree.Node) {
	for _, s := range servers.Members {
		if s.Kind != tree.Object {
			continue
		}
		for _, list := range []struct {
			n      *tree.Node
			allows bool
		}{
			{root.At("mcp", "excluded"), false},
			{root.At("mcp", "allowed"), true},
			{root.Get("deniedMcpServers"), false},
			{root.Get("allowedMcpServers"), true},
		} {
			if list.n != nil && list.n.Kind == tree.Array && names(list.n, s, list.allows) != list.allows {
				r.disable(s, list.n)
				break
			}
		}
	}
}

// disable turns a server off, unless it is.
func (r *reader) disable(s, list *tree.Node) {
	if s.IsTrue("disabled") {
		return
	}
	r.Warn(s.Named(), fmt.Sprintf("is disabled: %s leaves it out", list.Path), "")
	s.Members = slices.DeleteFunc(s.Members, func(m *tree.Node) bool { return m.Key == "disabled" })
	put(s, "disabled", s, s.As(tree.True, "true"))
}

// names reports whether a list names a server: by its name, or by its command or its
// address where an element says so. In a list of what is allowed, a name is not enough
// for a command when the list has commands, nor for an address when it has addresses.
func names(list, s *tree.Node, strict bool) bool {
	kind := "serverUrl"
	if s.Get("command") != nil {
		kind = "serverCommand"
	}
	kinds := slices.DeleteFunc(slices.Clone(list.Items), func(e *tree.Node) bool { return e.Get(kind) == nil })
	byKind := slices.ContainsFunc(kinds, func(e *tree.Node) bool { return reaches(e.Get(kind), s) })
	if strict && len(kinds) > 0 {
		return byKind
	}
	return byKind || slices.ContainsFunc(list.Items, func(e *tree.Node) bool {
		return e.Get("serverName").Written() == s.Key || e.Kind == tree.String && e.Text == s.Key
	})
}

// reaches reports whether want, a list of program and arguments or a pattern of
// addresses, is how s is reached.
func reaches(want, s *tree.Node) bool {
	if want.Kind == tree.String {
		return config.Fits(want.Text, s.Get("url").Written())
	}
	line := []*tree.Node{s.Get("command")}
	line = append(line, s.Get("args").Elements()...)
	return slices.EqualFunc(want.Items, line, func(a, b *tree.Node) bool { return a.Written() == b.Written() })
}
