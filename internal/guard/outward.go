package guard

import (
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"syscall"
	"time"
)

const (
	connectTimeout = 10 * time.Second
	restTimeout    = 30 * time.Second // how long an unused connection is kept
)

// Outward returns a transport that connects to public addresses, and to those that also accepts,
// alone: an address that others name, or their name server, must not make toolgate reach into its
// own network. Each address is checked after the name was looked up, as the connection is made. No
// proxy is used, which would look up and connect in place of the transport. refused is the error
// for every other address.
func Outward(also func(netip.Addr) bool, refused error) *http.Transport {
	dialer := net.Dialer{Timeout: connectTimeout, Control: func(_, address string, _ syscall.RawConn) error {
		at, err := netip.ParseAddrPort(address)
		if ip := at.Addr().Unmap(); err != nil || !Public(ip) && !also(ip) {
			return refused
		}
		return nil
	}}
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.DialContext, t.Proxy, t.MaxIdleConns, t.IdleConnTimeout = dialer.DialContext, nil, 1, restTimeout
	return t
}

// MetadataPlaces returns the addresses at which an issuer may say what it is, in the order in
// which clients ask (MCP 2025-11-25, Authorization, Authorization Server Metadata Discovery).
func MetadataPlaces(issuer *url.URL) []string {
	root, path := issuer.Scheme+"://"+issuer.Host, strings.TrimSuffix(issuer.EscapedPath(), "/")
	places := []string{root + "/.well-known/oauth-authorization-server" + path, root + "/.well-known/openid-configuration" + path}
	if path != "" {
		places = append(places, root+path+"/.well-known/openid-configuration")
	}
	return places
}

// reserved are networks that are not public and that netip does not know as such.
var reserved = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("100.64.0.0/10"), netip.MustParsePrefix("192.0.0.0/24"), netip.MustParsePrefix("198.18.0.0/15"),
	netip.MustParsePrefix("240.0.0.0/4"), netip.MustParsePrefix("64:ff9b::/96"), netip.MustParsePrefix("64:ff9b:1::/48"), netip.MustParsePrefix("2002::/16"),
}

// Public reports whether an address, in its shortest form, is reached over the internet.
func Public(a netip.Addr) bool {
	if !a.IsGlobalUnicast() || a.IsPrivate() {
		return false
	}
	for _, network := range reserved {
		if network.Contains(a) {
			return false
		}
	}
	return true
}
