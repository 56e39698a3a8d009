package ndjson_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/ndjson"
)

type raw = json.RawMessage

// decodeFault decodes and gives the fault.
func decodeFault(t *testing.T, line string) (*ndjson.Request, *ndjson.Fault) {
	t.Helper()
	r, f := ndjson.Decode([]byte(line), 0)
	if (r == nil) == (f == nil) {
		t.Fatalf("request %v and fault %v, want exactly one", r, f)
	}
	return r, f
}

func TestRequests(t *testing.T) {
	for _, tt := range []struct {
		name, line string
		want       ndjson.Request
	}{
		{"list_actions", `{"id":"req-1","type":"list_actions"}`, ndjson.Request{ID: raw(`"req-1"`), Type: "list_actions"}},
		{"invoke", `{"id":"req-2","type":"invoke","payload":{"action":"supportive_reply","input":{"message":"I feel overwhelmed","risk_level":"medium"}}}`,
			ndjson.Request{ID: raw(`"req-2"`), Type: "invoke", Action: "supportive_reply", Input: raw(`{"message":"I feel overwhelmed","risk_level":"medium"}`)}},
		{"without id", `{"type":"list_actions"}`, ndjson.Request{Type: "list_actions"}},
		{"a list with a payload", `{"type":"list_actions","payload":{"action":5}}`, ndjson.Request{Type: "list_actions"}},
		{"without input", `{"type":"invoke","payload":{"action":"a"}}`, ndjson.Request{Type: "invoke", Action: "a", Input: raw(`{}`)}},
		{"white space around", " \t{\"type\":\"list_actions\"} \r", ndjson.Request{Type: "list_actions"}},
		{"members in any order", `{"payload":{"input":{},"action":"a"},"type":"invoke","id":"x"}`, ndjson.Request{ID: raw(`"x"`), Type: "invoke", Action: "a", Input: raw(`{}`)}},
		{"escaped names are the same names", `{"\u0074ype":"\u0069nvoke","payload":{"action":"\u0061"}}`, ndjson.Request{Type: "invoke", Action: "a", Input: raw(`{}`)}},
		{"an id is echoed as it is spelled", `{"id":"\u0061","type":"list_actions"}`, ndjson.Request{ID: raw(`"\u0061"`), Type: "list_actions"}},
		{"input bytes stay", `{"type":"invoke","payload":{"action":"a","input":{ "n" : 1e2, "N":9007199254740993,"s":"\u003c<\u2028"}}}`,
			ndjson.Request{Type: "invoke", Action: "a", Input: raw(`{ "n" : 1e2, "N":9007199254740993,"s":"\u003c<\u2028"}`)}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, f := decodeFault(t, tt.line)
			if f != nil {
				t.Fatalf("refused: %v", f)
			}
			if diff := cmp.Diff(tt.want, *got); diff != "" {
				t.Errorf("request (-want +got):\n%s", diff)
			}
		})
	}
}

func issue(code, message string, path ...any) ndjson.Issue {
	return ndjson.Issue{Code: code, Message: message, Path: path}
}

