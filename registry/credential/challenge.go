package credential

import (
	"slices"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/oauthex"
)

// Bounds of the scopes that are asked for. Others name them, and a person has to read them.
const (
	maxScopes = 64
	maxScope  = 128 // bytes
)

// maxChallenge is the longest WWW-Authenticate that is read, in bytes.
const maxChallenge = 16 << 10

// isScope reports whether text is a scope (scope-token of RFC 6749 section 3.3) within bounds.
func isScope(text string) bool {
	return text != "" && len(text) <= maxScope && !strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r > '~' || r == '"' || r == '\\' })
}

// union returns the scopes of all lists, each once and in their order: no others than isScope, and
// maxScopes at most.
func union(lists ...[]string) (all []string) {
	for _, scope := range slices.Concat(lists...) {
		if isScope(scope) && !slices.Contains(all, scope) && len(all) < maxScopes {
			all = append(all, scope)
		}
	}
	return all
}

// bearerChallenge returns the parameters of the challenge of the scheme Bearer (RFC 6750 section
// 3) among the values of WWW-Authenticate; nil for none, and for values that cannot be read.
func bearerChallenge(values []string) map[string]string {
	if len(strings.Join(values, "")) > maxChallenge {
		return nil
	}
	challenges, err := oauthex.ParseWWWAuthenticate(values)
	if err != nil {
		return nil
	}
	for _, c := range challenges {
		if c.Scheme == "bearer" {
			return c.Params
		}
	}
	return nil
}

// InsufficientScope reports whether a server's WWW-Authenticate values say that a token is good and
// its scopes are too few (RFC 6750 section 3.1).
func InsufficientScope(challenge []string) bool {
	_, few := insufficient(challenge)
	return few
}

// insufficient returns the scopes that a server asks for, and whether it says that those of the
// token are too few.
func insufficient(challenge []string) (scopes []string, few bool) {
	params := bearerChallenge(challenge)
	return union(strings.Fields(params["scope"])), params["error"] == "insufficient_scope"
}
