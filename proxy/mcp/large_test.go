package mcp_test

import (
	"net/http"
	"strconv"
	"strings"
	"testing"
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
