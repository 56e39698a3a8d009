// Package tree reads files that people write, JSON with comments, TOML and YAML, into one
// tree in which every value knows its place, and reports what is wrong there.
//
// A Report collects the faults and the warnings of several files. Parse reports what is no
// value of JSON: syntax errors, keys that are written twice, values that are nested too
// deep. Check reports what a schema does not allow.
//
//	var r tree.Report
//	root := r.ParseObject(&tree.File{Name: "mcp.json", Data: data}, "")
//	if root != nil {
//		r.Check(root, schema)
//	}
//	return r.Err()
//
// Messages name keys and quote what is written in the file, never the value of a variable.
// Nodes and Reports are not safe for concurrent use.
package tree

import (
	"bytes"
	"fmt"
	"iter"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/tailscale/hujson"

	"github.com/toolgate/toolgate/internal/text"
)

// Formats of a file. JSON may have comments and trailing commas.
const (
	JSON = "json"
	TOML = "toml"
	YAML = "yaml"
)

// maxDepth is how many arrays and objects of a file may be in each other.
const maxDepth = 64

// File is one file as it was read.
type File struct {
	Name   string // as the caller named it: what people read
	Path   string // absolute; "" = not known
	Data   []byte
	Format string // JSON, TOML or YAML; "" = what the ending of Name says
}

// At returns a place in the file, for a fault.
func (f *File) At(offset int) *Node { return &Node{File: f, Offset: offset} }

// Position gives line and column of an offset, both from 1, the column in bytes.
func (f *File) Position(offset int) (line, column int) {
	before := f.Data[:min(offset, len(f.Data))]
	return bytes.Count(before, []byte{'\n'}) + 1, offset - bytes.LastIndexByte(before, '\n')
}

var (
	word     = regexp.MustCompile(`^[-+.0-9A-Za-z]+`)   // a literal without quotes
	plainKey = regexp.MustCompile(`^[-+$0-9A-Z_a-z]+$`) // one that a path shows as it is
	// envPath is the env member of a server, in any client's form.
	envPath = regexp.MustCompile(`(^|\.)(mcpServers|servers|context_servers|mcp_servers|mcp|extensions|\["amp\.mcpServers"\])(\.[^.\[]+|\["([^"\\]|\\.)*"\]|\[[0-9]+\])(\.command)?\.(env|envs|environment)$`)
)

// Kinds of values: the first byte of each in JSON's grammar, '0' for numbers.
const (
	String hujson.Kind = '"'
	Number hujson.Kind = '0'
	Object hujson.Kind = '{'
	Array  hujson.Kind = '['
	True   hujson.Kind = 't'
	False  hujson.Kind = 'f'
	Null   hujson.Kind = 'n'
)

// Node is one value of a file. The methods that look for members accept a nil Node, which
// has none.
type Node struct {
	File    *File
	Offset  int    // of the value
	Path    string // of the key, "" for the root
	Key     string // of a member
	KeyAt   int    // offset of the key
	Kind    hujson.Kind
	Text    string // a string decoded, any other literal as written
	Value   string // of a string: what it means, such as Text with its variables expanded
	Members []*Node
	Items   []*Node
	Former  string // of a member whose key was made to fit: the key as written

	// Faulty is set when a fault is reported at this value. JSON leaves it out where
	// asked to, and it gets no second fault.
	Faulty bool
	Unset  *Fault // why Value is not known; Check reports it unless a string is wrong here anyway
	flaw   string // what the parser has found wrong, with a hint on a second line; "" = nothing
}

// Get returns the member with a key, nil when the object has none. A nil node
// has no members.
func (n *Node) Get(key string) *Node {
	for _, m := range n.Each() {
		if m.Key == key {
			return m
		}
	}
	return nil
}

// Named returns the key of a member, as the place of a fault.
func (n *Node) Named() *Node { return &Node{File: n.File, Offset: n.KeyAt, Path: n.Path} }

// At follows keys and indexes, nil when they lead nowhere.
func (n *Node) At(path ...string) *Node {
	for _, token := range path {
		if i, err := strconv.Atoi(token); err == nil && n != nil && i < len(n.Items) {
			n = n.Items[i]
		} else {
			n = n.Get(token)
		}
	}
	return n
}

// Each returns the members of an object, none for a nil node.
func (n *Node) Each() []*Node {
	if n == nil {
		return nil
	}
	return n.Members
}

// Elements returns the elements of a list, none for a nil node.
func (n *Node) Elements() []*Node {
	if n == nil {
		return nil
	}
	return n.Items
}

// Written returns a string as the file has it, its variables not expanded; "" for
// a nil node.
func (n *Node) Written() string {
	if n == nil {
		return ""
	}
	return n.Text
}

// IsTrue reports whether n has the member key, and it is true.
func (n *Node) IsTrue(key string) bool {
	m := n.Get(key)
	return m != nil && m.Kind == True
}

// Children ranges over the members or the elements of n.
func (n *Node) Children() iter.Seq[*Node] { return slices.Values(slices.Concat(n.Members, n.Items)) }

// Walk visits what is below n, and then n.
func (n *Node) Walk(visit func(*Node)) {
	for child := range n.Children() {
		child.Walk(visit)
	}
	visit(n)
}

