package wire

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"

	"github.com/oklog/ulid/v2"

	"github.com/toolgate/toolgate/docs/schemas"
	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/schema"
	"github.com/toolgate/toolgate/signal"
)

// Profile names the rules for messages beyond JSON-RPC 2.0.
type Profile string

// The profiles.
const (
	// ProfileMCP is JSON-RPC 2.0 with the rules of MCP: an id is a string or an
	// integer, params may be absent or null. It is the default.
	ProfileMCP Profile = "mcp"
	// ProfileStrict is seed 004 for the messages of seed 000: a request must have
	// a string id, method and params, and may have other members.
	ProfileStrict Profile = "strict"
)

// Valid reports whether p is a profile; "" is ProfileMCP.
func (p Profile) Valid() bool { return p == "" || p == ProfileMCP || p == ProfileStrict }

// Envelope validates messages for every JSON-RPC door, whatever its transport.
// The zero value is profile mcp with default limits. It may be copied and is
// safe for concurrent use.
type Envelope struct {
	Profile Profile // "" = ProfileMCP
	// Deterministic makes profile strict require a UUID as a request's id, and
	// CreateRequest return one.
	Deterministic bool
	Limits        jsonrpc.Limits
}

// Validate decodes raw. The presence of id, method, result and error determines
// which of the four kinds of message it is (seed 000,
// validate_message_envelope):
//
//	decode -> kind -> request: docs/schemas/envelope.json (strict only)
//	               -> answer:  result is an object; error has code and message
//
// Exactly one result is set. A Fault names the member, the expected value and
// the actual one. It becomes the canonical error INVALID_ENVELOPE, or
// PARSE_ERROR for bytes that are not JSON, or TOO_LARGE. With an unknown
// profile every message is refused.
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
	var f *jsonrpc.Fault
	switch {
	case m.Kind == jsonrpc.Request && e.Profile == ProfileStrict:
		f = e.request(m)
	case m.Kind == jsonrpc.Notification && e.Profile == ProfileStrict && m.Params == nil:
		if raw, written := jsonrpc.Get(m.Raw, "params"); written {
			f = fault("/params", "an object", short(raw))
		}
	case m.Kind == jsonrpc.Success && m.Result[0] != '{':
		f = fault("/result", "an object", short(m.Result))
	case m.Kind == jsonrpc.Failure:
		f = e.errorObject(m.Error)
	}
	if f != nil {
		f.ID = m.ID
		return nil, f
	}
	return m, nil
}

// envelopeSchema is docs/schemas/envelope.json.
var envelopeSchema = sync.OnceValues(func() (*schema.Schema, error) {
	return schema.Compile(schemas.Read("envelope.json"))
})

// request checks a request in profile strict. A schema that cannot be used
// refuses every request.
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

// head returns m with empty params: the schema of the envelope
// says nothing about members of params, and validation must not cost more for
// long arguments.
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

// schemaFault returns the faults that a schema found as one. Pointer, want and
// got are those of the first.
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

// errorObject checks the error of an answer against JSON-RPC 2.0 §5.1. In
// profile strict data must be an object (seed 000).
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

// isInteger reports whether raw, a JSON value, is a number without fraction and
// exponent.
func isInteger(raw json.RawMessage) bool {
	digits := strings.TrimPrefix(string(raw), "-")
	return digits != "" && strings.Trim(digits, "0123456789") == ""
}

// short returns a refused value, shortened for messages.
func short(raw json.RawMessage) string {
	const most = 40
	if len(raw) == 0 {
		return "nothing"
	}
	name := map[byte]string{'{': "an object", '[': "an array", '"': "a string"}[raw[0]]
	if name == "" && len(raw) > most {
		name = "a number"
	}
	return cmp.Or(name, string(raw))
}

// uuid is the text form of a UUID (RFC 9562 §4).
var uuid = regexp.MustCompile(`^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$`)

// ErrCreate is in the error chain of the factories when the parts make no valid
// message.
var ErrCreate = errors.New("no valid message")

// entityName matches the names that an id may begin with.
var entityName = regexp.MustCompile(`^[a-z][a-z0-9]{0,15}$`)

