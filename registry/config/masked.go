package config

import (
	"encoding/json"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/toolgate/toolgate/internal/tree"
	"github.com/toolgate/toolgate/registry/lock"
)

// masked stands for a value that Masked does not show.
const masked = "***"

var (
	defaultValue = regexp.MustCompile(`(\$\{[^}]*:-)[^}]*\}`)
	onlyVariable = regexp.MustCompile(`^([A-Za-z]+ )?\$\{[^}]*\}$`) // with Bearer or Basic before it
	anyReference = regexp.MustCompile(`\$\{[^}]*\}`)
	plainWord    = regexp.MustCompile(`^[a-z]+$`)
	random       = regexp.MustCompile(`^[A-Za-z0-9_+=-]{20,}$`) // with a digit: no text that somebody has thought of
	digit        = regexp.MustCompile(`[0-9]`)
)

// hiddenMembers have nothing but values that are not shown: an operator may put a secret in
// any of them.
var hiddenMembers = []string{"env", "headers", "data", "actor"}

// Masked returns what mcp.json and the overlay say, without comments and without secrets:
// values of env, headers, actor and policy.Data, and of every member, flag and member of a query
// whose name looks like a secret's, passwords, paths of webhooks, defaults of variables,
// and texts that look random. References to variables are shown and not expanded.
//
// The secrets are the values that are not shown and those of all references, for texts
// that may repeat them: not words under a harmless name, and not names of files that exist. The error
// is *Faults; what could be read is returned with it.
func Masked(opts Options) (document json.RawMessage, secrets []string, err error) {
	m := &masker{l: &loader{opts: opts.withDefaults(), cfg: defaults()}}
	m.l.readRoot()
	if len(m.l.Faults) > 0 {
		err = &Faults{List: m.l.Faults}
	}
	m.mask(m.l.root, "", false)
	return m.l.root.JSON(true), m.secrets, err
}

// masker masks the nodes of a configuration, and collects what it masks.
type masker struct {
	l       *loader
	secrets []string
}

// mask masks what is below n, whose member or list is called name. It shows no value when
// hidden is set.
func (m *masker) mask(n *tree.Node, name string, hidden bool) {
	for _, c := range n.Members {
		m.mask(c, c.Key, hidden || slices.Contains(hiddenMembers, c.Key))
	}
	var args []string
	for _, c := range n.Items {
		args = append(args, c.Text)
	}
	for i, c := range n.Items {
		m.mask(c, name, hidden)
		if _, secret, ok := lock.SecretArg(args, i); ok {
			m.hide(c, secret, true)
		}
	}
	switch {
	case n.Kind == tree.Object || n.Kind == tree.Array:
	case lock.Secret(name) || name == "sha256" || random.MatchString(n.Text) && digit.MatchString(n.Text):
		m.hide(n, n.Text, true)
	case hidden:
		m.hide(n, n.Text, !plainWord.MatchString(n.Text))
	case n.Kind == tree.String:
		m.show(n, name == "webhook")
	}
}

// hide masks the secret with which a scalar ends, unless it refers to a variable. One that is
// not sure is not collected.
func (m *masker) hide(n *tree.Node, secret string, sure bool) {
	if m.collect(n); sure {
		m.add(secret)
	}
	before := defaultValue.ReplaceAllString(strings.TrimSuffix(n.Text, secret), "$1"+masked+"}")
	secret = defaultValue.ReplaceAllString(secret, "$1"+masked+"}")
	if !onlyVariable.MatchString(secret) {
		secret = masked
	}
	n.Kind, n.Value = tree.String, before+secret
}

// show masks the parts of a text that are secrets wherever they are: what is before the
// host of an address, its query, and with bare all that follows its host.
func (m *masker) show(n *tree.Node, bare bool) {
	m.collect(n)
	n.Value = lock.NewOrigin("", "", nil, defaultValue.ReplaceAllString(n.Text, "$1"+masked+"}")).URL
	scheme, rest, _ := strings.Cut(n.Value, "://")
	switch end := strings.LastIndexByte(rest, '@'); {
	case bare && rest != "":
		host, _, _ := strings.Cut(rest, "/")
		n.Value = scheme + "://" + host + "/" + masked
	case end > 0 && database(scheme): // a password may have a / as it is written
		n.Value = scheme + "://" + masked + rest[end:]
	}
}

// collect collects what the references in n stand for, and the secrets in an address.
func (m *masker) collect(n *tree.Node) {
	for _, ref := range anyReference.FindAllString(n.Text, -1) {
		value, _ := m.l.expand(ref, n.File) // without a value there is nothing to collect
		m.add(value)
	}
	whole, _ := m.l.expand(n.Text, n.File) // as above
	if n.Key == "envFile" {
		at := n.As(tree.String, n.Text)
		at.Value = whole
		for name, value := range m.l.environmentFile(at) { // what is wrong with it is for Load
			if lock.Secret(name) || !plainWord.MatchString(value) {
				m.add(value)
			}
		}
	}
	u, err := url.Parse(whole)
	if err != nil || u.Host == "" {
		return
	}
	password, _ := u.User.Password()
	m.add(password)
	plain := database(u.Scheme) // its user and most of its options are plain words
	if !plain {
		m.add(u.User.Username())
	}
	for name, values := range u.Query() {
		if !plain || lock.Secret(name) {
			m.add(values[0])
		}
	}
	if n.Key == "webhook" {
		for part := range strings.SplitSeq(u.Path, "/") {
			if !plainWord.MatchString(part) {
				m.add(part)
			}
		}
	}
}

// database reports whether a URL names a database.
func database(scheme string) bool {
	return strings.HasPrefix(scheme, "postgres") || strings.HasPrefix(scheme, "redis")
}

// add adds a secret, and what follows Bearer or Basic in it.
func (m *masker) add(secret string) {
	_, credentials, _ := strings.Cut(secret, " ")
	for _, s := range []string{secret, credentials} {
		if _, err := os.Stat(s); len(s) >= minSecret && err != nil && !strings.Contains(s, "${") {
			m.secrets = append(m.secrets, s)
		}
	}
}
