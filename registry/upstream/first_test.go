package upstream_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/registry/config"
	"github.com/toolgate/toolgate/registry/upstream"
)

// able is a server in this process. It lists a tool more to clients that can be asked, and
// answers their initialize in its own time.
type able struct {
	late    time.Duration // after which it answers them
	refuses bool          // it answers them with an error

	mu    sync.Mutex
	tasks sync.WaitGroup
	asked int // connections of clients that can be asked
}

func (a *able) connect() func(line []byte, say func(string)) {
	tools := `{"name":"a","inputSchema":{"type":"object"}}`
	return func(line []byte, say func(string)) {
		method, _ := jsonrpc.TextAt(line, "method")
		id, isRequest := jsonrpc.Get(line, "id")
		if !isRequest {
			return
		}
		wait, result := time.Duration(0), `"error":{"code":-32601,"message":"no such method"}`
		switch method {
		case "initialize":
			result = `"result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"s","version":"1"}}`
			if strings.Contains(string(line), "sampling") {
				a.mu.Lock()
				a.asked++
				a.mu.Unlock()
				wait, tools = a.late, tools+`,{"name":"ask","inputSchema":{"type":"object"}}`
				if a.refuses {
					result = `"error":{"code":-32000,"message":"one connection only"}`
				}
			}
		case "tools/list":
			result = `"result":{"tools":[` + tools + `]}`
		}
		a.tasks.Go(func() {
			time.Sleep(wait) // of the bubble's clock
			say(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,%s}`, id, result))
		})
	}
}

// A first list is complete when the server has also answered a client that can do
// everything, however late: until then the server is not ready and lists nothing. One that
// refuses such clients has answered; one that never answers has not, and is asked again.
func TestFirstList(t *testing.T) {
	for _, tt := range []struct {
		name     string
		server   *able
		first    bool
		after    time.Duration // on the clock
		tools    string        // that are listed by then, with + before those of able clients
		state    upstream.State
		attempts int // to list for an able client
	}{
		{"at once", &able{}, true, time.Second, "a +ask", upstream.StateReady, 1},
		{"not yet", &able{late: 40 * time.Second}, true, 39 * time.Second, "", upstream.StateStarting, 1},
		{"late", &able{late: 40 * time.Second}, true, 41 * time.Second, "a +ask", upstream.StateReady, 1},
		{"refused", &able{refuses: true}, true, time.Second, "a", upstream.StateReady, 1},
		{"never", &able{late: 24 * time.Hour}, true, time.Minute + time.Millisecond, "", upstream.StateFailed, 1},
		{"never, again", &able{late: 24 * time.Hour}, true, 5 * time.Minute, "", upstream.StateFailed, 5},
		{"seen before", &able{late: 24 * time.Hour}, false, time.Second, "a", upstream.StateReady, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var listed []string
				s := upstream.StartInProcess(config.Server{Name: "s", Type: "stdio", Isolation: "session", Timeout: time.Minute, StartWait: 15 * time.Second},
					upstream.Options{
						First: func() bool { return tt.first },
						Listed: func(l upstream.Listing) {
							for _, d := range l.Tools {
								name, _ := upstream.NameOf(d)
								listed = append(listed, name)
							}
							for _, d := range l.Own {
								name, _ := upstream.NameOf(d.Definition)
								listed = append(listed, "+"+name)
							}
						},
					}, tt.server.connect)
				time.Sleep(tt.after)
				synctest.Wait()
				if got := strings.Join(slices.Clone(listed), " "); got != tt.tools {
					t.Errorf("listed %q, want %q", got, tt.tools)
				}
				if status := s.Status(); status.State != tt.state || tt.state == upstream.StateFailed && !strings.Contains(status.Err.Error(), "hint: set isolation to shared") {
					t.Errorf("%s, %v, want %s", status.State, status.Err, tt.state)
				}
				tt.server.mu.Lock()
				if tt.server.asked != tt.attempts {
					t.Errorf("asked %d times, want %d", tt.server.asked, tt.attempts)
				}
				tt.server.mu.Unlock()
				s.Close(context.Background())
				tt.server.tasks.Wait()
			})
		})
	}
}
