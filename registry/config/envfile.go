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
// is expanded. The file of a disabled server is not read.
func (l *loader) environmentFile(n *tree.Node) map[string]string {
	env := map[string]string{}
	if f := l.openNamed(n); f != nil {
		f.Data = bytes.TrimPrefix(f.Data, []byte("\ufeff"))
		l.dotenv(f, env)
	}
	return env
}

// dotenv reads the lines of f. No fault quotes a value.
func (l *loader) dotenv(f *tree.File, to map[string]string) {
	offset := 0
	for line := range strings.Lines(string(f.Data)) {
		text := strings.TrimSpace(line)
		if text != "" && text[0] != '#' {
			name, value, fault := assignment(text)
			_, twice := to[name]
			switch {
			case fault != "":
				l.Fault(f.At(offset), fault, `write NAME=value, NAME='value' or NAME="value"`)
			case twice:
				l.Fault(f.At(offset), fmt.Sprintf("%s is set twice", name), "keep one of them")
			default:
				to[name] = value
			}
		}
		offset += len(line)
	}
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
	value, fault = dotenvValue(strings.TrimLeft(value, " \t"))
	return name, value, fault
}

// Values of a line: in single quotes, in double quotes, and plain. A comment may
// follow each.
var (
	singleQuoted = regexp.MustCompile(`^'([^']*)'\s*(?:#.*)?$`)
	doubleQuoted = regexp.MustCompile(`^"((?:[^"\\]|\\[nrt"\\$])*)"\s*(?:#.*)?$`)
	plain        = regexp.MustCompile(`^(.*?)\s*(?:(?:^|\s)#.*)?$`)
	escapes      = strings.NewReplacer(`\n`, "\n", `\r`, "\r", `\t`, "\t", `\"`, `"`, `\\`, `\`, `\$`, "$")
)

// dotenvValue reads the text after "=".
func dotenvValue(s string) (value, fault string) {
	form := plain
	switch {
	case strings.HasPrefix(s, "'"):
		form = singleQuoted
	case strings.HasPrefix(s, `"`):
		form = doubleQuoted
	}
	found := form.FindStringSubmatch(s)
	switch {
	case found == nil:
		return "", `has an invalid quoted value: a quote is closed on its line, only a comment follows it, and in " only \n \r \t \" \\ and \$ are escapes`
	case form == doubleQuoted:
		return escapes.Replace(found[1]), ""
	}
	return found[1], ""
}
