package config

import (
	"cmp"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/toolgate/toolgate/internal/guard"
)

// finishSettings completes the settings of toolgate, and checks what the schema
// cannot say of them.
func (l *loader) finishSettings() {
	n := l.settings()
	l.cfg.State = n.get("state").resolve(l.cfg.State)
	l.cfg.Keys = n.get("keys").resolve(l.cfg.Keys)
	for key, t := range map[string]*TLS{"tls": l.cfg.TLS, "admin_tls": l.cfg.AdminTLS} {
		if t != nil {
			at := n.get(key)
			t.Cert, t.Key, t.ClientCA = at.get("cert").resolve(t.Cert), at.get("key").resolve(t.Key), at.get("client_ca").resolve(t.ClientCA)
		}
	}
	for i := range l.cfg.Audit.Anchors {
		a, at := &l.cfg.Audit.Anchors[i], n.at("audit", "anchors", strconv.Itoa(i))
		a.Directory, a.WitnessKey = at.get("directory").resolve(a.Directory), at.get("witness_key").resolve(a.WitnessKey)
	}
	if s := l.cfg.Audit.Signer; s != nil {
		s.PublicKey = n.at("audit", "signer", "public_key").resolve(s.PublicKey)
	}
	for i, a := range l.cfg.Audit.Arguments {
		if len(a.Mask) > 0 && a.Keep != "masked" {
			l.fault(n.at("audit", "arguments", strconv.Itoa(i), "mask"), "has no effect with keep "+strconv.Quote(a.Keep), `set "keep": "masked"`)
		}
	}
	for _, r := range []**Rate{&l.cfg.Limits.Default, &l.cfg.Limits.Refused} {
		if *r != nil && (*r).Count == 0 {
			*r = nil
		}
	}
	l.finishShared(n.get("shared"))
	l.finishReplica(n.get("replica"))
	l.finishIdentity(n.get("identity"))
	l.finishApprovals(n.get("approvals"))
	l.finishConsole(n.get("console"))
	l.finishPolicy(n.get("policy"))
	l.finishTelemetry(n.get("telemetry"))
	servers := l.root.get(l.entries)
	for i, r := range l.cfg.Limits.Rules {
		at := n.at("limits", "rules", strconv.Itoa(i), "server")
		if r.Server != "" && servers != nil && servers.get(r.Server) == nil {
			l.warn(at, fmt.Sprintf("no server is named %q: the rule limits nothing", clip(at.text)), "")
		}
	}
}

func (l *loader) finishShared(n *node) {
	s := l.cfg.Shared
	if s == nil {
		return
	}
	s.CA = n.get("ca").resolve(s.CA)
	if u, err := url.Parse(s.URL); err == nil && u.Scheme == "redis" && !guard.Loopback(u.Hostname()) {
		l.warn(cmp.Or(n.get("url"), n), "has no TLS: whoever is on the way reads the password, and can lift the limits", "write rediss://")
	}
}

// finishReplica checks the addresses of the listener for other replicas. It needs no
// identity: who has no certificate of their authority cannot connect.
func (l *loader) finishReplica(n *node) {
	r := l.cfg.Replica
	if r == nil {
		return
	}
	files := n.get("tls")
	r.TLS.Cert, r.TLS.Key, r.TLS.CA = files.get("cert").resolve(r.TLS.Cert), files.get("key").resolve(r.TLS.Key), files.get("ca").resolve(r.TLS.CA)
	r.Address = cmp.Or(r.Address, r.Listen)
	good := true
	for key, address := range map[string]string{"listen": r.Listen, "address": r.Address} {
		at := n.get(key)
		if message, hint := checkBind(address, Identity{Configured: true}, false); message != "" && at != nil && !at.faulty {
			l.fault(at, fmt.Sprintf("%q %s", clip(at.text), message), hint)
			good = false
		}
	}
	if _, ip, _ := splitAddress(r.Address); good && ip.IsUnspecified() {
		l.fault(cmp.Or(n.get("address"), n.get("listen")), "names no host at which other replicas reach this one", `set "address" to HOST:PORT, with a host that the certificate names`)
	}
}

// localSubject is the principal of whoever runs toolgate on this machine: no
// token may pose as it.
const localSubject = "local"

