package rego_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/policy"
)

const metered = `decision := {"effect": "hold", "rule": "over", "approval": {"roles": ["boss"]}} if {
	is_number(input.arguments.amount)
	input.usage.day.sum + input.arguments.amount > 1000
}

decision := {"effect": "allow", "rule": "below"} if {
	is_number(input.arguments.amount)
	not input.usage.day.sum + input.arguments.amount > 1000
}
`

func TestMeters(t *testing.T) {
	e := load(t, "p.rego", module(metered), "data.json", `{"usage": {"pay": {
		"day": {"window": "24h", "sum": "/amount", "per": ["/asset", "/to/0"], "where": {"/action": ["transfer", 1.50, null]}, "most": 1000},
		"calls": {"window": "1h"}}, "idle": {}}}`)
	want := []policy.Meter{{Name: "calls", Window: time.Hour}, {
		Name: "day", Window: 24 * time.Hour, Sum: "/amount", Per: []string{"/asset", "/to/0"},
		Where: map[string][]json.RawMessage{"/action": {json.RawMessage(`"transfer"`), json.RawMessage(`1.50`), json.RawMessage(`null`)}},
	}}
	if diff := cmp.Diff(want, e.Meters(policy.Tool{Server: "s", Name: "x", Exposed: "pay"})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for _, exposed := range []string{"idle", "other", ""} {
		if got := e.Meters(policy.Tool{Name: "pay", Exposed: exposed}); got != nil {
			t.Errorf("%q is counted by %v", exposed, got)
		}
	}
	for sum, rule := range map[json.Number]string{"0": "below", "900": "below", "901": "over", "1e3": "over",
		"900.00000000000000000000000000000": "below", "999999999999999999999999999999999999": "over"} {
		in := input("r", "pay", `{"amount": 100}`)
		in.Usage = map[string]policy.Reading{"day": {Calls: 1, Sum: sum}, "calls": {Sum: "0"}}
		if d, err := e.Decide(t.Context(), in); err != nil || d.Rule != rule {
			t.Errorf("after %s: %+v, %v", sum, d, err)
		}
	}
}

// Every fault in data.usage is a reason not to load, and says where it is.
func TestBrokenMeters(t *testing.T) {
	for data, want := range map[string]string{
		`7`:                                     "data.usage: is no object",
		`{"pay": []}`:                           "data.usage.pay: is no object",
		`{"": {}}`:                              "data.usage: a member has no name",
		`{"pay": {"": {}}}`:                     "data.usage.pay: a member has no name",
		`{"pay": {"day": "24h"}}`:               "data.usage.pay.day: is no object",
		`{"pay": {"day": {}}}`:                  "data.usage.pay.day.window: is missing",
		`{"pay": {"day": {"window": 24}}}`:      `data.usage.pay.day.window: is 24, not a duration`,
		`{"pay": {"day": {"window": "24"}}}`:    `is "24", not a duration from 1s`,
		`{"pay": {"day": {"window": "1ms"}}}`:   `is "1ms", not a duration from 1s`,
		`{"pay": {"day": {"window": "-24h"}}}`:  `is "-24h", not a duration from 1s`,
		`{"pay": {"day": {"window": "9000h"}}}`: `is "9000h", not a duration from 1s to 8784h0m0s`,
		`{"pay": {"day": {"window": "24h", "sum": "amount"}}}`:                       `data.usage.pay.day.sum: "amount" is no pointer into the arguments, and no fact of the tool (hint: "/amount")`,
		`{"pay": {"day": {"window": "24h", "sum": ""}}}`:                             `data.usage.pay.day.sum: "" is no pointer`,
		`{"pay": {"day": {"window": "24h", "sum": null}}}`:                           `data.usage.pay.day.sum: null is no pointer`,
		`{"pay": {"day": {"window": "24h", "per": "/asset"}}}`:                       `data.usage.pay.day.per: is "/asset", not a list`,
		`{"pay": {"day": {"window": "24h", "per": ["/a~2"]}}}`:                       `data.usage.pay.day.per: "/a~2" is no pointer`,
		`{"pay": {"day": {"window": "24h", "where": ["transfer"]}}}`:                 `data.usage.pay.day.where: is ["transfer"], not an object`,
		`{"pay": {"day": {"window": "24h", "where": {"action": ["transfer"]}}}}`:     `data.usage.pay.day.where: "action" is no pointer to a list of values`,
		`{"pay": {"day": {"window": "24h", "where": {"/action": "transfer"}}}}`:      `data.usage.pay.day.where: "/action" is no pointer to a list of values`,
		`{"pay": {"day": {"window": "24h", "sums": "/amount"}}}`:                     `data.usage.pay.day.sums: is not known`,
		`{"pay": {"day": {"window": "24h", "Where": {}}}}`:                           `data.usage.pay.day.Where: is not known`,
		`{"pay": {"day": {"window": "24"}}, "get": {"n": {"window": "1h"}, "m": 1}}`: "data.usage.get.m: is no object",
	} {
		_, err := tryLoad(t, "p.rego", module(metered), "data.json", `{"usage": `+data+`}`)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", data, err, want)
		}
	}
	_, err := tryLoad(t, "p.rego", module(metered), "data.json", `{"usage": {"a": {"day": {"window": "24"}}, "b": {"day": {"sum": 1}}}}`)
	if err == nil || !strings.Contains(err.Error(), "data.usage.a.day.window") || !strings.Contains(err.Error(), "data.usage.b.day.window") {
		t.Errorf("not all faults are told: %v", err)
	}
}

// Metered tools are tried as they are judged: with usage.
func TestMetersAreTried(t *testing.T) {
	const broken = `decision := {"effect": "allow", "rule": "r"} if to_number(sprintf("%v items", [input.usage.day.sum])) > 0`
	if _, err := tryLoad(t, "p.rego", module(broken)); err != nil {
		t.Fatalf("without a meter nothing can be tried: %v", err)
	}
	_, err := tryLoad(t, "p.rego", module(broken), "data.json", `{"usage": {"pay": {"day": {"window": "24h"}}}}`)
	if err == nil || !strings.Contains(err.Error(), `calls "pay"`) {
		t.Errorf("a rule that fails on usage serves: %v", err)
	}
}
