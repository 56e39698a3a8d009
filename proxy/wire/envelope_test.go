package wire_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/toolgate/toolgate/docs/schemas"
	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/schema"
	"github.com/toolgate/toolgate/proxy/wire"
)

const uuid = "018f2c5e-7b1a-7c3d-8e4f-0123456789ab"

var (
	mcpEnvelope    = wire.Envelope{}
	strictEnvelope = wire.Envelope{Profile: wire.ProfileStrict}
	uuidEnvelope   = wire.Envelope{Profile: wire.ProfileStrict, Deterministic: true}
)

// TestEnvelopeKinds: validate_message_envelope tells the four kinds apart by
// the presence of id, result and error (seed 000), and what each profile wants
// of them (seed 004). A cell is the kind, or the pointer of the fault.
func TestEnvelopeKinds(t *testing.T) {
	tests := []struct{ raw, mcp, strict, uuid string }{
		// requests: seed 004
		{`{"jsonrpc":"2.0","id":"` + uuid + `","method":"m","params":{}}`, "request", "request", "request"},
		{`{"jsonrpc":"2.0","id":"a","method":"m","params":{}}`, "request", "request", "/id"},
		{`{"jsonrpc":"2.0","id":"a","method":"m","params":{"any":[1,{"thing":null}]}}`, "request", "request", "/id"},
		{`{"jsonrpc":"2.0","id":1,"method":"m","params":{}}`, "request", "/id", "/id"},
		{`{"jsonrpc":"2.0","id":"","method":"m","params":{}}`, "request", "/id", "/id"},
		{`{"jsonrpc":"2.0","id":"a","method":"m"}`, "request", "missing params", "missing params"},
		{`{"jsonrpc":"2.0","id":"a","method":"","params":{}}`, "request", "/method", "/method"},
		{`{"jsonrpc":"2.0","id":"a","method":"m","params":[]}`, "/params", "/params", "/params"},
		{`{"jsonrpc":"2.0","id":"a","method":"m","params":null}`, "request", "/params", "/params"},
		{`{"jsonrpc":"2.0","id":"a","method":7,"params":{}}`, "/method", "/method", "/method"},
		{`{"jsonrpc":"2.0","id":null,"method":"m","params":{}}`, "/id", "/id", "/id"},
		{`{"jsonrpc":"2.0","id":1.5,"method":"m","params":{}}`, "/id", "/id", "/id"},
		{`{"jsonrpc":"2.0","id":{},"method":"m","params":{}}`, "/id", "/id", "/id"},
		{`{"jsonrpc":"1.0","id":"a","method":"m","params":{}}`, "/jsonrpc", "/jsonrpc", "/jsonrpc"},
		{`{"id":"a","method":"m","params":{}}`, "/jsonrpc", "/jsonrpc", "/jsonrpc"},
		{`{"jsonrpc":"2.0","id":"` + uuid + `","method":"m","params":{},"extra":1}`, "unknown", "request", "request"},
		{`{"jsonrpc":"2.0","id":"a","method":"m","params":{},"Params":{}}`, "case", "case", "case"},

		// notifications: no id, params optional
		{`{"jsonrpc":"2.0","method":"m"}`, "notification", "notification", "notification"},
		{`{"jsonrpc":"2.0","method":"m","params":{}}`, "notification", "notification", "notification"},
		{`{"jsonrpc":"2.0","method":"m","params":1}`, "/params", "/params", "/params"},
		{`{"jsonrpc":"2.0","method":"m","params":null}`, "notification", "/params", "/params"},

		// success: id and result, an object
		{`{"jsonrpc":"2.0","id":"a","result":{}}`, "success", "success", "success"},
		{`{"jsonrpc":"2.0","id":1,"result":{}}`, "success", "success", "success"},
		{`{"jsonrpc":"2.0","id":"a","result":7}`, "/result", "/result", "/result"},
		{`{"jsonrpc":"2.0","result":{}}`, "without an id", "without an id", "without an id"},
		{`{"jsonrpc":"2.0","id":null,"result":{}}`, "/id", "/id", "/id"},

		// failure: error with code, message, data
		{`{"jsonrpc":"2.0","id":"a","error":{"code":-32600,"message":"m"}}`, "failure", "failure", "failure"},
		{`{"jsonrpc":"2.0","id":"a","error":{"code":-32600,"message":"m","data":{}}}`, "failure", "failure", "failure"},
		{`{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"m"}}`, "failure", "failure", "failure"},
		{`{"jsonrpc":"2.0","id":"a","error":{"code":-32600,"message":"m","data":"text"}}`, "failure", "/error/data", "/error/data"},
		{`{"jsonrpc":"2.0","id":"a","error":{"code":1.5,"message":"m"}}`, "/error/code", "/error/code", "/error/code"},
		{`{"jsonrpc":"2.0","id":"a","error":{"code":1}}`, "/error/message", "/error/message", "/error/message"},
		{`{"jsonrpc":"2.0","id":"a","error":{}}`, "/error/code", "/error/code", "/error/code"},
		{`{"jsonrpc":"2.0","id":"a","error":"m"}`, "/error", "/error", "/error"},

		// no kind, or more than one
		{`{"jsonrpc":"2.0","id":"a"}`, "neither", "neither", "neither"},
		{`{"jsonrpc":"2.0","id":"a","method":"m","params":{},"result":{}}`, "both", "both", "both"},
		{`{"jsonrpc":"2.0","id":"a","result":{},"error":{"code":1,"message":"m"}}`, "both", "both", "both"},
		{`[{"jsonrpc":"2.0","id":"a","method":"m","params":{}}]`, "batches", "batches", "batches"},
		{`"text"`, "must be an object", "must be an object", "must be an object"},
	}
	for _, tt := range tests {
		for _, p := range []struct {
			envelope wire.Envelope
			want     string
		}{{mcpEnvelope, tt.mcp}, {wire.Envelope{Profile: wire.ProfileMCP, Deterministic: true}, tt.mcp}, {strictEnvelope, tt.strict}, {uuidEnvelope, tt.uuid}} {
			m, f := p.envelope.Validate([]byte(tt.raw))
			if got := verdict(m, f); got != p.want && (f == nil || !strings.Contains(f.Reason, p.want)) {
				t.Errorf("%s %v: %s (%+v), want %s", tt.raw, p.envelope, got, f, p.want)
			}
		}
	}
}

