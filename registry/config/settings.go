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
	"github.com/toolgate/toolgate/internal/tree"
)

// finishSettings completes the settings of toolgate, and checks what the schema
// cannot say of them.
func (l *loader) finishSettings() {
	n := l.settings()
	for i, a := range l.cfg.Audit.Arguments {
		if len(a.Mask) > 0 && a.Keep != "masked" {
			l.Fault(n.At("audit", "arguments", strconv.Itoa(i), "mask"), "has no effect with keep "+strconv.Quote(a.Keep), `set "keep": "masked"`)
		}
	}
	for _, r := range []**Rate{&l.cfg.Limits.Default, &l.cfg.Limits.Refused} {
		if *r != nil && (*r).Count == 0 {
			*r = nil
		}
	}
	l.cfg.PublicURL = strings.TrimRight(l.cfg.PublicURL, "/")
	l.finishShared(n.Get("shared"))
	l.finishReplica(n.Get("replica"))
	l.finishIdentity(n.Get("identity"))
	l.finishApprovals(n.Get("approvals"))
	l.finishConsole(n.Get("console"))
	l.finishPolicy(n.Get("policy"))
	l.finishTelemetry(n.Get("telemetry"))
	servers := l.servers
	for i, r := range l.cfg.Limits.Rules {
		at := n.At("limits", "rules", strconv.Itoa(i), "server")
		if r.Server != "" && servers != nil && servers.Get(r.Server) == nil {
			l.Warn(at, fmt.Sprintf("no server is named %q: the rule limits nothing", tree.Clip(at.Text)), "")
		}
	}
}

func (l *loader) finishShared(n *tree.Node) {
	s := l.cfg.Shared
	if s == nil {
		return
	}
	if u, err := url.Parse(s.URL); err == nil && u.Scheme == "redis" && !guard.Loopback(u.Hostname()) {
		l.Warn(cmp.Or(n.Get("url"), n), "has no TLS: whoever is on the way reads the password, and can lift the limits", "write rediss://")
	}
}

// finishReplica checks the addresses of the listener for other replicas. It needs no
// identity: who has no certificate of their authority cannot connect.
func (l *loader) finishReplica(n *tree.Node) {
	r := l.cfg.Replica
	if r == nil {
		return
	}
	r.Address = cmp.Or(r.Address, r.Listen)
	good := true
	for key, address := range map[string]string{"listen": r.Listen, "address": r.Address} {
		at := n.Get(key)
		if message, hint := checkBind(address, Identity{Configured: true}, false); message != "" && at != nil && !at.Faulty {
			l.Fault(at, fmt.Sprintf("%q %s", tree.Clip(at.Text), message), hint)
			good = false
		}
	}
	if _, ip, _ := splitAddress(r.Address); good && ip.IsUnspecified() {
		l.Fault(cmp.Or(n.Get("address"), n.Get("listen")), "names no host at which other replicas reach this one", `set "address" to HOST:PORT, with a host that the certificate names`)
	}
}

// localSubject is the principal of whoever runs toolgate on this machine: no
// token may pose as it.
const localSubject = "local"

func (l *loader) finishIdentity(n *tree.Node) {
	id := &l.cfg.Identity
	if id.Configured = n != nil; !id.Configured {
		return
	}
	if len(id.Tokens)+len(id.JWT)+len(id.MTLS) == 0 {
		l.Warn(n, "knows no token and no issuer: nobody can come in over the network", "make a token with toolgate token create")
	}
	if at := n.Get("mtls"); len(id.MTLS) > 0 && (l.cfg.TLS == nil || l.cfg.TLS.ClientCA == "") {
		l.Fault(at, "names certificates, and the agents' listener asks for none", "set toolgate.tls with a client_ca")
	}
	for i, m := range id.MTLS {
		if m.As == localSubject {
			l.Fault(n.At("mtls", strconv.Itoa(i), "as"), `"local" is whoever runs toolgate on this machine`, "choose another name")
		}
	}
	for i, scope := range id.Scopes {
		if scope == "offline_access" {
			l.Fault(n.At("scopes", strconv.Itoa(i)), "is no scope of a resource: a client asks for it by itself", "remove it")
		}
	}
	seen := map[string]*tree.Node{}
	for i := range id.Tokens {
		t, at := &id.Tokens[i], n.At("tokens", strconv.Itoa(i))
		t.SHA256 = strings.ToLower(t.SHA256)
		if t.Subject == localSubject {
			l.Fault(at.Get("subject"), `"local" is whoever runs toolgate on this machine`, "choose another name")
		}
		if t.Owner != "" && t.Person != "" {
			l.Fault(at.Get("owner"), "person and owner mean the same", "keep one of them")
		}
		t.Person, t.Owner = cmp.Or(t.Person, t.Owner), ""
		if first := slices.IndexFunc(id.Tokens[:i], func(other Token) bool { return other.Subject == t.Subject }); first >= 0 && !id.Tokens[first].samePrincipal(t) {
			l.Fault(at.Get("subject"), "another token of this subject has other roles, another person or another tenant", "tokens of one subject differ in sha256, expires, errors and results only")
		}
		if first := seen["hash "+t.SHA256]; first != nil && t.SHA256 != "" {
			line, _ := first.File.Position(first.Offset)
			l.Fault(at.Get("sha256"), fmt.Sprintf("the token at line %d has this hash: they are one token", line), "make another token with toolgate token create")
		}
		seen["hash "+t.SHA256] = at
	}
	for i := range id.JWT {
		j, at := &id.JWT[i], n.At("jwt", strconv.Itoa(i), "issuer")
		if n.At("jwt", strconv.Itoa(i)).Get("jwks") == nil {
			l.checkIssuer(at)
		}
		j.SubjectClaim, j.RolesClaim, j.GroupsClaim = cmp.Or(j.SubjectClaim, "sub"), cmp.Or(j.RolesClaim, "roles"), cmp.Or(j.GroupsClaim, "groups")
		j.MaxLifetime, j.Skew = cmp.Or(j.MaxLifetime, 24*time.Hour), cmp.Or(j.Skew, time.Minute)
		l.unique(seen, "issuer "+j.Issuer, at, "another entry has this issuer", "join their audiences in one entry")
	}
}

