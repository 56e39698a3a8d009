package config

import (
	"fmt"
	"regexp"
	"strings"
)

var variable = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// clientVariables are what clients put into ${…} of their own knowledge.
var clientVariables = map[string]string{
	"workspaceFolder":         "write the path: toolgate has no workspace",
	"workspaceFolderBasename": "write the name: toolgate has no workspace",
	"userHome":                "write ${HOME}",
	"pathSeparator":           "write / or \\\\",
}

// expand replaces ${VAR}, ${env:VAR} and ${VAR:-default} in the string n, once:
// what a variable holds is taken as it is. As in a shell, the default stands
// for an empty variable too. It reports false, with a fault that names the
// variable and never its value, when one is unset; in a disabled server that
// is a warning. A bare $VAR is no variable.
func (l *loader) expand(n *node) (string, bool) {
	var out strings.Builder
	rest := n.text
	for {
		before, after, found := strings.Cut(rest, "${")
		out.WriteString(before)
		if !found {
			return out.String(), true
		}
		body, tail, closed := strings.Cut(after, "}")
		if !closed {
			l.fault(n, `has "${" without "}"`, "write ${NAME}, or $ alone for itself")
			return "", false
		}
		value, ok := l.lookup(n, body)
		if !ok {
			return "", false
		}
		out.WriteString(value)
		rest = tail
	}
}

// lookup gives the value of what stands between ${ and }.
func (l *loader) lookup(n *node, body string) (string, bool) {
	name, fallback, hasDefault := strings.Cut(strings.TrimPrefix(body, "env:"), ":-")
	if !variable.MatchString(name) {
		hint := "write ${NAME}, ${env:NAME} or ${NAME:-default}"
		if strings.HasPrefix(body, "input:") {
			hint = "toolgate does not ask: put the value into a variable and write ${env:NAME}"
		}
		l.fault(n, "has a ${…} that names no variable", hint)
		return "", false
	}
	value, set := l.opts.Getenv(name)
	switch {
	case set && value != "":
		return value, true
	case hasDefault:
		return fallback, true
	case set:
		return "", true
	}
	l.unset(n, name)
	return "", false
}

func (l *loader) unset(n *node, name string) {
	hint := clientVariables[name]
	if hint == "" {
		hint = fmt.Sprintf("set %s, or write ${%s:-default}", name, name)
	}
	message := fmt.Sprintf("variable %s is not set", name)
	if l.lenient {
		l.warn(n, message, hint)
		return
	}
	l.fault(n, message, hint)
}
