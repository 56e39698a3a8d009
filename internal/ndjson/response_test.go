package ndjson_test

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/ndjson"
)

// The response tables of the protocol: what each line means, or why it means
// nothing and to whom that matters.
func TestResponses(t *testing.T) {
	for _, tt := range []struct {
		name, line string
		want       *ndjson.Response // nil: refused
		id         string           // of the refused response
	}{
		{"success", `{"id":"req-2","ok":true,"data":{"action":"a","output":{"n":1e2}}}`, &ndjson.Response{ID: raw(`"req-2"`), OK: true, Data: raw(`{"action":"a","output":{"n":1e2}}`)}, ""},
		{"a bare list", `{"id":"1","ok":true,"data":[]}`, &ndjson.Response{ID: raw(`"1"`), OK: true, Data: raw(`[]`)}, ""},
		{"error", `{"id":"req-3","ok":false,"error":"no"}`, &ndjson.Response{ID: raw(`"req-3"`), Error: "no"}, ""},
		{"issues", `{"ok":false,"error":"Invalid invoke payload","issues":[{"code":"invalid_type","message":"Required","path":["action"]}]}`,
			&ndjson.Response{Error: "Invalid invoke payload", Issues: raw(`[{"code":"invalid_type","message":"Required","path":["action"]}]`)}, ""},
		{"unknown members", `{"id":"1","ok":false,"error":"no","took_ms":5}`, &ndjson.Response{ID: raw(`"1"`), Error: "no"}, ""},

		{"no json", `oops`, nil, ""},
		{"array", `[]`, nil, ""},
		{"no ok", `{"id":"1","data":{}}`, nil, `"1"`},
		{"ok is no boolean", `{"id":"1","ok":"true","data":{}}`, nil, `"1"`},
		{"no data", `{"id":"1","ok":true}`, nil, `"1"`},
		{"data is a string", `{"id":"1","ok":true,"data":"x"}`, nil, `"1"`},
		{"both", `{"id":"1","ok":true,"data":{},"error":"no"}`, nil, `"1"`},
		{"failure with data", `{"id":"1","ok":false,"data":{},"error":"no"}`, nil, `"1"`},
		{"no error", `{"id":"1","ok":false}`, nil, `"1"`},
		{"error is no string", `{"id":"1","ok":false,"error":{}}`, nil, `"1"`},
		{"issues are no array", `{"id":"1","ok":false,"error":"no","issues":{}}`, nil, `"1"`},
		{"id is a number", `{"id":1,"ok":true,"data":{}}`, nil, ""},
		{"ok twice", `{"id":"1","ok":true,"ok":false,"data":{}}`, nil, `"1"`},
		{"ok in two cases", `{"id":"1","ok":true,"OK":false,"data":{}}`, nil, `"1"`},
		{"two ids", `{"id":"1","id":"2","ok":true,"data":{}}`, nil, ""},
		{"id in two cases", `{"id":"1","Id":"2","ok":true,"data":{}}`, nil, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := ndjson.DecodeResponse([]byte(tt.line), jsonrpc.Limits{})
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("response (-want +got):\n%s", diff)
			}
			if tt.want != nil {
				return
			}
			if f, ok := errors.AsType[*jsonrpc.Fault](err); !ok || string(f.ID) != tt.id {
				t.Errorf("error %v, want a fault with id %s", err, tt.id)
			}
		})
	}
}

// The table "Action response fields".
func TestAnswers(t *testing.T) {
	for _, tt := range []struct {
		name, data string
		want       *ndjson.Answer
	}{
		{"whole", `{"action":"a","boundaryNotice":"b","uncertainty":"low","assumptions":["c"],"output":{"n":1}}`,
			&ndjson.Answer{Action: raw(`"a"`), BoundaryNotice: raw(`"b"`), Uncertainty: raw(`"low"`), Assumptions: raw(`["c"]`), Output: raw(`{"n":1}`)}},
		{"output alone", `{"output":{}}`, &ndjson.Answer{Output: raw(`{}`)}},
		{"names of the output are the action's", `{"output":{"a":1,"A":2}}`, &ndjson.Answer{Output: raw(`{"a":1,"A":2}`)}},
		{"no output", `{"action":"a"}`, nil},
		{"output is no object", `{"output":"text"}`, nil},
		{"output in two cases", `{"output":{},"Output":{}}`, nil},
		{"array", `[]`, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, err := ndjson.DecodeResponse([]byte(`{"id":"1","ok":true,"data":`+tt.data+`}`), jsonrpc.Limits{})
			if err != nil {
				t.Fatal(err)
			}
			got, err := r.Answer()
			if diff := cmp.Diff(tt.want, got); diff != "" || (err == nil) != (tt.want != nil) {
				t.Errorf("error %v, answer (-want +got):\n%s", err, diff)
			}
		})
	}
}

// What is written is what the protocol shows.
func TestWritten(t *testing.T) {
	for _, tt := range []struct{ got, want string }{
		{string(ndjson.NewList("req-1")), `{"id":"req-1","type":"list_actions"}`},
		{string(ndjson.NewInvoke("req-2", raw(`"a"`), raw(`{"n":1e2}`))), `{"id":"req-2","type":"invoke","payload":{"action":"a","input":{"n":1e2}}}`},
		{string(ndjson.NewSuccess(raw(`"req-2"`), raw(`{}`))), `{"id":"req-2","ok":true,"data":{}}`},
		{string(ndjson.NewFailure(nil, "Malformed JSON request", nil)), `{"ok":false,"error":"Malformed JSON request"}`},
		{string(ndjson.NewFailure(raw(`"req-4"`), "Invalid invoke payload", []ndjson.Issue{issue("invalid_type", "Required", "action")})),
			`{"id":"req-4","ok":false,"error":"Invalid invoke payload","issues":[{"code":"invalid_type","message":"Required","path":["action"]}]}`},
		{string(ndjson.NewFailure(nil, "x", []ndjson.Issue{{Code: "c", Message: "m", Path: []any{"l", 0}, Ticket: "t", RetryAfterMS: 10, Remedy: "r", DecisionID: "d"}, {}})),
			`{"ok":false,"error":"x","issues":[{"code":"c","message":"m","path":["l",0],"ticket":"t","retry_after_ms":10,"remedy":"r","decision_id":"d"},{"code":"","message":"","path":[]}]}`},
	} {
		if tt.got != tt.want {
			t.Errorf("got  %s\nwant %s", tt.got, tt.want)
		}
	}
}

// FuzzResponse: a line is refused with a fault alone, or is one of the two
// shapes of a response, whose parts are JSON.
func FuzzResponse(f *testing.F) {
	for _, seed := range []string{
		`{"id":"1","ok":true,"data":{"output":{}}}`, `{"ok":false,"error":"x","issues":[1]}`, `{"ok":true,"ok":false}`, `{"id":"1","Ok":true}`, `[]`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		r, err := ndjson.DecodeResponse(line, jsonrpc.Limits{})
		if err != nil {
			if _, ok := errors.AsType[*jsonrpc.Fault](err); !ok || r != nil {
				t.Fatalf("response %v, error %v", r, err)
			}
			return
		}
		if r.OK {
			if !json.Valid(r.Data) || r.Error != "" || r.Issues != nil {
				t.Errorf("success %+v", r)
			}
			if a, err := r.Answer(); err == nil && !json.Valid(a.Output) {
				t.Errorf("output %s", a.Output)
			}
			return
		}
		if r.Data != nil || r.Issues != nil && !json.Valid(r.Issues) {
			t.Errorf("failure %+v", r)
		}
	})
}