// CreateRequest returns a request with a new id (seed 000, create_request):
// entityType, an underscore and a ULID, or, when e is deterministic, a UUID
// with the same bits. Nil params are omitted, and are {} in profile strict,
// which requires them; the bytes of others stay as they are, except for line ends.
// The error is ErrCreate for a message that e.Validate refuses, with its Fault,
// and for an entityType that is not a short name in lower case.
func (e Envelope) CreateRequest(method string, params json.RawMessage, entityType string) (*jsonrpc.Message, error) {
	if !entityName.MatchString(entityType) {
		return nil, fmt.Errorf("creating request: %w: entity type %q", ErrCreate, entityType)
	}
	if method == "" {
		return nil, fmt.Errorf("creating request: %w: no method", ErrCreate)
	}
	if params == nil && e.Profile == ProfileStrict {
		params = json.RawMessage(`{}`)
	}
	if err := values(e.Limits, params); err != nil {
		return nil, fmt.Errorf("creating request: %w", err)
	}
	id := signal.NewID(entityType + "_")
	if e.Deterministic {
		id = uuidOf(id[len(entityType)+1:])
	}
	return e.created(jsonrpc.Request, jsonrpc.NewRequest(jsonrpc.Quote(id), method, params))
}

// uuidOf returns a ULID as a UUID of version 7 (RFC 9562 §5.7). Both begin
// with the milliseconds; version and variant replace six of the random bits.
func uuidOf(text string) string {
	u, _ := ulid.ParseStrict(text) // NewID returns valid ULIDs only
	u[6] = u[6]&0x0f | 0x70
	u[8] = u[8]&0x3f | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
}

// CreateNotification returns a message that expects no response (seed 000,
// create_notification). Nil params are omitted. The error is ErrCreate for a
// message that Validate refuses in any profile.
func CreateNotification(method string, params json.RawMessage) ([]byte, error) {
	if method == "" {
		return nil, fmt.Errorf("creating notification: %w: no method", ErrCreate)
	}
	if err := values(anyProfile.Limits, params); err != nil {
		return nil, fmt.Errorf("creating notification: %w", err)
	}
	return text(jsonrpc.Notification, jsonrpc.NewNotification(method, params))
}

// CreateSuccessResponse returns the answer with a result, an object, to the
// request id (seed 000, create_success_response). The error is ErrCreate for a
// message that Validate refuses in any profile. It reads the result twice: use
// jsonrpc.NewSuccess for a result that has been validated.
func CreateSuccessResponse(id, result json.RawMessage) ([]byte, error) {
	if err := values(anyProfile.Limits, id, result); err != nil {
		return nil, fmt.Errorf("creating success response: %w", err)
	}
	return text(jsonrpc.Success, jsonrpc.NewSuccess(id, result))
}

// CreateErrorResponse returns the answer with an error object of code, message
// and data to the request id (seed 000, create_error_response). A nil id is
// null, for a request without a readable id. data is an object, or nil and
// omitted. The error is ErrCreate for a message that Validate refuses in any
// profile.
func CreateErrorResponse(id json.RawMessage, code int, message string, data json.RawMessage) ([]byte, error) {
	if err := values(anyProfile.Limits, id, data); err != nil {
		return nil, fmt.Errorf("creating error response: %w", err)
	}
	return text(jsonrpc.Failure, jsonrpc.NewFailure(id, code, message, data))
}

// anyProfile refuses notifications and answers that are invalid in any profile.
var anyProfile = Envelope{Profile: ProfileStrict}

// values checks that each part which is not nil is one JSON value. A second
// value could add members to the message.
func values(limits jsonrpc.Limits, parts ...json.RawMessage) error {
	for _, part := range parts {
		if part == nil {
			continue
		}
		if _, _, err := jsonrpc.CheckValue(part, limits); err != nil {
			return fmt.Errorf("%w: %w", ErrCreate, err)
		}
	}
	return nil
}

// text returns the message on one line if it is valid in any profile and of the
// given kind.
func text(kind jsonrpc.Kind, raw []byte) ([]byte, error) {
	m, err := anyProfile.created(kind, raw)
	if err != nil {
		return nil, err
	}
	return m.Raw, nil
}

// created returns the message if it is valid and of the given kind.
func (e Envelope) created(kind jsonrpc.Kind, raw []byte) (*jsonrpc.Message, error) {
	m, f := e.Validate(raw)
	switch {
	case f != nil:
		return nil, fmt.Errorf("creating %s: %w: %w", kind, ErrCreate, f)
	case m.Kind != kind:
		return nil, fmt.Errorf("creating %s: %w: it is a %s", kind, ErrCreate, m.Kind)
	}
	return m, nil
}

// MatchResponseToRequest removes the response to the request id from pool and
// returns it, or returns nil when it has not arrived (seed 000,
// match_response_to_request). Other messages stay in pool. Ids are compared as
// by jsonrpc.Key.
func MatchResponseToRequest(id json.RawMessage, pool *jsonrpc.Pool[*jsonrpc.Message]) *jsonrpc.Message {
	m, _ := pool.Match(id, func(m *jsonrpc.Message) bool {
		return m.Kind == jsonrpc.Success || m.Kind == jsonrpc.Failure
	})
	return m
}