// JSON writes n as JSON, its strings expanded and its numbers as written.
// Without faulty, members at which a fault is reported are left out and elements
// are null.
func (n *Node) JSON(faulty bool) []byte { return n.append(nil, faulty) }

func (n *Node) append(to []byte, faulty bool) []byte {
	switch {
	case n.Faulty && !faulty:
		return append(to, "null"...)
	case n.Kind == String:
		return quote(to, n.Value)
	case n.Kind != Object && n.Kind != Array:
		return append(to, n.Text...)
	}
	to = append(to, byte(n.Kind))
	for _, m := range n.Members {
		if faulty || !m.Faulty {
			to = append(m.append(append(quote(to, m.Key), ':'), faulty), ',')
		}
	}
	for _, item := range n.Items {
		to = append(item.append(to, faulty), ',')
	}
	return append(bytes.TrimSuffix(to, []byte(",")), byte(n.Kind)+2) // } is two behind {, and ] behind [
}

// As returns a copy of n with another value and nothing below it.
func (n *Node) As(k hujson.Kind, text string) *Node {
	out := *n
	out.Kind, out.Text, out.Members, out.Items = k, text, nil, nil
	return &out
}

// Become gives a member another value.
func (n *Node) Become(value *Node) {
	key, keyAt, path := n.Key, n.KeyAt, n.Path
	*n = *value
	n.Key, n.KeyAt, n.Path = key, keyAt, path
}

// Literal makes the value of every string its text.
func (n *Node) Literal() { n.Walk(func(n *Node) { n.Value = n.Text }) }

// Resolve returns the absolute form of a path that n names; "" stays "".
func (n *Node) Resolve(path string) string {
	switch {
	case path == "":
		return ""
	case filepath.IsAbs(path):
		return filepath.Clean(path)
	}
	return filepath.Join(filepath.Dir(n.File.Path), path)
}

// quote appends a string of JSON. Neither files nor what callers put into Value have invalid UTF-8.
func quote(to []byte, text string) []byte {
	to, _ = jsontext.AppendQuote(to, text)
	return to
}

// Parse reads f, in its format, into nodes whose paths start with root. It gives nil when
// f is not in that format; what is merely refused (repeated keys) leaves a fault and a node.
func (r *Report) Parse(f *File, root string) *Node {
	// Windows editors put a byte order mark in front; nothing else may.
	f.Data = bytes.TrimPrefix(f.Data, []byte("\ufeff"))
	if i := bytes.IndexByte(bytes.ToValidUTF8(f.Data, []byte{0xff}), 0xff); i >= 0 {
		r.Fault(f.At(i), "is not valid UTF-8", "save the file as UTF-8")
		return nil
	}
	if i := tooDeep(f.Data); i >= 0 {
		r.Fault(f.At(i), fmt.Sprintf("is nested deeper than %d levels", maxDepth), "")
		return nil
	}
	n := map[string]func(*File) *Node{JSON: r.parseJSON, TOML: r.parseTOML, YAML: r.parseYAML}[f.FormatOf()](f)
	if n != nil {
		r.locate(n, f, root)
	}
	return n
}

// ParseObject is Parse for files that are one object.
func (r *Report) ParseObject(f *File, root string) *Node {
	n := r.Parse(f, root)
	if n != nil && n.Kind != Object {
		r.Fault(n, "is not an object", "the file is one { … }")
		return nil
	}
	return n
}

func (n *Node) addMember(key string, at int, m *Node) {
	m.Key, m.KeyAt = key, at
	n.Members = append(n.Members, m)
}

// locate sets the file and the path of n and of what is below it, and reports what the
// parser has found wrong there. It removes members whose key an earlier one equals, or
// equals but for case: they have two readings in two parsers, a fault. Only env is free of
// the second, since http_proxy and HTTP_PROXY are two variables.
func (r *Report) locate(n *Node, f *File, path string) {
	n.File, n.Path = f, path
	if n.flaw != "" {
		message, hint, _ := strings.Cut(n.flaw, "\n")
		r.Fault(n, message, hint)
	}
	seen := make(map[string]string, len(n.Members)) // :: folded key ⇒ key
	cased := envPath.MatchString(n.Path)
	n.Members = slices.DeleteFunc(n.Members, func(m *Node) bool {
		r.locate(m, f, Join(path, m.Key))
		folded := m.Key
		if !cased {
			folded = text.Fold(m.Key)
		}
		first, taken := seen[folded]
		switch {
		case taken && first == m.Key:
			r.Fault(m.Named(), "is written twice", "keep one of them")
		case taken:
			r.Fault(m.Named(), fmt.Sprintf("differs from %q only in case", first), "keep one of them")
		default:
			seen[folded] = m.Key
		}
		return taken
	})
	for i, item := range n.Items {
		r.locate(item, f, path+"["+strconv.Itoa(i)+"]")
	}
}

// Join appends a key to a path; a key that would be misread is quoted.
func Join(path, key string) string {
	switch {
	case !plainKey.MatchString(key):
		return path + "[" + strconv.Quote(key) + "]"
	case path == "":
		return key
	}
	return path + "." + key
}

// FormatOf returns how the file is written.
func (f *File) FormatOf() string {
	ext := strings.ToLower(filepath.Ext(f.Name))
	switch {
	case f.Format != "":
		return f.Format
	case ext == ".toml":
		return TOML
	case ext == ".yaml", ext == ".yml":
		return YAML
	}
	return JSON
}
