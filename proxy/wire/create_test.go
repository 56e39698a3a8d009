package wire_test

import (
	"encoding/json"
	"errors"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/proxy/wire"
	"github.com/toolgate/toolgate/signal"
)

// textOf returns the bytes of a created message.
func textOf(m *jsonrpc.Message, err error) ([]byte, error) {
	if m == nil {
		return nil, err
	}
	return m.Raw, err
}

func raws(text string) json.RawMessage {
	if text == "" {
		return nil
	}
	return json.RawMessage(text)
}

// TestCreateRequest: an id of the entity's, the version, method and params
// (seed 000, create_request).
func TestCreateRequest(t *testing.T) {
	const ulid = `[0-9A-HJKMNP-TV-Z]{26}`
	tests := []struct {
		envelope wire.Envelope
		params   string
		want     string
	}{
		{mcpEnvelope, ``, `^{"jsonrpc":"2.0","id":"req_` + ulid + `","method":"m"}$`},
		{mcpEnvelope, `{"a":1e2}`, `^{"jsonrpc":"2.0","id":"req_` + ulid + `","method":"m","params":{"a":1e2}}$`},
		{strictEnvelope, ``, `^{"jsonrpc":"2.0","id":"req_` + ulid + `","method":"m","params":{}}$`},
		{uuidEnvelope, ``, `^{"jsonrpc":"2.0","id":"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}","method":"m","params":{}}$`},
	}
	for _, tt := range tests {
		a, err := textOf(tt.envelope.CreateRequest("m", raws(tt.params), "req"))
		if err != nil || !regexp.MustCompile(tt.want).Match(a) {
			t.Errorf("%v: %s, %v", tt.envelope, a, err)
		}
		if b, _ := textOf(tt.envelope.CreateRequest("m", raws(tt.params), "req")); string(a) == string(b) {
			t.Errorf("%v: two requests with one id: %s", tt.envelope, a)
		}
	}
}

// TestCreateReproducibleRequest: the same run makes the same ids.
func TestCreateReproducibleRequest(t *testing.T) {
	run := func() string {
		defer signal.Reproducible(time.Unix(1_800_000_000, 0))()
		a, errA := textOf(uuidEnvelope.CreateRequest("m", nil, "req"))
		b, errB := textOf(uuidEnvelope.CreateRequest("m", nil, "req"))
		if errA != nil || errB != nil || string(a) == string(b) {
			t.Errorf("%s %v, %s %v", a, errA, b, errB)
		}
		return string(a) + string(b)
	}
	if first, second := run(), run(); first != second {
		t.Errorf("first %s\nthen  %s", first, second)
	}
}

// TestCreate: the other factories of seed 000, byte for byte.
func TestCreate(t *testing.T) {
	of := func(raw []byte, err error) string {
		if err != nil {
			return err.Error()
		}
		return string(raw)
	}
	for _, tt := range []struct{ name, got, want string }{
		{"notification", of(wire.CreateNotification("notifications/x", nil)), `{"jsonrpc":"2.0","method":"notifications/x"}`},
		{"notification with params", of(wire.CreateNotification("n", raws("{\"a\":\n1}"))), `{"jsonrpc":"2.0","method":"n","params":{"a": 1}}`},
		{"success", of(wire.CreateSuccessResponse(raws(`"a"`), raws(`{"b":1,"a":2}`))), `{"jsonrpc":"2.0","id":"a","result":{"b":1,"a":2}}`},
		{"success to a number", of(wire.CreateSuccessResponse(raws(`7`), raws(`{}`))), `{"jsonrpc":"2.0","id":7,"result":{}}`},
		{"error", of(wire.CreateErrorResponse(raws(`"a"`), -32600, "Invalid MCP envelope", nil)),
			`{"jsonrpc":"2.0","id":"a","error":{"code":-32600,"message":"Invalid MCP envelope"}}`},
		{"error with data", of(wire.CreateErrorResponse(raws(`"a"`), -1, "m", raws(`{"stack":[]}`))),
			`{"jsonrpc":"2.0","id":"a","error":{"code":-1,"message":"m","data":{"stack":[]}}}`},
		{"error without an id", of(wire.CreateErrorResponse(nil, -32700, "Parse error", nil)),
			`{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"Parse error"}}`},
	} {
		if tt.got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, tt.got, tt.want)
		}
	}
}

