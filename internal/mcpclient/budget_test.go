package mcpclient_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/toolgate/toolgate/internal/keepalive"
	"github.com/toolgate/toolgate/internal/mcpclient"
	"github.com/toolgate/toolgate/internal/share"
)

// A large answer waits for room in the budget, however it comes, and until its call ends. It
// is counted until the call's claim is given back.
func TestAnswersWaitForRoom(t *testing.T) {
	text := strings.Repeat("x", 200<<10)
	answer := fmt.Sprintf(`{"jsonrpc":"2.0","id":"1","result":{"text":%q}}`, text)
	posted := func(kind string, chunked, plain bool) func(*testing.T, context.Context, *share.Claim) (string, *mcpclient.Error) {
		return func(t *testing.T, ctx context.Context, claim *share.Claim) (string, *mcpclient.Error) {
			body := answer
			if kind == "text/event-stream" {
				body = "data: " + answer + "\n\n"
			}
			head := "HTTP/1.1 200 OK\r\nContent-Type: " + kind + "\r\n"
			if chunked {
				body = fmt.Sprintf("Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", len(body), body)
			} else {
				body = fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(body), body)
			}
			transport := keepalive.New(&http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
				return &canned{text: strings.NewReader(head + body)}, nil
			}})
			defer transport.CloseIdleConnections()
			var base http.RoundTripper = transport
			if !plain {
				base = onlyRoundTrip{transport}
			}
			c := mcpclient.New(mcpclient.Options{MaxBytes: 1 << 20})
			defer c.Close()
			if err := c.OpenHTTP("http://server.example/mcp", nil, base); err != nil {
				t.Fatal(err)
			}
			c.Speak("2025-06-18")
			result, e := c.Do(ctx, &mcpclient.Call{ID: "1", Method: "tools/call", Bytes: claim})
			return string(result), e
		}
	}
	for name, call := range map[string]func(*testing.T, context.Context, *share.Claim) (string, *mcpclient.Error){
		"JSON on a connection that is kept": posted("application/json", false, true),
		"JSON with a length":                posted("application/json", false, false),
		"JSON without a length":             posted("application/json", true, false),
		"an event":                          posted("text/event-stream", true, false),
		"a line of a process": func(t *testing.T, ctx context.Context, claim *share.Claim) (string, *mcpclient.Error) {
			s := serve(t)
			go func() {
				s.read()
				s.write(answer)
			}()
			result, e := s.Do(ctx, &mcpclient.Call{ID: "1", Method: "tools/call", Bytes: claim})
			return string(result), e
		},
	} {
		t.Run(name, func(t *testing.T) {
			budget := share.NewBudget(1<<20, 1<<20)
			var full, beyond, claim, again share.Claim
			for _, c := range []*share.Claim{&full, &beyond, &claim, &again} {
				budget.Take(c, share.Owner{}, 1)
			}
			for _, c := range []*share.Claim{&full, &beyond} {
				if _, err := io.Copy(io.Discard, c.Reader(t.Context(), strings.NewReader(strings.Repeat("x", 1<<20)))); err != nil {
					t.Fatal(err)
				}
			}
			short, stop := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer stop()
			if result, e := call(t, short, &claim); e == nil {
				t.Errorf("the answer was read without room: %.100s", result)
			}
			claim.Release()
			full.Release()
			beyond.Release()
			if result, e := call(t, t.Context(), &again); e != nil || result != fmt.Sprintf(`{"text":%q}`, text) {
				t.Errorf("with room: %.100s, %v", result, e)
			}
			if _, answers := budget.Held(); answers < 100<<10 || answers > 300<<10 {
				t.Errorf("the answer holds %d bytes, want nearly %d", answers, len(text))
			}
			again.Release()
			if _, answers := budget.Held(); answers != 0 {
				t.Errorf("%d bytes of answers are held in the end", answers)
			}
		})
	}
}
