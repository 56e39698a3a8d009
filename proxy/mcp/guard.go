package mcp

import (
	"mime"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"

	"github.com/toolgate/toolgate/policy/identity"
)

// hostSet is the set of host names that address this door: loopback and names.
func hostSet(names []string) map[string]bool {
	set := map[string]bool{"localhost": true, "127.0.0.1": true, "::1": true}
	for _, name := range names {
		if name != "" {
			set[hostName(name)] = true
		}
	}
	return set
}

// hostName gives the name in host[:port], lower case and without brackets.
func hostName(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	return strings.ToLower(strings.TrimSuffix(host, "."))
}

// guard refuses what a browser was tricked into sending: it returns 403 for a
// Host that is not ours (DNS rebinding) and for an Origin that is not ours
// (cross-site requests), else 0. No CORS header is ever sent.
func (d *Door) guard(r *http.Request) int {
	if !d.ownHost(r) || !d.ownOrigin(r.Header["Origin"]) {
		return http.StatusForbidden
	}
	return 0
}

// ownHost reports whether the Host of r is a name of ours, or the very address
// that the connection came to: rebinding needs a name.
func (d *Door) ownHost(r *http.Request) bool {
	name := hostName(r.Host)
	if d.hosts[name] {
		return true
	}
	addr, err := netip.ParseAddr(name)
	if err != nil {
		return false
	}
	local, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	if !ok {
		return false
	}
	at, ok := netip.AddrFromSlice(local.IP)
	return ok && at.Unmap() == addr.Unmap()
}

// ownOrigin reports whether there is no Origin, or one of ours.
func (d *Door) ownOrigin(origins []string) bool {
	if len(origins) == 0 {
		return true
	}
	if len(origins) > 1 {
		return false
	}
	u, err := url.Parse(origins[0])
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil {
		return false
	}
	return u.Path == "" && u.RawQuery == "" && u.Fragment == "" && d.hosts[hostName(u.Host)]
}

// jsonBody reports whether the one Content-Type is application/json in UTF-8,
// uncompressed. Anything else is a body that two readers may read differently.
func jsonBody(h http.Header) bool {
	types := h["Content-Type"]
	if len(types) != 1 || h.Get("Content-Encoding") != "" {
		return false
	}
	if types[0] == "application/json" {
		return true
	}
	media, params, err := mime.ParseMediaType(types[0])
	charset, given := params["charset"]
	return err == nil && media == "application/json" && (!given || strings.EqualFold(charset, "utf-8"))
}

// accepts says which answers a client can read. A client that does not say
// reads both.
func accepts(h http.Header) (plain, events bool) {
	lines := h["Accept"]
	if len(lines) == 0 {
		return true, true
	}
	for _, line := range lines {
		for part := range strings.SplitSeq(line, ",") {
			media, params, _ := strings.Cut(part, ";")
			if refused(params) {
				continue
			}
			switch strings.ToLower(strings.TrimSpace(media)) {
			case "application/json", "application/*":
				plain = true
			case "text/event-stream", "text/*":
				events = true
			case "*/*":
				plain, events = true, true
			}
		}
	}
	return plain, events
}

// refused reports whether the parameters of a media range give it the weight 0.
func refused(params string) bool {
	for param := range strings.SplitSeq(params, ";") {
		key, value, _ := strings.Cut(strings.TrimSpace(param), "=")
		if strings.EqualFold(key, "q") && strings.Trim(value, "0.") == "" {
			return true
		}
	}
	return false
}

// credential reads the bearer token of h. It reports false for an
// Authorization that is there but is not one bearer token: such a caller is
// nobody, not an anonymous one.
func credential(h http.Header) (identity.Credential, bool) {
	lines := h["Authorization"]
	if len(lines) == 0 {
		return identity.Credential{}, true
	}
	token, err := identity.ParseBearer(lines[0])
	if err != nil || token == "" || len(lines) > 1 {
		return identity.Credential{}, false
	}
	return identity.Credential{Bearer: token}, true
}