// TestCreateRefuses: a factory makes nothing that Validate would refuse, and no
// part can add members of its own.
func TestCreateRefuses(t *testing.T) {
	request := func(method, params, entity string) func() ([]byte, error) {
		return func() ([]byte, error) { return textOf(mcpEnvelope.CreateRequest(method, raws(params), entity)) }
	}
	note := func(method, params string) func() ([]byte, error) {
		return func() ([]byte, error) { return wire.CreateNotification(method, raws(params)) }
	}
	success := func(id, result string) func() ([]byte, error) {
		return func() ([]byte, error) { return wire.CreateSuccessResponse(raws(id), raws(result)) }
	}
	failure := func(id, data string) func() ([]byte, error) {
		return func() ([]byte, error) { return wire.CreateErrorResponse(raws(id), -1, "m", raws(data)) }
	}
	for name, create := range map[string]func() ([]byte, error){
		"request without a method":        request("", `{}`, "req"),
		"request without an entity":       request("m", `{}`, ""),
		"request of a strange entity":     request("m", `{}`, "Req 1"),
		"request of a long entity":        request("m", `{}`, strings.Repeat("a", 17)),
		"request with params in a row":    request("m", `[]`, "req"),
		"request with broken params":      request("m", `{`, "req"),
		"request with doubled params":     request("m", `{"a":1,"a":2}`, "req"),
		"request with variant params":     request("m", `{"a":1,"A":2}`, "req"),
		"request with smuggled members":   request("m", `{},"result":{}`, "req"),
		"request for an unknown profile":  func() ([]byte, error) { return textOf(wire.Envelope{Profile: "lax"}.CreateRequest("m", nil, "req")) },
		"notification without a method":   note("", ``),
		"notification with text":          note("n", `"x"`),
		"notification with a smuggled id": note("n", `{},"id":1`),
		"success without an id":           success(``, `{}`),
		"success to null":                 success(`null`, `{}`),
		"success to a fraction":           success(`1.5`, `{}`),
		"success without a result":        success(`1`, ``),
		"success with a number":           success(`1`, `7`),
		"success with a smuggled member":  success(`1`, `{},"x":1`),
		"success with a smuggled id":      success(`1,"x":2`, `{}`),
		"success nested too deep":         success(`1`, strings.Repeat(`{"a":`, 64)+`1`+strings.Repeat(`}`, 64)),
		"error with text as data":         failure(`1`, `"x"`),
		"error with smuggled data":        failure(`1`, `{},"code":2`),
		"error to an object":              failure(`{}`, `{}`),
	} {
		if raw, err := create(); raw != nil || !errors.Is(err, wire.ErrCreate) {
			t.Errorf("%s: %s, %v", name, raw, err)
		}
	}
}

// TestMatchResponseToRequest: the response with the id, once; nothing as long
// as it has not arrived (seed 000, match_response_to_request).
func TestMatchResponseToRequest(t *testing.T) {
	var pool jsonrpc.Pool[*jsonrpc.Message]
	if m := wire.MatchResponseToRequest(raws(`"a"`), &pool); m != nil {
		t.Errorf("from an empty pool: %v", m)
	}
	for _, text := range []string{
		`{"jsonrpc":"2.0","id":"a","result":{}}`, `{"jsonrpc":"2.0","id":"b","error":{"code":1,"message":"m"}}`,
		`{"jsonrpc":"2.0","id":1,"result":{}}`, `{"jsonrpc":"2.0","id":"r","method":"m","params":{}}`,
	} {
		m, f := strictEnvelope.Validate([]byte(text))
		if f != nil || !pool.Put(m.ID, m) {
			t.Fatalf("%s: %v", text, f)
		}
	}
	for _, tt := range []struct {
		id   string
		want jsonrpc.Kind // 0 = none
	}{
		{`"c"`, 0}, {`"1"`, 0}, {`"r"`, 0}, {`"\u0061"`, jsonrpc.Success}, {`"a"`, 0}, {`"b"`, jsonrpc.Failure}, {`1`, jsonrpc.Success},
	} {
		var got jsonrpc.Kind
		if m := wire.MatchResponseToRequest(raws(tt.id), &pool); m != nil {
			got = m.Kind
		}
		if got != tt.want {
			t.Errorf("%s: %v, want %v", tt.id, got, tt.want)
		}
	}
	if pool.Len() != 1 {
		t.Errorf("%d left, want the request alone", pool.Len())
	}
}

// FuzzCreate: what a factory gives is valid in every profile that it is for and
// carries the parts as they were; else it gives nothing.
func FuzzCreate(f *testing.F) {
	f.Add("m", []byte(`{"a":1}`), []byte(`"id"`), 7, "text")
	f.Add("", []byte(`{},"id":1`), []byte(`1,"x":2`), -32600, "\xff")
	f.Add("tools/call", []byte("{\"a\":\r\n1}"), []byte(`null`), 0, "")
	f.Fuzz(func(t *testing.T, method string, object, id []byte, code int, text string) {
		check := func(kind jsonrpc.Kind, e wire.Envelope, raw []byte, err error) {
			t.Helper()
			if err != nil {
				if raw != nil || !errors.Is(err, wire.ErrCreate) {
					t.Fatalf("%q with %v", raw, err)
				}
				return
			}
			for _, e := range []wire.Envelope{mcpEnvelope, e} {
				if m, fault := e.Validate(raw); fault != nil || m.Kind != kind {
					t.Fatalf("%s: %v, %v", raw, m, fault)
				}
			}
		}
		for _, e := range []wire.Envelope{mcpEnvelope, strictEnvelope, uuidEnvelope} {
			raw, err := textOf(e.CreateRequest(method, object, "req"))
			check(jsonrpc.Request, e, raw, err)
		}
		raw, err := wire.CreateNotification(method, object)
		check(jsonrpc.Notification, strictEnvelope, raw, err)
		raw, err = wire.CreateSuccessResponse(id, object)
		check(jsonrpc.Success, strictEnvelope, raw, err)
		raw, err = wire.CreateErrorResponse(id, code, text, object)
		check(jsonrpc.Failure, strictEnvelope, raw, err)
	})
}
