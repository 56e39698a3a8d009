package config

import (
	"net/url"
	"strings"
	"time"
)

// Console says how people come to the pages.
type Console struct {
	URL     string        // where browsers find the admin listener: scheme and host, no slash at its end; "" = at its address
	Session time.Duration // how long one stays signed in; at least a minute
	OIDC    *OIDC         // nil = people sign in by token only
}

// OIDC is the identity provider at which people sign in (OpenID Connect).
type OIDC struct {
	Issuer       string   // https, or http on loopback
	ClientID     string   // as registered there, with <URL>/console/login/callback
	ClientSecret string   // "" = a public client
	Scopes       []string // asked for beside openid
	RolesClaim   string   // member of the ID token that holds the roles, "roles" unless configured
}

func (l *loader) console(n *node) {
	c := &l.cfg.Console
	l.object(n, fields{
		"url":     l.origin(&c.URL),
		"session": l.span(&c.Session, time.Minute),
		"oidc":    l.oidc,
	})
}

// origin reads the address of a site: a path or a query would be lost.
func (l *loader) origin(to *string) func(*node) {
	return func(n *node) {
		var s string
		if l.address(&s)(n); s == "" {
			return
		}
		u, err := url.Parse(s)
		if err != nil || u.User != nil || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "" {
			l.fault(n, "is more than a scheme and a host", "write https://HOST")
			return
		}
		if u.Scheme == "http" && !loopback(u.Hostname()) {
			l.warn(n, "is reached without TLS: browsers keep no session there, so nobody can sign in", "put a proxy that speaks TLS in front, and write https://HOST")
		}
		*to = u.Scheme + "://" + u.Host
	}
}

func (l *loader) oidc(n *node) {
	o := &OIDC{RolesClaim: "roles"}
	l.object(n, fields{
		"issuer":        l.overTLS(&o.Issuer, "is a provider that is not asked over https"),
		"client_id":     l.filledTo(&o.ClientID),
		"client_secret": l.filledTo(&o.ClientSecret),
		"scopes":        l.names(&o.Scopes),
		"roles_claim":   l.filledTo(&o.RolesClaim),
	})
	l.require(n, "issuer", "the address of your identity provider, as it names itself")
	l.require(n, "client_id", "as your identity provider knows toolgate")
	l.cfg.Console.OIDC = o
}
