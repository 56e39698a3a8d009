package config

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/toolgate/toolgate/internal/tree"
	"github.com/toolgate/toolgate/registry/lock"
)

// minSecret is how long a value must be to count as a secret, in bytes: shorter ones
// are in too many texts.
const minSecret = 6

// Secrets returns the values that toolgate gives the server and that look like
// secrets: those of variables, headers and flags with such a name, or one that
// SecretNames lists, passwords in addresses, and members of a query.
func (s Server) Secrets() []string {
	var found []string
	add := func(value string) {
		if len(value) >= minSecret {
			found = append(found, value)
		}
	}
	for name, value := range s.Env {
		if s.isSecret(name) {
			add(value)
		}
		add(password(value))
	}
	for name, value := range s.Headers {
		if s.isSecret(name) {
			if _, credentials, ok := strings.Cut(value, " "); ok { // Bearer, Basic
				value = credentials
			}
			add(value)
		}
	}
	args := slices.Clip(s.Args)
	if c := s.Credential; c != nil {
		add(c.ClientSecret)
		add(c.PrivateKey)
		add(c.Actor)
		args = append(args, c.Command...)
	}
	for i, arg := range args {
		if _, value, ok := lock.SecretArg(args, i); ok {
			add(value)
		}
		add(password(arg))
	}
	add(password(s.URL))
	if u, err := url.Parse(s.URL); err == nil {
		for name, values := range u.Query() {
			if lock.Secret(name) {
				add(values[0])
			}
		}
	}
	return found
}

// isSecret reports whether a variable or a header of this name has a secret.
func (s Server) isSecret(name string) bool {
	return lock.Secret(name) || slices.ContainsFunc(s.SecretNames, func(n string) bool { return strings.EqualFold(n, name) })
}

// checkSecrets reports names that no variable and no header of the server has, and
// values that are too short to be found.
func (l *loader) checkSecrets(s *Server, n *tree.Node) {
	if s.Disabled {
		return // its envFile was not read
	}
	for i, name := range s.SecretNames {
		found, short := false, false
		for _, given := range []map[string]string{s.Env, s.Headers} {
			for key, value := range given {
				if strings.EqualFold(key, name) {
					found, short = true, short || len(value) < minSecret
				}
			}
		}
		switch at := n.At(strconv.Itoa(i)); {
		case !found:
			l.Fault(at, "names no variable and no header of this server", "name members of its env, envFile or headers")
		case short:
			l.Warn(at, fmt.Sprintf("has a value of fewer than %d bytes, which is not redacted", minSecret), "")
		}
	}
}

// password returns the password in an address, "" for none.
func password(address string) string {
	if !strings.Contains(address, "://") {
		return ""
	}
	u, err := url.Parse(address)
	if err != nil {
		return ""
	}
	secret, _ := u.User.Password()
	return secret
}

// DemoTokens are the tokens of the shipped mcp.json. Everybody knows them.
var DemoTokens = []string{"demo-observer", "demo-researcher", "demo-creator", "demo-treasurer", "demo-approver", "demo-auditor"}

// Demo returns the token of DemoTokens that t is, "" for none.
func (t Token) Demo() string {
	for _, d := range DemoTokens {
		if sum := sha256.Sum256([]byte(d)); t.SHA256 == hex.EncodeToString(sum[:]) {
			return d
		}
	}
	return ""
}

// secretFiles returns the files that hold a secret, or the hash of a token that not everybody
// knows, as it is written and not as a variable.
func (l *loader) secretFiles() (paths []string) {
	var secrets []string
	for _, s := range l.cfg.Servers {
		secrets = append(secrets, s.Secrets()...)
	}
	c := l.cfg
	secrets = append(secrets, c.Policy.Log.Token, password(c.Store))
	headers := []map[string]string{c.Policy.Log.Headers}
	for _, s := range []*PolicySource{&c.Policy.PolicySource, c.Policy.Shadow} {
		if s == nil {
			continue
		}
		headers = append(headers, s.Headers)
		for _, k := range s.Keys {
			if strings.HasPrefix(k.Algorithm, "HS") {
				secrets = append(secrets, k.Key)
			}
		}
	}
	if t := c.Telemetry; t != nil {
		headers = append(headers, t.Headers)
	}
	for _, h := range headers {
		for name, value := range h {
			if lock.Secret(name) {
				secrets = append(secrets, strings.TrimPrefix(value, "Bearer "))
			}
		}
	}
	for _, n := range c.Approvals.Notify {
		secrets = append(secrets, n.Secret, password(n.SMTP))
	}
	if c.Shared != nil {
		secrets = append(secrets, password(c.Shared.URL))
	}
	if c.Console.OIDC != nil {
		secrets = append(secrets, c.Console.OIDC.ClientSecret)
	}
	for _, f := range l.Files {
		text := string(f.Data)
		if slices.ContainsFunc(secrets, func(s string) bool { return len(s) >= minSecret && strings.Contains(text, s) }) ||
			slices.ContainsFunc(l.cfg.Identity.Tokens, func(t Token) bool { return t.Demo() == "" && strings.Contains(strings.ToLower(text), t.SHA256) }) {
			paths = append(paths, f.Path)
		}
	}
	return paths
}
