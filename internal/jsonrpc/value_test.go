package jsonrpc_test

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/toolgate/toolgate/internal/jsonrpc"
)

// TestVouches: a message vouches for the members that its pass has read, and for
// no other bytes.
func TestVouches(t *testing.T) {
	m := decode(t, with(`{"a":[1e2,"x"]}`))
	args, _ := m.Param("arguments")
	for _, other := range []json.RawMessage{json.RawMessage(string(args)), nil, m.Params} {
		if m.Vouches(other) {
			t.Errorf("%s was taken for a member that the pass has read", other)
		}
	}
	got, ok := jsonrpc.Accepted(args), m.Vouches(args)
	want := map[string]any{"a": []any{json.Number("1e2"), "x"}}
	if diff := cmp.Diff(any(want), got); diff != "" || !ok {
		t.Error(ok, diff)
	}
	other, err := jsonrpc.Set(m.Params, "arguments", json.RawMessage(`{"a":1,"a":2}`))
	if err != nil {
		t.Fatal(err)
	}
	m.SetParams(other)
	args, _ = m.Param("arguments")
	if string(args) != `{"a":1,"a":2}` || m.Vouches(args) {
		t.Error("a message vouches for params that were not read")
	}
}
