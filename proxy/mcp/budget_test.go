package mcp_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/share"
	"github.com/toolgate/toolgate/proxy/mcp"
)

// unread is a body that nobody may read.
type unread struct{ t *testing.T }

func (u unread) Read([]byte) (int, error) {
	u.t.Error("the body was read")
	return 0, context.Canceled
}

// A principal whose part of the budget is used up is refused before its body is read, on
// every route, in any revision, and with or without a length. Others are served, and so is
// the principal when there is room again.
func TestBodiesBeyondTheBudget(t *testing.T) {
	budget, full := share.NewBudget(8<<20, 4<<20), new(share.Claim)
	d := newDoor(t, newGate(), func(o *mcp.Options) { o.Budget = budget })
	alice := share.Owner{Subject: "alice"}
	send := func(who, path string, body *http.Request) *httptest.ResponseRecorder {
		rec := httptest.NewRecorder()
		standardHeaders(body, who)
		body.URL.Path = path
		d.ServeHTTP(rec, body)
		return rec
	}
	if !budget.Take(full, alice, 4<<20) {
		t.Fatal("no room")
	}
	for _, path := range []string{"/mcp", "/mcp/demo", "/messages"} {
		for name, length := range map[string]int64{"with a length": 100, "without one": -1} {
			req := httptest.NewRequest(http.MethodPost, "http://localhost/", unread{t})
			req.ContentLength = length
			rec := send("alice", path, req)
			code, _ := jsonrpc.At(rec.Body.Bytes(), "error", "data", "code")
			id, _ := jsonrpc.Get(rec.Body.Bytes(), "id")
			if rec.Code != http.StatusServiceUnavailable || rec.Header().Get("Retry-After") != "1" || string(code) != `"OVERLOADED"` || string(id) != "null" {
				t.Errorf("%s %s: %d %v %s", path, name, rec.Code, rec.Header(), rec.Body)
			}
		}
	}
	ask := func(who string) int {
		return send(who, "/mcp", httptest.NewRequest(http.MethodPost, "http://localhost/", strings.NewReader(initialize))).Code
	}
	if got := ask("bob"); got != http.StatusOK {
		t.Errorf("somebody else: %d", got)
	}
	full.Release()
	if got := ask("alice"); got != http.StatusOK {
		t.Errorf("when there is room again: %d", got)
	}
	if requests, _ := budget.Held(); requests != 0 || budget.Refused() != 6 {
		t.Errorf("%d bytes are held and %d requests were refused, want 0 and 6", requests, budget.Refused())
	}
}

// A body is held until its call has ended, also when its client has gone before.
func TestBodyIsHeldByItsCall(t *testing.T) {
	for name, call := range map[string]string{
		"on a stream":       `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"demo__wait","arguments":{},"_meta":{"progressToken":1}}}`,
		"without a session": modernLine("1", "tools/call", waitTool),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g, budget := newGate(), share.NewBudget(1<<20, 1<<20)
				ended := make(chan struct{})
				g.behave["wait"] = func(context.Context, *fakeGate, *proxyCall, raw) (raw, *proxyFailure) { // deaf to its client
					g.started <- struct{}{}
					<-g.release
					close(ended)
					return raw(`{}`), nil
				}
				d := newDoor(t, g, func(o *mcp.Options) { o.Budget = budget })
				session := ""
				if strings.Contains(name, "stream") {
					session = record(d, "alice", "", initialize).Header().Get("Mcp-Session-Id")
				}
				ctx, hangUp := context.WithCancel(t.Context())
				req := httptest.NewRequest(http.MethodPost, "http://localhost/mcp", strings.NewReader(call)).WithContext(ctx)
				standardHeaders(req, "alice")
				if session != "" {
					req.Header.Set("Mcp-Session-Id", session)
				} else {
					req.Header.Set("Mcp-Protocol-Version", "2026-07-28")
					req.Header.Set("Mcp-Method", "tools/call")
					req.Header.Set("Mcp-Name", "demo__wait")
				}
				rec, answered := httptest.NewRecorder(), make(chan struct{})
				go func() {
					d.ServeHTTP(rec, req)
					close(answered)
				}()
				synctest.Wait()
				if len(g.started) == 0 {
					t.Fatalf("the call did not begin: %d %s", rec.Code, rec.Body)
				}
				hangUp()
				<-answered
				if requests, _ := budget.Held(); requests != int64(len(call)) {
					t.Errorf("%d bytes are held while the call runs, want %d", requests, len(call))
				}
				close(g.release)
				<-ended
				synctest.Wait()
				if requests, _ := budget.Held(); requests != 0 {
					t.Errorf("%d bytes are held after the call", requests)
				}
			})
		})
	}
}

// Over stdio reading waits for room, and nothing is refused.
func TestStdioWaitsForRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, budget := newGate(), share.NewBudget(4000, 4000)
		c := dial(t, newDoor(t, g, func(o *mcp.Options) { o.Budget = budget })).open()
		c.Send(waitCall)
		<-g.started
		go func() {
			for id := 2; id <= 9; id++ {
				c.Send(sizedCall(id))
			}
		}()
		synctest.Wait()
		if requests, _ := budget.Held(); requests < 3000 || requests > 4000 {
			t.Errorf("%d bytes are held, want those of one call that waits and one of 3 KB", requests)
		}
		close(g.release)
		checkAnswered(t, 9, c.Receive)
		if all := g.refusals(); len(all) > 0 {
			t.Errorf("refused: %s", all)
		}
	})
}
