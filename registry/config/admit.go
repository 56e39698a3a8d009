package config

import (
	"fmt"
	"path"
	"slices"
	"strings"
)

// admit disables the servers that a client's own lists do not let it use: mcp.allowed
// and mcp.excluded of Gemini CLI, allowedMcpServers and deniedMcpServers of Claude Code.
// A denial takes precedence.
func (l *loader) admit(root, servers *node) {
	for _, s := range servers.members {
		if s.kind != kindObject {
			continue
		}
		for _, list := range []struct {
			n      *node
			allows bool
		}{
			{root.at("mcp", "excluded"), false},
			{root.at("mcp", "allowed"), true},
			{root.get("deniedMcpServers"), false},
			{root.get("allowedMcpServers"), true},
		} {
			if list.n != nil && list.n.kind == kindArray && names(list.n, s, list.allows) != list.allows {
				l.disable(s, list.n)
				break
			}
		}
	}
}

// disable turns a server off, unless it is.
func (l *loader) disable(s, list *node) {
	if s.isTrue("disabled") {
		return
	}
	l.warn(s.named(), fmt.Sprintf("is disabled: %s leaves it out", list.path), "")
	s.members = slices.DeleteFunc(s.members, func(m *node) bool { return m.key == "disabled" })
	s.put("disabled", s, s.as(kindTrue, "true"))
}

// names reports whether a list names a server: by its name, or by its command or its
// address where an element says so. In a list of what is allowed, a name is not enough
// for a command when the list has commands, nor for an address when it has addresses.
func names(list, s *node, strict bool) bool {
	kind := "serverUrl"
	if s.get("command") != nil {
		kind = "serverCommand"
	}
	kinds := slices.DeleteFunc(slices.Clone(list.items), func(e *node) bool { return e.get(kind) == nil })
	byKind := slices.ContainsFunc(kinds, func(e *node) bool { return reaches(e.get(kind), s) })
	if strict && len(kinds) > 0 {
		return byKind
	}
	return byKind || slices.ContainsFunc(list.items, func(e *node) bool {
		return e.get("serverName").written() == s.key || e.kind == kindString && e.text == s.key
	})
}

// reaches reports whether want, a list of program and arguments or a pattern of
// addresses, is how s is reached.
func reaches(want, s *node) bool {
	if want.kind == kindString {
		return globs(want.text, s.get("url").written())
	}
	line := []*node{s.get("command")}
	line = append(line, s.get("args").elements()...)
	return slices.EqualFunc(want.items, line, func(a, b *node) bool { return a.written() == b.written() })
}

// escape keeps path.Match to * and ?, and lets * stand for slashes too.
var escape = strings.NewReplacer("/", "\x00", `\`, `\\`, "[", `\[`)

// globs reports whether text matches a pattern, in which * stands for anything and ? for
// one character.
func globs(pattern, text string) bool {
	ok, err := path.Match(escape.Replace(pattern), strings.ReplaceAll(text, "/", "\x00"))
	return ok && err == nil
}
