package mcp_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"testing"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/proxy/mcp"
)

// answered fails unless line is one JSON-RPC answer or notification.
func answered(t *testing.T, line []byte) {
	t.Helper()
	var m struct{ JSONRPC string }
	if err := json.Unmarshal(line, &m); err != nil || m.JSONRPC != "2.0" {
		t.Errorf("no answer: %q (%v)", line, err)
	}
}

// FuzzPost: whatever is posted, the door answers with one message or none, and
// a tool is called at most once, and only for one strict tools/call.
func FuzzPost(f *testing.F) {
	for _, tt := range denials {
		f.Add([]byte(tt.body))
	}
	f.Add([]byte(echoCall))
	f.Fuzz(func(t *testing.T, body []byte) {
		g := newGate()
		delete(g.behave, "wait")
		d := newDoor(t, g, small)
		session := record(d, "alice", "", initialize).Header().Get("Mcp-Session-Id")
		rec := record(d, "alice", session, string(body))
		if rec.Body.Len() > 0 && rec.Header().Get("Content-Type") == "application/json" {
			answered(t, rec.Body.Bytes())
		}
		m, err := jsonrpc.Decode(body, jsonrpc.Limits{Bytes: 4096})
		if want := err == nil && m.Kind == jsonrpc.Request && m.Method == "tools/call"; g.calls() > 1 || g.calls() == 1 && !want {
			t.Errorf("%d calls reached a tool", g.calls())
		}
		want := http.StatusBadRequest // what is no request
		if fault := (*jsonrpc.Fault)(nil); errors.As(err, &fault) && fault.ID != nil {
			want = http.StatusOK // a request that is refused
		}
		if err != nil && rec.Code != want {
			t.Errorf("no message, but status %d, want %d", rec.Code, want)
		}
	})
}

// FuzzStdio: whatever is written, each line that comes back is one message,
// and there are no more tool calls than lines.
func FuzzStdio(f *testing.F) {
	f.Add([]byte(initialize + "\n" + echoCall + "\n" + ping))
	f.Add([]byte(initialize + "\r\n\n[]\n{\n" + echoCall))
	for _, tt := range denials {
		f.Add([]byte(initialize + "\n" + tt.body + "\n"))
	}
	f.Fuzz(func(t *testing.T, input []byte) {
		g := newGate()
		delete(g.behave, "wait")
		d := newDoor(t, g, func(o *mcp.Options) { small(o) })
		var out bytes.Buffer
		if err := d.Serve(t.Context(), bytes.NewReader(input), &out); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(&out)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			answered(t, lines.Bytes())
		}
		if n := bytes.Count(input, []byte("\n")) + 1; g.calls() > n {
			t.Errorf("%d lines made %d calls", n, g.calls())
		}
	})
}
