package upstream

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math/big"
	"net/textproto"
	"strings"

	"github.com/toolgate/toolgate/internal/jsonrpc"
)

const (
	mirrorPrefix = "Mcp-Param-"
	annotation   = "x-mcp-header"
	// maxMirrored bounds the digits of a number that a header repeats: the
	// largest has 16, and more cannot be meant.
	maxMirrored = 32
)

// mirrored is one argument of a tool that a header repeats (MCP 2026-07-28
// basic/transports/streamable-http, "Custom Headers from Tool Parameters").
type mirrored struct {
	path   []string // names of members, from the arguments down
	header string   // without mirrorPrefix
}

// in gives the argument as text; false means that there is none to repeat.
func (m mirrored) in(arguments json.RawMessage) (string, bool) {
	value := arguments
	for _, name := range m.path {
		var ok bool
		if value, ok = jsonrpc.Get(value, name); !ok {
			return "", false
		}
	}
	switch value[0] {
	case '"':
		return jsonrpc.Text(value)
	case 't', 'f':
		return string(value), true
	case 'n', '{', '[':
		return "", false
	}
	return integerText(string(value))
}

// integerText writes an integer in decimal digits: 4.2e1 as 42.
func integerText(lexeme string) (string, bool) {
	if len(lexeme) > maxMirrored {
		return "", false
	}
	if _, exponent, ok := strings.Cut(strings.ToLower(lexeme), "e"); ok && len(strings.TrimLeft(exponent, "+-0")) > 2 {
		return "", false
	}
	n, ok := new(big.Rat).SetString(lexeme)
	if !ok || !n.IsInt() {
		return "", false
	}
	return n.Num().String(), true
}

// headerValue writes text so that it is safe in a header: as it is, or as
// Base64 between the marks that say so. Empty text is marked, because headers
// without a value get lost.
func headerValue(text string) string {
	const open, end = "=?base64?", "?="
	plain := text != "" && text == strings.Trim(text, " ") && !(strings.HasPrefix(text, open) && strings.HasSuffix(text, end))
	for i := 0; plain && i < len(text); i++ {
		plain = text[i] >= 0x20 && text[i] <= 0x7e
	}
	if plain {
		return text
	}
	return open + base64.StdEncoding.EncodeToString([]byte(text)) + end
}

// CheckHeaders tells what is wrong with the annotations of a tool definition
// that say which arguments are repeated in headers; nil when nothing is. A tool
// with a wrong one must not be used over Streamable HTTP (MCP 2026-07-28
// basic/transports/streamable-http, "Schema Extension").
func CheckHeaders(definition json.RawMessage) error {
	_, err := mirrorsOf(definition)
	return err
}

// mirrorsOf reads the annotations of a tool definition.
func mirrorsOf(definition json.RawMessage) ([]mirrored, error) {
	schema, ok := jsonrpc.Get(definition, "inputSchema")
	if !ok {
		return nil, nil
	}
	a := annotations{seen: make(map[string]bool)}
	if err := a.schema(schema, nil, true); err != nil {
		return nil, err
	}
	return a.found, nil
}

// annotations gathers those of one schema.
type annotations struct {
	found []mirrored
	seen  map[string]bool // headers in lower case
}

// Members of a schema whose members are schemas by name, and those that are
// data.
var (
	namedSchemas = map[string]bool{"properties": true, "patternProperties": true, "$defs": true, "definitions": true, "dependentSchemas": true}
	schemaData   = map[string]bool{"default": true, "enum": true, "const": true, "examples": true}
)

// schema reads one schema. It is reachable when a chain of properties alone
// leads to it; anywhere else an annotation is an error.
func (a *annotations) schema(schema json.RawMessage, path []string, reachable bool) error {
	if raw, ok := jsonrpc.Get(schema, annotation); ok {
		if !reachable || len(path) == 0 {
			return fmt.Errorf("its input schema has %s where no chain of properties leads", annotation)
		}
		if err := a.take(schema, raw, path); err != nil {
			return err
		}
	}
	for key, value := range jsonrpc.Members(schema) {
		var err error
		switch {
		case schemaData[key] || key == annotation:
		case namedSchemas[key]:
			for name, property := range jsonrpc.Members(value) {
				if err == nil {
					err = a.schema(property, append(path[:len(path):len(path)], name), reachable && key == "properties")
				}
			}
		default:
			err = a.elsewhere(value, path)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// elsewhere reads the value of a member that is a schema, holds schemas or is
// none.
func (a *annotations) elsewhere(value json.RawMessage, path []string) error {
	if value[0] == '{' {
		return a.schema(value, path, false)
	}
	for element := range jsonrpc.Elements(value) {
		if err := a.elsewhere(element, path); err != nil {
			return err
		}
	}
	return nil
}

// take keeps one annotation.
func (a *annotations) take(schema, raw json.RawMessage, path []string) error {
	where := strings.Join(path, ".")
	header, ok := jsonrpc.Text(raw)
	if !ok || !token(header) {
		return fmt.Errorf("its parameter %q names the header %s, which is no name of a header", where, clip(raw))
	}
	kind, _ := jsonrpc.Get(schema, "type")
	switch string(kind) {
	case `"string"`, `"integer"`, `"boolean"`:
	default:
		return fmt.Errorf("its parameter %q has a header and is not a string, an integer or a boolean", where)
	}
	if folded := strings.ToLower(header); a.seen[folded] {
		return fmt.Errorf("two of its parameters have the header %q", header)
	} else {
		a.seen[folded] = true
	}
	a.found = append(a.found, mirrored{path: path, header: textproto.CanonicalMIMEHeaderKey(header)})
	return nil
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