// The request tables of the protocol, read for what they forbid.
func TestRequestsRefused(t *testing.T) {
	required := func(path ...any) ndjson.Issue { return issue("invalid_type", "Required", path...) }
	for _, tt := range []struct {
		name, line, text, id string
		issues               []ndjson.Issue
	}{
		{"no json", `hello`, ndjson.Malformed, "", nil},
		{"unfinished", `{"id":"a","type":"list_actions"`, ndjson.Malformed, `"a"`, nil},
		{"unfinished id", `{"id":"a`, ndjson.Malformed, "", nil},
		{"id behind the fault", `{"type":x,"id":"a"}`, ndjson.Malformed, "", nil},
		{"two values", `{"type":"list_actions"} {"type":"list_actions"}`, ndjson.Malformed, "", nil},
		{"byte order mark", "\ufeff" + `{"type":"list_actions"}`, ndjson.Malformed, "", nil},
		{"invalid UTF-8", "{\"type\":\"\xff\"}", ndjson.Malformed, "", nil},
		{"lone surrogate", `{"id":"\ud800","type":"list_actions"}`, ndjson.Malformed, "", nil},

		{"array", `[{"type":"list_actions"}]`, ndjson.InvalidEnvelope, "", []ndjson.Issue{issue("invalid_type", "Expected object, received array")}},
		{"no type", `{"id":"a"}`, ndjson.InvalidEnvelope, `"a"`, []ndjson.Issue{required("type")}},
		{"type is no string", `{"id":"a","type":1}`, ndjson.InvalidEnvelope, `"a"`, []ndjson.Issue{issue("invalid_type", "Expected string, received number", "type")}},
		{"unknown type", `{"id":"a","type":"delete"}`, ndjson.InvalidEnvelope, `"a"`, []ndjson.Issue{issue("invalid_enum_value", "Expected 'list_actions' or 'invoke', received 'delete'", "type")}},
		{"type in capitals", `{"type":"Invoke","payload":{"action":"a"}}`, ndjson.InvalidEnvelope, "", []ndjson.Issue{issue("invalid_enum_value", "Expected 'list_actions' or 'invoke', received 'Invoke'", "type")}},
		{"id is a number", `{"id":1,"type":"list_actions"}`, ndjson.InvalidEnvelope, "", []ndjson.Issue{issue("invalid_type", "Expected string, received number", "id")}},
		{"id is null", `{"id":null,"type":"list_actions"}`, ndjson.InvalidEnvelope, "", []ndjson.Issue{issue("invalid_type", "Expected string, received null", "id")}},
		{"long id", `{"id":"` + strings.Repeat("x", 300) + `","type":"list_actions"}`, ndjson.InvalidEnvelope, "", []ndjson.Issue{issue("too_big", "An id has at most 256 bytes", "id")}},
		{"two ids", `{"id":"a","id":"b","type":"list_actions"}`, ndjson.InvalidEnvelope, "", []ndjson.Issue{issue("invalid_json", `duplicate key "id"`)}},
		{"two types", `{"id":"a","type":"list_actions","type":"invoke"}`, ndjson.InvalidEnvelope, `"a"`, []ndjson.Issue{issue("invalid_json", `duplicate key "type"`)}},
		{"type in two cases", `{"id":"a","type":"list_actions","Type":"invoke"}`, ndjson.InvalidEnvelope, `"a"`, []ndjson.Issue{issue("unrecognized_keys", `Unrecognized key "Type"`)}},
		{"id in two cases", `{"id":"a","ID":"b","type":"list_actions"}`, ndjson.InvalidEnvelope, "", []ndjson.Issue{issue("unrecognized_keys", `Unrecognized key "ID"`)}},
		{"unknown member", `{"id":"a","type":"list_actions","version":1}`, ndjson.InvalidEnvelope, `"a"`, []ndjson.Issue{issue("unrecognized_keys", `Unrecognized key "version"`)}},
		{"payload is no object", `{"id":"a","type":"invoke","payload":[]}`, ndjson.InvalidEnvelope, `"a"`, []ndjson.Issue{issue("invalid_type", "Expected object, received array", "payload")}},
		{"input with a member twice", `{"id":"a","type":"invoke","payload":{"action":"a","input":{"l":[{"x":1,"x":2}]}}}`, ndjson.InvalidEnvelope, `"a"`,
			[]ndjson.Issue{issue("invalid_json", `duplicate key "x"`, "payload", "input", "l", 0)}},
		{"too deep", `{"id":"a","type":"invoke","payload":{"action":"a","input":{"d":` + strings.Repeat("[", 62) + strings.Repeat("]", 62) + `}}}`, ndjson.InvalidEnvelope, `"a"`, nil},

		{"no payload", `{"id":"a","type":"invoke"}`, ndjson.InvalidPayload, `"a"`, []ndjson.Issue{required()}},
		{"no action", `{"id":"req-4","type":"invoke","payload":{"input":{}}}`, ndjson.InvalidPayload, `"req-4"`, []ndjson.Issue{required("action")}},
		{"action is no string", `{"type":"invoke","payload":{"action":{}}}`, ndjson.InvalidPayload, "", []ndjson.Issue{issue("invalid_type", "Expected string, received object", "action")}},
		{"empty action", `{"type":"invoke","payload":{"action":""}}`, ndjson.InvalidPayload, "", []ndjson.Issue{issue("too_small", "An action has a name", "action")}},
		{"input is no object", `{"type":"invoke","payload":{"action":"a","input":[1]}}`, ndjson.InvalidPayload, "", []ndjson.Issue{issue("invalid_type", "Expected object, received array", "input")}},
		{"input is null", `{"type":"invoke","payload":{"action":"a","input":null}}`, ndjson.InvalidPayload, "", []ndjson.Issue{issue("invalid_type", "Expected object, received null", "input")}},
		{"input in capitals", `{"type":"invoke","payload":{"action":"a","Input":{}}}`, ndjson.InvalidPayload, "", []ndjson.Issue{issue("unrecognized_keys", `Unrecognized key "Input"`)}},
		{"two faults", `{"id":"a","type":"invoke","payload":{"input":true}}`, ndjson.InvalidPayload, `"a"`,
			[]ndjson.Issue{required("action"), issue("invalid_type", "Expected object, received boolean", "input")}},

		{"too large", `{"id":"a","type":"invoke","payload":{"action":"` + strings.Repeat("x", ndjson.MaxLine) + `"}}`, ndjson.Oversized, `"a"`, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, f := decodeFault(t, tt.line)
			if f == nil {
				t.Fatal("accepted")
			}
			if f.Text != tt.text || string(f.ID) != tt.id || f.Cause == nil {
				t.Errorf("text %q, id %q, cause %v; want %q, %q", f.Text, f.ID, f.Cause, tt.text, tt.id)
			}
			if diff := cmp.Diff(tt.issues, f.Issues); diff != "" && tt.name != "too deep" {
				t.Errorf("issues (-want +got):\n%s", diff)
			}
		})
	}
}

