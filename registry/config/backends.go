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
)

var backendsSchema = sync.OnceValue(func() *schema.Own { return compile("backends.json", "", formats) })

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
		l.expandAll(root, false)
		l.checkShape(root, backendsSchema())
		l.checkBackend(root.get("search"))
		l.checkBackend(root.get("media"))
		l.checkSigner(root.get("wallet").get("signer"))
		l.decode(root, into)
	}
	if len(l.faults) == 0 {
		return nil
	}
	slices.SortStableFunc(l.faults, l.before)
	return &Faults{List: l.faults}
}

// onlyReference is a text that is one reference and nothing else. A default would be a secret
// in the file.
var onlyReference = regexp.MustCompile(`^\$\{(?:env:|file:)?[^}:]+\}$`)

// checkSigner wants one signer, whose secrets are references.
func (l *loader) checkSigner(n *node) {
	if n == nil || n.faulty {
		return
	}
	keystore, private, command := n.get("keystore"), n.get("private_key"), n.get("command")
	kinds := 0
	for _, kind := range []*node{keystore, private, command} {
		if kind != nil {
			kinds++
		}
	}
	if kinds != 1 || (keystore == nil) != (n.get("password") == nil) || (command == nil) != (n.get("address") == nil) {
		l.fault(n, "needs one signer", "write keystore and password, or private_key, or command and address")
	}
	for _, secret := range []*node{private, n.get("password")} {
		if secret != nil && !onlyReference.MatchString(secret.text) {
			l.plain(secret)
		}
	}
	if keystore != nil {
		keystore.value = keystore.resolve(keystore.value)
	}
}

// plain reports a secret that is in the file.
func (l *loader) plain(secret *node) {
	if !secret.faulty {
		l.fault(secret, "is a key in plain text", `write "${NAME}", and set NAME in the environment`)
	}
}

// checkBackend says what the schema cannot: which members a provider supports, and that
// keys are neither in the file nor on a network in plain.
func (l *loader) checkBackend(n *node) {
	provider := n.get("provider")
	if provider == nil || provider.faulty {
		return
	}
	supports, ok := backendMembers[provider.value]
	for _, m := range n.each() {
		if ok && m.key != "provider" && !m.faulty && !slices.Contains(supports, m.key) {
			l.fault(m.named(), fmt.Sprintf("has no effect with provider %s", provider.value), "it supports "+cmp.Or(strings.Join(supports, ", "), "no other member"))
		}
	}
	key, base, folder := n.get("api_key"), n.get("base_url"), n.get("folder")
	if key != nil && !strings.Contains(key.text, "${") {
		l.plain(key)
	}
	if key != nil && base != nil && !base.faulty {
		if u, err := url.Parse(base.value); err == nil && secure(u) != nil {
			l.fault(base, "would carry the key without TLS", hintURL)
		}
	}
	if folder != nil {
		folder.value = folder.resolve(folder.value)
	}
}
