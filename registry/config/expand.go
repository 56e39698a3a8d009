package config

import (
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"
)

var variable = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// clientVariables are what clients put into ${…} of their own knowledge.
var clientVariables = map[string]string{
	"workspaceFolder":         "write the path: toolgate has no workspace",
	"workspaceFolderBasename": "write the name: toolgate has no workspace",
	"userHome":                "write ${HOME}",
	"pathSeparator":           "write / or \\\\",
}

// expandRoot expands every string of the servers and the settings. In a disabled
// server, a variable that is not set is only a warning.
func (l *loader) expandRoot() {
	entries, settings := l.root.get(l.container), l.settings()
	for _, m := range entries.each() {
		if d := m.get("disabled"); d != nil && d.kind == kindTrue {
			m.lenient = true
			if own := settings.at("servers", m.key); own != nil {
				own.lenient = true
			}
		}
	}
	l.expandAll(entries, false)
	l.expandAll(settings, false)
}

func (l *loader) expandAll(n *node, lenient bool) {
	if n == nil {
		return
	}
	for child := range n.children() {
		l.expandAll(child, lenient || child.lenient)
	}
	if n.kind != kindString {
		return
	}
	value, message, hint := l.expand(n.text)
	if n.value = value; message == "" {
		return
	}
	n.value, n.faulty = n.text, true
	if lenient && strings.HasPrefix(message, "variable ") {
		l.warn(n, message, hint)
		return
	}
	n.unset = faultAt(n, message, hint)
}

// expand replaces ${VAR}, ${env:VAR} and ${VAR:-default} in text, once: what a
// variable holds is taken literally. As in a shell, the default replaces an empty
// variable too. The message names a variable that is not set, and never a value.
// A bare $VAR is no variable.
func (l *loader) expand(text string) (value, message, hint string) {
	var out strings.Builder
	for {
		before, after, found := strings.Cut(text, "${")
		out.WriteString(before)
		if !found {
			return out.String(), "", ""
		}
		body, tail, closed := strings.Cut(after, "}")
		if !closed {
			return "", `has "${" without "}"`, "write ${NAME}, or $ alone for itself"
		}
		value, message, hint := l.lookup(body)
		if message != "" {
			return "", message, hint
		}
		out.WriteString(value)
		text = tail
	}
}

// lookup gives the value of what stands between ${ and }.
func (l *loader) lookup(body string) (value, message, hint string) {
	name, fallback, hasDefault := strings.Cut(strings.TrimPrefix(body, "env:"), ":-")
	if !variable.MatchString(name) {
		hint := "write ${NAME}, ${env:NAME} or ${NAME:-default}"
		if strings.HasPrefix(body, "input:") {
			hint = "toolgate does not ask: put the value into a variable and write ${env:NAME}"
		}
		return "", "has a ${…} that names no variable", hint
	}
	value, set := l.opts.Getenv(name)
	switch {
	case !utf8.ValidString(value):
		return "", fmt.Sprintf("value of variable %s is not valid UTF-8", name), ""
	case value != "" && set:
		return value, "", ""
	case hasDefault:
		return fallback, "", ""
	case set:
		return "", "", ""
	}
	if hint = clientVariables[name]; hint == "" {
		hint = fmt.Sprintf("set %s, or write ${%s:-default}", name, name)
	}
	return "", fmt.Sprintf("variable %s is not set", name), hint
}
