package jsonrpc_test

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/toolgate/toolgate/internal/jsonrpc"
)

// TestJudged: a message vouches for the members that its pass has met, and for
// no other bytes.
func TestJudged(t *testing.T) {
	m := decode(t, with(`{"a":[1e2,"x"]}`))
	j := m.Judged("arguments")
	args, _ := m.Param("arguments")
	if !j.Is(args) || j.Is(json.RawMessage(string(args))) || j.Is(nil) || m.Judged("none").Is(nil) {
		t.Error("the judged bytes are not told from others")
	}
	want := map[string]any{"a": []any{json.Number("1e2"), "x"}}
	if diff := cmp.Diff(any(want), j.Value()); diff != "" {
		t.Error(diff)
	}
	var err error
	if m.Params, err = jsonrpc.Set(m.Params, "arguments", json.RawMessage(`{"a":1,"a":2}`)); err != nil {
		t.Fatal(err)
	}
	args, _ = m.Param("arguments")
	if string(args) != `{"a":1,"a":2}` || m.Judged("arguments").Is(args) || m.Judged("arguments").Value() != nil {
		t.Error("a message vouches for params that were not read")
	}
}
