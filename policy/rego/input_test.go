package rego_test

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/policy/rego"
)

// FuzzParse holds that a policy sees the value that was sent, number by
// number, or nothing with an error.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		`{}`, `[]`, `null`, `true`, `false`, `"x"`, `1`, `-0`, `1e3`, `1E+3`, `1000.0`, `0.1000000000000000000001`,
		`9007199254740993`, `1e100000000`, `{"a":{"b":[1,"2",null,{"c":false}]}}`, `{"a":1,"a":2}`, `{"a":1,"A":2}`,
		`"\u00e9\ud83d\ude00"`, `"\ud800"`, "\"\xff\"", `[1,]`, `{"a"}`, `{"\u0061\n":1}`, `1 2`, ``, ` `, `[[[[[[]]]]]]`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		got, err := rego.RoundTrip(raw)
		if err != nil {
			if got != nil {
				t.Errorf("%q: %s with an error", raw, got)
			}
			return
		}
		if !json.Valid(raw) {
			t.Fatalf("%q is no JSON, but was read as %s", raw, got)
		}
		if diff := cmp.Diff(decode(t, string(raw)), decode(t, string(got))); diff != "" {
			t.Errorf("%q (-sent +seen):\n%s", raw, diff)
		}
	})
}
