package judgement_test

import (
	"bytes"
	"encoding/json"
	"testing"
	"time"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/judgement"
)

func TestCompare(t *testing.T) {
	none, some := time.Duration(0), time.Second
	hold := func(change func(*policy.Decision)) *policy.Decision {
		d := &policy.Decision{Effect: policy.Hold, Rule: "A", Reason: "r", Redact: []string{"/a", "/b"}, Limit: &policy.Limit{Rate: "1/1m"},
			Approval: &policy.Approval{Roles: []string{"x", "y"}, TTL: time.Minute, Hold: &none}, Labels: map[string]string{"rule": "A"}}
		change(d)
		return d
	}
	for name, tt := range map[string]struct {
		change func(*policy.Decision)
		want   judgement.Difference
	}{
		"words":          {func(d *policy.Decision) { d.Reason, d.Remedy, d.Labels, d.Revision = "s", "t", nil, "u" }, judgement.Same},
		"order":          {func(d *policy.Decision) { d.Redact = []string{"/b", "/a"}; d.Approval.Roles = []string{"y", "x"} }, judgement.Same},
		"quorum of one":  {func(d *policy.Decision) { d.Approval.Quorum = 1 }, judgement.Same},
		"an equal hold":  {func(d *policy.Decision) { again := none; d.Approval.Hold = &again }, judgement.Same},
		"effect":         {func(d *policy.Decision) { d.Effect, d.Rule = policy.Allow, "B" }, judgement.ByEffect},
		"rule":           {func(d *policy.Decision) { d.Rule, d.Redact = "B", nil }, judgement.ByRule},
		"redact":         {func(d *policy.Decision) { d.Redact = nil }, judgement.ByObligations},
		"limit":          {func(d *policy.Decision) { d.Limit = &policy.Limit{Rate: "2/1m"} }, judgement.ByObligations},
		"no limit":       {func(d *policy.Decision) { d.Limit = nil }, judgement.ByObligations},
		"roles":          {func(d *policy.Decision) { d.Approval.Roles = []string{"x"} }, judgement.ByObligations},
		"quorum":         {func(d *policy.Decision) { d.Approval.Quorum = 2 }, judgement.ByObligations},
		"ttl":            {func(d *policy.Decision) { d.Approval.TTL = 0 }, judgement.ByObligations},
		"hold":           {func(d *policy.Decision) { d.Approval.Hold = &some }, judgement.ByObligations},
		"no hold":        {func(d *policy.Decision) { d.Approval.Hold = nil }, judgement.ByObligations},
		"execute":        {func(d *policy.Decision) { d.Approval.ExecuteOnApprove = true }, judgement.ByObligations},
		"no approval":    {func(d *policy.Decision) { d.Approval = nil }, judgement.ByObligations},
		"nothing at all": {func(*policy.Decision) {}, judgement.Same},
	} {
		a, b := hold(func(*policy.Decision) {}), hold(tt.change)
		if got, back := judgement.Compare(a, b), judgement.Compare(b, a); got != tt.want || back != tt.want {
			t.Errorf("%s: %q, and %q in reverse, want %q", name, got, back, tt.want)
		}
	}
}

// FuzzDecode holds that a record that Decode reads is written again as a record that
// it reads as the same.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"tool":{"risk":"high","annotations":{"a":1}},"request":{"time":"2026-01-02T03:04:05Z"},"usage":{"day":{"calls":1,"sum":0.3}}}`), []byte(`{"n":1}`),
		[]byte(`{"approval":{"roles":["boss"],"ttl":"1m0s","hold":"0s"},"labels":{"rule":"x"}}`), "hold")
	f.Add([]byte(`{"action":"prompts/get","prompt":{"server":"s","name":"n"},"arguments":"{\n}","request":{"time":"2026-01-02T03:04:05Z"}}`), []byte(`{}`), []byte(`{"redact":["/a"]}`), "allow")
	f.Add([]byte(`{"principal":{"subject":"a","roles":[]},"tool":{"server":"","name":"x","risk":""},"request":{}}`), []byte(`"{}"`), []byte(`{"limit":{"rate":"1/1m"}}`), "deny")
	f.Fuzz(func(t *testing.T, input, arguments, obligations []byte, effect string) {
		r := &audit.Record{Kind: audit.KindOutcome, Server: "s", Exposed: "s__n", Input: input, Arguments: arguments,
			Policy: audit.Policy{Effect: effect, Obligations: obligations}}
		in, d, err := judgement.Decode(r)
		if err != nil {
			if in != nil || d != nil {
				t.Fatal("an error, and something with it")
			}
			return
		}
		again := *r
		again.Policy.Effect = string(d.Effect)
		again.Input, again.Policy.Obligations = judgement.EncodeInput(in, &again), judgement.EncodeObligations(d)
		if bytes.ContainsAny(again.Input, "\r\n") || !json.Valid(again.Input) {
			t.Fatalf("written as %q", again.Input)
		}
		in2, d2, err := judgement.Decode(&again)
		if err != nil {
			t.Fatalf("%s, written again as %s: %v", input, again.Input, err)
		}
		one, _ := json.Marshal(in)
		two, _ := json.Marshal(in2)
		if !bytes.Equal(one, two) || judgement.Compare(d, d2) != judgement.Same {
			t.Fatalf("read as\n%s\nand then as\n%s", one, two)
		}
	})
}

// TestTagsAreJudgedAgain: what a caller claims of its job is in the input that a record
// gives back.
func TestTagsAreJudgedAgain(t *testing.T) {
	claims := map[string]string{"urgency": "high"}
	in := &policy.Input{Principal: policy.Principal{Subject: "a"}, Tool: policy.Tool{Exposed: "t"}, Arguments: []byte("{}"), Request: policy.Request{Tags: claims}}
	r := &audit.Record{Kind: audit.KindDecision, Principal: audit.Principal{Subject: "a"}, Exposed: "t", Arguments: in.Arguments, Tags: claims, Policy: audit.Policy{Effect: "allow"}}
	r.Input = judgement.EncodeInput(in, r)
	got, _, err := judgement.Decode(r)
	if err != nil || got.Request.Tags["urgency"] != "high" {
		t.Errorf("%+v, %v", got, err)
	}
}
