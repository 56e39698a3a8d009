package config

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/toolgate/toolgate/registry/dialect"
	"github.com/toolgate/toolgate/registry/lock"
)

// readServers reads the servers and the settings of each.
func (l *loader) readServers() {
	servers := l.root.get(l.entries)
	settings := l.settings().get("servers")
	l.checkServed(settings, servers)
	for _, m := range servers.each() {
		s := Server{
			Name: m.key, Prefix: m.key + "__", Isolation: IsolationSession, ClientInfo: "toolgate", MaxSessions: 256, Spare: true, MaxMessage: DefaultMaxMessage, MaxDepth: DefaultMaxDepth,
			Timeout: DefaultTimeout, Pin: PinFirst, InputSchema: "enforce", OutputSchema: "warn", CaseVariants: "refuse", HiddenText: "report",
			Sandbox: l.cfg.Sandbox, Network: "host", Resources: DefaultResources,
		}
		l.decode(m, &s)
		l.finishEntry(&s, m)
		// What the entry says narrows what the settings say.
		s.Only, s.Expose = s.Expose, nil
		excluded := s.Exclude
		s.Exclude = nil
		l.decode(settings.get(m.key), &s)
		l.finishTimeouts(&s, settings.get(m.key))
		l.checkClientInfo(&s, settings.get(m.key).get("client_info"))
		s.Exclude = append(s.Exclude, excluded...)
		s.Methods = append(s.Methods, l.cfg.Methods...)
		l.checkSecrets(&s, settings.get(m.key).get("secrets"))
		l.cfg.Servers = append(l.cfg.Servers, s)
	}
}

// finishTimeouts fills in the bounds that depend on others, and sees to it that a
// call may take at least as long in all as without progress.
func (l *loader) finishTimeouts(s *Server, n *node) {
	if s.MaxTimeout == 0 {
		s.MaxTimeout = max(s.Timeout, DefaultMaxTimeout)
	}
	if s.StartWait == 0 {
		s.StartWait = DefaultHTTPStartWait
		if s.Type == TypeStdio || s.Type == TypeNDJSON {
			s.StartWait = DefaultStartWait
		}
	}
	if most := n.get("max_timeout"); most != nil && !most.faulty && s.MaxTimeout < s.Timeout {
		l.fault(most, fmt.Sprintf("%s is shorter than timeout: %s", s.MaxTimeout, s.Timeout), "raise max_timeout, or lower timeout")
	}
}

// checkClientInfo refuses to name one client to a server whose connections many share.
func (l *loader) checkClientInfo(s *Server, n *node) {
	if s.ClientInfo == "client" && (s.Isolation == IsolationShared || s.Type == TypeNDJSON) {
		l.fault(n, "is client, and clients share the connection of this server", "use toolgate, or isolation session with a server that speaks MCP")
	}
}

// checkServed reports settings of servers that mcp.json does not name.
func (l *loader) checkServed(settings, servers *node) {
	var known []string
	for _, m := range servers.each() {
		known = append(known, m.key)
	}
	for _, m := range settings.each() {
		if slices.Contains(known, m.key) || slices.Contains(l.leftOut, m.key) {
			continue
		}
		hint := "add it to mcpServers, or remove these settings"
		if near := Nearest(m.key, known); near != "" {
			hint = fmt.Sprintf("did you mean %q?", near)
		}
		l.fault(m.named(), "no server has this name", hint)
	}
}

// finishEntry completes what an entry of mcp.json says.
func (l *loader) finishEntry(s *Server, n *node) {
	s.Dir = n.get("cwd").resolve(s.Dir)
	l.checkHeaders(n.get("headers"))
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

// settleType finds out whether a server is a command or an address, and warns of
// keys that mean nothing for it. The schema has seen to it that it is one of
// them, and that the type agrees.
func (l *loader) settleType(s *Server, n *node) {
	switch kind := n.get("type"); {
	case kind != nil:
		s.Type = dialect.Types()[s.Type]
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