// checkIssuer checks the address of an issuer that is asked for its keys.
func (l *loader) checkIssuer(at *tree.Node) {
	if at == nil || at.Faulty {
		return
	}
	if u, err := url.Parse(at.Value); err != nil || u.Host == "" || u.RawQuery != "" || u.Fragment != "" || u.User != nil || u.Scheme != "https" && !(u.Scheme == "http" && guard.Loopback(u.Hostname())) {
		l.Fault(at, "is no https URL, at which the issuer could be asked for its keys", `write it as the issuer does, or set "jwks" to the address of its key set`)
	}
}

// samePrincipal reports whether two tokens name the same principal.
func (t *Token) samePrincipal(other *Token) bool {
	return t.Person == other.Person && t.Tenant == other.Tenant &&
		slices.Equal(slices.Sorted(slices.Values(t.Roles)), slices.Sorted(slices.Values(other.Roles)))
}

// unique reports a value that an earlier one equals.
func (l *loader) unique(seen map[string]*tree.Node, key string, n *tree.Node, message, hint string) {
	if n == nil || n.Faulty {
		return
	}
	if seen[key] != nil {
		l.Fault(n, message, hint)
	}
	seen[key] = n
}

// fewSecretBytes is the least length of a secret that nobody guesses.
const fewSecretBytes = 24

func (l *loader) finishApprovals(n *tree.Node) {
	a := &l.cfg.Approvals
	if a.Hold != nil && *a.Hold > a.TTL {
		l.Fault(cmp.Or(n.Get("hold"), n.Get("ttl")), fmt.Sprintf("a call would be held for %s, longer than its ticket lives: %s", *a.Hold, a.TTL), "hold less, or raise ttl")
	}
	if file := n.Get("clients"); file != nil && !file.Faulty {
		if f := l.openNamed(file); f != nil {
			a.Clients = l.profiles(f, read("config.json", "/$defs/profiles", formats))
		}
	}
	seen := map[string]*tree.Node{}
	for i := range a.Notify {
		e, at := &a.Notify[i], n.At("notify", strconv.Itoa(i))
		if at.Get("webhook") != nil {
			e.Format = cmp.Or(e.Format, "json")
		}
		l.unique(seen, "webhook "+e.Webhook, at.Get("webhook"), "another entry has this webhook", "join them")
		for j, address := range e.Email {
			l.unique(seen, "email "+address, at.At("email", strconv.Itoa(j)), "another entry has this address", "keep one of them")
		}
		if key, err := secretKey(e.Secret); err == nil && e.Secret != "" && len(key) < fewSecretBytes {
			l.Warn(at.Get("secret"), "is a secret of less than 24 bytes", "openssl rand -base64 32 makes one that nobody guesses")
		}
	}
}

func (l *loader) finishTelemetry(n *tree.Node) {
	t := l.cfg.Telemetry
	if t == nil {
		return
	}
	l.checkHeaders(n.Get("headers"))
	if n.At("traces", "ratio") == nil {
		t.Traces.Ratio = 1
	}
	t.Traces.ParentBased = t.Traces.ParentBased || n.At("traces", "parent_based") == nil
	t.Metrics.Interval = cmp.Or(t.Metrics.Interval, time.Minute)
}

func (l *loader) finishConsole(n *tree.Node) {
	c := &l.cfg.Console
	if u, err := url.Parse(c.URL); err == nil && c.URL != "" {
		if u.Scheme == "http" && !guard.Loopback(u.Hostname()) {
			l.Warn(n.Get("url"), "has no TLS: browsers keep no session there, so nobody can sign in", "set toolgate.admin_tls, or put a proxy that speaks TLS in front, and write https://HOST")
		}
		c.URL = u.Scheme + "://" + u.Host
	}
	if c.OIDC != nil {
		c.OIDC.RolesClaim = cmp.Or(c.OIDC.RolesClaim, "roles")
	}
}
