package mcp

import (
	"net/http"
	"strings"

	"github.com/toolgate/toolgate/internal/guard"
	"github.com/toolgate/toolgate/policy/identity"
)

// hostSet is the set of host names that address this door: loopback and names.
func hostSet(names []string) guard.Hosts { return guard.NewHosts(names) }

// guard refuses what a browser was tricked into sending: it returns 403 for a
// Host that is not ours (DNS rebinding) and for an Origin that is not ours
// (cross-site requests), else 0. No CORS header is ever sent.
func (d *Door) guard(r *http.Request) int {
	if !d.hosts.Admits(r) {
		return http.StatusForbidden
	}
	return 0
}

// jsonBody reports whether there is a body of JSON with one reading.
func jsonBody(h http.Header) bool { return guard.JSONBody(h) }

// accepts says which answers a client takes. A client that does not say takes
// both; one that names event streams first gets one even where a single message
// would do.
func accepts(h http.Header) (plain, events bool) {
	return guard.Accepts(h, "application/json") && !prefersEvents(h), guard.Accepts(h, "text/event-stream")
}

// prefersEvents reports whether h names event streams before anything else.
func prefersEvents(h http.Header) bool {
	first, _, _ := strings.Cut(h.Get("Accept"), ",")
	media, _, _ := strings.Cut(first, ";")
	return strings.EqualFold(strings.TrimSpace(media), "text/event-stream")
}

// credential reads the bearer token of h. It reports false for an
// Authorization that is there but is not one bearer token: such a caller is
// nobody, not an anonymous one.
func credential(h http.Header) (identity.Credential, bool) { return identity.FromHeader(h) }
