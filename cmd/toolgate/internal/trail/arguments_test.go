package trail_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/trail"
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
		got := trail.KeptArguments(tt.record, tools, key, tt.rules...)
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
		if got := trail.KeptArguments(r, nil, keys.Key{}, rules...); got != r {
			t.Errorf("%v: %+v", rules, got)
		}
	}
}

// TestSecretsByDefault holds what the trail keeps of arguments where nothing is configured.
func TestSecretsByDefault(t *testing.T) {
	compiled, err := schema.Compile(json.RawMessage(`{"properties":{"pin":{"writeOnly":true}}}`))
	if err != nil {
		t.Fatal(err)
	}
	tools := registry.NewCatalogue([]string{"bank"}, &registry.Tool{Server: "bank", Name: "login", Exposed: "bank__login", Fingerprint: "sha256:1", Input: compiled})
	whole, other := config.Arguments{Tool: "*", Keep: "whole"}, config.Arguments{Tool: "mail__*", Keep: "whole"}
	masked := config.Arguments{Tool: "*", Keep: "masked", Mask: []string{"/a"}}
	for _, tt := range []struct {
		name, exposed, arguments string
		rules                    []config.Arguments
		kept, want               string // "" = as it is
	}{
		{"an amount", "t", `{"amount":1.0,"token":"usdc"}`, nil, "", ""},
		{"tokens", "t", `{"token":"a","tokens":[1],"max_tokens":5,"passwordless":1,"secretary":"b"}`, nil, "", ""},
		{"a word in a value", "t", `{"q":"the password of the secret"}`, nil, "", ""},
		{"password", "t", `{"password":"S","n":1.0}`, nil, "masked", `{"n":1.0,"password":"[masked]"}`},
		{"passwd", "t", `{"passwd":"S"}`, nil, "masked", `{"passwd":"[masked]"}`},
		{"passphrase", "t", `{"Passphrase":"S"}`, nil, "masked", `{"Passphrase":"[masked]"}`},
		{"secret", "t", `{"SECRET":"S"}`, nil, "masked", `{"SECRET":"[masked]"}`},
		{"clientsecret", "t", `{"client_secret":"S"}`, nil, "masked", `{"client_secret":"[masked]"}`},
		{"apikey", "t", `{"X":1,"api-key":"S","apiKey":"S","API_KEY":"S"}`, nil, "masked", `{"API_KEY":"[masked]","X":1,"api-key":"[masked]","apiKey":"[masked]"}`},
		{"accesstoken", "t", `{"accessToken":"S"}`, nil, "masked", `{"accessToken":"[masked]"}`},
		{"refreshtoken", "t", `{"refresh-token":"S"}`, nil, "masked", `{"refresh-token":"[masked]"}`},
		{"privatekey", "t", `{"_private__key_":"S"}`, nil, "masked", `{"_private__key_":"[masked]"}`},
		{"authorization", "t", `{"headers":{"Authorization":"S"}}`, nil, "masked", `{"headers":{"Authorization":"[masked]"}}`},
		{"cookie", "t", `[[{"a":[{"cookie":"S"}]}]]`, nil, "masked", `[[{"a":[{"cookie":"[masked]"}]}]]`},
		{"a name beside a value", "t", `{"headers":[{"name":"X-Api-Key","value":"S"},{"name":"Accept","value":"text"}]}`, nil, "masked", `{"headers":[{"name":"X-Api-Key","value":"[masked]"},{"name":"Accept","value":"text"}]}`},
		{"a name without a value", "t", `{"ref":{"name":"secret","type":"ref/prompt"}}`, nil, "", ""},
		{"an escaped name", "t", `{"p\u0061ssword":"S"}`, nil, "masked", `{"password":"[masked]"}`},
		{"a number", "t", `{"secret":4711}`, nil, "masked", `{"secret":"[masked]"}`},
		{"an object", "t", `{"secret":{"a":[4711]}}`, nil, "masked", `{"secret":"[masked]"}`},
		{"the schema", "bank__login", `{"pin":"S","password":"S"}`, nil, "masked", `{"password":"[masked]","pin":"[masked]"}`},
		{"the schema finds nothing", "bank__login", `{"n":1}`, nil, "", ""},
		{"no definition", "bank__x", `{"pin":"1234"}`, nil, "", ""},
		{"no JSON, a name", "t", `{'Pass_Word':'S'`, nil, "digest", ""},
		{"no JSON, an escape", "t", `{'p\u0061ss':'S'`, nil, "digest", ""},
		{"no JSON, the schema", "bank__login", `{"pin":"S"`, nil, "digest", ""},
		{"no JSON, no name", "t", `{'n':1`, nil, "", ""},
		{"a name twice", "t", `{"secret":"S","secret":"S"}`, nil, "digest", ""},
		{"whole", "t", `{"password":"S"}`, []config.Arguments{whole, masked}, "", ""},
		{"whole for others", "t", `{"password":"S"}`, []config.Arguments{other}, "masked", `{"password":"[masked]"}`},
		{"masked", "bank__login", `{"password":"S","pin":"S","a":"S","n":1}`, []config.Arguments{masked, whole}, "masked", `{"a":"[masked]","n":1,"password":"[masked]","pin":"[masked]"}`},
		{"digest", "t", `{"n":1}`, []config.Arguments{{Tool: "*", Keep: "digest"}, whole}, "digest", ""},
	} {
		server, tool, _ := strings.Cut(tt.exposed, "__")
		r := &audit.Record{Server: server, Tool: tool, Exposed: tt.exposed, Fingerprint: "sha256:1", Arguments: json.RawMessage(tt.arguments)}
		got := trail.KeptArguments(r, tools, keys.Key{ID: "1-a", Secret: []byte("key")}, tt.rules...)
		switch {
		case tt.kept == "" && got != r:
			t.Errorf("%s: recorded as %s, want the record as it is", tt.name, got.Arguments)
		case got.ArgumentsKept != tt.kept || tt.kept != "" && (string(got.Arguments) != tt.want || got.ArgumentsHMAC == ""):
			t.Errorf("%s: kept as %q, %s", tt.name, got.ArgumentsKept, got.Arguments)
		}
	}
}

