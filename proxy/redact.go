package proxy

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/toolgate/toolgate/internal/jsonrpc"
)

// redacted replaces a value that a policy removes.
var redacted = json.RawMessage(`"[redacted]"`)

// redact replaces what the pointers (RFC 6901, into the result) name. A
// pointer that names nothing removes nothing. Text blocks may repeat
// structuredContent, so a pointer into the one replaces the other.
func redact(result json.RawMessage, pointers []string) (json.RawMessage, error) {
	structured := false
	for _, ptr := range pointers {
		tokens := strings.Split(ptr, "/")
		if tokens[0] != "" || len(tokens) < 2 {
			return nil, fmt.Errorf("redacting: %q is no pointer below the root", ptr)
		}
		out, _, err := replaceAt(result, tokens[1:])
		if err != nil {
			return nil, fmt.Errorf("redacting %q: %w", ptr, err)
		}
		result = out
		structured = structured || unescape(tokens[1]) == "structuredContent"
	}
	if !structured {
		return result, nil
	}
	return repeatStructured(result)
}

var pointerEscapes = strings.NewReplacer("~1", "/", "~0", "~")

func unescape(token string) string { return pointerEscapes.Replace(token) }

// replaceAt replaces the value under tokens and tells whether there was one.
func replaceAt(value json.RawMessage, tokens []string) (json.RawMessage, bool, error) {
	if len(tokens) == 0 {
		return redacted, true, nil
	}
	key := unescape(tokens[0])
	if len(value) > 0 && value[0] == '[' {
		return replaceInArray(value, key, tokens[1:])
	}
	inner, ok := jsonrpc.Get(value, key)
	if !ok {
		return value, false, nil
	}
	inner, ok, err := replaceAt(inner, tokens[1:])
	if err != nil || !ok {
		return value, false, err
	}
	out, err := jsonrpc.Set(value, key, inner)
	return out, true, err
}

func replaceInArray(value json.RawMessage, key string, rest []string) (json.RawMessage, bool, error) {
	want, err := strconv.Atoi(key)
	if err != nil {
		return value, false, nil
	}
	out, found, n := []byte{'['}, false, 0
	for e := range jsonrpc.Elements(value) {
		if n > 0 {
			out = append(out, ',')
		}
		if n == want {
			if e, found, err = replaceAt(e, rest); err != nil {
				return value, false, err
			}
		}
		out, n = append(out, e...), n+1
	}
	if !found {
		return value, false, nil
	}
	return append(out, ']'), true, nil
}

// repeatStructured makes every text block say what structuredContent says.
func repeatStructured(result json.RawMessage) (json.RawMessage, error) {
	structured, ok := jsonrpc.Get(result, "structuredContent")
	if !ok {
		structured = redacted
	}
	content, ok := jsonrpc.Get(result, "content")
	if !ok || len(content) == 0 || content[0] != '[' {
		return result, nil
	}
	out, n := []byte{'['}, 0
	for block := range jsonrpc.Elements(content) {
		if n > 0 {
			out = append(out, ',')
		}
		if kind, _ := jsonrpc.Get(block, "type"); string(kind) == `"text"` {
			var err error
			if block, err = jsonrpc.Set(block, "text", jsonrpc.Quote(string(structured))); err != nil {
				return nil, err
			}
		}
		out, n = append(out, block...), n+1
	}
	return jsonrpc.Set(result, "content", append(out, ']'))
}
