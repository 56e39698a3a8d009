package config

import (
	"bytes"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/toolgate/toolgate/registry/dialect"
)

var variable = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// expandRoot expands every string of the servers and the settings. In a disabled
// server, a variable that is not set is only a warning.
func (l *loader) expandRoot() {
	entries, settings := l.root.get(l.entries), l.settings()
	for _, m := range entries.each() {
		if m.isTrue("disabled") {
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
	value, gap := l.expand(n.text, n.file)
	if n.value = value; gap == nil {
		return
	}
	n.value, n.faulty = n.text, true
	if lenient && gap.absent {
		l.warn(n, gap.message, gap.hint)
		return
	}
	n.unset = faultAt(n, gap.message, gap.hint)
}

// gap is why a text cannot be expanded. The message never has a value in it.
type gap struct {
	message, hint string
	absent        bool // it is well written, and what it names is not there
}

// expand replaces ${VAR}, ${env:VAR}, ${VAR:-default}, ${input:ID}, ${file:PATH} and what
// clients know of themselves in text, once: what a variable holds is taken literally. As
// in a shell, the default replaces an empty variable too. A bare $VAR is no variable.
// Paths are relative to the file that has the text.
func (l *loader) expand(text string, in *file) (string, *gap) {
	var out strings.Builder
	for {
		before, after, found := strings.Cut(text, "${")
		out.WriteString(before)
		if !found {
			return out.String(), nil
		}
		body, tail, closed := strings.Cut(after, "}")
		if !closed {
			return "", &gap{message: `has "${" without "}"`, hint: "write ${NAME}, or $ alone for itself"}
		}
		value, gap := l.lookup(body, in)
		if gap != nil {
			return "", gap
		}
		out.WriteString(value)
		text = tail
	}
}

// lookup gives the value of what stands between ${ and }.
func (l *loader) lookup(body string, in *file) (string, *gap) {
	if id, ok := strings.CutPrefix(body, "input:"); ok {
		return l.input(id)
	}
	if path, ok := strings.CutPrefix(body, "file:"); ok {
		return l.contents(path, in)
	}
	name, fallback, hasDefault := strings.Cut(strings.TrimPrefix(body, "env:"), ":-")
	if value, ok := l.place(body, in); ok {
		return value, nil
	}
	if body == "userHome" {
		name = "HOME"
	}
	if !variable.MatchString(name) {
		hint := "write ${NAME}, ${env:NAME} or ${NAME:-default}"
		if strings.HasPrefix(body, "{ secrets.") {
			hint += "; a file of Continue is read by toolgate import --from continue FILE"
		}
		return "", &gap{message: "has a ${…} that names no variable", hint: hint}
	}
	value, set := l.opts.Getenv(name)
	switch {
	case !utf8.ValidString(value):
		return "", &gap{message: fmt.Sprintf("value of variable %s is not valid UTF-8", name)}
	case value != "" && set:
		return value, nil
	case hasDefault:
		return fallback, nil
	case set:
		return "", nil
	}
	return "", &gap{message: fmt.Sprintf("variable %s is not set", name), hint: fmt.Sprintf("set %s, or write ${%s:-default}", name, name), absent: true}
}

// place gives what clients put into a text of their own knowledge: the directory of the
// project or the file, its name, the home directory, the separator of paths.
func (l *loader) place(name string, in *file) (value string, ok bool) {
	switch name {
	case "workspaceFolder":
		return dialect.Workspace(in.path), true
	case "workspaceFolderBasename":
		return filepath.Base(dialect.Workspace(in.path)), true
	case "pathSeparator", "/":
		return string(filepath.Separator), true
	case "userHome":
		for _, name := range []string{"HOME", "USERPROFILE"} {
			if value, _ := l.opts.Getenv(name); value != "" {
				return value, true
			}
		}
	}
	return "", false
}

// input gives the value of an input, which clients ask people for: that of the variable
// named after it, for a daemon has nobody to ask.
func (l *loader) input(id string) (string, *gap) {
	name := dialect.InputVariable(id)
	if !variable.MatchString(name) {
		return "", &gap{message: "has a ${input:…} without an id of letters, digits, \"-\" and \"_\"", hint: "write ${env:NAME}"}
	}
	value, gap := l.lookup("env:"+name, nil)
	if gap != nil && gap.absent {
		gap.message = fmt.Sprintf("input %q has no value: %s", clip(id), gap.message)
		gap.hint = fmt.Sprintf("set %s: toolgate does not ask", name)
	}
	return value, gap
}

// contents gives the text of a file, without the line end after it.
func (l *loader) contents(path string, in *file) (string, *gap) {
	where := path
	if below, ok := strings.CutPrefix(path, "~/"); ok {
		home, _ := l.place("userHome", in) // "" = not known: no such file
		where = filepath.Join(home, below)
	}
	f, cause := l.readNamed(in.at(0).resolve(where))
	if cause == "" && (!utf8.Valid(f.data) || bytes.ContainsRune(f.data, 0)) {
		cause = "it is not text in UTF-8"
	}
	if cause != "" {
		return "", &gap{message: fmt.Sprintf("names file %s, which cannot be used: %s", clip(path), cause), absent: true}
	}
	return strings.TrimSuffix(strings.TrimSuffix(string(f.data), "\n"), "\r"), nil
}
