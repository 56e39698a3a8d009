package wire

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"sync"

	"github.com/toolgate/toolgate/docs/schemas"
	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/schema"
)

// Profile says what a message must be like beyond JSON-RPC 2.0.
type Profile string

// The profiles.
const (
	// ProfileMCP is JSON-RPC 2.0 as MCP clients speak it: an id is a string or
	// an integer, params may be absent. It is the default.
	ProfileMCP Profile = "mcp"
	// ProfileStrict is seed 004 for the messages of seed 000: a request has
	// string id, method and params, all of them, and may have members that
	// JSON-RPC does not know.
	ProfileStrict Profile = "strict"
)

// Valid reports whether p is a profile; "" is ProfileMCP.
func (p Profile) Valid() bool { return p == "" || p == ProfileMCP || p == ProfileStrict }

// Envelope is the validation pipeline that every JSON-RPC door shares,
// whatever its transport. The zero value is profile mcp with default limits. It
// may be copied and is safe for concurrent use.
type Envelope struct {
	Profile Profile // "" = ProfileMCP
	// Deterministic makes profile strict want a UUID as a request's id, and
	// CreateRequest give one.
	Deterministic bool
	Limits        jsonrpc.Limits
}

// Validate decodes raw and tells which of the four kinds it is by the presence
// of id, method, result and error (seed 000, validate_message_envelope):
//
//	decode -> kind -> request: docs/schemas/envelope.json (strict only)
//	               -> answer:  result is an object; error has code and message
//
// Exactly one result is set. A Fault says which member is at fault, what was
// wanted and what was there; it becomes the canonical error INVALID_ENVELOPE,
// but for bytes that are no JSON (PARSE_ERROR) or too many (TOO_LARGE). A
// profile that is not known refuses everything.
func (e Envelope) Validate(raw []byte) (*jsonrpc.Message, *jsonrpc.Fault) {
	limits := e.Limits
	switch e.Profile {
	case "", ProfileMCP:
	case ProfileStrict:
		limits.Open = true
	default:
		return nil, &jsonrpc.Fault{Kind: jsonrpc.Invalid, Reason: "the envelope profile is not known"}
	}
	m, err := jsonrpc.Decode(raw, limits)
	if err != nil {
		return nil, jsonrpc.FaultOf(err)
	}
	if f := e.judge(m); f != nil {
		f.ID = m.ID
		return nil, f
	}
	return m, nil
}

// judge holds one decoded message to its kind.
func (e Envelope) judge(m *jsonrpc.Message) *jsonrpc.Fault {
	switch m.Kind {
	case jsonrpc.Request:
		if e.Profile == ProfileStrict {
			return e.request(m)
		}
	case jsonrpc.Success:
		if m.Result[0] != '{' {
			return fault("/result", "an object", short(m.Result))
		}
	case jsonrpc.Failure:
		return e.errorObject(m.Error)
	}
	return nil
}

// envelopeSchema is docs/schemas/envelope.json.
var envelopeSchema = sync.OnceValues(func() (*schema.Schema, error) {
	raw, err := schemas.Files.ReadFile("envelope.json")
	if err != nil {
		return nil, err
	}
	return schema.Compile(raw)
})

// request holds a request to profile strict. A schema that cannot be used
// refuses it.
func (e Envelope) request(m *jsonrpc.Message) *jsonrpc.Fault {
	s, err := envelopeSchema()
	if err != nil {
		return &jsonrpc.Fault{Kind: jsonrpc.Invalid, Reason: "the envelope schema cannot be used"}
	}
	faults, err := s.Validate(head(m))
	if err != nil {
		return &jsonrpc.Fault{Kind: jsonrpc.Invalid, Reason: "the envelope cannot be validated"}
	}
	if len(faults) > 0 {
		return schemaFault(faults)
	}
	if id, _ := jsonrpc.Text(m.ID); e.Deterministic && !uuid.MatchString(id) {
		return fault("/id", "a UUID", "another string")
	}
	return nil
}

// head is m as it came but for what is inside params, of which the envelope's
// schema says nothing: its cost does not grow with the arguments.
func head(m *jsonrpc.Message) json.RawMessage {
	if m.Params == nil {
		return m.Raw
	}
	raw, err := jsonrpc.Set(m.Raw, "params", json.RawMessage(`{}`))
	if err != nil {
		return m.Raw
	}
	return raw
}

// schemaFault says all that a schema found; pointer, want and got are those of
// the first.
func schemaFault(faults []schema.Fault) *jsonrpc.Fault {
	var reasons []string
	for _, f := range faults {
		reasons = append(reasons, sayFault(f.Pointer, f.Want, f.Got))
	}
	first := fault(faults[0].Pointer, faults[0].Want, faults[0].Got)
	first.Reason = strings.Join(reasons, "; ")
	return first
}

func fault(pointer, want, got string) *jsonrpc.Fault {
	return &jsonrpc.Fault{Kind: jsonrpc.Invalid, Reason: sayFault(pointer, want, got), Pointer: pointer, Want: want, Got: got}
}

func sayFault(pointer, want, got string) string {
	if pointer == "" {
		pointer = "the message"
	}
	return fmt.Sprintf("%s: want %s, got %s", pointer, want, got)
}

// errorObject holds the error of an answer to JSON-RPC 2.0 §5.1. In profile
// strict data is an object too, as seed 000 has it.
func (e Envelope) errorObject(object json.RawMessage) *jsonrpc.Fault {
	code, _ := jsonrpc.Get(object, "code")
	if !isInteger(code) {
		return fault("/error/code", "an integer", short(code))
	}
	message, _ := jsonrpc.Get(object, "message")
	if _, ok := jsonrpc.Text(message); !ok {
		return fault("/error/message", "a string", short(message))
	}
	data, has := jsonrpc.Get(object, "data")
	if has && data[0] != '{' && e.Profile == ProfileStrict {
		return fault("/error/data", "an object", short(data))
	}
	return nil
}

// isInteger reports whether raw, a JSON value, is a number without fraction
// and exponent.
func isInteger(raw json.RawMessage) bool {
	digits := strings.TrimPrefix(string(raw), "-")
	return digits != "" && strings.Trim(digits, "0123456789") == ""
}

// short shows a value that was refused in at most a few bytes.
func short(raw json.RawMessage) string {
	const most = 40
	switch {
	case len(raw) == 0:
		return "nothing"
	case raw[0] == '{':
		return "an object"
	case raw[0] == '[':
		return "an array"
	case raw[0] == '"':
		return "a string"
	case len(raw) > most:
		return "a number"
	}
	return string(raw)
}

// uuid is the text form of a UUID (RFC 9562 §4).
var uuid = regexp.MustCompile(`^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$`)
