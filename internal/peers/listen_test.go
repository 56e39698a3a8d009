package peers_test

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/toolgate/toolgate/internal/testkit/recorder"
)

// listener is the client's end of one stream of subscriptions/listen.
type listener struct {
	t      *testing.T
	stop   context.CancelFunc
	events chan string // the data of each event; closed at the end
}

// openListener listens at a route of g with a filter, as a client without a session.
func openListener(t *testing.T, g *gate, route, filter string) *listener {
	t.Helper()
	return listenAs(t, agentToken, g.Agents+route, filter)
}

// listenAs is openListener for another principal.
func listenAs(t *testing.T, token, address, filter string) *listener {
	t.Helper()
	body := `{"jsonrpc":"2.0","id":"l","method":"subscriptions/listen","params":{"notifications":` + filter + `,` + statelessMeta("{}") + `}}`
	return openEvents(t, http.MethodPost, address, body, map[string]string{
		"Content-Type": "application/json", "Authorization": "Bearer " + token, "Mcp-Protocol-Version": statelessRevision, "Mcp-Method": "subscriptions/listen",
	})
}

// openEvents sends a request whose answer is a stream.
func openEvents(t *testing.T, method, address, body string, headers map[string]string) *listener {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), timeout)
	t.Cleanup(stop)
	req, err := http.NewRequestWithContext(ctx, method, address, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept", "application/json, text/event-stream")
	for header, value := range headers {
		req.Header.Set(header, value)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	l := &listener{t: t, stop: stop, events: make(chan string, 100)}
	go func() {
		defer close(l.events)
		defer res.Body.Close()
		for lines := bufio.NewScanner(res.Body); lines.Scan(); {
			if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
				l.events <- data
			}
		}
	}()
	return l
}

// next returns the next event, "" at the end of the stream.
func (l *listener) next() string {
	l.t.Helper()
	select {
	case event := <-l.events:
		return event
	case <-time.After(timeout):
		l.t.Fatal("no event")
		return ""
	}
}

// awaitListeners waits until the streams at a server that want news are so many.
func awaitListeners(t *testing.T, rec *recorder.Recorder, want int) {
	t.Helper()
	deadline := time.Now().Add(timeout)
	for {
		got := 0
		for _, filter := range rec.Listeners() {
			if strings.Contains(filter, "vendor/news") {
				got++
			}
		}
		if got == want {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("listeners: %q, want %d for news", rec.Listeners(), want)
		}
		time.Sleep(10 * time.Millisecond) // another process writes what it sees into a file
	}
}

// TestListenBeyondWhatToolgateKnows: members of a filter that toolgate does not know reach the
// servers for which the operator named subscriptions/listen and the policy allows it, and no others.
// Their notifications reach the listener, and a stream ends with its listener, and the other way round.
func TestListenBeyondWhatToolgateKnows(t *testing.T) {
	t.Parallel()
	const news = `{"vendor/news":{"of":["a"]}}`
	serverOf := func() *recorder.Recorder {
		return recorder.HTTP(t, recorder.Config{Stateless: &recorder.Stateless{Tools: []recorder.StatelessTool{
			{Name: "say", Sends: []string{`listeners notifications/prompts/list_changed {}`, `listeners notifications/vendor/other {}`, `listeners notifications/vendor/news {"n":1e2}`}},
			{Name: "quit", Sends: []string{"end"}},
		}}})
	}
	named := map[string]any{"methods": []string{"subscriptions/listen", "notifications/vendor/news"}}
	open, closed, unnamed := serverOf(), serverOf(), serverOf()
	g := serveReady(t, configure(t, setup{
		servers: []server{httpOf("open", open, named), httpOf("closed", closed, named), httpOf("unnamed", unnamed, nil)},
		policy: `decision := {"effect": "deny", "rule": "CLOSED", "reason": "nobody listens here"} if {
	input.action == "subscriptions/listen"
	input.server.name == "closed"
} else := {"effect": "allow", "rule": "peers"}`,
	}))
	call := func(tool string) {
		t.Helper()
		postStateless(t, g.Agents+"/mcp", "tools/call", "open__"+tool, []byte(`{"jsonrpc":"2.0","id":"c","method":"tools/call","params":{"name":"open__`+tool+`","arguments":{},`+statelessMeta("{}")+`}}`), nil)
	}

	l := openListener(t, g, "/mcp", `{"promptsListChanged":false,"vendor/news":{"of":["a"]}}`)
	var acknowledged struct {
		Params struct{ Notifications json.RawMessage }
	}
	if err := json.Unmarshal([]byte(l.next()), &acknowledged); err != nil || string(acknowledged.Params.Notifications) != news {
		t.Errorf("acknowledged: %s %v", acknowledged.Params.Notifications, err)
	}
	awaitListeners(t, open, 1)
	if !slices.Contains(open.Listeners(), news) {
		t.Errorf("asked for %q, want the member that toolgate does not know and no other", open.Listeners())
	}
	for _, rec := range []*recorder.Recorder{closed, unnamed} {
		awaitListeners(t, rec, 0)
	}
	call("say")
	if got := l.next(); !strings.Contains(got, `"method":"notifications/vendor/news"`) || !strings.Contains(got, `"n":1e2`) || !strings.Contains(got, `"io.modelcontextprotocol/subscriptionId":"l"`) {
		t.Errorf("heard %s", got)
	}
	for _, route := range []string{"/mcp/closed", "/mcp/unnamed"} {
		other := openListener(t, g, route, news)
		if got := other.next(); !strings.Contains(got, `"notifications":{}`) {
			t.Errorf("%s acknowledged: %s", route, got)
		}
		other.stop()
	}
	for _, rec := range []*recorder.Recorder{closed, unnamed} {
		awaitListeners(t, rec, 0)
	}
	l.stop()
	awaitListeners(t, open, 0)

	again := openListener(t, g, "/mcp/open", news)
	again.next()
	awaitListeners(t, open, 1)
	call("quit")
	if got := again.next(); !strings.Contains(got, `"resultType":"complete"`) {
		t.Errorf("at the end of the server's stream: %s", got)
	}
	if got := again.next(); got != "" {
		t.Errorf("after the end: %s", got)
	}
	last := openListener(t, g, "/mcp/open", news)
	last.next()
	awaitListeners(t, open, 1)
	open.Stop()
	if got := last.next(); !strings.Contains(got, `"resultType":"complete"`) {
		t.Errorf("when the server died: %s", got)
	}
}
