package config

import (
	"cmp"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/toolgate/toolgate/internal/schema"
	"github.com/toolgate/toolgate/internal/tree"
)

var backendsSchema = sync.OnceValue(func() *schema.Own { return read("backends.json", "", formats) })

// backendMembers are the members of search or media that each provider supports. A filter that a
// provider does not have is a fault: it would not filter.
var backendMembers = map[string][]string{
	"brave":     {"api_key", "base_url", "locale", "safesearch", "freshness", "timeout", "cache"},
	"exa":       {"api_key", "base_url", "locale", "safesearch", "freshness", "timeout", "cache"},
	"local":     {"folder"},
	"openai":    {"api_key", "base_url", "models", "budget", "allow", "timeout"},
	"render":    {},
	"replicate": {"api_key", "base_url", "models", "budget", "allow", "timeout"},
	"searxng":   {"base_url", "locale", "safesearch", "freshness", "timeout", "cache"},
	"stability": {"api_key", "base_url", "models", "budget", "timeout"},
	"tavily":    {"api_key", "base_url", "freshness", "timeout", "cache"},
	"wikipedia": {"contact", "base_url", "locale", "timeout", "cache"},
}

// LoadBackends reads the file at opts.Path, which chooses the backends of the standard
// tools, into a struct whose tags are the members of docs/schemas/backends.json. The
// error is always *Faults, with everything that is wrong.
func LoadBackends(opts Options, into any) error {
	l := &loader{opts: opts.withDefaults()}
	if root := l.open(l.opts.Path, "", "write one, or leave out --backends"); root != nil {
		l.expandAll(root, nil)
		l.Check(root, backendsSchema())
		l.checkBackend(root.Get("search"))
		l.checkBackend(root.Get("media"))
		l.checkSigner(root.Get("wallet").Get("signer"))
		l.decode(root, into)
	}
	return l.Err()
}

// onlyReference is a text that is one reference and nothing else. A default would be a secret
// in the file.
var onlyReference = regexp.MustCompile(`^\$\{(?:env:|file:)?[^}:]+\}$`)

// checkSigner wants one signer, whose secrets are references.
func (l *loader) checkSigner(n *tree.Node) {
	if n == nil || n.Faulty {
		return
	}
	keystore, private, command := n.Get("keystore"), n.Get("private_key"), n.Get("command")
	kinds := 0
	for _, kind := range []*tree.Node{keystore, private, command} {
		if kind != nil {
			kinds++
		}
	}
	if kinds != 1 || (keystore == nil) != (n.Get("password") == nil) || (command == nil) != (n.Get("address") == nil) {
		l.Fault(n, "needs one signer", "write keystore and password, or private_key, or command and address")
	}
	for _, secret := range []*tree.Node{private, n.Get("password")} {
		if secret != nil && !onlyReference.MatchString(secret.Text) {
			l.plain(secret)
		}
	}
	if keystore != nil {
		keystore.Value = keystore.Resolve(keystore.Value)
	}
}

// plain reports a secret that is in the file.
func (l *loader) plain(secret *tree.Node) {
	if !secret.Faulty {
		l.Fault(secret, "is a key in plain text", `write "${NAME}", and set NAME in the environment`)
	}
}

// checkBackend says what the schema cannot: which members a provider supports, and that
// keys are neither in the file nor on a network in plain.
func (l *loader) checkBackend(n *tree.Node) {
	provider := n.Get("provider")
	if provider == nil || provider.Faulty {
		return
	}
	supports, ok := backendMembers[provider.Value]
	for _, m := range n.Each() {
		if ok && m.Key != "provider" && !m.Faulty && !slices.Contains(supports, m.Key) {
			l.Fault(m.Named(), fmt.Sprintf("has no effect with provider %s", provider.Value), "it supports "+cmp.Or(strings.Join(supports, ", "), "no other member"))
		}
	}
	key, base, folder := n.Get("api_key"), n.Get("base_url"), n.Get("folder")
	if key != nil && !strings.Contains(key.Text, "${") {
		l.plain(key)
	}
	if key != nil && base != nil && !base.Faulty {
		if u, err := url.Parse(base.Value); err == nil && secure.broken(u) {
			l.Fault(base, "would carry the key without TLS", hintURL)
		}
	}
	if folder != nil {
		folder.Value = folder.Resolve(folder.Value)
	}
}
