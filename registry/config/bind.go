package config

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/toolgate/toolgate/internal/guard"
	"github.com/toolgate/toolgate/internal/tree"
)

// defaultListen is the address of the agents' listener.
const defaultListen = "127.0.0.1:8787"

// checkBind refuses an address to listen on that is not host:port, and one that
// other machines can reach while no identity is configured, for anybody on the network
// would be the local principal, or while it is plain and nobody accepts that: tokens
// and calls would be readable on the way. An empty host is every interface; a name other than
// localhost is never looked up and counts as reachable. It fails closed. The
// message does not name addr, which may have come from a variable.
func checkBind(addr string, id Identity, plain bool) (message, hint string) {
	example := fmt.Sprintf("such as %q", defaultListen)
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return "is not host:port", example
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return "has no port from 0 to 65535", example
	}
	switch {
	case guard.Loopback(host):
		return "", ""
	case !id.Configured:
		return "can be reached from other machines, and no identity is configured", "configure toolgate.identity, or listen on 127.0.0.1"
	case plain:
		return "can be reached from other machines over plain HTTP", `set toolgate.tls or toolgate.admin_tls, listen on 127.0.0.1 behind a proxy, or accept it with "insecure": true`
	}
	return "", ""
}

// overrides applies the flags, which take precedence over the file, and then
// checks the two listeners, the state directory and the key directory.
func (l *loader) overrides() {
	c := l.cfg
	c.State = cmp.Or(absolute(l.opts.State), c.State, l.root.Resolve(".toolgate"))
	// Upstreams are not trusted with the state directory, and backups hold it.
	at := l.settings().Get("keys")
	if l.opts.Keys != "" {
		at = nil
	}
	c.Keys = cmp.Or(absolute(l.opts.Keys), c.Keys, DefaultKeys(l.opts.Getenv))
	if below, err := filepath.Rel(c.State, c.Keys); c.Keys != "" && err == nil && filepath.IsLocal(below) {
		const message, hint = "the key directory lies in the state directory: a backup would hold the keys", "choose a directory outside the state directory"
		if at != nil && !at.Faulty {
			l.Fault(at, message, hint)
		} else {
			l.Faults = append(l.Faults, Fault{File: "--keys", Message: message, Hint: hint})
		}
	}
	good := l.listens("listen", &c.Listen, l.opts.Listen, c.TLS)
	good = l.listens("admin", &c.Admin, l.opts.Admin, c.AdminTLS) && good
	if good && collide(c.Listen, c.Admin) {
		l.bindFault("admin", l.opts.Admin, c.Admin, "is where agents are listened to", "give the two listeners different ports")
	}
	if r := c.Replica; good && r != nil && (collide(c.Listen, r.Listen) || collide(c.Admin, r.Listen)) {
		l.Fault(l.settings().At("replica", "listen"), "is where agents or people are listened to", "give each listener a port of its own")
	}
}

// DefaultKeys returns the key directory where none is configured; "" when the user has
// no configuration directory.
func DefaultKeys(getenv func(string) (string, bool)) string {
	dir, _ := getenv("XDG_CONFIG_HOME")
	if !filepath.IsAbs(dir) {
		dir, _ = os.UserConfigDir() // "" = none: what needs a key says so
	}
	if dir == "" {
		return ""
	}
	return filepath.Join(dir, "toolgate", "keys")
}

// listens takes one listener's flag, if any, and checks the address.
func (l *loader) listens(name string, addr *string, flag string, secure *TLS) bool {
	if flag != "" {
		*addr = flag
	}
	message, hint := checkBind(*addr, l.cfg.Identity, secure == nil && !l.cfg.Insecure)
	if message != "" {
		l.bindFault(name, flag, *addr, message, hint)
	}
	return message == ""
}

// bindFault reports an address where it was named: flag, file, or default. What
// comes from a file is quoted as it is written there.
func (l *loader) bindFault(name, flag, addr, message, hint string) {
	n := l.settings().Get(name)
	switch {
	case flag != "":
		l.Faults = append(l.Faults, Fault{File: "--" + name, Message: fmt.Sprintf("%q %s", tree.Clip(flag), message), Hint: hint})
	case n != nil && !n.Faulty:
		l.Fault(n, fmt.Sprintf("%q %s", tree.Clip(n.Text), message), hint)
	default:
		l.Faults = append(l.Faults, Fault{
			File: l.Files[0].Name, Path: "toolgate." + name,
			Message: fmt.Sprintf("the default %q %s", addr, message), Hint: hint,
		})
	}
}

// collide reports whether two addresses cannot be listened on at once. Port 0 is
// any free one, and localhost is every loopback address.
func collide(a, b string) bool {
	hostA, ipA, portA := splitAddress(a)
	hostB, ipB, portB := splitAddress(b)
	switch {
	case portA != portB || portA == 0:
		return false
	case hostA == hostB || ipA.IsUnspecified() || ipB.IsUnspecified():
		return true
	case hostA == "localhost" || hostB == "localhost":
		return guard.Loopback(hostA) && guard.Loopback(hostB)
	}
	return ipA.IsValid() && ipA == ipB
}

// splitAddress returns the parts of host:port; the address is invalid for a name,
// and unspecified for no host.
func splitAddress(address string) (host string, ip netip.Addr, port uint64) {
	host, text, _ := net.SplitHostPort(strings.ToLower(address))
	port, _ = strconv.ParseUint(text, 10, 16)
	if host == "" {
		return host, netip.IPv4Unspecified(), port
	}
	ip, _ = netip.ParseAddr(host)
	return host, ip.Unmap(), port
}