// verdict is the kind, the pointer of the fault, or the member that is missing.
func verdict(m *jsonrpc.Message, f *jsonrpc.Fault) string {
	switch {
	case (m == nil) == (f == nil):
		return "message and fault, or neither of them"
	case f == nil:
		return m.Kind.String()
	case f.Kind != jsonrpc.Invalid:
		return f.Kind.String()
	case strings.HasPrefix(f.Want, `member "`):
		return "missing " + strings.Trim(strings.TrimPrefix(f.Want, "member "), `"`)
	}
	return f.Pointer
}

// TestEnvelopeFaultSaysWhat: pointer, wanted and got, in words from which a
// client can mend its message, and the id so that the answer finds its way.
func TestEnvelopeFaultSaysWhat(t *testing.T) {
	tests := []struct {
		envelope wire.Envelope
		raw      string
		want     jsonrpc.Fault
	}{
		{strictEnvelope, `{"jsonrpc":"2.0","id":7,"method":"m","params":{}}`, jsonrpc.Fault{
			Reason: "/id: want string, got number 7", Pointer: "/id", Want: "string", Got: "number 7", ID: json.RawMessage(`7`)}},
		{strictEnvelope, `{"jsonrpc":"2.0","id":"a","method":"m"}`, jsonrpc.Fault{
			Reason: `the message: want member "params", got no such member`, Want: `member "params"`, Got: "no such member", ID: json.RawMessage(`"a"`)}},
		{strictEnvelope, `{"jsonrpc":"2.0","id":"a","method":"m","params":null}`, jsonrpc.Fault{
			Reason: "/params: want object, got null", Pointer: "/params", Want: "object", Got: "null", ID: json.RawMessage(`"a"`)}},
		{strictEnvelope, `{"jsonrpc":"2.0","id":7,"method":""}`, jsonrpc.Fault{
			Reason:  `the message: want member "params", got no such member; /id: want string, got number 7; /method: want at least 1 characters, got string ""`,
			Pointer: "", Want: `member "params"`, Got: "no such member", ID: json.RawMessage(`7`)}},
		{uuidEnvelope, `{"jsonrpc":"2.0","id":"a","method":"m","params":{}}`, jsonrpc.Fault{
			Reason: "/id: want a UUID, got another string", Pointer: "/id", Want: "a UUID", Got: "another string", ID: json.RawMessage(`"a"`)}},
		{mcpEnvelope, `{"jsonrpc":"2.0","id":3,"result":[]}`, jsonrpc.Fault{
			Reason: "/result: want an object, got an array", Pointer: "/result", Want: "an object", Got: "an array", ID: json.RawMessage(`3`)}},
		{mcpEnvelope, `{"jsonrpc":"2.0","id":3,"error":{"code":"x","message":"m"}}`, jsonrpc.Fault{
			Reason: "/error/code: want an integer, got a string", Pointer: "/error/code", Want: "an integer", Got: "a string", ID: json.RawMessage(`3`)}},
	}
	for _, tt := range tests {
		tt.want.Kind = jsonrpc.Invalid
		m, f := tt.envelope.Validate([]byte(tt.raw))
		if diff := cmp.Diff(&tt.want, f); m != nil || diff != "" {
			t.Errorf("%s: %v\n%s", tt.raw, m, diff)
		}
	}
}

