package upstream

import (
	"slices"
	"strings"

	"github.com/toolgate/toolgate/internal/guardian"
)

// allowed are the variables of ours that a stdio server may see. Everything
// else in our environment, secrets first, stays with us.
var allowed = []string{"PATH", "HOME", "USER", "LANG", "TZ", "TMPDIR"}

// environ gives the environment of a stdio server: the allowed variables of
// ours, then the server's own, sorted.
func environ(ours []string, own map[string]string) []string {
	var out []string
	for _, pair := range ours {
		name, _, _ := strings.Cut(pair, "=")
		if _, replaced := own[name]; replaced {
			continue
		}
		if slices.Contains(allowed, name) || strings.HasPrefix(name, "LC_") {
			out = append(out, pair)
		}
	}
	for name, value := range own {
		if !guardian.Owns(name) {
			out = append(out, name+"="+value)
		}
	}
	slices.Sort(out)
	return out
}
