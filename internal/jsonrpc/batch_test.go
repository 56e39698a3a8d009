package jsonrpc_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/internal/jsonrpc"
)

// What is no batch is called so.
func TestSplitOfAnObject(t *testing.T) {
	_, err := jsonrpc.Split([]byte(`{}`), jsonrpc.Limits{}, 5)
	if f := jsonrpc.FaultOf(err); f.Want != "an array" || f.Kind != jsonrpc.Invalid {
		t.Errorf("%+v", f)
	}
}

func TestSplit(t *testing.T) {
	deep := strings.Repeat("[", 64) + strings.Repeat("]", 64)
	for _, tt := range []struct {
		name, data string
		want       []string
		kind       jsonrpc.FaultKind
	}{
		{"one", `[{"a":1}]`, []string{`{"a":1}`}, 0},
		{"bytes stay", ` [ {"a" : 1.0e0,"\u0061":"\u00e9"} , 2,"x",null , [ ] ] `, []string{`{"a" : 1.0e0,"\u0061":"\u00e9"}`, `2`, `"x"`, `null`, `[ ]`}, 0},
		{"line ends become spaces", "[\n{\"a\":\r\n1}\n,\n2\n]\n", []string{`{"a":  1}`, `2`}, 0},
		{"what Decode refuses", `[{"a":1,"a":2}]`, []string{`{"a":1,"a":2}`}, 0},
		{"as deep as may be", "[" + deep + "]", []string{deep}, 0},
		{"as many as may be", `[1,2,3,4,5]`, []string{"1", "2", "3", "4", "5"}, 0},
		{"too many", `[1,2,3,4,5,6]`, nil, jsonrpc.Invalid},
		{"too deep", "[[" + deep + "]]", nil, jsonrpc.Invalid},
		{"empty", ` [ ] `, nil, jsonrpc.Invalid},
		{"an object", `{}`, nil, jsonrpc.Invalid},
		{"nothing", ``, nil, jsonrpc.Invalid},
		{"a comma too many", `[1,]`, nil, jsonrpc.Parse},
		{"a comma too few", `[1 2]`, nil, jsonrpc.Parse},
		{"a comma first", `[,1]`, nil, jsonrpc.Parse},
		{"two batches", `[1][2]`, nil, jsonrpc.Parse},
		{"more after an empty one", `[] 1`, nil, jsonrpc.Parse},
		{"no end", `[1`, nil, jsonrpc.Parse},
		{"an element without end", `[{"a":1]`, nil, jsonrpc.Parse},
		{"invalid UTF-8", "[\"\xff\"]", nil, jsonrpc.Parse},
		{"too large", `["` + strings.Repeat("x", 1000) + `"]`, nil, jsonrpc.TooLarge},
	} {
		t.Run(tt.name, func(t *testing.T) {
			all, err := jsonrpc.Split([]byte(tt.data), jsonrpc.Limits{Bytes: 1000}, 5)
			var kind jsonrpc.FaultKind
			var f *jsonrpc.Fault
			if errors.As(err, &f) {
				kind = f.Kind
			}
			var got []string
			for _, raw := range all {
				got = append(got, string(raw))
			}
			if diff := cmp.Diff(tt.want, got); diff != "" || kind != tt.kind {
				t.Errorf("%v (-want +got):\n%s", err, diff)
			}
		})
	}
}

// FuzzSplit: nothing comes with a fault; elements are whole values of one line,
// as many as another decoder sees, and joined they are the same batch again.
func FuzzSplit(f *testing.F) {
	for _, seed := range []string{`[]`, `[1]`, "[ {\n} , [1,2] ]", `[{"a":1,"a":2},"]",","]`, `[[]]`, `[1,]`, `{}`, `[1]]`, "\xef\xbb\xbf[1]", `[1,2,3,4,5,6,7,8,9]`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		before := bytes.Clone(data)
		all, err := jsonrpc.Split(data, jsonrpc.Limits{}, 8)
		if !bytes.Equal(before, data) {
			t.Fatal("the input was changed")
		}
		if err != nil {
			var fault *jsonrpc.Fault
			if all != nil || !errors.As(err, &fault) || fault.Kind == 0 || fault.Reason == "" {
				t.Fatalf("elements %q with %#v", all, err)
			}
			return
		}
		var std []json.RawMessage
		if err := json.Unmarshal(data, &std); err != nil || len(std) != len(all) || len(all) == 0 || len(all) > 8 {
			t.Fatalf("%d elements, another decoder has %d: %v", len(all), len(std), err)
		}
		for _, raw := range all {
			var fault *jsonrpc.Fault
			if _, _, err := jsonrpc.CheckValue(raw, jsonrpc.Limits{}); errors.As(err, &fault) && fault.Kind == jsonrpc.Parse || bytes.ContainsAny(raw, "\r\n") {
				t.Fatalf("element %q: %v", raw, err)
			}
		}
		joined := append(append([]byte("["), bytes.Join(all, []byte(","))...), ']')
		again, err := jsonrpc.Split(joined, jsonrpc.Limits{}, 8)
		if diff := cmp.Diff(all, again); err != nil || diff != "" {
			t.Fatalf("%v\n%s", err, diff)
		}
	})
}
