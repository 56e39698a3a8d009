package config

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/toolgate/toolgate/internal/text"
	"github.com/toolgate/toolgate/internal/tree"
	"github.com/toolgate/toolgate/registry/lock"
)

// readServers reads the servers and the settings of each.
func (l *loader) readServers() {
	servers := l.servers
	settings := l.settings().Get("servers")
	l.checkServed(settings, servers)
	for _, m := range servers.Each() {
		s := Server{
			Name: m.Key, Prefix: m.Key + "__", Isolation: IsolationSession, ClientInfo: "toolgate", MaxSessions: 256, Spare: true, MaxMessage: DefaultMaxMessage, MaxDepth: DefaultMaxDepth,
			Timeout: DefaultTimeout, Pin: PinFirst, InputSchema: "enforce", OutputSchema: "warn", CaseVariants: "refuse", HiddenText: "report",
			BeforeConnection: "show", Sandbox: l.cfg.Sandbox, Network: "host", Resources: DefaultResources,
		}
		l.decode(m, &s)
		l.finishEntry(&s, m)
		// What the entry says narrows what the settings say.
		s.Only, s.Expose = s.Expose, nil
		excluded := s.Exclude
		s.Exclude = nil
		l.decode(settings.Get(m.Key), &s)
		if s.MaxTimeout == 0 {
			s.MaxTimeout = max(s.Timeout, DefaultMaxTimeout)
		}
		if s.StartWait == 0 {
			s.StartWait = DefaultHTTPStartWait
			if s.Type == TypeStdio || s.Type == TypeNDJSON {
				s.StartWait = DefaultStartWait
			}
		}
		own := settings.Get(m.Key)
		if most := own.Get("max_timeout"); most != nil && !most.Faulty && s.MaxTimeout < s.Timeout {
			l.Fault(most, fmt.Sprintf("%s is shorter than timeout: %s", s.MaxTimeout, s.Timeout), "raise max_timeout, or lower timeout")
		}
		if s.ClientInfo == "client" && (s.Isolation == IsolationShared || s.Type == TypeNDJSON) {
			l.Fault(own.Get("client_info"), "is client, and clients share the connection of this server", "use toolgate, or isolation session with a server that speaks MCP")
		}
		shown := l.finishCredential(&s, own)
		s.Exclude = append(s.Exclude, excluded...)
		s.Methods = append(s.Methods, l.cfg.Methods...)
		l.checkSecrets(&s, own.Get("secrets"))
		s.SecretNames = append(s.SecretNames, shown...)
		l.cfg.Servers = append(l.cfg.Servers, s)
	}
}

// checkServed reports settings of servers that mcp.json does not name.
func (l *loader) checkServed(settings, servers *tree.Node) {
	var known []string
	for _, m := range servers.Each() {
		known = append(known, m.Key)
	}
	for _, m := range settings.Each() {
		if slices.Contains(known, m.Key) || slices.Contains(l.leftOut, m.Key) {
			continue
		}
		hint := "add it to mcpServers, or remove these settings"
		if near := text.Nearest(m.Key, known); near != "" {
			hint = fmt.Sprintf("did you mean %q?", near)
		}
		l.Fault(m.Named(), "no server has this name", hint)
	}
}

// finishEntry completes what an entry of mcp.json says.
func (l *loader) finishEntry(s *Server, n *tree.Node) {
	s.Dir = n.Get("cwd").Resolve(s.Dir)
	l.checkHeaders(n.Get("headers"))
	if file := n.Get("envFile"); file != nil && !file.Faulty && !s.Disabled {
		env := l.environmentFile(file)
		maps.Copy(env, s.Env) // the entry itself takes precedence
		if len(env) > 0 {
			s.Env = env
		}
	}
	// The schema has seen to it that it is a command or an address, and that the type agrees.
	switch kind := n.Get("type"); {
	case strings.HasPrefix(s.Type, "streamable"): // its other names
		s.Type = TypeHTTP
	case kind != nil:
	case n.Get("command") != nil:
		s.Type = TypeStdio
	default:
		s.Type = TypeHTTP
	}
	idle := []string{"args", "env", "envFile", "cwd"}
	switch s.Type {
	case "":
		idle = nil
	case TypeStdio, TypeNDJSON:
		idle = []string{"headers"}
		s.Headers = nil
	default:
		s.Args, s.Env, s.Dir = nil, nil, ""
	}
	for _, key := range idle {
		if v := n.Get(key); v != nil {
			l.Warn(v, fmt.Sprintf("has no meaning for a server of type %s", s.Type), "")
		}
	}
	var args []string
	for _, arg := range n.Get("args").Elements() {
		args = append(args, arg.Written())
	}
	s.Origin = lock.NewOrigin(s.Type, n.Get("command").Written(), args, n.Get("url").Written())
}

// reserved are the headers that the transport itself sets.
var reserved = []string{
	"accept", "connection", "content-length", "content-type", "host", "last-event-id", "mcp-protocol-version",
	"mcp-session-id", "te", "trailer", "transfer-encoding", "upgrade",
}

func (l *loader) checkHeaders(n *tree.Node) {
	for _, m := range n.Each() {
		if slices.Contains(reserved, strings.ToLower(m.Key)) {
			l.Fault(m.Named(), "is a header that the transport sets itself", "remove it")
		}
	}
}
