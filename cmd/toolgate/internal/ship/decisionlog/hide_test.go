package decisionlog_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/ship/decisionlog"
	"github.com/toolgate/toolgate/policy"
)

// set and remove are rules of a mask.
func set(path, value string) policy.MaskRule {
	return policy.MaskRule{Path: path, Value: json.RawMessage(value)}
}
func remove(path string) policy.MaskRule { return policy.MaskRule{Path: path} }

func TestHide(t *testing.T) {
	const input = `{"principal":{"subject":"ann"},"arguments":{"list":[1,2,{"a":3}],"a/b":{"c~d":4},"text":"secret","n":10000000000000000000001}}`
	const result = `{"effect":"allow","rule":"r"}`
	for name, test := range map[string]struct {
		rules          []policy.MaskRule
		input, result  string // "" = gone
		erased, masked []string
		by             string
		fault          bool
	}{
		"nothing": {
			input: `{"arguments":{"a/b":{"c~d":4},"list":[1,2,{"a":3}],"n":10000000000000000000001,"text":"secret"},"principal":{"subject":"ann"}}`, result: result, by: "ann",
		},
		"members": {
			rules: []policy.MaskRule{remove("/input/arguments/list"), remove("/input/arguments/text"), remove("/input/arguments/a~1b/c~0d"), remove("/input/arguments/none"), remove("/result/rule")},
			input: `{"arguments":{"a/b":{},"n":10000000000000000000001},"principal":{"subject":"ann"}}`, result: `{"effect":"allow"}`, by: "ann",
			erased: []string{"/input/arguments/list", "/input/arguments/text", "/input/arguments/a~1b/c~0d", "/result/rule"},
		},
		"elements, by the indices that they had": {
			rules: []policy.MaskRule{remove("/input/arguments/list/0"), remove("/input/arguments/list/1"), remove("/input/arguments/list/2/a"), remove("/input/arguments/list/3"),
				remove("/input/arguments/a~1b"), remove("/input/arguments/text"), remove("/input/arguments/n")},
			input: `{"arguments":{"list":[{}]},"principal":{"subject":"ann"}}`, result: result, by: "ann",
			erased: []string{"/input/arguments/list/0", "/input/arguments/list/1", "/input/arguments/list/2/a", "/input/arguments/a~1b", "/input/arguments/text", "/input/arguments/n"},
		},
		"values": {
			rules: []policy.MaskRule{set("/input/arguments", `{"n":1.50}`), set("/input/arguments/new/deep", `[null]`), set("/input/principal/subject", `"hidden"`), set("/result/effect", "null")},
			input: `{"arguments":{"n":1.50,"new":{"deep":[null]}},"principal":{"subject":"hidden"}}`, result: `{"effect":null,"rule":"r"}`, by: "hidden",
			masked: []string{"/input/arguments", "/input/arguments/new/deep", "/input/principal/subject", "/result/effect"},
		},
		"elements get values": {
			rules: []policy.MaskRule{set("/input", `{"list":[1,2]}`), set("/input/list/1", `"x"`), set("/input/list/2", `"y"`)},
			input: `{"list":[1,"x"]}`, result: result, masked: []string{"/input", "/input/list/1"},
		},
		"what is removed stays so": {
			rules: []policy.MaskRule{remove("/input/principal"), set("/input/principal", `{"subject":"x"}`), set("/input/principal/subject", `"x"`),
				set("/input/arguments", `{"list":[1,2]}`), remove("/input/arguments/list/0"), set("/input/arguments/list/0", "7"), remove("/input/arguments/list/0")},
			input: `{"arguments":{"list":[2]}}`, result: result,
			erased: []string{"/input/principal", "/input/arguments/list/0"}, masked: []string{"/input/arguments"}, fault: false,
		},
		"whole documents":      {rules: []policy.MaskRule{remove("/input"), remove("/result"), remove("/nd_builtin_cache"), remove("/nd_builtin_cache/x")}, erased: []string{"/input", "/result"}},
		"through text":         {rules: []policy.MaskRule{remove("/input/arguments/text/number")}, fault: true},
		"a value through text": {rules: []policy.MaskRule{set("/input/arguments/text/number", "1")}, fault: true},
		"a list by a name":     {rules: []policy.MaskRule{remove("/input/arguments/list/a")}, fault: true},
		"a list from its end":  {rules: []policy.MaskRule{remove("/input/arguments/list/-1")}, fault: true},
		"a value that is none": {rules: []policy.MaskRule{set("/input", "{")}, fault: true},
	} {
		t.Run(name, func(t *testing.T) {
			e := decisionlog.Event{Input: json.RawMessage(input), Result: json.RawMessage(result), RequestedBy: "ann"}
			err := e.Hide(test.rules)
			if (err != nil) != test.fault {
				t.Fatal(err)
			}
			if test.fault {
				if strings.Contains(err.Error(), "secret") {
					t.Errorf("the error quotes the event: %v", err)
				}
				return
			}
			want := decisionlog.Event{Erased: test.erased, Masked: test.masked, RequestedBy: test.by}
			if test.input != "" {
				want.Input = json.RawMessage(test.input)
			}
			if test.result != "" {
				want.Result = json.RawMessage(test.result)
			}
			if diff := cmp.Diff(want, e); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// Of a decision whose mask fails only the id is told, and that it failed.
func TestMaskFailsClosed(t *testing.T) {
	r := record(1, "d1")
	for name, mask := range map[string]decisionlog.Masker{
		"the policy": func(context.Context, json.RawMessage) (policy.Mask, error) {
			return policy.Mask{}, errors.New("planted")
		},
		"the drop": func(context.Context, json.RawMessage) (policy.Mask, error) {
			return policy.Mask{Drop: true}, errors.New("planted")
		},
		"its outcome": func(context.Context, json.RawMessage) (policy.Mask, error) {
			return policy.Mask{Rules: []policy.MaskRule{remove("/input/arguments/card/number")}}, nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			e, err := decisionlog.EventOf(r, map[string]string{"app": "toolgate"})
			if err != nil {
				t.Fatal(err)
			}
			told, err := decisionlog.MaskedEvent(t.Context(), mask, e)
			if err == nil {
				t.Error("no error")
			}
			const want = `{"labels":{"app":"toolgate","id":"chain"},"decision_id":"d1","erased":["/input","/result"],"timestamp":"2026-01-02T03:04:05Z",` +
				`"custom":{"mask":"it failed, so nothing else of this decision is shipped"}}`
			if string(told) != want {
				t.Errorf("got  %s\nwant %s", told, want)
			}
		})
	}
	e, err := decisionlog.EventOf(r, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if told, err := decisionlog.MaskedEvent(ctx, func(ctx context.Context, _ json.RawMessage) (policy.Mask, error) { return policy.Mask{}, ctx.Err() }, e); told != nil || err == nil {
		t.Errorf("at the end of the shipper: %s, %v", told, err)
	}
}

var noon = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// record is a decision as the trail holds it; card is text where a mask may
// expect an object.
func record(seq uint64, id string) *audit.Record {
	return &audit.Record{
		V: 1, Seq: seq, Kind: audit.KindDecision, Instance: "chain", Time: noon, DecisionID: id, TraceID: "trc_1",
		Principal: audit.Principal{Subject: "ann", Roles: []string{"payer"}, Client: "c/1"},
		Transport: "http", Era: "2025-06-18", RequestID: "7", Server: "bank", Tool: "pay", Exposed: "bank__pay", Fingerprint: "sha256:f",
		Arguments: json.RawMessage(`{"amount":10000000000000000000001,"card":"4111 < 5"}`),
		Policy: audit.Policy{Effect: "hold", Rule: "large", Reason: "an amount above 100", Remedy: "wait", Revision: "sha256:r",
			Obligations: json.RawMessage(`{"approval":{"roles":["cfo"],"ttl":"15m0s"},"redact":["/iban"],"labels":{"rule":"large"}}`)},
		Input: json.RawMessage(`{"tool":{"risk":"high"},"request":{"time":"2026-01-02T03:04:04Z"},"usage":{"day":{"calls":2,"sum":0.3}}}`),
	}
}
