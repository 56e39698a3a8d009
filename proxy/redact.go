package proxy

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"

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
		path := slices.Collect(jsontext.Pointer(ptr).Tokens())
		if len(path) == 0 || ptr[0] != '/' {
			return nil, fmt.Errorf("redacting: %q is no pointer below the root", ptr)
		}
		var err error
		if result, err = redactAt(result, path); err != nil {
			return nil, fmt.Errorf("redacting %q: %w", ptr, err)
		}
		structured = structured || path[0] == "structuredContent"
	}
	if !structured {
		return result, nil
	}
	return repeatStructured(result)
}

// redactAt replaces the value under path, if there is one.
func redactAt(value json.RawMessage, path []string) (json.RawMessage, error) {
	if len(path) == 0 {
		return redacted, nil
	}
	if len(value) > 0 && value[0] == '[' {
		index, err := strconv.Atoi(path[0])
		if err != nil {
			return value, nil //nolint:nilerr // an array has no such member
		}
		return editArray(value, func(i int, e json.RawMessage) (json.RawMessage, error) {
			if i != index {
				return e, nil
			}
			return redactAt(e, path[1:])
		})
	}
	inner, ok := jsonrpc.Get(value, path[0])
	if !ok {
		return value, nil
	}
	inner, err := redactAt(inner, path[1:])
	if err != nil {
		return nil, err
	}
	return jsonrpc.Set(value, path[0], inner)
}

// repeatStructured makes every text block say what structuredContent says.
func repeatStructured(result json.RawMessage) (json.RawMessage, error) {
	structured, ok := jsonrpc.Get(result, "structuredContent")
	if !ok {
		structured = redacted
	}
	content, _ := jsonrpc.Get(result, "content")
	if len(content) == 0 || content[0] != '[' {
		return result, nil
	}
	content, err := editArray(content, func(_ int, block json.RawMessage) (json.RawMessage, error) {
		if textMember(block, "type") != "text" {
			return block, nil
		}
		return jsonrpc.Set(block, "text", jsonrpc.Quote(string(structured)))
	})
	if err != nil {
		return nil, err
	}
	return jsonrpc.Set(result, "content", content)
}

// editArray replaces each element of arr by the result of edit, and drops it when that
// is nil. It returns arr itself when every element stays the same, and [] for a value
// of another type.
func editArray(arr json.RawMessage, edit func(i int, e json.RawMessage) (json.RawMessage, error)) (json.RawMessage, error) {
	var elements [][]byte
	i, same := 0, len(arr) > 0 && arr[0] == '['
	for e := range jsonrpc.Elements(arr) {
		edited, err := edit(i, e)
		if err != nil {
			return nil, err
		}
		if edited != nil {
			elements = append(elements, edited)
		}
		i, same = i+1, same && bytes.Equal(edited, e)
	}
	if same {
		return arr, nil
	}
	return jsonrpc.Array(elements), nil
}
