package config

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// server reads one entry as MCP clients write it, defaults filled in.
func (l *loader) server(name string, n *node) Server {
	s := Server{
		Name: name, Prefix: name + "__", Isolation: IsolationSession, MaxSessions: DefaultMaxSessions,
		Timeout: DefaultTimeout, Pin: true, OutputSchema: "warn", CaseVariants: "refuse",
	}
	file := map[string]string{}
	known := fields{
		"type":     l.kindOf(&s.Type),
		"command":  l.filledTo(&s.Command),
		"args":     l.arguments(&s.Args),
		"env":      l.environment(&s.Env),
		"cwd":      l.path(&s.Dir),
		"envFile":  l.environmentFile(file),
		"url":      l.address(&s.URL),
		"headers":  l.headers(&s.Headers),
		"disabled": l.flag(&s.Disabled),
		"timeout":  l.vendorTimeout(&s.Timeout),
	}
	for _, m := range n.members {
		if read, ok := known[m.key]; ok {
			read(m.value)
			continue
		}
		l.foreign(n.file, m, keys(known))
	}
	l.reach(&s, n)
	if len(file) > 0 {
		// What stands in the entry itself is nearer and wins.
		maps.Copy(file, s.Env)
		s.Env = file
	}
	return s
}

// reach finds out whether a server is a command or an address, and that it is
// not both.
func (l *loader) reach(s *Server, n *node) {
	command, address, kind := n.get("command"), n.get("url"), n.get("type")
	switch {
	case command != nil && address != nil:
		l.fault(n, "has both a command and a url", "keep one: a command is started, a url is connected to")
		return
	case command == nil && address == nil:
		hint := "a command is started, a url is connected to"
		for _, other := range []string{"serverUrl", "httpUrl"} {
			if n.get(other) != nil {
				hint = fmt.Sprintf(`write "url" for %q`, other)
			}
		}
		l.fault(n, "has neither a command nor a url", hint)
		return
	case kind == nil && command != nil:
		s.Type = TypeStdio
	case kind == nil:
		s.Type = TypeHTTP
	case s.Type == "":
		return // an unknown type is a fault already
	case local(s.Type) && command == nil:
		l.fault(kind, fmt.Sprintf("is %s, which needs a command, not a url", s.Type), "write http or sse")
		return
	case !local(s.Type) && command != nil:
		l.fault(kind, fmt.Sprintf("is %s, which needs a url, not a command", s.Type), "write stdio or ndjson")
		return
	}
	l.useless(s, n)
}

// useless warns of keys that mean nothing for this kind of server, and drops
// what they say.
func (l *loader) useless(s *Server, n *node) {
	idle := []string{"args", "env", "envFile", "cwd"}
	if local(s.Type) {
		idle = []string{"headers"}
		s.Headers = nil
	} else {
		s.Args, s.Env, s.Dir = nil, nil, ""
	}
	for _, key := range idle {
		if v := n.get(key); v != nil {
			l.warn(v, fmt.Sprintf("has no meaning for a server of type %s", s.Type), "")
		}
	}
}

// consent and filters are what clients keep in an entry and an operator may
// take for governance.
var (
	consent = []string{"autoApprove", "alwaysAllow", "trust", "default_tools_approval_mode", "sandboxEnabled"}
	filters = []string{"includeTools", "excludeTools", "enabled_tools", "disabled_tools", "disabledTools", "tools"}
)

// foreign reports a key of an entry that is not ours. It is a warning, unless
// it differs from one of ours in case only: then one of two readers obeys it.
func (l *loader) foreign(f *file, m member, known []string) {
	message, hint := "is ignored", ""
	switch near := nearest(m.key, known); {
	case slices.Contains(consent, m.key):
		message, hint = "is ignored: client consent is not policy", "who may call what is decided by toolgate.policy"
	case slices.Contains(filters, m.key):
		hint = "name the tools to offer in toolgate.servers.NAME.expose"
	case m.key == "enabled":
		hint = `write "disabled": true to switch a server off`
	case m.key == "transport":
		hint = `write "type"`
	case near != "" && fold(near) == fold(m.key):
		l.faultAt(f, m.offset, m.value.path, fmt.Sprintf("differs from %q only in case", near), fmt.Sprintf("write %q", near))
		return
	case near != "":
		hint = fmt.Sprintf("did you mean %q?", near)
	}
	l.warnAt(f, m.offset, m.value.path, message, hint)
}

// arguments reads args. They may be empty strings; a NUL cannot be passed.
func (l *loader) arguments(to *[]string) func(*node) {
	return func(n *node) {
		l.list(n, func(item *node) {
			if s, ok := l.passable(item); ok {
				*to = append(*to, s)
			}
		})
	}
}

// passable reads a string that a process can be given. It is never quoted.
func (l *loader) passable(n *node) (string, bool) {
	s, ok := l.text(n)
	if ok && strings.ContainsRune(s, 0) {
		l.fault(n, "has a NUL character in it", "")
		return "", false
	}
	return s, ok
}

func (l *loader) environment(to *map[string]string) func(*node) {
	return func(n *node) {
		if !l.is(n, kindObject) {
			return
		}
		*to = make(map[string]string, len(n.members))
		for _, m := range n.members {
			if m.key == "" || strings.ContainsAny(m.key, "=\x00") {
				l.faultAt(n.file, m.offset, m.value.path, "is no name for a variable", "")
				continue
			}
			if s, ok := l.passable(m.value); ok {
				(*to)[m.key] = s
			}
		}
	}
}

func (l *loader) headers(to *map[string]string) func(*node) {
	return func(n *node) {
		if !l.is(n, kindObject) {
			return
		}
		*to = make(map[string]string, len(n.members))
		for _, m := range n.members {
			s, ok := l.text(m.value)
			switch {
			case m.key == "" || strings.ContainsFunc(m.key, func(r rune) bool { return !tokenRune(r) }):
				l.faultAt(n.file, m.offset, m.value.path, "is no name for a header", "")
			case isReserved(m.key):
				l.faultAt(n.file, m.offset, m.value.path, "is a header that the transport sets itself", "remove it")
			case ok && strings.ContainsFunc(s, func(r rune) bool { return control(r) && r != '\t' }):
				l.fault(m.value, "has a control character in it", "a variable often ends with a line end: cut it off")
			case ok:
				(*to)[m.key] = s
			}
		}
	}
}

// tokenRune is a character of a header's name (RFC 9110 section 5.6.2).
func tokenRune(r rune) bool {
	return r < 0x80 && (r == '.' || r == '-' || wordByte(byte(r)) || strings.ContainsRune("!#$%&'*^_`|~", r))
}
