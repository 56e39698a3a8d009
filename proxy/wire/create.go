package wire

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"

	"github.com/oklog/ulid/v2"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/signal"
)

// ErrCreate is in the chain of what the factories return for parts of which no
// valid message can be made.
var ErrCreate = errors.New("no valid message")

// entityName is what an id may begin with.
var entityName = regexp.MustCompile(`^[a-z][a-z0-9]{0,15}$`)

// CreateRequest makes a request with an id of its own (seed 000,
// create_request): entityType, an underscore and a ULID, or, when e is
// deterministic, a UUID of the same bits. Nil params are left out, or {} in
// profile strict, which wants some. What e.Validate would refuse is an error
// with ErrCreate, as is an entityType that is not a short name in lower case.
func (e Envelope) CreateRequest(method string, params json.RawMessage, entityType string) ([]byte, error) {
	if !entityName.MatchString(entityType) {
		return nil, fmt.Errorf("creating request: %w: entity type %q", ErrCreate, entityType)
	}
	if method == "" {
		return nil, fmt.Errorf("creating request: %w: no method", ErrCreate)
	}
	if params == nil && e.Profile == ProfileStrict {
		params = json.RawMessage(`{}`)
	}
	if err := values(params); err != nil {
		return nil, fmt.Errorf("creating request: %w", err)
	}
	id := signal.NewID(entityType + "_")
	if e.Deterministic {
		id = uuidOf(id[len(entityType)+1:])
	}
	return e.created(jsonrpc.Request, jsonrpc.NewRequest(jsonrpc.Quote(id), method, params))
}

// uuidOf is a ULID as a UUID of version 7 (RFC 9562 §5.7): both begin with the
// milliseconds, and six of the random bits give way to version and variant.
func uuidOf(text string) string {
	u, _ := ulid.ParseStrict(text) // NewID gives nothing else
	u[6] = u[6]&0x0f | 0x70
	u[8] = u[8]&0x3f | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
}

// CreateNotification makes a message that wants no response (seed 000,
// create_notification); nil params are left out. What Validate would refuse in
// any profile is an error with ErrCreate.
func CreateNotification(method string, params json.RawMessage) ([]byte, error) {
	if method == "" {
		return nil, fmt.Errorf("creating notification: %w: no method", ErrCreate)
	}
	if err := values(params); err != nil {
		return nil, fmt.Errorf("creating notification: %w", err)
	}
	return anyProfile.created(jsonrpc.Notification, jsonrpc.NewNotification(method, params))
}

// CreateSuccessResponse makes the answer with a result, an object, to the
// request id (seed 000, create_success_response). What Validate would refuse in
// any profile is an error with ErrCreate: the result is read twice, so what the
// road has judged already is better sent with jsonrpc.NewSuccess.
func CreateSuccessResponse(id, result json.RawMessage) ([]byte, error) {
	if err := values(id, result); err != nil {
		return nil, fmt.Errorf("creating success response: %w", err)
	}
	return anyProfile.created(jsonrpc.Success, jsonrpc.NewSuccess(id, result))
}

// CreateErrorResponse makes the answer with an error object of code, message
// and data to the request id (seed 000, create_error_response). A nil id is
// null, for what had no readable id; data is an object, or nil and left out.
// What Validate would refuse in any profile is an error with ErrCreate.
func CreateErrorResponse(id json.RawMessage, code int, message string, data json.RawMessage) ([]byte, error) {
	if err := values(id, data); err != nil {
		return nil, fmt.Errorf("creating error response: %w", err)
	}
	return anyProfile.created(jsonrpc.Failure, jsonrpc.NewFailure(id, code, message, data))
}

// anyProfile refuses of notifications and answers what any profile refuses.
var anyProfile = Envelope{Profile: ProfileStrict}

// values holds each part that is not nil to one JSON value: what is more than
// one could become other members of the message.
func values(parts ...json.RawMessage) error {
	for _, part := range parts {
		if part == nil {
			continue
		}
		if _, _, err := jsonrpc.CheckValue(part, jsonrpc.Limits{}); err != nil {
			return fmt.Errorf("%w: %w", ErrCreate, err)
		}
	}
	return nil
}

// created gives the message on one line if it is what it was meant to be.
func (e Envelope) created(kind jsonrpc.Kind, raw []byte) ([]byte, error) {
	m, f := e.Validate(raw)
	switch {
	case f != nil:
		return nil, fmt.Errorf("creating %s: %w: %w", kind, ErrCreate, f)
	case m.Kind != kind:
		return nil, fmt.Errorf("creating %s: %w: it is a %s", kind, ErrCreate, m.Kind)
	}
	return m.Raw, nil
}

// MatchResponseToRequest takes the response to the request id out of pool, or
// gives nil when it has not arrived yet (seed 000, match_response_to_request).
// What is no response is nobody's and stays. Ids are compared as jsonrpc.Key
// does.
func MatchResponseToRequest(id json.RawMessage, pool *jsonrpc.Pool[*jsonrpc.Message]) *jsonrpc.Message {
	m, _ := pool.Match(id, func(m *jsonrpc.Message) bool {
		return m.Kind == jsonrpc.Success || m.Kind == jsonrpc.Failure
	})
	return m
}
