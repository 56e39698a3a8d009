package upstream

import (
	"encoding/json"
	"math/big"
	"strings"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/mirror"
)

// maxMirrored bounds the digits of a number that a header repeats: the largest
// has 16, and more cannot be meant.
const maxMirrored = 32

// mirroredIn gives the argument that a header repeats as text; false means that
// there is none to repeat.
func mirroredIn(m mirror.Parameter, arguments json.RawMessage) (string, bool) {
	value := arguments
	for _, name := range m.Path {
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

// CheckHeaders tells what is wrong with the annotations of a tool definition
// that say which arguments are repeated in headers; nil when nothing is. A tool
// with a wrong one must not be used over Streamable HTTP (MCP 2026-07-28
// basic/transports/streamable-http, "Schema Extension").
func CheckHeaders(definition json.RawMessage) error {
	_, err := mirror.Parameters(definition)
	return err
}