// TestEnvelopeFaultKinds: what is no JSON and what is too large are no invalid
// envelopes.
func TestEnvelopeFaultKinds(t *testing.T) {
	for _, profile := range []wire.Profile{"", wire.ProfileMCP, wire.ProfileStrict} {
		e := wire.Envelope{Profile: profile, Limits: jsonrpc.Limits{Bytes: 100}}
		for raw, want := range map[string]jsonrpc.FaultKind{
			`{"jsonrpc":`: jsonrpc.Parse, `{"jsonrpc":"2.0","id":"a","id":"a"}`: jsonrpc.Invalid,
			`"` + strings.Repeat("x", 100) + `"`: jsonrpc.TooLarge, ``: jsonrpc.Parse,
		} {
			if m, f := e.Validate([]byte(raw)); m != nil || f == nil || f.Kind != want {
				t.Errorf("%s %q: %v, %v; want %v", profile, raw, m, f, want)
			}
		}
	}
	good := `{"jsonrpc":"2.0","id":"a","method":"m","params":{}}`
	if m, f := (wire.Envelope{Profile: "lax"}).Validate([]byte(good)); m != nil || f == nil {
		t.Error("an unknown profile lets messages pass")
	}
	if wire.Profile("lax").Valid() || !wire.Profile("").Valid() {
		t.Error("Valid")
	}
}

