package rego_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/judgement"
	"github.com/toolgate/toolgate/policy/rego"
	"github.com/toolgate/toolgate/policy/workbench"
)

// stating is a policy on the facts of tool pay.
const stating = `decision := {"effect": "allow", "rule": "small"} if input.facts.amount <= 150

decision := {"effect": "deny", "rule": "large"} if not input.facts.amount <= 150
`

const payFacts = `{"facts": {"pay": {
	"asset": {"kind": "label", "at": ["/asset"]},
	"amount": {"kind": "amount", "at": ["/amount", "/value"], "asset": "asset", "decimals": {"USD": 2}}}}}`

// TestIndependentOfFacts holds that facts count as read from the arguments, where the tool
// has some.
func TestIndependentOfFacts(t *testing.T) {
	t.Parallel()
	e := load(t, "p.rego", module(stating), "data.json", payFacts)
	for tool, want := range map[string]bool{"pay": false, "other": true} {
		if got := e.Independent(t.Context(), input("r", tool, `{"asset":"USD","pin":"1"}`), "pin"); got != want {
			t.Errorf("the verdict on %s is independent of pin: %v", tool, got)
		}
	}
}

// TestFactsOfCalls holds that a policy gets the facts of a call from the arguments and
// from nothing else, from whoever judges.
func TestFactsOfCalls(t *testing.T) {
	e := load(t, "p.rego", module(stating), "data.json", payFacts)
	for arguments, want := range map[string]string{
		`{"asset":"USD","amount":"1.50"}`:                              "small",
		`{"asset":"USD","value":1.5}`:                                  "small",
		`{"asset":"USD","amount":1.51}`:                                "large",
		`{"asset":"USD","amount":1,"value":1}`:                         "large",
		`{"asset":"EUR","amount":1}`:                                   "large",
		`{"amount":1}`:                                                 "large",
		`{"facts":{"amount":1}}`:                                       "large",
		`{"asset":"USD","amount":null,"_meta":{"facts":{"amount":1}}}`: "large",
		``: "large",
	} {
		in := input("r", "pay", arguments)
		in.Facts = json.RawMessage(`{"amount": 1}`) // what a caller or a test says is not believed
		in.Tool.Annotations = json.RawMessage(`{"facts": {"amount": 1}}`)
		for who, decide := range map[string]func() (policy.Decision, error){
			"engine":    func() (policy.Decision, error) { return e.Decide(t.Context(), in) },
			"again":     func() (policy.Decision, error) { return e.Decide(t.Context(), in) },
			"fully":     func() (policy.Decision, error) { return e.DecideFully(t.Context(), in) },
			"reference": func() (policy.Decision, error) { return e.Reference().Decide(t.Context(), in) },
			"explained": func() (policy.Decision, error) {
				x, err := workbench.Explain(t.Context(), e, in, false)
				return x.Decision, err
			},
		} {
			if d, err := decide(); err != nil || d.Rule != want {
				t.Errorf("%s: %s: %+v, %v; want %s", arguments, who, d, err, want)
			}
		}
	}
	x, err := workbench.Explain(t.Context(), e, input("r", "pay", `{"asset":"USD","value":"2"}`), false)
	if err != nil || facts(x)["input.facts.amount"] != "200" {
		t.Errorf("explained by %v, %v", facts(x), err)
	}
}

// TestFactsOfRecords: a recorded call has no facts, and is judged by the same ones.
func TestFactsOfRecords(t *testing.T) {
	e := load(t, "p.rego", module(stating), "data.json", payFacts)
	for arguments, want := range map[string]string{`{"asset":"USD","value":"1.50"}`: "small", `{"asset":"USD","value":"1.51"}`: "large"} {
		in := input("r", "pay", arguments)
		in.Facts = json.RawMessage(`{"amount":1}`)
		r := &audit.Record{Kind: audit.KindDecision, Arguments: in.Arguments, Policy: audit.Policy{Effect: "deny", Rule: want}}
		if r.Input = judgement.EncodeInput(in, r); strings.Contains(string(r.Input), "facts") {
			t.Errorf("recorded as %s", r.Input)
		}
		again, err := judgement.Again(t.Context(), e, r)
		if err != nil || again.Now.Rule != want {
			t.Errorf("%s judged again: %+v, %v", arguments, again, err)
		}
	}
}

// TestFactsAreKeyedByExposedName: a tool of the same name on another server has no facts.
func TestFactsAreKeyedByExposedName(t *testing.T) {
	e := load(t, "p.rego", module(stating), "data.json", payFacts)
	in := input("r", "evil__pay", `{"asset":"USD","amount":1}`)
	in.Tool.Name, in.Facts = "pay", json.RawMessage(`{"amount": 1}`)
	if d, err := e.Decide(t.Context(), in); err != nil || d.Rule != "large" {
		t.Errorf("%+v, %v", d, err)
	}
	if d, err := e.Reference().Decide(t.Context(), in); err != nil || d.Rule != "large" {
		t.Errorf("reference: %+v, %v", d, err)
	}
}

// TestFactsAreNotConstant: a verdict that depends on facts is judged at each call.
func TestFactsAreNotConstant(t *testing.T) {
	e := load(t, "p.rego", module(stating), "data.json", payFacts)
	in := input("r", "pay", "")
	if e.Constant(t.Context(), in.Principal, in.Tool) {
		t.Error("a verdict on facts counts as constant")
	}
	for _, amount := range []string{"1", "2", "1", "3"} {
		want := map[bool]string{true: "small", false: "large"}[amount == "1"]
		if d, err := e.Decide(t.Context(), input("r", "pay", `{"asset":"USD","amount":`+amount+`}`)); err != nil || d.Rule != want {
			t.Errorf("%s: %+v, %v", amount, d, err)
		}
	}
}