func (l *loader) finishIdentity(n *node) {
	id := &l.cfg.Identity
	if id.Configured = n != nil; !id.Configured {
		return
	}
	if len(id.Tokens) == 0 && len(id.JWT) == 0 {
		l.warn(n, "knows no token and no issuer: nobody can come in over the network", "make a token with toolgate token create")
	}
	seen := map[string]*node{}
	for i := range id.Tokens {
		t, at := &id.Tokens[i], n.at("tokens", strconv.Itoa(i))
		t.SHA256 = strings.ToLower(t.SHA256)
		if t.Subject == localSubject {
			l.fault(at.get("subject"), `"local" is whoever runs toolgate on this machine`, "choose another name")
		}
		if t.Owner != "" && t.Person != "" {
			l.fault(at.get("owner"), "person and owner mean the same", "keep one of them")
		}
		t.Person, t.Owner = cmp.Or(t.Person, t.Owner), ""
		if first := slices.IndexFunc(id.Tokens[:i], func(other Token) bool { return other.Subject == t.Subject }); first >= 0 && !id.Tokens[first].samePrincipal(t) {
			l.fault(at.get("subject"), "another token of this subject has other roles, another person or another tenant", "tokens of one subject differ in sha256, expires, errors and results only")
		}
		if first := seen["hash "+t.SHA256]; first != nil && t.SHA256 != "" {
			line, _ := first.file.position(first.offset)
			l.fault(at.get("sha256"), fmt.Sprintf("the token at line %d has this hash: they are one token", line), "make another token with toolgate token create")
		}
		seen["hash "+t.SHA256] = at
	}
	for i := range id.JWT {
		j, at := &id.JWT[i], n.at("jwt", strconv.Itoa(i), "issuer")
		j.RolesClaim = cmp.Or(j.RolesClaim, "roles")
		j.MaxLifetime, j.Skew = cmp.Or(j.MaxLifetime, 24*time.Hour), cmp.Or(j.Skew, time.Minute)
		l.unique(seen, "issuer "+j.Issuer, at, "another entry has this issuer", "join their audiences in one entry")
	}
}

// samePrincipal reports whether two tokens name the same principal.
func (t *Token) samePrincipal(other *Token) bool {
	return t.Person == other.Person && t.Tenant == other.Tenant &&
		slices.Equal(slices.Sorted(slices.Values(t.Roles)), slices.Sorted(slices.Values(other.Roles)))
}

// unique reports a value that an earlier one equals.
func (l *loader) unique(seen map[string]*node, key string, n *node, message, hint string) {
	if n == nil || n.faulty {
		return
	}
	if seen[key] != nil {
		l.fault(n, message, hint)
	}
	seen[key] = n
}

// fewSecretBytes is the least length of a secret that nobody guesses.
const fewSecretBytes = 24

func (l *loader) finishApprovals(n *node) {
	a := &l.cfg.Approvals
	if a.Hold != nil && *a.Hold > a.TTL {
		l.fault(cmp.Or(n.get("hold"), n.get("ttl")), fmt.Sprintf("a call would be held for %s, longer than its ticket lives: %s", *a.Hold, a.TTL), "hold less, or raise ttl")
	}
	if file := n.get("clients"); file != nil && !file.faulty {
		if f := l.openNamed(file); f != nil {
			a.Clients = l.profiles(f, profileSchema())
		}
	}
	seen := map[string]*node{}
	for i := range a.Notify {
		e, at := &a.Notify[i], n.at("notify", strconv.Itoa(i))
		if at.get("webhook") != nil {
			e.Format = cmp.Or(e.Format, "json")
		}
		l.unique(seen, "webhook "+e.Webhook, at.get("webhook"), "another entry has this webhook", "join them")
		for j, address := range e.Email {
			l.unique(seen, "email "+address, at.at("email", strconv.Itoa(j)), "another entry has this address", "keep one of them")
		}
		if key, err := secretKey(e.Secret); err == nil && e.Secret != "" && len(key) < fewSecretBytes {
			l.warn(at.get("secret"), "is a secret of less than 24 bytes", "openssl rand -base64 32 makes one that nobody guesses")
		}
	}
}

func (l *loader) finishTelemetry(n *node) {
	t := l.cfg.Telemetry
	if t == nil {
		return
	}
	t.CA, t.Cert, t.Key = n.get("ca").resolve(t.CA), n.get("cert").resolve(t.Cert), n.get("key").resolve(t.Key)
	l.checkHeaders(n.get("headers"))
	if n.at("traces", "ratio") == nil {
		t.Traces.Ratio = 1
	}
	t.Traces.ParentBased = t.Traces.ParentBased || n.at("traces", "parent_based") == nil
	t.Metrics.Interval = cmp.Or(t.Metrics.Interval, time.Minute)
}

func (l *loader) finishConsole(n *node) {
	c := &l.cfg.Console
	if u, err := url.Parse(c.URL); err == nil && c.URL != "" {
		if u.Scheme == "http" && !guard.Loopback(u.Hostname()) {
			l.warn(n.get("url"), "has no TLS: browsers keep no session there, so nobody can sign in", "set toolgate.admin_tls, or put a proxy that speaks TLS in front, and write https://HOST")
		}
		c.URL = u.Scheme + "://" + u.Host
	}
	if c.OIDC != nil {
		c.OIDC.RolesClaim = cmp.Or(c.OIDC.RolesClaim, "roles")
	}
}