// TestEnvelopeUUID: the text form of RFC 9562, in either case.
func TestEnvelopeUUID(t *testing.T) {
	for id, ok := range map[string]bool{
		uuid: true, strings.ToUpper(uuid): true, "00000000-0000-0000-0000-000000000000": true,
		"": false, uuid[1:]: false, uuid + "0": false, strings.ReplaceAll(uuid, "-", ""): false,
		strings.Replace(uuid, "-", "0", 1): false, strings.Replace(uuid, "0", "-", 1): false, strings.Replace(uuid, "a", "g", 1): false,
		"{" + uuid[:34] + "}": false, strings.Replace(uuid, "0", "@", 1): false,
	} {
		_, f := uuidEnvelope.Validate(fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%q,"method":"m","params":{}}`, id))
		if (f == nil) != ok {
			t.Errorf("%q: %v, want accepted %v", id, f, ok)
		}
	}
}

// TestEnvelopeSchemaLooksNoDeeper: Validate spares the schema what is inside
// params, so the schema must have nothing to say about it.
func TestEnvelopeSchemaLooksNoDeeper(t *testing.T) {
	raw := document(t, "envelope.json")
	props, _ := jsonrpc.Get(raw, "properties")
	params, _ := jsonrpc.Get(props, "params")
	var got map[string]any
	if err := json.Unmarshal(params, &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]any{"type": "object"}, got); diff != "" {
		t.Error(diff)
	}
	for key := range jsonrpc.Members(raw) {
		switch key {
		case "$schema", "$id", "title", "description", "type", "required", "properties":
		default:
			t.Errorf("keyword %s may look into params", key)
		}
	}
}

// TestEnvelopeStrictIsTheSchema: for requests profile strict and the published
// document agree.
func TestEnvelopeStrictIsTheSchema(t *testing.T) {
	s, err := schema.Compile(document(t, "envelope.json"))
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{``, `"id":"a",`, `"id":"",`, `"id":7,`} {
		for _, version := range []string{``, `"jsonrpc":"2.0",`, `"jsonrpc":"2.1",`} {
			for _, method := range []string{`"method":"m"`, `"method":""`, `"method":1`} {
				for _, params := range []string{``, `,"params":{}`, `,"params":{"a":[{}]}`, `,"params":[]`, `,"x":1,"params":{}`} {
					raw := `{` + id + version + method + params + `}`
					faults, err := s.Validate(json.RawMessage(raw))
					if err != nil {
						t.Fatal(err)
					}
					m, f := strictEnvelope.Validate([]byte(raw))
					if f == nil && m.Kind == jsonrpc.Notification {
						continue // seed 000's, not the schema's
					}
					if (f == nil) != (len(faults) == 0) {
						t.Errorf("%s: fault %v, the schema says %v", raw, f, faults)
					}
				}
			}
		}
	}
}

// document reads one of docs/schemas.
func document(t testing.TB, name string) json.RawMessage {
	t.Helper()
	raw, err := schemas.Files.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// FuzzEnvelope: a message or a fault, never both; what strict accepts mcp does
// too, but for members that JSON-RPC does not know, and reads the same; what
// was accepted is accepted again; the kinds exclude each other.
func FuzzEnvelope(f *testing.F) {
	for _, seed := range []string{
		`{"jsonrpc":"2.0","id":"a","method":"m","params":{}}`, `{"jsonrpc":"2.0","method":"m"}`, `{"jsonrpc":"2.0","id":1,"result":{}}`,
		`{"jsonrpc":"2.0","id":null,"error":{"code":-1,"message":"m","data":{}}}`, `{"jsonrpc":"2.0","id":"a","method":"m","params":{},"x":[1]}`,
		`{"jsonrpc":"2.0","id":"` + uuid + `","method":"m","params":{"a":1}}`, "{\n\"jsonrpc\":\"2.0\"}", `[]`, `{"jsonrpc":"2.0","id":"a","method":"","params":{}}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		var accepted [3]*jsonrpc.Message
		for i, e := range []wire.Envelope{mcpEnvelope, strictEnvelope, uuidEnvelope} {
			m, fault := e.Validate(raw)
			if (m == nil) == (fault == nil) || fault != nil && (fault.Kind == 0 || fault.Reason == "") {
				t.Fatalf("%v: %v with %+v", e, m, fault)
			}
			if m == nil {
				continue
			}
			exclusive(t, m)
			again, fault := e.Validate(m.Raw)
			if diff := cmp.Diff(m, again, cmpopts.IgnoreUnexported(jsonrpc.Message{})); fault != nil || diff != "" {
				t.Fatalf("%v: the second time %v\n%s", e, fault, diff)
			}
			accepted[i] = m
		}
		if diff := cmp.Diff(accepted[1], accepted[2], cmpopts.IgnoreUnexported(jsonrpc.Message{})); accepted[2] != nil && diff != "" {
			t.Fatal(diff)
		}
		if accepted[1] != nil && !hasUnknown(accepted[1]) {
			if diff := cmp.Diff(accepted[0], accepted[1], cmpopts.IgnoreUnexported(jsonrpc.Message{})); diff != "" {
				t.Fatal(diff)
			}
		}
	})
}

// exclusive holds a message to the members of its kind.
func exclusive(t *testing.T, m *jsonrpc.Message) {
	t.Helper()
	got := [5]bool{m.ID != nil, m.Method != "", m.Params != nil, m.Result != nil, m.Error != nil}
	ok := map[jsonrpc.Kind]bool{
		jsonrpc.Request:      got[0] && !got[3] && !got[4],
		jsonrpc.Notification: !got[0] && !got[3] && !got[4],
		jsonrpc.Success:      got[0] && !got[1] && !got[2] && got[3] && !got[4],
		jsonrpc.Failure:      !got[1] && !got[2] && !got[3] && got[4],
	}
	if !ok[m.Kind] {
		t.Fatalf("%s has %v: %s", m.Kind, got, m.Raw)
	}
}

func hasUnknown(m *jsonrpc.Message) bool {
	for key := range jsonrpc.Members(m.Raw) {
		switch key {
		case "jsonrpc", "id", "method", "params", "result", "error":
		default:
			return true
		}
	}
	return false
}

func BenchmarkEnvelope(b *testing.B) {
	raw := []byte(`{"jsonrpc":"2.0","id":"` + uuid + `","method":"tools/call","params":{"name":"t","arguments":{"text":"` + strings.Repeat("x", 1000) + `"}}}`)
	for name, e := range map[string]wire.Envelope{"mcp": mcpEnvelope, "strict": uuidEnvelope} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, f := e.Validate(raw); f != nil {
					b.Fatal(f)
				}
			}
		})
	}
}
