package policy_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/policy"
)

func TestDocument(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	who := policy.Principal{Subject: "a", Roles: []string{"r"}, Client: "c/1", Tenant: "t", Scopes: []string{}}
	for name, test := range map[string]struct {
		in   policy.Input
		want string
	}{
		"a call": {
			policy.Input{Action: policy.ActionCall, Principal: who, Tool: policy.Tool{Server: "s", Name: "n", Exposed: "s__n", Risk: "high", Fingerprint: "f"},
				Arguments: json.RawMessage(`{"amount":10000000000000000000001}`), Request: policy.Request{ID: "1", Transport: "http", Time: now},
				Usage: map[string]policy.Reading{"day": {Calls: 2, Sum: "0.3"}}},
			`{"action":"tools/call","principal":{"subject":"a","roles":["r"],"client":"c/1","tenant":"t","scopes":[]},` +
				`"tool":{"server":"s","name":"n","exposed":"s__n","risk":"high","fingerprint":"f"},"arguments":{"amount":10000000000000000000001},` +
				`"request":{"id":"1","transport":"http","era":"","trace_id":"","time":"2026-01-02T03:04:05.000000006Z"},"usage":{"day":{"calls":2,"sum":0.3}}}`,
		},
		"a resource": {
			policy.Input{Action: "resources/read", Principal: who, Resource: &policy.Resource{Server: "s", URI: "u"}, Arguments: json.RawMessage("{}"), Request: policy.Request{Time: now}},
			`{"action":"resources/read","principal":{"subject":"a","roles":["r"],"client":"c/1","tenant":"t","scopes":[]},"resource":{"server":"s","uri":"u"},` +
				`"arguments":{},"request":{"id":"","transport":"","era":"","trace_id":"","time":"2026-01-02T03:04:05.000000006Z"}}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := json.Marshal(test.in)
			if err != nil || string(got) != test.want {
				t.Fatalf("got %s, %v; want %s", got, err, test.want)
			}
			var back policy.Input
			if err := json.Unmarshal(got, &back); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.in, back); diff != "" {
				t.Errorf("read back (-want +got):\n%s", diff)
			}
		})
	}
}

func TestDocumentByHand(t *testing.T) {
	for raw, fault := range map[string]string{
		`{"principal":{"subject":"a"},"tool":{"exposed":"t"}}`:                               "",
		`{"action":"prompts/get","principal":{"subject":"a"},"prompt":{"server":"s"}}`:       "",
		`{"principal":{"subject":"a"},"tool":{"nam":"t"}}`:                                   `unknown field "nam"`,
		`{"principal":{"subject":"a"}}`:                                                      "tool: wanted",
		`{"action":"prompts/get","prompt":{},"tool":{}}`:                                     "tool: wanted for tools/call, and for that only",
		`{"principal":{"subject":"a"},"tool":{"exposed":"t"},"request":{"time":"tomorrow"}}`: "parsing time",
	} {
		var in policy.Input
		err := json.Unmarshal([]byte(raw), &in)
		if (err == nil) != (fault == "") || err != nil && !strings.Contains(err.Error(), fault) {
			t.Errorf("%s: got %v, want %q", raw, err, fault)
		}
	}
}
