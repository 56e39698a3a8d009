package config

import (
	"net/url"
	"strings"

	"github.com/toolgate/toolgate/registry/lock"
)

// minSecret is how long a value must be to count as a secret, in bytes: shorter ones
// are in too many texts.
const minSecret = 6

// Secrets returns the values that toolgate gives the server and that look like
// secrets: those of variables, headers and flags with such a name, passwords in
// addresses, and members of a query.
func (s Server) Secrets() []string {
	var found []string
	add := func(value string) {
		if len(value) >= minSecret {
			found = append(found, value)
		}
	}
	for name, value := range s.Env {
		if lock.Secret(name) {
			add(value)
		}
		add(password(value))
	}
	for name, value := range s.Headers {
		if lock.Secret(name) {
			if _, credentials, ok := strings.Cut(value, " "); ok { // Bearer, Basic
				value = credentials
			}
			add(value)
		}
	}
	for i, arg := range s.Args {
		if value, ok := lock.SecretArg(s.Args, i); ok {
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
