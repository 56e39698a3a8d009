package clients

import (
	"fmt"
	"slices"

	"github.com/toolgate/toolgate/internal/tree"
	"github.com/toolgate/toolgate/registry/config"
)

// admit disables a server that a client's own lists do not let it use. A denial takes precedence.
func (r *reader) admit(root, s *tree.Node) {
	for _, a := range read().Admission {
		list := root.At(a.Path...)
		if list == nil || list.Kind != tree.Array || names(list, s, a.Allows) == a.Allows {
			continue
		}
		if !s.IsTrue("disabled") {
			r.Warn(s.Named(), fmt.Sprintf("is disabled: %s leaves it out", list.Path), "")
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
