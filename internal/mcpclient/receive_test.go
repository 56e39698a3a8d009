package mcpclient_test

import (
	"bytes"
	"testing"

	"github.com/toolgate/toolgate/internal/mcpclient"
)

// What is split has no doubt about its names, and its parts are parts of it.
func FuzzLooseMembers(f *testing.F) {
	for _, seed := range []string{`{"a":1}`, `{"a":{"b":1,"b":2}}`, `{"a":1,"a":2}`, `{"a":1,"\u0061":2}`, `[]`, `{`, "{\"a\":\"\xff\"}", `{"a":1}{"b":2}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		members, err := mcpclient.LooseMembers(raw)
		if err != nil {
			return
		}
		for name, value := range members {
			if !bytes.Contains(raw, value) {
				t.Errorf("member %q is %q, which is no part of %q", name, value, raw)
			}
		}
	})
}
