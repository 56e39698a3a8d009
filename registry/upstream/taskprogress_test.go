package upstream_test

import (
	"encoding/json"
	"testing"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/testkit/recorder"
	"github.com/toolgate/toolgate/registry/upstream"
)

// lastToken gives the progress token of the last call that a server got.
func lastToken(t *testing.T, rec *recorder.Recorder) string {
	t.Helper()
	all := rec.Messages()
	params, _ := jsonrpc.Get(all[len(all)-1], "params")
	meta, _ := jsonrpc.Get(params, "_meta")
	token, ok := jsonrpc.Get(meta, "progressToken")
	if !ok {
		t.Fatalf("no token in %s", all[len(all)-1])
	}
	return string(token)
}

// The task that came of a call is reported on after the call was answered, under
// the token of the call. A call that came to anything else is not.
func TestTaskIsReportedOn(t *testing.T) {
	overOwn(t, recorder.Config{Tools: []recorder.Tool{
		{Name: "begin", Result: json.RawMessage(`{"task":{"taskId":"t","ttl":60000}}`)},
		{Name: "do", Result: json.RawMessage(`{"content":[]}`)},
		{Name: "report", Does: recorder.Talk, Lines: []string{
			`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":ARGS,"progress":2e0}}`,
		}},
	}}, func(t *testing.T, rec *recorder.Recorder, r *running) {
		whom, _, _ := from("s")
		for _, tc := range []struct {
			tool string
			told bool
		}{{"begin", true}, {"do", false}} {
			later := make(chan string, 1)
			_, e := r.Do(t.Context(), upstream.Call{
				Tool: tc.tool, Fingerprint: r.fingerprint(tc.tool), Arguments: json.RawMessage(`{}`), From: whom,
				Later: func(params json.RawMessage) { later <- string(params) },
			})
			if e != nil {
				t.Fatal(e)
			}
			if e := r.do(t.Context(), whom, "report", lastToken(t, rec)); e != nil {
				t.Fatal(e)
			}
			if tc.told {
				if got := <-later; got != `{"progress":2e0}` {
					t.Errorf("told %s", got)
				}
			} else if len(later) > 0 {
				t.Errorf("%s was reported on: %s", tc.tool, <-later)
			}
		}
	})
}
