package config

import (
	"bytes"
	"fmt"
	"iter"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/tailscale/hujson"

	"github.com/toolgate/toolgate/registry/dialect"
)

const (
	maxFileBytes = 1 << 20
	maxDepth     = 64
)

// file is one file as it was read.
type file struct {
	name string // as the caller named it: what people read
	path string // absolute
	data []byte
}

// at returns a place in the file, for a fault.
func (f *file) at(offset int) *node { return &node{file: f, offset: offset} }

// position gives line and column of an offset, both from 1, the column in bytes.
func (f *file) position(offset int) (line, column int) {
	before := f.data[:min(offset, len(f.data))]
	return bytes.Count(before, []byte{'\n'}) + 1, offset - bytes.LastIndexByte(before, '\n')
}

var (
	word     = regexp.MustCompile(`^[-+.0-9A-Za-z]+`)   // a literal without quotes
	plainKey = regexp.MustCompile(`^[-+$0-9A-Z_a-z]+$`) // one that a path shows as it is
	// envPath is the env member of a server, in any client's form.
	envPath = regexp.MustCompile(`(^|\.)(mcpServers|servers|context_servers|mcp_servers|mcp|extensions|\["amp\.mcpServers"\])(\.[^.\[]+|\["([^"\\]|\\.)*"\]|\[[0-9]+\])(\.command)?\.(env|envs|environment)$`)
)

// kind is the first byte of a JSON value's grammar, '0' for numbers.
type kind = hujson.Kind

const (
	kindString kind = '"'
	kindNumber kind = '0'
	kindObject kind = '{'
	kindArray  kind = '['
	kindTrue   kind = 't'
	kindFalse  kind = 'f'
)

// node is one value of a file.
type node struct {
	file    *file
	offset  int    // of the value
	path    string // of the key, "" for the root
	key     string // of a member, with the offset at which it is written
	keyAt   int
	kind    kind
	text    string // a string decoded, any other literal as written
	value   string // of a string: text with its variables expanded
	members []*node
	items   []*node

	// faulty is set when a fault is reported at this value. It is not decoded then,
	// and gets no second fault.
	faulty  bool
	flaw    string // what the parser has found wrong, with a hint on a second line; "" = nothing
	former  string // of a server whose key was made to fit: its name as written
	lenient bool   // an unset variable in it is only a warning
	unset   *Fault // why the variables of text cannot be expanded; reported unless a string is wrong here anyway
}

// get returns the member with a key, nil when the object has none. A nil node
// has no members.
func (n *node) get(key string) *node {
	for _, m := range n.each() {
		if m.key == key {
			return m
		}
	}
	return nil
}

// named returns the key of a member, as the place of a fault.
func (n *node) named() *node { return &node{file: n.file, offset: n.keyAt, path: n.path} }

// at follows keys and indexes, nil when they lead nowhere.
func (n *node) at(path ...string) *node {
	for _, token := range path {
		if i, err := strconv.Atoi(token); err == nil && n != nil && i < len(n.items) {
			n = n.items[i]
		} else {
			n = n.get(token)
		}
	}
	return n
}

// each returns the members of an object, none for a nil node.
func (n *node) each() []*node {
	if n == nil {
		return nil
	}
	return n.members
}

// elements returns the elements of a list, none for a nil node.
func (n *node) elements() []*node {
	if n == nil {
		return nil
	}
	return n.items
}

// written returns a string as the file has it, its variables not expanded; "" for
// a nil node.
func (n *node) written() string {
	if n == nil {
		return ""
	}
	return n.text
}

// isTrue reports whether n has the member key, and it is true.
func (n *node) isTrue(key string) bool {
	m := n.get(key)
	return m != nil && m.kind == kindTrue
}

// children ranges over the members or the elements of n.
func (n *node) children() iter.Seq[*node] { return slices.Values(slices.Concat(n.members, n.items)) }

// walk visits what is below n, and then n.
func (n *node) walk(visit func(*node)) {
	for child := range n.children() {
		child.walk(visit)
	}
	visit(n)
}

