package app_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/internal/app"
	"github.com/toolgate/toolgate/internal/keys"
	"github.com/toolgate/toolgate/internal/schema"
	"github.com/toolgate/toolgate/registry"
	"github.com/toolgate/toolgate/registry/config"
)

// TestKeptArguments holds how the trail keeps arguments: kept as masked or digest, and
// nothing secret in any member.
func TestKeptArguments(t *testing.T) {
	compiled, err := schema.Compile(json.RawMessage(`{"properties":{"pin":{"writeOnly":true}}}`))
	if err != nil {
		t.Fatal(err)
	}
	tools := registry.NewCatalogue([]string{"bank"}, &registry.Tool{Server: "bank", Name: "login", Exposed: "bank__login", Fingerprint: "sha256:1", Input: compiled})
	key := keys.Key{ID: "1-a", Secret: []byte("key")}
	masked, digest := config.Arguments{Tool: "bank__*", Keep: "masked", Mask: []string{"/cards/0/cvc", "/a/*/b"}}, config.Arguments{Tool: "*", Keep: "digest"}
	login := func(change func(*audit.Record)) *audit.Record {
		r := &audit.Record{Server: "bank", Tool: "login", Exposed: "bank__login", Fingerprint: "sha256:1", Arguments: json.RawMessage(`{"pin":"SECRET","n":1}`)}
		change(r)
		return r
	}
	for _, tt := range []struct {
		name            string
		record          *audit.Record
		rules           []config.Arguments
		kept, arguments string
	}{
		{"the schema", login(func(*audit.Record) {}), []config.Arguments{masked}, "masked", `{"n":1,"pin":"[masked]"}`},
		{"pointers", login(func(r *audit.Record) {
			r.Arguments = json.RawMessage(`{"cards":[{"cvc":"SECRET"},{"cvc":2}],"a":[{"b":"SECRET"}]}`)
		}), []config.Arguments{masked}, "masked", `{"a":[{"b":"[masked]"}],"cards":[{"cvc":"[masked]"},{"cvc":2}]}`},
		{"another definition", login(func(r *audit.Record) { r.Fingerprint = "sha256:2" }), []config.Arguments{masked}, "digest", ""},
		{"no definition", login(func(r *audit.Record) { r.Exposed = "bank__x" }), []config.Arguments{masked}, "digest", ""},
		{"no JSON", login(func(r *audit.Record) { r.Arguments = json.RawMessage(`{"pin":"SECRET"`) }), []config.Arguments{masked}, "digest", ""},
		{"a name twice", login(func(r *audit.Record) { r.Arguments = json.RawMessage(`{"pin":"SECRET","pin":"SECRET"}`) }), []config.Arguments{masked}, "digest", ""},
		{"the second entry", login(func(r *audit.Record) { r.Exposed = "mail__send" }), []config.Arguments{masked, digest}, "digest", ""},
		{"the first entry", login(func(*audit.Record) {}), []config.Arguments{digest, masked}, "digest", ""},
		{"a method", login(func(r *audit.Record) {
			r.Method, r.Arguments = "prompts/get", json.RawMessage(`{"a":{"x":{"b":"SECRET"}}}`)
		}),
			[]config.Arguments{{Tool: "prompts/*", Keep: "masked", Mask: []string{"/a/x/b"}}}, "masked", `{"a":{"x":{"b":"[masked]"}}}`},
		{"an excerpt", login(func(r *audit.Record) {
			r.Arguments, r.ArgumentsBytes, r.ArgumentsExcerpt, r.ArgumentsSHA256 = nil, 5000, "SECRET", "SECRET"
		}), []config.Arguments{masked}, "digest", ""},
		{"what the policy saw", login(func(r *audit.Record) { r.Input = json.RawMessage(`{"tool":{"risk":""},"arguments":{"pin":"SECRET"}}`) }), []config.Arguments{masked}, "masked", `{"n":1,"pin":"[masked]"}`},
		{"an input that is none", login(func(r *audit.Record) { r.Input = json.RawMessage(`"SECRET"`) }), []config.Arguments{digest}, "digest", ""},
		{"an error of the server", login(func(r *audit.Record) {
			r.Arguments, r.ArgumentsSHA256, r.Stage, r.Error = nil, "SECRET", "forward", "SECRET"
		}), []config.Arguments{digest}, "", ""},
		{"a warning", login(func(r *audit.Record) {
			r.Arguments, r.ArgumentsSHA256, r.Stage, r.Warnings = nil, "SECRET", "close", []string{"SECRET"}
		}), []config.Arguments{digest}, "", ""},
		{"a ticket", login(func(r *audit.Record) {
			r.Arguments, r.ArgumentsSHA256, r.Change = nil, "SECRET", &audit.Change{Digest: "SECRET", From: "dispatching", To: "done", Reason: "the tool answered with an error: SECRET"}
		}), []config.Arguments{digest}, "", ""},
	} {
		before, _ := json.Marshal(tt.record)
		got := app.KeepArguments(tt.record, tools, key, tt.rules...)
		if text, _ := json.Marshal(got); strings.Contains(string(text), "SECRET") || got.ArgumentsHMAC == "" || got.ArgumentsKey != "1-a" {
			t.Errorf("%s: recorded as %s", tt.name, text)
		}
		if got.ArgumentsKept != tt.kept || string(got.Arguments) != tt.arguments {
			t.Errorf("%s: kept as %q, %s", tt.name, got.ArgumentsKept, got.Arguments)
		}
		if after, _ := json.Marshal(tt.record); string(after) != string(before) {
			t.Errorf("%s: the record of the caller was changed", tt.name)
		}
	}
}

// TestWholeArguments holds that a record stays as it is where nothing is to be hidden.
func TestWholeArguments(t *testing.T) {
	r := &audit.Record{Method: "prompts/get", Arguments: json.RawMessage(`{"a":1}`), ArgumentsSHA256: "b", Error: "e", Stage: "forward"}
	for _, rules := range [][]config.Arguments{nil, {{Tool: "x", Keep: "digest"}}, {{Tool: "*", Keep: "whole"}, {Tool: "*", Keep: "digest"}}, {{Tool: "*", Keep: "masked", Mask: []string{"/b"}}}} {
		if got := app.KeepArguments(r, nil, keys.Key{}, rules...); got != r {
			t.Errorf("%v: %+v", rules, got)
		}
	}
}

// TestArgumentsHMAC computes the keyed digest as an auditor does who has the key and the
// arguments.
func TestArgumentsHMAC(t *testing.T) {
	got := app.KeepArguments(&audit.Record{Exposed: "t", Arguments: json.RawMessage(`{"pin":"1234"}`)}, nil, keys.Key{Secret: []byte("key")}, config.Arguments{Tool: "*", Keep: "digest"})
	mac := hmac.New(sha256.New, []byte("key"))
	fmt.Fprintf(mac, "sha256:%x", sha256.Sum256([]byte(`{"pin":"1234"}`)))
	if want := hex.EncodeToString(mac.Sum(nil)); got.ArgumentsHMAC != want {
		t.Errorf("%s, want %s", got.ArgumentsHMAC, want)
	}
}
