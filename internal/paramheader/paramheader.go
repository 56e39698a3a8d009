// Package paramheader reads, writes and compares the headers in which a
// Streamable HTTP request repeats parts of its body (MCP 2026-07-28,
// basic/transports/streamable-http): Mcp-Method, Mcp-Name, and one Mcp-Param-
// header for each tool parameter whose schema is annotated with x-mcp-header.
//
// A client calls Parameters once for each tool definition and Set for each
// request. A server calls Parameters and Check:
//
//	definition: {"inputSchema":{"properties":{"n":{"type":"integer","x-mcp-header":"Count"}}}}
//	arguments:  {"n":1e3}
//	header:     Mcp-Param-Count: 1000
//
// Numbers are compared by their exact value, so 1000, 1e3 and 1000.0 agree.
package paramheader

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math/big"
	"net/http"
	"net/textproto"
	"regexp"
	"strings"
	"sync"

	"github.com/toolgate/toolgate/internal/jsonrpc"
)

// Names of the headers that every stateless request has, in canonical form.
const (
	Method = "Mcp-Method"
	Name   = "Mcp-Name"
)

// Prefix begins the name of every header that repeats a parameter.
const Prefix = "Mcp-Param-"

// Annotation names the header of a parameter in its schema.
const Annotation = "x-mcp-header"

// A header value between these two is base64 of UTF-8.
const (
	sealOpen  = "=?base64?"
	sealClose = "?="
)

// Encode writes text so that it is safe in a header: as it is, or as base64
// between markers. Empty text is marked, because some peers drop headers
// without a value.
func Encode(text string) string {
	if text != "" && text == strings.Trim(text, " ") && Plain(text) && !(strings.HasPrefix(text, sealOpen) && strings.HasSuffix(text, sealClose)) {
		return text
	}
	return sealOpen + base64.StdEncoding.EncodeToString([]byte(text)) + sealClose
}

// Plain reports whether text consists of printable ASCII characters, so that a
// header can carry it without encoding.
func Plain(text string) bool {
	for i := range len(text) {
		if text[i] < ' ' || text[i] > '~' {
			return false
		}
	}
	return true
}

// Decode returns the text that a header value stands for. It reports false for
// characters that no field may carry and for malformed base64.
func Decode(value string) (string, bool) {
	for i := range len(value) {
		if c := value[i]; (c < ' ' && c != '\t') || c > '~' {
			return "", false
		}
	}
	sealed, ok := strings.CutPrefix(value, sealOpen)
	if !ok {
		return value, true
	}
	if sealed, ok = strings.CutSuffix(sealed, sealClose); !ok {
		return value, true
	}
	plain, err := base64.StdEncoding.Strict().DecodeString(sealed)
	return string(plain), err == nil
}

// Parameter is one parameter of a tool that a header repeats ("Custom Headers
// from Tool Parameters").
type Parameter struct {
	Path   []string // names of members, from the arguments down
	Header string   // in canonical form, Prefix included
}

// Parameters returns the annotated parameters of a tool definition in the order
// of its text. The error reports an annotation that breaks the rules of the
// revision ("Schema Extension"): such a tool must not be used over Streamable
// HTTP. Valid parameters are returned in either case. Schemas are searched down
// to 64 levels, which is as deep as a message may be.
func Parameters(definition json.RawMessage) ([]Parameter, error) {
	// An escaped spelling of the annotation needs \u.
	if !bytes.Contains(definition, []byte(Annotation)) && !bytes.Contains(definition, []byte(`\u`)) {
		return nil, nil
	}
	schema, ok := jsonrpc.Get(definition, "inputSchema")
	if !ok {
		return nil, nil
	}
	a := annotations{seen: make(map[string]bool)}
	a.schema(schema, nil, 0, true)
	return a.found, a.fault
}

// maxNesting bounds how deep a schema is searched.
const maxNesting = 64

// annotations collects the annotated parameters of one schema.
type annotations struct {
	found []Parameter
	seen  map[string]bool // headers in lower case
	fault error           // the first
}

// wrong records the first fault.
func (a *annotations) wrong(format string, args ...any) {
	if a.fault == nil {
		a.fault = fmt.Errorf(format, args...)
	}
}

// namedSchemas are the keywords whose values hold schemas by name; schemaData
// are those whose values are data.
var (
	namedSchemas = map[string]bool{"properties": true, "patternProperties": true, "$defs": true, "definitions": true, "dependentSchemas": true}
	schemaData   = map[string]bool{"default": true, "enum": true, "const": true, "examples": true}
)

// schema reads a schema, or a list of schemas. It is reachable when only
// properties lead to it; anywhere else an annotation is an error.
func (a *annotations) schema(schema json.RawMessage, path []string, depth int, reachable bool) {
	if depth > maxNesting {
		return
	}
	for element := range jsonrpc.Elements(schema) {
		a.schema(element, path, depth+1, false)
	}
	if raw, ok := jsonrpc.Get(schema, Annotation); ok {
		if reachable && len(path) > 0 {
			a.add(schema, raw, path)
		} else {
			a.wrong("its input schema has %s where no chain of properties leads", Annotation)
		}
	}
	for key, value := range jsonrpc.Members(schema) {
		switch {
		case schemaData[key] || key == Annotation:
		case namedSchemas[key]:
			for name, property := range jsonrpc.Members(value) {
				a.schema(property, append(path[:len(path):len(path)], name), depth+1, reachable && key == "properties")
			}
		default:
			a.schema(value, path, depth+1, false)
		}
	}
}

