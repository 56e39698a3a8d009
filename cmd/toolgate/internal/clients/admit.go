package clients

import (
	"fmt"
	"slices"

	"github.com/toolgate/toolgate/internal/tree"
	"github.com/toolgate/toolgate/registry/config"
)

// admit disables a server that a client's own lists do not let it use: mcp.allowed
// and mcp.excluded of Gemini CLI, allowedMcpServers and deniedMcpServers of Claude Code.
// A denial takes precedence.
func (r *reader) admit(root, s *tree.Node) {
	for _, list := range []struct {
		n      *tree.Node
		allows bool
	}{
		{root.At("mcp", "excluded"), false},
		{root.At("mcp", "allowed"), true},
		{root.Get("deniedMcpServers"), false},
		{root.Get("allowedMcpServers"), true},
	} {
		if list.n == nil || list.n.Kind != tree.Array || names(list.n, s, list.allows) == list.allows {
			continue
		}
		if !s.IsTrue("disabled") {
			r.Warn(s.Named(), fmt.Sprintf("is disabled: %s leaves it out", list.n.Path), "")
			s.Members = slices.DeleteFunc(s.Members, func(m *tree.Node) bool { return m.Key == "disabled" })
			put(s, "disabled", s, s.As(tree.True, "true"))
		}
		return
	}
}

// names reports whether a list names a server: by its name, or by its command or its
// address where an element says so. In a list of what is allowed, a name is not enough
// for a command when the list has commands, nor for an address when it has addresses.
func names(list, s *tree.Node, strict bool) bool {
	kind := "serverUrl"
	if s.Get("command") != nil {
		kind = "serverCommand"
	}
	line := append([]*tree.Node{s.Get("command")}, s.Get("args").Elements()...)
	sameText := func(a, b *tree.Node) bool { return a.Written() == b.Written() }
	kinds, found := false, false
	for _, e := range list.Items {
		want := e.Get(kind)
		switch {
		case want == nil:
			continue
		case want.Kind == tree.String: // a pattern of addresses
			found = found || config.Fits(want.Text, s.Get("url").Written())
		default:
			found = found || slices.EqualFunc(want.Items, line, sameText)
		}
		kinds = true
	}
	return found || !(strict && kinds) && slices.ContainsFunc(list.Items, func(e *tree.Node) bool {
		return e.Get("serverName").Written() == s.Key || e.Kind == tree.String && e.Text == s.Key
	})
}
