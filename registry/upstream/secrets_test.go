package upstream_test

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"net/url"
	"strings"
	"testing"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/registry/upstream"
)

// A secret is found in every form in which it may come back, inside of longer texts
// too, and nothing else is changed.
func TestSecretForms(t *testing.T) {
	const secret = `s3cr3t/"ké&`
	s := upstream.NewSecrets([]string{secret})
	b64 := base64.StdEncoding
	for name, text := range map[string]string{
		"itself": secret, "in a sentence": "x" + secret + "y", "hex": hex.EncodeToString([]byte(secret)),
		"base64": b64.EncodeToString([]byte(secret)), "base64 after one byte": b64.EncodeToString([]byte("u" + secret + "abc")),
		"base64 after two": b64.EncodeToString([]byte("u:" + secret)), "base64 for URLs": base64.URLEncoding.EncodeToString([]byte("me:" + secret)),
		"query": url.QueryEscape(secret), "path": url.PathEscape(secret), "lower case": strings.ReplaceAll(strings.ReplaceAll(url.QueryEscape(secret), "%2F", "%2f"), "%C3%A9", "%c3%a9"),
	} {
		for _, quoted := range []string{string(jsonrpc.Quote(text)), ascii(text)} {
			raw := json.RawMessage(`{"n": 1e2,"content":[{"text":` + quoted + `}],` + quoted + `:1}`)
			got := string(s.Redact(raw))
			if strings.Contains(got, "s3cr3t") || strings.Count(got, "[redacted]") != 2 || !strings.Contains(got, "1e2") {
				if name != "lower case" || strings.Count(got, "[redacted]") != 2 {
					t.Errorf("%s: %s", name, got)
				}
			}
		}
	}
	for _, raw := range []string{`{ "a" : "s3cr3t", "b":"\u0041\n\\u0073" }`, `"%2F"`, ``, `null`} {
		if got := s.Redact(json.RawMessage(raw)); string(got) != raw {
			t.Errorf("%s became %s", raw, got)
		}
	}
	if upstream.NewSecrets(nil) != nil {
		t.Error("no secrets cost something")
	}
}

// ascii writes a JSON string with every character as an escape.
func ascii(text string) string {
	var b strings.Builder
	for _, r := range text {
		b.WriteString(`\u00` + hex.EncodeToString([]byte{byte(r)}))
	}
	return `"` + b.String() + `"`
}

// An error of the server shows no secret, in its text or in its error object; another one
// stays what it is.
func TestSecretsInErrors(t *testing.T) {
	const secret = "s3cr3t-of-mine"
	s, cause := upstream.NewSecrets([]string{secret}), errors.New("gone")
	if got := s.RedactError(nil); got != nil {
		t.Errorf("no error became %v", got)
	}
	if got := s.RedactError(&upstream.Error{Err: cause}); !errors.Is(got.Err, cause) {
		t.Errorf("%v", got)
	}
	got := s.RedactError(&upstream.Error{Err: errors.New("bad token " + secret), RPC: []byte(`{"message":"` + secret + `"}`)})
	if strings.Contains(got.Err.Error(), secret) || strings.Contains(string(got.RPC), secret) || !strings.Contains(got.Err.Error(), "bad token") {
		t.Errorf("%v %s", got.Err, got.RPC)
	}
}

// A secret of a few bytes is in too many texts, and some of its forms are empty: it changes nothing.
func TestShortSecrets(t *testing.T) {
	const text = `{"a":"text","b":["me",1]}`
	for _, secret := range []string{"", "t", "te", "tex"} {
		s := upstream.NewSecrets([]string{secret, "a-long-one"})
		if got := string(s.Redact(json.RawMessage(text))); got != text {
			t.Errorf("%q: %s", secret, got)
		}
		if got := upstream.NewRedactor([]string{secret})("text of me"); got != "text of me" {
			t.Errorf("%q: %s", secret, got)
		}
	}
}

// FuzzSecrets: what is left never has the secret, and is JSON.
func FuzzSecrets(f *testing.F) {
	f.Add(`{"a":"\u0073ecret-value"}`, "secret-value")
	f.Add(`["x\\secret-value\/"]`, `x\secret`)
	f.Fuzz(func(t *testing.T, text, secret string) {
		if len(secret) < 6 || strings.Contains("[redacted]", secret) || !json.Valid([]byte(text)) {
			return
		}
		var v any
		s := upstream.NewSecrets([]string{secret})
		got := s.Redact(json.RawMessage(text))
		if err := json.Unmarshal(got, &v); err != nil {
			t.Fatalf("%s became %s", text, got)
		}
		if plain := jsonrpc.MapStrings(got, func(x string) string {
			if strings.Contains(x, secret) && !strings.Contains(x, "[redacted]") {
				t.Errorf("%q is left in %s", secret, got)
			}
			return x
		}); plain == nil {
			t.Error("nothing is left")
		}
	})
}
