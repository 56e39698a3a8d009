package config

import (
	"bytes"
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/toolgate/toolgate/internal/tree"
)

// environmentFile reads the file that envFile names: one NAME=value per line,
// "export" before it allowed, # at the start of a line or after a space begins
// a comment. A value in single quotes is taken literally, one in double quotes
// knows \n \r \t \" \\ \$, any other ends before its trailing spaces. Nothing
// is expanded, and no fault quotes a value. The file of a disabled server is not read.
func (l *loader) environmentFile(n *tree.Node) map[string]string {
	env := map[string]string{}
	f := l.openNamed(n)
	if f == nil {
		return env
	}
	f.Data = bytes.TrimPrefix(f.Data, []byte("\ufeff"))
	offset := 0
	for line := range strings.Lines(string(f.Data)) {
		if text := strings.TrimSpace(line); text != "" && text[0] != '#' {
			name, value, fault := assignment(text)
			_, twice := env[name]
			switch {
			case fault != "":
				l.Fault(f.At(offset), fault, `write NAME=value, NAME='value' or NAME="value"`)
			case twice:
				l.Fault(f.At(offset), fmt.Sprintf("%s is set twice", name), "keep one of them")
			default:
				env[name] = value
			}
		}
		offset += len(line)
	}
	return env
}

// assignment reads one line that is neither empty nor a comment.
func assignment(text string) (name, value, fault string) {
	if rest, ok := strings.CutPrefix(text, "export "); ok {
		text = strings.TrimLeft(rest, " \t")
	}
	name, value, ok := strings.Cut(text, "=")
	name = strings.TrimSpace(name)
	switch {
	case !utf8.ValidString(text):
		return "", "", "is not valid UTF-8"
	case !ok:
		return "", "", `has no "="`
	case !variable.MatchString(name):
		return "", "", `has no name of letters, digits and "_" before "="`
	case strings.ContainsRune(value, 0):
		return "", "", "has a NUL character in it"
	}
	value = strings.TrimLeft(value, " \t")
	form := plain
	switch {
	case strings.HasPrefix(value, "'"):
		form = singleQuoted
	case strings.HasPrefix(value, `"`):
		form = doubleQuoted
	}
	found := form.FindStringSubmatch(value)
	switch {
	case found == nil:
		return name, "", `has an invalid quoted value: a quote is closed on its line, only a comment follows it, and in " only \n \r \t \" \\ and \$ are escapes`
	case form == doubleQuoted:
		return name, escapes.Replace(found[1]), ""
	}
	return name, found[1], ""
}

// Values of a line: in single quotes, in double quotes, and plain. A comment may
// follow each.
var (
	singleQuoted = regexp.MustCompile(`^'([^']*)'\s*(?:#.*)?$`)
	doubleQuoted = regexp.MustCompile(`^"((?:[^"\\]|\\[nrt"\\$])*)"\s*(?:#.*)?$`)
	plain        = regexp.MustCompile(`^(.*?)\s*(?:(?:^|\s)#.*)?$`)
	escapes      = strings.NewReplacer(`\n`, "\n", `\r`, "\r", `\t`, "\t", `\"`, `"`, `\\`, `\`, `\$`, "$")
)
