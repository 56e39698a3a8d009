package mcp

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

	"github.com/toolgate/toolgate/internal/jsonrpc"
)

// Headers that repeat what the body says (MCP 2026-07-28, Streamable HTTP:
// request metadata), in canonical form.
const (
	headerMethod = "Mcp-Method"
	headerName   = "Mcp-Name"
	headerParam  = "Mcp-Param-"
)

// headerKey annotates a parameter in a tool's input schema that has a header.
const headerKey = "x-mcp-header"

// A header value between these two is base64 of UTF-8.
const (
	sealOpen  = "=?base64?"
	sealClose = "?="
)

// safeInteger is the largest integer that has a header: beyond it JavaScript
// reads another number.
const safeInteger = 1<<53 - 1

// decodeHeader gives what a header value stands for. A value that holds what no
// field may carry, or is base64 that is none, has no meaning.
func decodeHeader(value string) (string, bool) {
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

// contradiction says what is wrong with a header that must repeat text, "" when
// nothing is.
func contradiction(h http.Header, name, text string, decode bool) string {
	lines := h[name]
	switch {
	case len(lines) == 0:
		return "header " + name + " is missing"
	case len(lines) > 1:
		return "header " + name + " is there more than once"
	}
	value := lines[0]
	if decode {
		var ok bool
		if value, ok = decodeHeader(lines[0]); !ok {
			return "header " + name + " cannot be read"
		}
	}
	if value != text {
		return fmt.Sprintf("header %s says %.64q and the body %.64q", name, value, text)
	}
	return ""
}

// standardFault checks the headers that every request repeats its method in
// and, where member names one, what it is about.
func standardFault(h http.Header, m *jsonrpc.Message, member string) string {
	if fault := contradiction(h, headerMethod, m.Method, false); fault != "" || member == "" {
		return fault
	}
	raw, _ := jsonrpc.Get(m.Params, member)
	name, ok := jsonrpc.Text(raw)
	if !ok {
		return "params." + member + ", which header " + headerName + " repeats, is no string"
	}
	return contradiction(h, headerName, name, true)
}

// binding is a parameter that a header repeats.
type binding struct {
	path   []string // the keys that lead to it in the arguments
	header string   // in canonical form
}

// bindings reads them from a tool's definition. An annotation that breaks the
// rules of the revision binds nothing; clients do not show its tool.
func bindings(definition json.RawMessage) []binding {
	if !bytes.Contains(definition, []byte(headerKey)) {
		return nil
	}
	schema, _ := jsonrpc.Get(definition, "inputSchema")
	return bound(schema, nil, nil)
}

// bound adds the bindings below the properties of schema to found.
func bound(schema json.RawMessage, path []string, found []binding) []binding {
	properties, _ := jsonrpc.Get(schema, "properties")
	for key, property := range jsonrpc.Members(properties) {
		at := append(path[:len(path):len(path)], key)
		if name, ok := annotated(property); ok {
			found = append(found, binding{path: at, header: textproto.CanonicalMIMEHeaderKey(headerParam + name)})
		}
		found = bound(property, at, found)
	}
	return found
}

// token is what a field name may be (RFC 9110 §5.1).
var token9110 = regexp.MustCompile("^[-!#$%&'*+.^_`|~0-9A-Za-z]+$")

// annotated gives the header name of a parameter that may have one.
func annotated(property json.RawMessage) (string, bool) {
	raw, ok := jsonrpc.Get(property, headerKey)
	if !ok {
		return "", false
	}
	kind, _ := jsonrpc.Get(property, "type")
	switch t, _ := jsonrpc.Text(kind); t {
	case "string", "integer", "boolean":
	default:
		return "", false
	}
	name, ok := jsonrpc.Text(raw)
	return name, ok && token9110.MatchString(name)
}

// paramFault checks the headers of all that a call's arguments bind.
func paramFault(h http.Header, bound []binding, args json.RawMessage) string {
	for _, b := range bound {
		if fault := b.fault(h, args); fault != "" {
			return fault
		}
	}
	return ""
}

// fault says how the header of b contradicts args: it must be there when the
// argument is, and say the same.
func (b *binding) fault(h http.Header, args json.RawMessage) string {
	value, there := args, true
	for _, key := range b.path {
		if value, there = jsonrpc.Get(value, key); !there {
			break
		}
	}
	lines := h[b.header]
	switch {
	case !there || string(value) == "null":
		if len(lines) > 0 {
			return "header " + b.header + " has no argument " + strings.Join(b.path, ".") + " in the body"
		}
		return ""
	case len(value) > 0 && (value[0] == '{' || value[0] == '[') && len(lines) == 0:
		return "" // what the schema refuses has no header
	}
	return b.mismatch(h, value)
}

// mismatch compares the header of b with an argument that is there.
func (b *binding) mismatch(h http.Header, value json.RawMessage) string {
	want, ok := jsonrpc.Text(value)
	if !ok {
		want = string(value)
	}
	fault := contradiction(h, b.header, want, true)
	if fault == "" || len(h[b.header]) != 1 || ok {
		return fault
	}
	header, readable := decodeHeader(h[b.header][0])
	x, isX := wholeNumber(header)
	y, isY := wholeNumber(want)
	if readable && isX && isY && x == y {
		return "" // 42.0 is 42
	}
	return fault
}

// decimal is a number short enough to be worked out.
var decimal = regexp.MustCompile(`^-?[0-9]{1,40}(\.[0-9]{1,40})?([eE][-+]?[0-9]{1,2})?$`)

// wholeNumber gives the integer that text spells, if JavaScript can hold it.
func wholeNumber(text string) (int64, bool) {
	if !decimal.MatchString(text) {
		return 0, false
	}
	r, ok := new(big.Rat).SetString(text)
	if !ok || !r.IsInt() || !r.Num().IsInt64() {
		return 0, false
	}
	n := r.Num().Int64()
	return n, -safeInteger <= n && n <= safeInteger
}
