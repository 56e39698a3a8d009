package config

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/toolgate/toolgate/registry/lock"
)

// otherContainers are where other clients keep servers.
var otherContainers = []string{"context_servers", "mcp_servers", "mcp", "extensions"}

// ours gives the members of mcp.json that are for us. What other clients keep
// next to them is no fault, unless it looks like a misspelling of what would
// then be lost.
func (l *loader) ours(root *node) (found []*node) {
	known := []string{"mcpServers", "servers", "toolgate"}
	for _, m := range root.members {
		switch near := nearest(m.key, known); {
		case m.key == "toolgate" || m.key == "$schema":
			found = append(found, m)
		case slices.Contains(known, m.key) && l.container != "":
			l.fault(m.named(), fmt.Sprintf("conflicts with %q: they are synonyms", l.container), "join them")
		case slices.Contains(known, m.key):
			l.container = m.key
			l.keepEntryKeys(m)
			found = append(found, m)
		case slices.Contains(otherContainers, m.key):
			l.fault(m.named(), "holds servers for another client", `put them under "mcpServers"`)
		case near != "":
			l.fault(m.named(), "unknown key", fmt.Sprintf("did you mean %q?", near))
		default:
			l.warn(m.named(), "is ignored", "")
		}
	}
	if l.container == "" {
		l.warnings = append(l.warnings, Warning{File: root.file.name, Message: "no server is configured", Hint: `add one under "mcpServers"`})
	} else if n := root.get(l.container); n.kind == kindObject && len(n.members) == 0 {
		l.warn(n, "no server is configured", `add one: "name": { "command": "…" } or { "url": "…" }`)
	}
	return found
}

// entryKeys are the keys of a server's entry.
var entryKeys = []string{"type", "command", "args", "env", "cwd", "envFile", "url", "headers", "disabled", "timeout"}

// keepEntryKeys removes the keys of other clients from the servers.
func (l *loader) keepEntryKeys(servers *node) {
	for _, s := range servers.members {
		s.members = slices.DeleteFunc(s.members, func(m *node) bool {
			known := slices.Contains(entryKeys, m.key)
			if !known {
				l.foreign(m)
			}
			return !known
		})
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
func (l *loader) foreign(m *node) {
	message, hint := "is ignored", ""
	switch near := nearest(m.key, entryKeys); {
	case slices.Contains(consent, m.key):
		message, hint = "is ignored: client consent is not policy", "who may call what is decided by toolgate.policy"
	case slices.Contains(filters, m.key):
		hint = "name the tools to offer in toolgate.servers.NAME.expose"
	case m.key == "enabled":
		hint = `write "disabled": true to switch a server off`
	case m.key == "transport":
		hint = `write "type"`
	case m.key == "serverUrl" || m.key == "httpUrl":
		l.fault(m.named(), "unknown key", `write "url"`)
		return
	case near != "" && fold(near) == fold(m.key):
		l.fault(m.named(), fmt.Sprintf("differs from %q only in case", near), fmt.Sprintf("write %q", near))
		return
	case near != "":
		hint = fmt.Sprintf("did you mean %q?", near)
	}
	l.warn(m.named(), message, hint)
}

// readServers reads the servers and the settings of each.
func (l *loader) readServers() {
	servers := l.root.get(l.container)
	settings := l.settings().get("servers")
	l.checkServed(settings, servers)
	for _, m := range servers.each() {
		s := Server{
			Name: m.key, Prefix: m.key + "__", Isolation: IsolationSession, MaxSessions: 256,
			Timeout: 30 * time.Second, Pin: PinFirst, OutputSchema: "warn", CaseVariants: "refuse", HiddenText: "report",
			Sandbox: l.cfg.Sandbox, Network: "host",
		}
		l.decode(m, &s)
		l.finishEntry(&s, m)
		l.decode(settings.get(m.key), &s)
		l.checkSecrets(&s, settings.get(m.key).get("secrets"))
		l.cfg.Servers = append(l.cfg.Servers, s)
	}
}

// checkServed reports settings of servers that mcp.json does not name.
func (l *loader) checkServed(settings, servers *node) {
	var known []string
	for _, m := range servers.each() {
		known = append(known, m.key)
	}
	for _, m := range settings.each() {
		if slices.Contains(known, m.key) {
			continue
		}
		hint := "add it to mcpServers, or remove these settings"
		if near := nearest(m.key, known); near != "" {
			hint = fmt.Sprintf("did you mean %q?", near)
		}
		l.fault(m.named(), "no server has this name", hint)
	}
}

// finishEntry completes what an entry of mcp.json says.
func (l *loader) finishEntry(s *Server, n *node) {
	s.Dir = n.get("cwd").resolve(s.Dir)
	l.checkHeaders(n.get("headers"))
	if at := n.get("timeout"); at != nil && at.kind == kindNumber && !at.faulty && s.Timeout.Milliseconds() < 1000 {
		l.warn(at, clip(at.text)+" is milliseconds, less than a second", fmt.Sprintf(`if seconds were meant, write "%ss"`, at.text))
	}
	if file := n.get("envFile"); file != nil && !file.faulty && !s.Disabled {
		env := l.environmentFile(file)
		maps.Copy(env, s.Env) // the entry itself takes precedence
		if len(env) > 0 {
			s.Env = env
		}
	}
	l.settleType(s, n)
	var args []string
	for _, arg := range n.get("args").elements() {
		args = append(args, arg.written())
	}
	s.Origin = lock.NewOrigin(s.Type, n.get("command").written(), args, n.get("url").written())
}

// types are the spellings of the kinds of upstream.
var types = map[string]string{
	"stdio": TypeStdio, "ndjson": TypeNDJSON, "sse": TypeSSE, "http": TypeHTTP,
	"streamable-http": TypeHTTP, "streamableHttp": TypeHTTP, "streamable_http": TypeHTTP,
}

// settleType finds out whether a server is a command or an address, and warns of
// keys that mean nothing for it. The schema has seen to it that it is one of
// them, and that the type agrees.
func (l *loader) settleType(s *Server, n *node) {
	switch kind := n.get("type"); {
	case kind != nil:
		s.Type = types[s.Type]
	case n.get("command") != nil:
		s.Type = TypeStdio
	default:
		s.Type = TypeHTTP
	}
	idle := []string{"args", "env", "envFile", "cwd"}
	switch s.Type {
	case "":
		return
	case TypeStdio, TypeNDJSON:
		idle = []string{"headers"}
		s.Headers = nil
	default:
		s.Args, s.Env, s.Dir = nil, nil, ""
	}
	for _, key := range idle {
		if v := n.get(key); v != nil {
			l.warn(v, fmt.Sprintf("has no meaning for a server of type %s", s.Type), "")
		}
	}
}

// reserved are the headers that the transport itself sets.
var reserved = []string{
	"accept", "connection", "content-length", "content-type", "host", "last-event-id", "mcp-protocol-version",
	"mcp-session-id", "te", "trailer", "transfer-encoding", "upgrade",
}

func (l *loader) checkHeaders(n *node) {
	for _, m := range n.each() {
		if slices.Contains(reserved, strings.ToLower(m.key)) {
			l.fault(m.named(), "is a header that the transport sets itself", "remove it")
		}
	}
}
