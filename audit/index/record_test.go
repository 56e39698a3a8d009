package index_test

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/audit/index"
	"github.com/toolgate/toolgate/internal/jsonrpc"
)

// FuzzEachMember holds the quick reader of lines to that of messages, which knows the whole grammar.
func FuzzEachMember(f *testing.F) {
	for _, object := range []string{
		`{}`, `{"a":1}`, `{"a":"b","c":[1,{"d":"]}"}],"e":{"f":"\"}","g":{}},"h":-1e5,"i":null,"j":true,"k":"\\","l":"\\\""}`, `{"a" : [ 1 , 2 ]}`,
		``, `{`, `[]`, `{"a"`, `{"a":`, `{"a":1`, `{"a":"`, `{"a":"\"}`, `{"a":1}}`, `{"a":1,}`, `{"a":{}`, `{,}`, `{"a":[}]}`, `{1:2}`, `"`, `{"`, `{]`,
	} {
		f.Add([]byte(object))
	}
	f.Fuzz(func(t *testing.T, object []byte) {
		type member struct{ Name, Value string }
		var got, want []member
		ok := index.EachMember(object, func(name, value []byte) bool {
			got = append(got, member{string(name), string(value)})
			return true
		})
		var compact bytes.Buffer
		if json.Compact(&compact, object) != nil || compact.Len() != len(object) || object[0] != '{' {
			return
		}
		if slices.ContainsFunc(got, func(m member) bool { return strings.Contains(m.Name, `\`) }) {
			return // messages have names without escapes
		}
		jsonrpc.Each(object, func(name []byte, value json.RawMessage) bool {
			want = append(want, member{string(name), string(value)})
			return true
		})
		if diff := cmp.Diff(want, got); diff != "" || !ok {
			t.Errorf("%s: %v (-want +got):\n%s", object, ok, diff)
		}
	})
}
