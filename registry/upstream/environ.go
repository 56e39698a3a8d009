package upstream

import (
	"os"
	"slices"
	"strings"
)

// childGuard is set in the environment of a supervisor process and nowhere
// else: it is what makes ChildMain believe its arguments.
const childGuard = "TOOLGATE_CHILD"

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
		if name != childGuard {
			out = append(out, name+"="+value)
		}
	}
	slices.Sort(out)
	return out
}

// supervised reports whether this process is itself a supervisor that went
// astray: a binary that does not hand over to ChildMain. It must not start
// children, or it would start itself for ever.
func supervised() bool { return os.Getenv(childGuard) != "" }
