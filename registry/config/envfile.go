package config

import (
	"bytes"
	"fmt"
	"strings"
	"unicode/utf8"
)

// environmentFile reads the file that envFile names: one NAME=value per line,
// "export" before it allowed, # at the start of a line or after a space begins
// a comment. A value in single quotes is taken as it is, one in double quotes
// knows \n \r \t \" \\ \$, any other ends before its trailing spaces. Nothing
// is expanded. The file of a disabled server is not read.
func (l *loader) environmentFile(to map[string]string) func(*node) {
	return func(n *node) {
		if l.lenient {
			return
		}
		f := l.beside(n)
		if f == nil {
			return
		}
		f.data = bytes.TrimPrefix(f.data, []byte("\ufeff"))
		l.dotenv(f, to)
	}
}

// dotenv reads the lines of f. No fault quotes a value.
func (l *loader) dotenv(f *file, to map[string]string) {
	offset := 0
	for line := range strings.Lines(string(f.data)) {
		text := strings.TrimSpace(line)
		if text != "" && text[0] != '#' {
			name, value, fault := assignment(text)
			_, twice := to[name]
			switch {
			case fault != "":
				l.faultAt(f, offset, "", fault, `write NAME=value, NAME='value' or NAME="value"`)
			case twice:
				l.faultAt(f, offset, "", fmt.Sprintf("%s is set twice", name), "keep one of them")
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

// dotenvValue reads what stands after "=".
func dotenvValue(s string) (value, fault string) {
	if s == "" {
		return "", ""
	}
	switch s[0] {
	case '\'':
		value, rest, closed := strings.Cut(s[1:], "'")
		return value, afterQuote(rest, closed)
	case '"':
		return doubleQuoted(s)
	case '#':
		return "", ""
	}
	for i := 1; i < len(s); i++ {
		if s[i] == '#' && (s[i-1] == ' ' || s[i-1] == '\t') {
			s = s[:i]
			break
		}
	}
	return strings.TrimRight(s, " \t"), ""
}

// escapes are what a backslash may stand before in double quotes.
var escapes = map[byte]byte{'n': '\n', 'r': '\r', 't': '\t', '"': '"', '\\': '\\', '$': '$'}

func doubleQuoted(s string) (value, fault string) {
	var out strings.Builder
	for i := 1; i < len(s); i++ {
		switch {
		case s[i] == '"':
			return out.String(), afterQuote(s[i+1:], true)
		case s[i] != '\\':
			out.WriteByte(s[i])
			continue
		}
		i++
		if i == len(s) {
			break
		}
		plain, known := escapes[s[i]]
		if !known {
			return "", `has an unknown escape: only \n \r \t \" \\ and \$ are known`
		}
		out.WriteByte(plain)
	}
	return "", afterQuote("", false)
}

// afterQuote says what is wrong with the end of a quoted value.
func afterQuote(rest string, closed bool) string {
	rest = strings.TrimSpace(rest)
	switch {
	case !closed:
		return "has a quote that is not closed on its line"
	case rest != "" && rest[0] != '#':
		return "goes on after the closing quote"
	}
	return ""
}
