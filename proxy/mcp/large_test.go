package mcp_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"github.com/toolgate/toolgate/internal/share"
	"github.com/toolgate/toolgate/proxy/mcp"
)

// A result is answered byte for byte, on one line, whatever its size and however the
// answer travels: large ones are not copied into their message.
func TestResultsOfAnySize(t *testing.T) {
	srv, d := newServer(t, newGate(), nil)
	h := open(t, srv, "alice")
	for _, size := range []int{10, 16_000, 16_384, 40_000, 300_000} {
		text := strings.Repeat("é", size/2)
		call := `{"jsonrpc":"2.0","id":"a","method":"tools/call","params":{"name":"demo__echo","arguments":{"t":"` + text + `"}}}`
		want := `{"jsonrpc":"2.0","id":"a","result":{"content":[{"type":"text","text":"{\"t\":\"` + text + `\"}"}], 	"big":9007199254740993}}`
		res, body := h.post(call)
		if body != want || res.ContentLength != int64(len(want)) || len(res.TransferEncoding) > 0 {
			t.Errorf("%d over a connection: %d bytes of %d, length %d", size, len(body), len(want), res.ContentLength)
		}
		if rec := record(d, "alice", h.session, call); rec.Body.String() != want || rec.Header().Get("Content-Length") != strconv.Itoa(len(want)) {
			t.Errorf("%d to another writer: %d bytes of %d", size, rec.Body.Len(), len(want))
		}
		req := h.request(http.MethodPost, call)
		req.Header.Set("Accept", "text/event-stream")
		if _, body := h.do(req); !strings.Contains(body, "\ndata: "+want+"\n\n") {
			t.Errorf("%d as an event: %d bytes", size, len(body))
		}
		if _, body := h.post("[" + call + "]"); body != "["+want+"]" && !strings.Contains(body, "batch") {
			t.Errorf("%d in a batch: %d bytes", size, len(body))
		}
	}
}

// What the revision without sessions adds to a result is the same whatever its size.
func TestLargeResultsWithoutSession(t *testing.T) {
	c := dial(t, newDoor(t, newGate(), nil))
	ask := func(text string) string {
		return c.Ask(modernLine(`1`, "tools/call", `"name":"demo__echo","arguments":{"t":"`+text+`"}`))
	}
	small := ask("few bytes")
	for _, size := range []int{16_000, 16_384, 300_000} {
		text := strings.Repeat("x", size)
		if got := strings.Replace(ask(text), text, "few bytes", 1); got != small || !strings.Contains(got, "io.modelcontextprotocol/serverInfo") {
			t.Errorf("%d: %.400s\nwant %s", size, got, small)
		}
	}
}

// The memory of a large result is used again once the client has it in one piece. A stream may send it again, and
// a call whose client may be asked may go on after its answer.
func TestBuffersOfLargeResults(t *testing.T) {
	const call = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"demo__large","arguments":{}`
	for _, row := range []struct {
		name, body string
		session    bool
		want       bool
	}{
		{"in a session", call + `}}`, true, true},
		{"on the stream of a session", call + `,"_meta":{"progressToken":1}}}`, true, false},
		{"in a batch", "[" + call + `}}]`, true, false},
		{"without a session", call + "," + strings.Replace(modernMeta, `"roots":{}`, "", 1) + `}}`, false, true},
		{"to a client that may be asked", call + "," + modernMeta + `}}`, false, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			g, budget, got := newGate(), share.NewBudget(1<<30, 1<<30), false
			var lent raw
			g.behave["large"] = func(_ context.Context, _ *fakeGate, in *proxyCall, _ raw) (raw, *proxyFailure) {
				result := `{"content":[{"type":"text","text":"` + strings.Repeat("x", 100_000) + `"}]}`
				lent = in.Bytes.Buffer(len(result), 512)
				copy(lent, result)
				in.Bytes.Relinquish()
				return lent, nil
			}
			d := newDoor(t, g, func(o *mcp.Options) { o.Budget = budget })
			for range 20 {
				session := ""
				if row.session {
					session = record(d, "alice", "", strings.Replace(initialize, "2025-11-25", "2025-03-26", 1)).Header().Get("Mcp-Session-Id")
				}
				req := httptest.NewRequest(http.MethodPost, "http://localhost/mcp", strings.NewReader(row.body))
				standardHeaders(req, "alice")
				if row.session {
					req.Header.Set("Mcp-Session-Id", session)
				} else {
					req.Header["Mcp-Protocol-Version"], req.Header["Mcp-Method"], req.Header["Mcp-Name"] = []string{"2026-07-28"}, []string{"tools/call"}, []string{"demo__large"}
				}
				rec := httptest.NewRecorder()
				if d.ServeHTTP(rec, req); !strings.Contains(rec.Body.String(), strings.Repeat("x", 100_000)) {
					t.Fatalf("%d %.300s", rec.Code, rec.Body)
				}
				next := new(share.Claim)
				budget.Take(next, share.Owner{}, 1)
				got = got || &next.Buffer(len(lent), 512)[0] == &lent[0]
			}
			if got != row.want {
				t.Errorf("used again: %v, want %v", got, row.want)
			}
		})
	}
}