// add records one annotation.
func (a *annotations) add(schema, raw json.RawMessage, path []string) {
	where := strings.Join(path, ".")
	header, ok := jsonrpc.Text(raw)
	if !ok || !token(header) {
		a.wrong("its parameter %q names the header %.200s, which is no name of a header", where, raw)
		return
	}
	switch kind, _ := jsonrpc.TextAt(schema, "type"); kind {
	case "string", "integer", "boolean":
	default:
		a.wrong("its parameter %q has a header and is not a string, an integer or a boolean", where)
		return
	}
	folded := strings.ToLower(header)
	if a.seen[folded] {
		a.wrong("two of its parameters have the header %q", header)
	}
	a.seen[folded] = true
	a.found = append(a.found, Parameter{Path: path, Header: textproto.CanonicalMIMEHeaderKey(Prefix + header)})
}

// token reports whether text is a token (RFC 9110 section 5.6.2).
func token(text string) bool {
	for _, c := range []byte(text) {
		letter := c|0x20 >= 'a' && c|0x20 <= 'z'
		if !letter && (c < '0' || c > '9') && strings.IndexByte("!#$%&'*+-.^_`|~", c) < 0 {
			return false
		}
	}
	return text != ""
}

// namedBy lists the member of params that Mcp-Name repeats, by method (MCP
// 2026-07-28, basic/transports/streamable-http; for tasks, their extension).
var namedBy = map[string]string{
	"tools/call": "name", "prompts/get": "name", "resources/read": "uri",
	"tasks/get": "taskId", "tasks/update": "taskId", "tasks/cancel": "taskId",
}

// Set adds the headers of Each to h.
func Set(h http.Header, method string, params json.RawMessage, bound []Parameter) {
	Each(method, params, bound, func(name, value string) { h[name] = []string{value} })
}

// Each gives the headers that repeat a stateless request to add: its method, the
// name of what it concerns, and the arguments that bound selects. A method that no
// header can carry is left out; the server then refuses the request.
func Each(method string, params json.RawMessage, bound []Parameter, add func(name, value string)) {
	if Plain(method) && method != "" {
		add(Method, method)
	}
	key, ok := namedBy[method]
	if !ok {
		return
	}
	if name, ok := jsonrpc.TextAt(params, key); ok {
		add(Name, Encode(name))
	}
	if len(bound) == 0 {
		return
	}
	arguments, _ := jsonrpc.Get(params, "arguments")
	for _, p := range bound {
		if text, ok := textOf(p.argument(arguments)); ok {
			add(p.Header, Encode(text))
		}
	}
}

// argument returns the value of p in arguments, nil when it is absent.
func (p Parameter) argument(arguments json.RawMessage) json.RawMessage {
	value := arguments
	for _, name := range p.Path {
		value, _ = jsonrpc.Get(value, name)
	}
	return value
}

// textOf returns the header text of an argument. Integers are written in decimal
// digits. It reports false for a value that has no header: absent, null, an
// object or an array.
func textOf(value json.RawMessage) (string, bool) {
	if len(value) == 0 {
		return "", false
	}
	switch value[0] {
	case '"':
		return jsonrpc.Text(value)
	case 'n', '{', '[':
		return "", false
	}
	if n, ok := number(string(value)); ok && n.IsInt() {
		return n.Num().String(), true
	}
	return string(value), true
}

// decimal matches numbers that are cheap to compute exactly. It covers every
// number that jsonrpc.Decode accepts, and the digits of every such integer.
var decimal = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^-?[0-9]{1,900}(\.[0-9]{1,400})?([eE][-+]?0{0,9}[0-9]{1,3})?$`)
}) // compiling takes milliseconds and most of a megabyte

// number returns the exact value of a JSON number.
func number(text string) (*big.Rat, bool) {
	if !decimal().MatchString(text) {
		return nil, false
	}
	return new(big.Rat).SetString(text)
}

// Check reports how the parameter headers of a call contradict its arguments,
// "" when they agree. Each bound argument that is a string, a number or a
// boolean must have exactly one header with the same value; an argument that is
// absent or null must have none.
func Check(h http.Header, bound []Parameter, arguments json.RawMessage) string {
	for _, p := range bound {
		if fault := p.check(h, arguments); fault != "" {
			return fault
		}
	}
	return ""
}

// check is Check for one parameter.
func (p Parameter) check(h http.Header, arguments json.RawMessage) string {
	value, lines := p.argument(arguments), h[p.Header]
	text, ok := textOf(value)
	switch {
	case ok:
		return compare(h, p.Header, text, true, value[0] != '"')
	case len(lines) == 0:
		return "" // the schema refuses what has no header
	case len(value) == 0 || value[0] == 'n':
		return "header " + p.Header + " has no argument " + strings.Join(p.Path, ".") + " in the body"
	}
	return compare(h, p.Header, string(value), true, false)
}

// CheckText reports how the header name contradicts text, "" when it repeats
// text exactly once. With encoded the header may be base64 between markers.
func CheckText(h http.Header, name, text string, encoded bool) string {
	return compare(h, name, text, encoded, false)
}

// compare is CheckText. With numeric, two numbers of the same value agree.
func compare(h http.Header, name, text string, encoded, numeric bool) string {
	lines := h[name]
	switch {
	case len(lines) == 0:
		return "header " + name + " is missing"
	case len(lines) > 1:
		return "header " + name + " is there more than once"
	}
	value := lines[0]
	if encoded {
		var ok bool
		if value, ok = Decode(value); !ok {
			return "header " + name + " cannot be read"
		}
	}
	if value == text || numeric && sameNumber(value, text) {
		return ""
	}
	return fmt.Sprintf("header %s says %.64q and the body %.64q", name, value, text)
}

// sameNumber reports whether two texts spell the same number.
func sameNumber(a, b string) bool {
	x, isX := number(a)
	y, isY := number(b)
	return isX && isY && x.Cmp(y) == 0
}
