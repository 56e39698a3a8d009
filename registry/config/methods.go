package config

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// methodName is a namespace and a name: what MCP keeps for itself has none, or
// one of ownNames.
var methodName = regexp.MustCompile(`^[A-Za-z0-9_.$-]+(/[A-Za-z0-9_.$-]+)+$`)

// ownNames are the namespaces of the protocol's own methods, and below
// "notifications/" of its notifications (MCP, schema, of every revision).
var ownNames = []string{
	"cancelled", "completion", "elicitation", "initialized", "logging", "message", "ping", "progress", "prompts",
	"resources", "roots", "sampling", "server", "subscriptions", "tasks", "tools",
}

// methods reads the names of methods of extensions.
func (l *loader) methods(to *[]string) func(*node) {
	return func(n *node) {
		list := []string{}
		l.list(n, func(item *node) {
			name, ok := l.filled(item)
			space, _, _ := strings.Cut(strings.TrimPrefix(name, "notifications/"), "/")
			switch {
			case !ok:
			case !methodName.MatchString(name):
				l.fault(item, fmt.Sprintf("%q is no name for a method of an extension", clip(name)), `such as "vendor/thing" or "notifications/vendor/thing"`)
			case slices.Contains(ownNames, space):
				l.fault(item, fmt.Sprintf("%q is a method of MCP itself", clip(name)), "remove it: what MCP defines is governed without being named")
			case slices.Contains(list, name):
				l.fault(item, "is in the list twice", "keep one of them")
			default:
				list = append(list, name)
			}
		})
		*to = list
	}
}