// json writes n as JSON, its strings expanded and its numbers as written.
// Without faulty, members at which a fault is reported are left out and elements
// are null.
func (n *node) json(faulty bool) []byte { return n.append(nil, faulty) }

func (n *node) append(to []byte, faulty bool) []byte {
	switch {
	case n.faulty && !faulty:
		return append(to, "null"...)
	case n.kind == kindString:
		return quote(to, n.value)
	case n.kind != kindObject && n.kind != kindArray:
		return append(to, n.text...)
	}
	to = append(to, byte(n.kind))
	for _, m := range n.members {
		if faulty || !m.faulty {
			to = append(m.append(append(quote(to, m.key), ':'), faulty), ',')
		}
	}
	for _, item := range n.items {
		to = append(item.append(to, faulty), ',')
	}
	return append(bytes.TrimSuffix(to, []byte(",")), byte(n.kind)+2) // } is two behind {, and ] behind [
}

// quote appends a string of JSON. Neither files nor expand give invalid UTF-8.
func quote(to []byte, text string) []byte {
	to, _ = jsontext.AppendQuote(to, text)
	return to
}

// parse reads f, in its format, into nodes whose paths start with root. It gives nil when
// f is not in that format; what is merely refused (repeated keys) leaves a fault and a node.
func (l *loader) parse(f *file, root string) *node {
	if !l.readable(f) {
		return nil
	}
	format := f.format()
	if c, ok := dialect.Lookup(l.asked); ok && c.Format != dialect.JSON {
		format = c.Format
	}
	n := map[string]func(*file) *node{dialect.JSON: l.parseJSON, dialect.TOML: l.parseTOML, dialect.YAML: l.parseYAML}[format](f)
	if n != nil {
		l.locate(n, f, root)
	}
	return n
}

// parseObject is parse for files that are one object.
func (l *loader) parseObject(f *file, root string) *node {
	n := l.parse(f, root)
	if n != nil && n.kind != kindObject {
		l.fault(n, "is not an object", "the file is one { … }")
		return nil
	}
	return n
}

func (l *loader) parseJSON(f *file) *node {
	v, err := hujson.Parse(f.data)
	if err != nil {
		l.syntaxFault(f, err)
		return nil
	}
	return convert(v)
}

// readable reports whether f can be parsed at all, in any format.
func (l *loader) readable(f *file) bool {
	// Windows editors put a byte order mark in front; nothing else may.
	f.data = bytes.TrimPrefix(f.data, []byte("\ufeff"))
	if i := bytes.IndexByte(bytes.ToValidUTF8(f.data, []byte{0xff}), 0xff); i >= 0 {
		l.fault(f.at(i), "is not valid UTF-8", "save the file as UTF-8")
		return false
	}
	if i := tooDeep(f.data); i >= 0 {
		l.fault(f.at(i), fmt.Sprintf("is nested deeper than %d levels", maxDepth), "")
		return false
	}
	return true
}

// syntaxFault reports where f stops being JSON. Only the position is taken
// from the parser: its words quote the file, and with it secrets.
func (l *loader) syntaxFault(f *file, err error) {
	var line, column int
	if _, scan := fmt.Sscanf(err.Error(), "hujson: line %d, column %d:", &line, &column); scan != nil {
		l.fault(f.at(0), "is not JSON", "")
		return
	}
	at := f.at(offsetOf(f.data, line, column))
	rest := f.data[at.offset:]
	r, _ := utf8.DecodeRune(rest)
	switch {
	case len(bytes.TrimSpace(f.data)) == 0:
		l.fault(at, "is empty", `write at least { "mcpServers": {} }`)
	case len(rest) == 0:
		l.fault(at, "ends in the middle of a value", "close what is open: a string, a comment, [ or {")
	case rest[0] == '"' && !literal(token.Find(rest)):
		l.fault(at, "has a string that is not JSON", `a backslash is written \\, a tab \t, a line end \n`)
	case word.Match(rest) && !literal(word.Find(rest)):
		l.fault(at, "has a bare word or number that is not JSON", "text goes between double quotes")
	case strings.ContainsRune("'`“”„‘’", r):
		l.fault(at, fmt.Sprintf("%c is not a quote of JSON", r), `write "`)
	default:
		l.fault(at, fmt.Sprintf("%q is not expected here", r), "look for a missing comma, colon or quote just before")
	}
}