func TestBrokenFacts(t *testing.T) {
	for data, want := range map[string]string{
		`7`:                        "data.facts: is no object",
		`{"": {}}`:                 "data.facts: a member has no name",
		`{"pay": true}`:            `data.facts.pay: is no object (hint: {"contract": "manage_wallet"})`,
		`{"pay": {"contract": 7}}`: "data.facts.pay: contract: 7 has no facts (hint: toolgate tools --describe)",
		`{"pay": {"contract": "search_internet"}}`:                                    `data.facts.pay: contract: "search_internet" has no facts`,
		`{"pay": {"a": {"kind": "sum"}}, "get": {"b": {"kind": "value"}}}`:            "data.facts.get: b: at: is no list of JSON Pointers",
		`{"pay": {"contract": "manage_wallet", "amount": {"decimals": {"USD": -1}}}}`: "data.facts.pay: amount: decimals: USD has -1",
		`{"pay": {"contract": "manage_wallet", "amount": {"asset": "coin"}}}`:         `data.facts.pay: amount: asset: "coin" is no fact`,
	} {
		_, err := tryLoad(t, "p.rego", module(stating), "data.json", `{"facts": `+data+`}`)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", data, err, want)
		}
	}
	_, err := tryLoad(t, "p.rego", module(stating), "data.json", `{"facts": {"pay": {"contract": "manage_wallet"}}, "usage": {"pay": {"day": {"window": "1h", "sum": "amounts"}}}}`)
	if err == nil || !strings.Contains(err.Error(), `data.usage.pay.day.sum: "amounts" is no pointer into the arguments, and no fact of the tool`) {
		t.Errorf("a meter of no fact: %v", err)
	}
}

// TestAConfigurationAddsFacts: an overlay declares the decimals of tokens and the address
// book besides those of the policy.
func TestAConfigurationAddsFacts(t *testing.T) {
	e, err := rego.Load(t.Context(), rego.Options{Timeout: testTimeout, Data: json.RawMessage(`{
		"facts": {"manage_wallet": {"asset": {"labels": {"USDC": ["0x8617E340B3D01FA5F11F306F4090FD50E238070D"]}},
			"amount": {"decimals": {"USDC": 6}}, "destination": {"labels": {"acme": ["0x52908400098527886E0F7030069857D2E4169EE7"]}}}},
		"thresholds": {"manage_wallet": {"amount": {"most": {"USDC": 100}}}},
		"models": {"generate_media": {"gpt-image-1": true}}}`)})
	if err != nil {
		t.Fatal(err)
	}
	const token = `{"action":"transfer","tokenAddress":"0x8617E340B3D01FA5F11F306F4090FD50E238070D","destinationAddress":"0x52908400098527886E0F7030069857D2E4169EE7","value":"`
	for arguments, want := range map[string]string{
		token + `100"}`:        "usage-above-threshold", // no bound of a day for it
		token + `100.000001"}`: "amount-above-threshold",
		token + `0.0000001"}`:  "amount-not-a-positive-number",
		`{"action":"transfer","asset":"ETH","amount":"0.01","destination":"0x52908400098527886E0F7030069857D2E4169EE7"}`: "role-has-tool",
		`{"action":"transfer","asset":"ETH","amount":"0.01","destination":"0x8617E340B3D01FA5F11F306F4090FD50E238070D"}`: "argument-not-known",
	} {
		if d, err := e.Decide(t.Context(), input("treasurer", "manage_wallet", arguments)); err != nil || d.Rule != want {
			t.Errorf("%s: %+v, %v; want %s", arguments, d, err, want)
		}
	}
	if d, err := e.Decide(t.Context(), input("creator", "generate_media", `{"model":"gpt-image-1"}`)); err != nil || d.Effect != policy.Allow {
		t.Errorf("a configured model: %+v, %v", d, err)
	}
}

// TestAConfigurationStatesSizes: the sizes in an overlay replace those of the contract, and
// the default policy judges an image by them.
func TestAConfigurationStatesSizes(t *testing.T) {
	const stated = `{"facts": {"generate_media": {"pixels": {"sizes": {"1:1": "1024x1024", "4:3": "2048x1024", "16:9": "2049x1024"}}}}`
	tighter := stated + `, "tools": {"generate_media": {"facts": {"pixels": {"max": 1048576}}}}}`
	for _, c := range []struct{ data, aspect, want string }{
		{"", "16:9", "role-has-tool"},
		{"", "2049x1024", "image-too-large"},
		{"", "2:1", "image-too-large"},
		{stated + "}", "1:1", "role-has-tool"},
		{stated + "}", "4:3", "role-has-tool"},
		{stated + "}", "16:9", "image-too-large"},
		{stated + "}", "3:4", "image-too-large"}, // listed by the contract alone
		{tighter, "1:1", "role-has-tool"},
		{tighter, "4:3", "fact-not-permitted"},
	} {
		e, err := rego.Load(t.Context(), rego.Options{Timeout: testTimeout, Data: json.RawMessage(c.data)})
		if err != nil {
			t.Fatal(err)
		}
		d, err := e.Decide(t.Context(), input("creator", "generate_media", `{"model":"card-1","aspect_ratio":"`+c.aspect+`"}`))
		if err != nil || d.Rule != c.want {
			t.Errorf("%s with %s: %+v, %v; want %s", c.aspect, c.data, d, err, c.want)
		}
	}
}

// facts are the facts of an explanation by path.
func facts(x workbench.Explanation) map[string]string {
	out := map[string]string{}
	for _, f := range x.Facts {
		out[f.Path] = string(f.Value)
	}
	return out
}
