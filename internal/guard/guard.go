// Package guard holds the checks that every HTTP listener makes before it reads a
// body: host and origin, against requests that a browser was tricked into
// sending; media type, against bodies that two readers read differently; and the
// accepted types of answers. Its Outward checks the addresses that others have toolgate
// connect to.
package guard

import (
	"mime"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
)

// Loopback reports whether host, without port, is this machine for certain: a
// loopback address, or localhost, which is never looked up.
func Loopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return strings.EqualFold(host, "localhost") || err == nil && ip.Unmap().IsLoopback()
}

// Hosts is what others call a listener: the names that they may write into Host, and
// the origins of pages that may call it. It is safe for concurrent use.
type Hosts struct{ names, origins map[string]bool }

// NewHosts returns the Hosts of loopback, names and origins. A name without a port
// stands for each of its ports, host:port for that port alone. An origin without a port
// stands for the default port of its scheme.
func NewHosts(names []string, origins ...string) Hosts {
	h := Hosts{map[string]bool{"localhost": true, "127.0.0.1": true, "::1": true}, make(map[string]bool)}
	for _, name := range names {
		if _, port, err := net.SplitHostPort(name); err == nil {
			h.names[net.JoinHostPort(HostName(name), port)] = true
		} else if name != "" {
			h.names[HostName(name)] = true
		}
	}
	for _, origin := range origins {
		if u, err := url.Parse(origin); err == nil {
			h.origins[originOf(u.Scheme, u.Host)] = true
		}
	}
	return h
}

// HostName returns the name in host[:port], lower case and without brackets.
func HostName(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	return strings.ToLower(strings.TrimSuffix(host, "."))
}

// Admits reports whether both the Host of r (DNS rebinding) and its Origin
// (requests from other sites) are ours. It fails closed: a
// header that cannot be read is not ours. The caller must send no CORS header.
func (h Hosts) Admits(r *http.Request) bool {
	if origins := r.Header["Origin"]; len(origins) > 1 || len(origins) == 1 && !h.ownOrigin(origins[0], r) {
		return false
	}
	name, port, _ := strings.Cut(r.Host, ":")
	return h.names[name] && !strings.Contains(port, ":") || h.Knows(r)
}

// Knows reports whether the Host of r is a name of ours, or the very address
// that the connection came to: rebinding needs a name.
func (h Hosts) Knows(r *http.Request) bool {
	name, scheme := HostName(r.Host), "http"
	if r.TLS != nil {
		scheme = "https"
	}
	if h.names[name] || h.names[hostPort(scheme, r.Host)] {
		return true
	}
	addr, _ := netip.ParseAddr(name) // zero for a name, which no connection came to
	local, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	if !ok {
		return false
	}
	at, ok := netip.AddrFromSlice(local.IP)
	return ok && at.Unmap() == addr.Unmap()
}

// ownOrigin reports whether origin is the one that r is sent to, or one of ours. A
// proxy may end TLS in front of a listener without it, so the origin of r is https
// with TLS, and either without.
func (h Hosts) ownOrigin(origin string, r *http.Request) bool {
	u, err := url.Parse(origin)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.User != nil {
		return false
	}
	if u.Path != "" || u.RawQuery != "" || u.Fragment != "" {
		return false
	}
	named := originOf(u.Scheme, u.Host)
	return h.origins[named] || named == originOf(u.Scheme, r.Host) && (r.TLS == nil || u.Scheme == "https")
}

// originOf returns an origin (RFC 6454) in lower case and with its port.
func originOf(scheme, host string) string { return scheme + "://" + hostPort(scheme, host) }

// hostPort returns host in lower case, with its port or the default one of scheme.
func hostPort(scheme, host string) string {
	port := map[string]string{"http": "80", "https": "443"}[scheme]
	if _, given, err := net.SplitHostPort(host); err == nil && given != "" {
		port = given
	}
	return net.JoinHostPort(HostName(host), port)
}

// JSONBody reports whether the one Content-Type is application/json in UTF-8,
// uncompressed. Anything else is a body that two readers may read differently.
func JSONBody(h http.Header) bool {
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

// Accepts reports whether a client can read an answer of the type media, such
// as "application/json" (RFC 9110 section 12.5.1: of the ranges that fit, the
// most specific decides, and the weight 0 refuses). A client that does not say
// reads anything.
func Accepts(h http.Header, media string) bool {
	lines := h["Accept"]
	if len(lines) == 0 {
		return true
	}
	accepted, best := false, 0
	for _, line := range lines {
		for part := range strings.SplitSeq(line, ",") {
			name, params, _ := mime.ParseMediaType(part) // which names nothing when it cannot be read
			if fit := fits(name, media); fit > 0 && fit >= best {
				weight, given := params["q"]
				weighs := !given || strings.Trim(weight, "0.") != ""
				accepted = weighs || accepted && fit == best
				best = fit
			}
		}
	}
	return accepted
}

// WantsPage reports whether r comes from a browser that shows the answer to a person: it names
// text/html, which programs do not.
func WantsPage(r *http.Request) bool { return strings.Contains(r.Header.Get("Accept"), "text/html") }

// fits returns how closely a media range names media: 0 not at all, 3 exactly.
func fits(name, media string) int {
	kind, _, _ := strings.Cut(media, "/")
	switch name {
	case media:
		return 3
	case kind + "/*":
		return 2
	case "*/*":
		return 1
	}
	return 0
}