// The size limit counts the line without its end, to the byte.
func TestLargestRequest(t *testing.T) {
	line := `{"type":"invoke","payload":{"action":"a","input":{"s":"` + strings.Repeat("x", ndjson.MaxLine)
	const tail = `"}}}`
	if r, f := decodeFault(t, line[:ndjson.MaxLine-len(tail)]+tail); f != nil {
		t.Errorf("a line of %d bytes is refused: %+v", ndjson.MaxLine, f)
	} else if len(r.Input) == 0 {
		t.Error("no input")
	}
	if _, f := decodeFault(t, line[:ndjson.MaxLine+1-len(tail)]+tail); f == nil || f.Text != "Request exceeds maximum size (512 KB)" || f.Cause.Kind != jsonrpc.TooLarge {
		t.Errorf("a line of %d bytes: %v", ndjson.MaxLine+1, f)
	}
}

// The texts of the protocol, word by word.
func TestTexts(t *testing.T) {
	for _, tt := range []struct{ got, want string }{
		{ndjson.Malformed, "Malformed JSON request"},
		{ndjson.InvalidEnvelope, "Invalid request envelope"},
		{ndjson.InvalidPayload, "Invalid invoke payload"},
		{ndjson.Oversized, "Request exceeds maximum size (512 KB)"},
		{ndjson.UnknownAction("x"), "Unknown action: 'x'"},
		{ndjson.InvalidInput("supportive_reply", "Required field 'message' is missing or empty"),
			"Input validation failed for action 'supportive_reply': Required field 'message' is missing or empty"},
	} {
		if tt.got != tt.want {
			t.Errorf("got %q, want %q", tt.got, tt.want)
		}
	}
}

func TestPath(t *testing.T) {
	value := raw(`{"a":[{"b/c":1}],"0":{"~":2}}`)
	for _, tt := range []struct {
		pointer string
		want    []any
	}{
		{"", nil},
		{"/a/0/b~1c", []any{"a", 0, "b/c"}},
		{"/0/~0", []any{"0", "~"}},
		{"/a/7/x", []any{"a", "7", "x"}}, // not there
		{"/missing/0", []any{"missing", "0"}},
	} {
		if diff := cmp.Diff(tt.want, ndjson.Path(value, tt.pointer)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.pointer, diff)
		}
	}
}

// FuzzDecode: a line is refused with a fault and nothing else, or read so that
// the same request can be written and read again, with the input's own bytes.
func FuzzDecode(f *testing.F) {
	for _, seed := range []string{
		`{"id":"req-1","type":"list_actions"}`, `{"type":"invoke","payload":{"action":"a","input":{"n":[1,{"x":1e9}]}}}`,
		`{"id":1,"type":"list_actions"}`, `{"id":"a","id":"b"}`, `{"Type":"invoke"}`, "{", "[]", `{"type":"invoke","payload":{"action":"\u0000"}}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		r, fault := ndjson.Decode(line, 0)
		if fault != nil {
			if r != nil || fault.Cause == nil || fault.Text == "" {
				t.Fatalf("request %v, fault %+v", r, fault)
			}
			if answer := ndjson.NewFailure(fault.ID, fault.Text, fault.Issues); !json.Valid(answer) {
				t.Fatalf("answer %s", answer)
			}
			return
		}
		if r.Type == ndjson.ListActions {
			return
		}
		again, fault := ndjson.Decode(ndjson.NewInvoke("x", jsonrpc.Quote(r.Action), r.Input), 0)
		if len(line) < ndjson.MaxLine/8 && fault != nil {
			t.Fatalf("reading again: %+v", fault)
		}
		if fault == nil && (again.Action != r.Action || string(again.Input) != string(r.Input)) {
			t.Errorf("read %q %s, then %q %s", r.Action, r.Input, again.Action, again.Input)
		}
	})
}