// TestOtherRecordsByDefault holds that no record of a call tells more than the one that has
// its arguments, and that one of a call without secrets stays as it is.
func TestOtherRecordsByDefault(t *testing.T) {
	const secret, plain = `{"a":[{"pass-word":"SECRET"}]}`, `{"a":1}`
	for name, change := range map[string]func(*audit.Record){
		"an outcome": func(r *audit.Record) { r.Stage, r.Error, r.Warnings = "forward", "SECRET", []string{"SECRET"} },
		"an excerpt": func(r *audit.Record) { r.ArgumentsBytes, r.ArgumentsExcerpt = 5000, string(r.About) },
		"a ticket": func(r *audit.Record) {
			r.Change = &audit.Change{Digest: "sha256:SECRET", From: "dispatching", To: "done", Reason: "SECRET"}
		},
		"a refused call": func(r *audit.Record) { r.Arguments, r.Stage, r.Error = r.About, "validate", "SECRET" },
		"a prompt":       func(r *audit.Record) { r.Method, r.Arguments = "prompts/get", r.About },
		"a resource":     func(r *audit.Record) { r.Method, r.Arguments = "resources/read", r.About },
		"what was judged": func(r *audit.Record) {
			r.Arguments, r.Input = r.About, json.RawMessage(`{"arguments":{"secret":"SECRET"}}`)
		},
		"nothing but this": func(*audit.Record) {},
	} {
		for _, about := range []string{secret, plain, ""} {
			r := &audit.Record{Exposed: "t", About: json.RawMessage(about), ArgumentsSHA256: "SECRET"}
			change(r)
			got := trail.KeptArguments(r, nil, keys.Key{ID: "1-a", Secret: []byte("key")})
			text, _ := json.Marshal(got)
			if about == plain && got != r {
				t.Errorf("%s without secrets: recorded as %s", name, text)
			}
			if about != plain && (strings.Contains(string(text), "SECRET") || got.ArgumentsHMAC == "") {
				t.Errorf("%s about %q: recorded as %s", name, about, text)
			}
			if kept := map[string]string{"an excerpt": "digest", "a prompt": "masked"}[name]; about == secret && kept != "" && got.ArgumentsKept != kept {
				t.Errorf("%s: kept as %q, want %q", name, got.ArgumentsKept, kept)
			}
		}
	}
}

// BenchmarkArgumentsWithoutSecret measures what an ordinary call costs.
func BenchmarkArgumentsWithoutSecret(b *testing.B) {
	for _, size := range []int{64, 1 << 16} {
		r := &audit.Record{Exposed: "t", Arguments: json.RawMessage(`{"text":"` + strings.Repeat("the order of words ", size/19) + `"}`)}
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			b.SetBytes(int64(size))
			for b.Loop() {
				trail.KeptArguments(r, nil, keys.Key{})
			}
		})
	}
}

// TestArgumentsHMAC computes the keyed digest as an auditor does who has the key and the
// arguments.
func TestArgumentsHMAC(t *testing.T) {
	got := trail.KeptArguments(&audit.Record{Exposed: "t", Arguments: json.RawMessage(`{"pin":"1234"}`)}, nil, keys.Key{Secret: []byte("key")}, config.Arguments{Tool: "*", Keep: "digest"})
	mac := hmac.New(sha256.New, []byte("key"))
	fmt.Fprintf(mac, "sha256:%x", sha256.Sum256([]byte(`{"pin":"1234"}`)))
	if want := hex.EncodeToString(mac.Sum(nil)); got.ArgumentsHMAC != want {
		t.Errorf("%s, want %s", got.ArgumentsHMAC, want)
	}
}
