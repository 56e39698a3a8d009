// Package mirror reads and writes what headers repeat of a request's body (MCP
// 2026-07-28 basic/transports/streamable-http): which parameters of a tool have
// a header, and how text is carried in one.
package mirror

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/textproto"
	"strings"

	"github.com/toolgate/toolgate/internal/jsonrpc"
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
// between the marks that say so. Empty text is marked, because headers without a
// value get lost.
func Encode(text string) string {
	plain := text != "" && text == strings.Trim(text, " ") && !(strings.HasPrefix(text, sealOpen) && strings.HasSuffix(text, sealClose))
	for i := 0; plain && i < len(text); i++ {
		plain = text[i] >= 0x20 && text[i] <= 0x7e
	}
	if plain {
		return text
	}
	return sealOpen + base64.StdEncoding.EncodeToString([]byte(text)) + sealClose
}

// Decode gives what a header value stands for. A value that holds what no field
// may carry, or is base64 that is none, has no meaning.
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

// Parameters reads the annotations of a tool definition, in the order of its
// text. The error tells what breaks the rules of the revision ("Schema
// Extension"): such a tool must not be used over Streamable HTTP. The parameters
// whose own annotation keeps them are given all the same.
func Parameters(definition json.RawMessage) ([]Parameter, error) {
	schema, ok := jsonrpc.Get(definition, "inputSchema")
	if !ok {
		return nil, nil
	}
	a := annotations{seen: make(map[string]bool)}
	a.schema(schema, nil, true)
	return a.found, a.fault
}

// annotations gathers those of one schema.
type annotations struct {
	found []Parameter
	seen  map[string]bool // headers in lower case
	fault error           // the first
}

// wrong keeps the first fault.
func (a *annotations) wrong(format string, args ...any) {
	if a.fault == nil {
		a.fault = fmt.Errorf(format, args...)
	}
}

// Members of a schema whose members are schemas by name, and those that are
// data.
var (
	namedSchemas = map[string]bool{"properties": true, "patternProperties": true, "$defs": true, "definitions": true, "dependentSchemas": true}
	schemaData   = map[string]bool{"default": true, "enum": true, "const": true, "examples": true}
)

// schema reads one schema. It is reachable when a chain of properties alone
// leads to it; anywhere else an annotation is an error.
func (a *annotations) schema(schema json.RawMessage, path []string, reachable bool) {
	if raw, ok := jsonrpc.Get(schema, Annotation); ok {
		if reachable && len(path) > 0 {
			a.take(schema, raw, path)
		} else {
			a.wrong("its input schema has %s where no chain of properties leads", Annotation)
		}
	}
	for key, value := range jsonrpc.Members(schema) {
		switch {
		case schemaData[key] || key == Annotation:
		case namedSchemas[key]:
			for name, property := range jsonrpc.Members(value) {
				a.schema(property, append(path[:len(path):len(path)], name), reachable && key == "properties")
			}
		default:
			a.elsewhere(value, path)
		}
	}
}

// elsewhere reads the value of a member that is a schema, holds schemas or is
// none.
func (a *annotations) elsewhere(value json.RawMessage, path []string) {
	if value[0] == '{' {
		a.schema(value, path, false)
		return
	}
	for element := range jsonrpc.Elements(value) {
		a.elsewhere(element, path)
	}
}

// take keeps one annotation.
func (a *annotations) take(schema, raw json.RawMessage, path []string) {
	where := strings.Join(path, ".")
	header, ok := jsonrpc.Text(raw)
	if !ok || !token(header) {
		a.wrong("its parameter %q names the header %s, which is no name of a header", where, clip(raw))
		return
	}
	kind, _ := jsonrpc.Get(schema, "type")
	switch text, _ := jsonrpc.Text(kind); text {
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

// clip shortens raw for a message to people.
func clip(raw []byte) string {
	const most = 200
	if len(raw) <= most {
		return string(raw)
	}
	return string(raw[:most]) + "…"
}