// literal reports whether data is a whole literal, so that its place is what is
// wrong.
func literal(data []byte) bool { return hujson.Literal(data).IsValid() }

// offsetOf undoes position.
func offsetOf(data []byte, line, column int) int {
	offset := 0
	for ; line > 1; line-- {
		offset += bytes.IndexByte(data[offset:], '\n') + 1
	}
	return min(offset+column-1, len(data))
}

// convert turns a parsed value into nodes.
func convert(v hujson.Value) *node {
	n := &node{offset: v.StartOffset, kind: v.Value.Kind()}
	switch t := v.Value.(type) {
	case *hujson.Object:
		for _, m := range t.Members {
			key := convert(m.Name)
			n.addMember(key.text, key.offset, convert(m.Value))
		}
	case *hujson.Array:
		for _, e := range t.Elements {
			n.items = append(n.items, convert(e))
		}
	case hujson.Literal:
		n.text = string(t)
		if n.kind == kindString {
			n.text = t.String()
		}
	}
	return n
}

func (n *node) addMember(key string, at int, m *node) {
	m.key, m.keyAt = key, at
	n.members = append(n.members, m)
}

// locate sets the file and the path of n and of what is below it, and reports what the
// parser has found wrong there. It removes members whose key an earlier one equals, or
// equals but for case: they have two readings in two parsers, a fault. Only env is free of
// the second, since http_proxy and HTTP_PROXY are two variables.
func (l *loader) locate(n *node, f *file, path string) {
	n.file, n.path = f, path
	if n.flaw != "" {
		message, hint, _ := strings.Cut(n.flaw, "\n")
		l.fault(n, message, hint)
	}
	seen := make(map[string]string, len(n.members)) // :: folded key ⇒ key
	cased := envPath.MatchString(n.path)
	n.members = slices.DeleteFunc(n.members, func(m *node) bool {
		l.locate(m, f, join(path, m.key))
		folded := m.key
		if !cased {
			folded = fold(m.key)
		}
		first, taken := seen[folded]
		switch {
		case taken && first == m.key:
			l.fault(m.named(), "is written twice", "keep one of them")
		case taken:
			l.fault(m.named(), fmt.Sprintf("differs from %q only in case", first), "keep one of them")
		default:
			seen[folded] = m.key
		}
		return taken
	})
	for i, item := range n.items {
		l.locate(item, f, path+"["+strconv.Itoa(i)+"]")
	}
}

// fold maps strings that strings.EqualFold takes for equal to one string.
func fold(s string) string { return strings.ToLower(strings.ToUpper(s)) }

// join appends a key to a path; a key that would be misread is quoted.
func join(path, key string) string {
	switch {
	case !plainKey.MatchString(key):
		return path + "[" + strconv.Quote(key) + "]"
	case path == "":
		return key
	}
	return path + "." + key
}

// token finds what matters for depth: strings and comments, which may hold
// brackets, and brackets.
var token = regexp.MustCompile(`(?s)"(?:[^"\\]|\\.)*"?|//[^\n]*|/\*.*?(?:\*/|\z)|[][{}]`)

// tooDeep gives the offset of the first bracket beyond maxDepth, or -1. The
// parser recurses, so this is known before it runs.
func tooDeep(data []byte) int {
	depth := 0
	for _, at := range token.FindAllIndex(data, -1) {
		switch data[at[0]] {
		case '{', '[':
			if depth++; depth > maxDepth {
				return at[0]
			}
		case '}', ']':
			depth--
		}
	}
	return -1
}

// format is how the file is written, by its name.
func (f *file) format() string {
	switch strings.ToLower(filepath.Ext(f.name)) {
	case ".toml":
		return dialect.TOML
	case ".yaml", ".yml":
		return dialect.YAML
	}
	return dialect.JSON
}
