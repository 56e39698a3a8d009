package proxy

import (
	"encoding/json"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/toolgate/toolgate/internal/jsonrpc"
)

// rememberLinks remembers, for the session and for the principal, that the server of t
// has what its result links to (MCP server/tools, "Resource Links").
func (t *toolCall) rememberLinks(result json.RawMessage) {
	content, _ := jsonrpc.Get(result, "content")
	for block := range jsonrpc.Elements(content) {
		if uri := textMember(block, "uri"); textMember(block, "type") == "resource_link" && uri != "" && len(uri) <= linkBytes {
			t.session().link(uri, t.tool.Server)
			t.ownLinks().link(uri, t.tool.Server)
		}
	}
}

// ownLinks returns what is remembered of the principal, whatever its session: a client
// that connects again reads what it was given.
func (c *call) ownLinks() *session {
	return c.gate.session(owner{"", c.principal.Subject, c.principal.Tenant})
}

// link remembers that a tool of server linked to uri. The latest one stays.
func (s *session) link(uri, server string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.links == nil {
		s.links, _ = lru.New[string, string](maxLinks) // fails for no positive size
	}
	s.links.Add(uri, server)
}

// linked returns where a tool linked to uri.
func (s *session) linked(uri string) (place, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.linkedLocked(uri)
}

// linkedLocked is linked; the caller must hold s.mu.
func (s *session) linkedLocked(uri string) (place, bool) {
	if s.links == nil {
		return place{}, false
	}
	server, ok := s.links.Get(uri)
	return place{server: server, name: uri}, ok
}
