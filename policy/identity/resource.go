package identity

import (
	"encoding/json"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// MetadataPath is where clients find what a protected resource asks of them (RFC 9728
// section 3.1); the path of the resource follows.
const MetadataPath = "/.well-known/oauth-protected-resource"

// Resource is a route of the agents' listener, as OAuth names it. The zero Resource is any
// other way in: stdio, and the listener of people.
type Resource struct {
	Door   string // "/mcp" or "/sse"; the REST interface is part of /mcp
	Server string // "" = all servers
}

// path returns the path of r.
func (r Resource) path() string {
	if r.Server == "" {
		return r.Door
	}
	return r.Door + "/" + url.PathEscape(r.Server)
}

// Resource returns the canonical address of a route (RFC 8707), "" for any other way in.
func (a *Authenticator) Resource(at Resource) string {
	if at.Door == "" {
		return ""
	}
	return a.state.Load().public + at.path()
}

// meant reports whether a token with an audience is good at a route: the audience of its
// issuer is good everywhere, that of a server on its routes, a canonical resource on its
// own route and on those below it. A token of /mcp is good at /sse too, which serves
// clients of older revisions, and never the reverse (RFC 8707).
func (s *state) meant(is *issuer, audience []string, at Resource) bool {
	for _, a := range audience {
		if slices.Contains(is.config.Audience, a) || at.Server != "" && slices.Contains(s.audiences[at.Server], a) {
			return true
		}
		path, own := strings.CutPrefix(a, s.public)
		if !own || s.public == "" || at.Door == "" {
			continue
		}
		for _, door := range [...]string{"/mcp", at.Door} {
			below, of := strings.CutPrefix(path, door+"/")
			if path == door || of && at.Server != "" && below == url.PathEscape(at.Server) {
				return true
			}
		}
	}
	return false
}

// Challenge returns the WWW-Authenticate header of an answer 401 to a credential (RFC 6750
// section 3, RFC 9728 section 5.1), with the scheme of its token (RFC 9449 section 7.1). It
// names an error only when a credential was shown.
func (a *Authenticator) Challenge(c *Credential) string {
	s, scheme, fault := a.state.Load(), "Bearer", "invalid_token"
	if c.DPoP != nil {
		scheme = "DPoP"
		if c.DPoP.refused() {
			fault = "invalid_dpop_proof"
		}
	}
	challenge := scheme + ` realm="toolgate"`
	if len(s.issuers) > 0 && c.At.Door != "" {
		challenge = scheme + ` resource_metadata="` + s.public + MetadataPath + c.At.path() + `"`
		if len(s.scopes) > 0 {
			challenge += `, scope="` + strings.Join(s.scopes, " ") + `"`
		}
	}
	if c.Bearer != "" || c.Malformed {
		challenge += `, error="` + fault + `"`
	}
	if c.DPoP != nil {
		challenge += `, algs="` + strings.Join(Algorithms(), " ") + `"`
	}
	return challenge
}

// StepUp returns the WWW-Authenticate header of an answer 403 to a token of an issuer that
// lacks scopes (RFC 6750 section 3.1; MCP 2025-11-25, Authorization, Scope Challenge
// Handling), with the scheme of the token (RFC 9449 section 7.1). The new token has to have
// all of scopes.
func (a *Authenticator) StepUp(c *Credential, scopes []string) string {
	scheme, algorithms := "Bearer", ""
	if c.DPoP != nil {
		scheme, algorithms = "DPoP", `, algs="`+strings.Join(Algorithms(), " ")+`"`
	}
	return scheme + ` error="insufficient_scope", scope="` + strings.Join(scopes, " ") + `", resource_metadata="` + a.state.Load().public + MetadataPath + c.At.path() + `"` + algorithms
}

// metadata is the form of RFC 9728 section 2.
type metadata struct {
	Resource      string   `json:"resource"`
	Servers       []string `json:"authorization_servers"`
	Scopes        []string `json:"scopes_supported,omitempty"`
	Methods       []string `json:"bearer_methods_supported"`
	Proofs        []string `json:"dpop_signing_alg_values_supported"`
	Name          string   `json:"resource_name"`
	Documentation string   `json:"resource_documentation"`
}

// ServeMetadata answers a request below MetadataPath: GET and OPTIONS, for pages of every
// origin, because the answer is for those who have no credential yet. It says nothing about
// servers, and answers for one that does not exist as for one that does. Without an issuer
// there is no metadata. The caller must check the Host of the request.
func (a *Authenticator) ServeMetadata(w http.ResponseWriter, r *http.Request) {
	s, at, ok := a.state.Load(), Resource{Door: "/mcp"}, true
	if rest := strings.TrimPrefix(r.URL.Path, MetadataPath); rest != "" {
		at, ok = resourceOf(rest)
	}
	h := w.Header()
	switch {
	case !ok || len(s.issuers) == 0:
		http.NotFound(w, r)
		return
	case r.Method == http.MethodOptions:
		h.Set("Access-Control-Allow-Methods", "GET, HEAD, OPTIONS")
		h.Set("Access-Control-Allow-Headers", "MCP-Protocol-Version")
		h.Set("Access-Control-Allow-Origin", "*")
		w.WriteHeader(http.StatusNoContent)
		return
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		h.Set("Allow", "GET, HEAD, OPTIONS")
		http.Error(w, "method not allowed", http.StatusMethodNotAllowed)
		return
	}
	name := "toolgate"
	if at.Server != "" {
		name += ": " + at.Server
	}
	body, _ := json.Marshal(metadata{ // texts alone: it cannot fail
		Resource: s.public + at.path(), Servers: slices.Sorted(maps.Keys(s.issuers)), Scopes: s.scopes,
		Methods: []string{"header"}, Proofs: Algorithms(), Name: name, Documentation: s.public + "/",
	})
	h.Set("Access-Control-Allow-Origin", "*")
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "max-age=60")
	_, _ = w.Write(body) // a client that has gone needs no answer
}

// resourceOf returns the resource with a path: /mcp, /sse, or one of these and a server.
func resourceOf(path string) (Resource, bool) {
	door, server, below := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	if door != "mcp" && door != "sse" || below && (server == "" || strings.Contains(server, "/") || len(server) > maxServerName) {
		return Resource{}, false
	}
	return Resource{"/" + door, server}, true
}

// maxServerName bounds the name of a server in a path, in bytes.
const maxServerName = 128
