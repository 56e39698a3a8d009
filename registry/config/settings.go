package config

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"
)

// settings reads the toolgate object. It gives its servers member, which is
// read when the servers are known.
func (l *loader) settings(n *node) (servers *node) {
	c := l.cfg
	l.object(n, fields{
		"listen":        l.listener("listen", &c.Listen),
		"admin":         l.listener("admin", &c.Admin),
		"state":         l.path(&c.State),
		"policy":        l.policy,
		"identity":      l.identity,
		"limits":        l.limits,
		"approvals":     l.approvals,
		"console":       l.console,
		"audit":         l.audit,
		"errors":        l.oneOf(&c.Errors, "gateway", "canonical", "kernel", "mcp"),
		"results":       l.oneOf(&c.Results, "off", "compact", "full", "signals"),
		"artifacts":     l.artifacts,
		"envelope":      l.oneOf(&c.Envelope, "mcp", "strict"),
		"deterministic": l.flag(&c.Deterministic),
		"servers":       func(v *node) { servers = v },
	})
	return servers
}

// path reads a path, relative to its file.
func (l *loader) path(to *string) func(*node) {
	return func(n *node) {
		if s, ok := l.filled(n); ok {
			*to = n.resolve(s)
		}
	}
}

func (l *loader) audit(n *node) {
	l.object(n, fields{"durability": l.oneOf(&l.cfg.Audit.Durability, "sync", "os")})
}

func (l *loader) identity(n *node) {
	id := &l.cfg.Identity
	id.Configured = true
	hashes := map[string]*node{}
	l.object(n, fields{
		"tokens": func(n *node) {
			l.list(n, func(item *node) { l.token(item, hashes) })
		},
		"jwt": func(n *node) { l.list(n, l.jwt) },
	})
	if len(id.Tokens) == 0 && len(id.JWT) == 0 {
		l.warn(n, "knows no token and no issuer: nobody can come in over the network", "make a token with toolgate token create")
	}
}

func (l *loader) artifacts(n *node) {
	a := &l.cfg.Artifacts
	l.object(n, fields{
		"ttl":        l.span(&a.TTL, time.Minute),
		"max_mib":    l.count(&a.MaxMiB),
		"inline_kib": l.count(&a.InlineKiB),
	})
}

// localSubject is the principal of whoever runs toolgate on this machine: no
// token may pose as it.
const localSubject = "local"

func (l *loader) token(n *node, hashes map[string]*node) {
	var t Token
	l.object(n, fields{
		"subject": l.filledTo(&t.Subject),
		"roles":   l.names(&t.Roles),
		"sha256":  l.hash(&t.SHA256),
	})
	l.require(n, "subject", "name who shows the token")
	l.require(n, "roles", "an empty list grants nothing")
	l.require(n, "sha256", "printf %s TOKEN | sha256sum tells it")
	switch {
	case t.Subject == localSubject:
		l.fault(n.get("subject"), `"local" is whoever runs toolgate on this machine`, "take another name")
	case t.Subject != "" && slices.ContainsFunc(l.cfg.Identity.Tokens, func(o Token) bool { return o.Subject == t.Subject }):
		l.fault(n.get("subject"), "another token has this subject", "one subject, one token")
	}
	if first := hashes[t.SHA256]; first != nil && t.SHA256 != "" {
		line, _ := first.file.position(first.offset)
		l.fault(n.get("sha256"), fmt.Sprintf("the token at line %d has this hash: they are one token", line), "make another token with toolgate token create")
	}
	hashes[t.SHA256] = n
	l.cfg.Identity.Tokens = append(l.cfg.Identity.Tokens, t)
}

// hash reads 64 hexadecimal digits. What stands there is never quoted: it may
// be the token itself, put in the wrong place.
func (l *loader) hash(to *string) func(*node) {
	return func(n *node) {
		s, ok := l.text(n)
		if !ok {
			return
		}
		s = strings.ToLower(s)
		if len(s) != 64 || strings.Trim(s, "0123456789abcdef") != "" {
			l.fault(n, "is not the 64 hexadecimal digits of a SHA-256", "printf %s TOKEN | sha256sum tells them")
			return
		}
		*to = s
	}
}

func (l *loader) jwt(n *node) {
	j := JWT{RolesClaim: "roles"}
	l.object(n, fields{
		"issuer":      l.filledTo(&j.Issuer),
		"audience":    l.names(&j.Audience),
		"jwks":        l.keySet(&j.JWKS),
		"roles_claim": l.filledTo(&j.RolesClaim),
	})
	l.require(n, "issuer", "the iss claim of its tokens")
	l.require(n, "jwks", "the address of the issuer's key set")
	l.require(n, "audience", "the audience that your identity provider puts into tokens for toolgate")
	if a := n.get("audience"); a != nil && a.kind == kindArray && len(a.items) == 0 {
		l.fault(a, "is empty", "without an audience, every token of the issuer would do")
	}
	if j.Issuer != "" && slices.ContainsFunc(l.cfg.Identity.JWT, func(o JWT) bool { return o.Issuer == j.Issuer }) {
		l.fault(n.get("issuer"), "another entry has this issuer", "join their audiences in one entry")
	}
	l.cfg.Identity.JWT = append(l.cfg.Identity.JWT, j)
}

// keySet reads the address of a key set: who can change it in transit makes
// tokens, so beyond loopback it must be https.
func (l *loader) keySet(to *string) func(*node) {
	return l.overTLS(to, "is a key set that is not fetched over https")
}

// overTLS reads an address that must be https beyond loopback; else, a fault.
func (l *loader) overTLS(to *string, fault string) func(*node) {
	return func(n *node) {
		var s string
		if l.address(&s)(n); s == "" {
			return
		}
		if u, err := url.Parse(s); err != nil || u.Scheme != "https" && !loopback(u.Hostname()) {
			l.fault(n, fault, "write https://HOST/PATH")
			return
		}
		*to = s
	}
}

func (l *loader) approvals(n *node) {
	a := &l.cfg.Approvals
	l.object(n, fields{
		"ttl":                l.span(&a.TTL, time.Second),
		"hold":               l.optional(&a.Hold),
		"max_live":           l.count(&a.MaxLive),
		"execute_on_approve": l.names(&a.Execute),
		"clients":            l.clients,
		"notify":             func(n *node) { l.list(n, l.notify) },
	})
	if a.Hold != nil && *a.Hold > a.TTL {
		at := n.get("hold")
		if at == nil {
			at = n.get("ttl")
		}
		l.fault(at, fmt.Sprintf("a call would be held for %s, longer than its ticket lives: %s", *a.Hold, a.TTL), "hold less, or raise ttl")
	}
}
