package config

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Names of servers and prefixes become part of the names of tools, which may be
// 128 characters long.
var (
	serverName = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}$`)
	toolPrefix = regexp.MustCompile(`^[A-Za-z0-9_.-]{0,64}$`)
)

// otherContainers are where other clients keep servers.
var otherContainers = []string{"context_servers", "mcp_servers", "mcp", "extensions"}

// mcp reads the root of mcp.json: it finds the servers and gives our settings.
// What other clients keep beside them is no fault, unless it looks like a
// misspelling of what would then be lost.
func (l *loader) mcp(root *node) (settings *node) {
	ours := []string{"mcpServers", "servers", "toolgate"}
	for _, m := range root.members {
		switch near := nearest(m.key, ours); {
		case m.key == "toolgate":
			settings = m.value
		case slices.Contains(ours, m.key):
			l.container(m)
		case slices.Contains(otherContainers, m.key):
			l.faultAt(root.file, m.offset, m.value.path, "holds servers for another client", `put them under "mcpServers"`)
		case near != "":
			l.faultAt(root.file, m.offset, m.value.path, "is no key that toolgate knows", fmt.Sprintf("did you mean %q?", near))
		default:
			l.warnAt(root.file, m.offset, m.value.path, "is ignored", "")
		}
	}
	if l.servers == nil {
		l.warnings = append(l.warnings, Warning{File: root.file.name, Message: "no server is configured", Hint: `add one under "mcpServers"`})
	}
	return settings
}

// container takes mcpServers or its synonym.
func (l *loader) container(m member) {
	if l.servers != nil {
		l.faultAt(m.value.file, m.offset, m.value.path, fmt.Sprintf("stands beside %q: they are synonyms", l.servers.path), "join them")
		return
	}
	if !l.is(m.value, kindObject) {
		return
	}
	l.servers = m.value
	if len(m.value.members) == 0 {
		l.warn(m.value, "no server is configured", `add one: "name": { "command": "…" } or { "url": "…" }`)
	}
}

// configureServers reads the servers and what the settings say of each.
func (l *loader) configureServers(settings *node) {
	if settings != nil && l.is(settings, kindObject) {
		l.strangers(settings)
	} else {
		settings = &node{}
	}
	if l.servers == nil {
		return
	}
	for _, m := range l.servers.members {
		if !serverName.MatchString(m.key) {
			l.faultAt(m.value.file, m.offset, m.value.path, "is no name for a server", `take 1 to 64 of letters, digits, "_", "." and "-", no "." or "-" first`)
			continue
		}
		if !l.is(m.value, kindObject) {
			continue
		}
		l.lenient = disabled(m.value)
		s := l.server(m.key, m.value)
		if n := settings.get(m.key); n != nil {
			l.serverSettings(&s, n)
		}
		l.lenient = false
		l.cfg.Servers = append(l.cfg.Servers, s)
	}
}

// strangers reports settings of servers that mcp.json does not name.
func (l *loader) strangers(settings *node) {
	var known []string
	if l.servers != nil {
		for _, m := range l.servers.members {
			known = append(known, m.key)
		}
	}
	for _, m := range settings.members {
		if slices.Contains(known, m.key) {
			continue
		}
		hint := "add it to mcpServers, or remove these settings"
		if near := nearest(m.key, known); near != "" {
			hint = fmt.Sprintf("did you mean %q?", near)
		}
		l.faultAt(m.value.file, m.offset, m.value.path, "no server has this name", hint)
	}
}

// serverSettings reads our settings of one server.
func (l *loader) serverSettings(s *Server, n *node) {
	l.object(n, fields{
		"prefix":        l.prefix(&s.Prefix),
		"risk":          l.filledTo(&s.Risk),
		"isolation":     l.oneOf(&s.Isolation, IsolationSession, IsolationShared),
		"max_sessions":  l.count(&s.MaxSessions),
		"timeout":       l.span(&s.Timeout, time.Millisecond),
		"expose":        l.names(&s.Expose),
		"pin":           l.flag(&s.Pin),
		"output_schema": l.oneOf(&s.OutputSchema, "enforce", "warn", "off"),
		"case_variants": l.oneOf(&s.CaseVariants, "refuse", "allow"),
		"notice":        l.notice(&s.Notice),
		"methods":       l.methods(&s.Methods),
	})
}

func (l *loader) prefix(to *string) func(*node) {
	return func(n *node) {
		s, ok := l.text(n)
		if ok && !toolPrefix.MatchString(s) {
			l.fault(n, "is no prefix for names of tools", `take up to 64 of letters, digits, "_", "." and "-"`)
			return
		}
		if ok {
			*to = s
		}
	}
}

// notice reads text of any lines.
func (l *loader) notice(to *string) func(*node) {
	return func(n *node) {
		if s, ok := l.text(n); ok {
			*to = s
		}
	}
}

// disabled looks ahead: a disabled server may lack its variables and files.
func disabled(n *node) bool {
	d := n.get("disabled")
	return d != nil && d.kind == kindTrue
}

// vendorTimeout reads the timeout of a client's entry: a bare number is
// milliseconds there.
func (l *loader) vendorTimeout(to *time.Duration) func(*node) {
	return func(n *node) {
		if n.kind != kindNumber {
			l.span(to, time.Millisecond)(n)
			return
		}
		ms, err := strconv.ParseInt(n.text, 10, 32)
		if err != nil || ms < 1 {
			l.fault(n, clip(n.text)+" is not a whole number of milliseconds above zero", `or write a string with a unit, such as "30s"`)
			return
		}
		if ms < 1000 {
			l.warn(n, clip(n.text)+" is taken for milliseconds, less than a second", fmt.Sprintf(`if seconds were meant, write "%ss"`, n.text))
		}
		*to = time.Duration(ms) * time.Millisecond
	}
}

// types are the spellings of the kinds of upstream.
var types = map[string]string{
	"stdio": TypeStdio, "ndjson": TypeNDJSON, "sse": TypeSSE, "http": TypeHTTP,
	"streamable-http": TypeHTTP, "streamableHttp": TypeHTTP, "streamable_http": TypeHTTP,
}

func (l *loader) kindOf(to *string) func(*node) {
	return func(n *node) {
		spelled := ""
		l.oneOf(&spelled, "stdio", "http", "streamable-http", "streamableHttp", "streamable_http", "sse", "ndjson")(n)
		*to = types[spelled]
	}
}

func local(kind string) bool { return kind == TypeStdio || kind == TypeNDJSON }

// reserved are the headers that the transport itself sets.
var reserved = []string{
	"accept", "connection", "content-length", "content-type", "host", "last-event-id", "mcp-protocol-version",
	"mcp-session-id", "te", "trailer", "transfer-encoding", "upgrade",
}

func isReserved(header string) bool { return slices.Contains(reserved, strings.ToLower(header)) }
