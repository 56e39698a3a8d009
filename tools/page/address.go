package page

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/toolgate/toolgate/internal/guard"
)

// Resolver looks up the addresses of a host. *net.Resolver is one.
type Resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// public6 is the only part of IPv6 from which the registries allot addresses. What
// translates to IPv4 (mapped, NAT64 64:ff9b::/96), local addresses and multicast are
// outside it.
var public6 = netip.MustParsePrefix("2000::/3")

// special are the parts of IPv4, and of public6, that are not of the public internet.
//
// Source: the IANA special-purpose address registries, RFC 6890 and its updates
var special = prefixes(
	"0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24",
	"192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/3",
	"168.63.129.16/32", // the metadata service of Azure
	"2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20",
)

// private are the special addresses that a host which an operator allows may have:
// this machine, and networks of an organisation. Link-local addresses, where metadata
// services are, are not among them.
var private = prefixes("10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "::1/128", "fc00::/7")

// metadata are the metadata services inside private networks.
var metadata = prefixes("100.100.100.200/32", "fd00:ec2::254/128", "fd20:ce::254/128")

func prefixes(texts ...string) (list []netip.Prefix) {
	for _, text := range texts {
		list = append(list, netip.MustParsePrefix(text))
	}
	return list
}

func within(list []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Contains(a) })
}

// reachable reports whether a page may be read from a. With allowed it may be a private
// address.
func reachable(a netip.Addr, allowed bool) bool {
	switch {
	case !a.IsValid() || a.Zone() != "" || within(metadata, a):
		return false
	case allowed && within(private, a):
		return true
	case a.Is4():
		return !within(special, a)
	}
	return public6.Contains(a) && !within(special, a)
}

// allows reports whether an operator lets host:port have a private address.
func (f *Fetcher) allows(host, port string) bool {
	return slices.ContainsFunc(f.opts.Allow, func(allow string) bool {
		h, p, err := net.SplitHostPort(allow)
		if err != nil {
			h, p = allow, port
		}
		return p == port && guard.HostName(h) == guard.HostName(host)
	})
}

// dial looks up the addresses of host:port, checks them, and connects to one of them: a
// second look-up could give others. Where one of them is refused, all are: it fails
// closed.
func (f *Fetcher) dial(ctx context.Context, network, hostport string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(hostport)
	if err != nil {
		return nil, refuse("the address has no port")
	}
	addrs, err := f.lookup(ctx, host)
	if err != nil || len(addrs) == 0 {
		return nil, refuse(fmt.Sprintf("no address is known for host %.100q", host))
	}
	allowed := f.allows(host, port)
	if slices.ContainsFunc(addrs, func(a netip.Addr) bool { return !reachable(a, allowed) }) {
		return nil, refuse(fmt.Sprintf("host %.100q is not on the public internet", host))
	}
	for _, a := range addrs {
		var c net.Conn
		if c, err = new(net.Dialer).DialContext(ctx, network, net.JoinHostPort(a.String(), port)); err == nil {
			return c, nil
		}
	}
	return nil, err
}

// lookup resolves host. The answers of a resolver may have IPv4 in its mapped form; as
// an address in a URL, that form is refused later.
func (f *Fetcher) lookup(ctx context.Context, host string) ([]netip.Addr, error) {
	if a, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{a}, nil
	}
	addrs, err := f.opts.Resolver.LookupNetIP(ctx, "ip", strings.TrimSuffix(host, "."))
	for i, a := range addrs {
		addrs[i] = a.Unmap()
	}
	return addrs, err
}
