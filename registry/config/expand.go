package config

import (
	"bytes"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/toolgate/toolgate/internal/tree"
)

var variable = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// expandRoot expands every string of the servers and the settings. In a disabled
// server, a variable that is not set is only a warning.
func (l *loader) expandRoot() {
	disabled := map[*tree.Node]bool{}
	for _, m := range l.servers.Each() {
		disabled[m] = m.IsTrue("disabled")
		disabled[l.settings().At("servers", m.Key)] = disabled[m]
	}
	l.expandAll(l.servers, disabled)
	l.expandAll(l.settings(), disabled)
}

// expandAll expands n and what is below it. A variable that is not set is only a warning in
// what is disabled.
func (l *loader) expandAll(n *tree.Node, disabled map[*tree.Node]bool) {
	if n == nil {
		return
	}
	for child := range n.Children() {
		if disabled[n] {
			disabled[child] = true
		}
		l.expandAll(child, disabled)
	}
	if n.Kind != tree.String {
		return
	}
	value, gap := l.expand(n.Text, n.File)
	if n.Value = value; gap == nil {
		return
	}
	n.Value, n.Faulty = n.Text, true
	if gap.absent && disabled[n] {
		l.Warn(n, gap.message, gap.hint)
		return
	}
	n.Unset = tree.FaultAt(n, gap.message, gap.hint)
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
func (l *loader) expand(text string, in *tree.File) (string, *gap) {
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

// lookup gives the value of what stands between ${ and }. That of an input, which clients ask
// people for, is the value of the variable named after it, for a daemon has nobody to ask.
func (l *loader) lookup(body string, in *tree.File) (string, *gap) {
	if id, ok := strings.CutPrefix(body, "input:"); ok {
		name := InputVariable(id)
		if !variable.MatchString(name) {
			return "", &gap{message: "has a ${input:…} without an id of letters, digits, \"-\" and \"_\"", hint: "write ${env:NAME}"}
		}
		value, gap := l.lookup("env:"+name, nil)
		if gap != nil && gap.absent {
			gap.message = fmt.Sprintf("input %q has no value: %s", tree.Clip(id), gap.message)
			gap.hint = fmt.Sprintf("set %s: toolgate does not ask", name)
		}
		return value, gap
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
func (l *loader) place(name string, in *tree.File) (value string, ok bool) {
	switch name {
	case "workspaceFolder":
		return l.opts.Workspace(in.Path), true
	case "workspaceFolderBasename":
		return filepath.Base(l.opts.Workspace(in.Path)), true
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

// inputChars are the characters of an input's ID that no variable has.
var inputChars = regexp.MustCompile(`[^A-Za-z0-9_]`)

// InputVariable returns the variable that has the value of an input.
func InputVariable(id string) string { return strings.ToUpper(inputChars.ReplaceAllString(id, "_")) }

// contents gives the text of a file, without the line end after it.
func (l *loader) contents(path string, in *tree.File) (string, *gap) {
	where := path
	if below, ok := strings.CutPrefix(path, "~/"); ok {
		home, _ := l.place("userHome", in) // "" = not known: no such file
		where = filepath.Join(home, below)
	}
	f, cause := l.readNamed(in.At(0).Resolve(where))
	if cause == "" && (!utf8.Valid(f.Data) || bytes.ContainsRune(f.Data, 0)) {
		cause = "it is not text in UTF-8"
	}
	if cause != "" {
		return "", &gap{message: fmt.Sprintf("names file %s, which cannot be used: %s", tree.Clip(path), cause), absent: true}
	}
	return strings.TrimSuffix(strings.TrimSuffix(string(f.Data), "\n"), "\r"), nil
}

// Expand returns a text with its references replaced by what they stand for. The error names
// a variable that is not set, or a file that cannot be read.
func Expand(opts Options, text string) (string, error) {
	l := &loader{opts: opts.withDefaults()}
	value, gap := l.expand(text, &tree.File{Path: opts.Path})
	if gap != nil {
		return "", fmt.Errorf("%s\nhint: %s", gap.message, gap.hint)
	}
	return value, nil
}
