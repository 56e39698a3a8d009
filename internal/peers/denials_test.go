package peers_test

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/signal"

	"github.com/toolgate/toolgate/internal/testkit/program"
)

// denial is one call that is refused, and how the two dialects say it.
type denial struct {
	what, tool, args string
	code             string // canonical, in data.code
	gateway, mcp     int    // JSON-RPC codes; 0 is a result with isError
}

var denials = []denial{
	{"denied by policy", "get-structured-content", `{"location":"New York"}`, "POLICY_DENIED", -32600, 0},
	{"arguments that do not fit", "get-structured-content", `{"location":"Paris"}`, "INVALID_TOOL_INPUT", -32600, 0},
	{"a tool that does not exist", "nothing", `{}`, "TOOL_NOT_FOUND", -32601, -32602},
	{"one call", "get-tiny-image", `{}`, "", 0, 0}, // spends the only token, or finds it spent
	{"one call too many", "get-tiny-image", `{}`, "RATE_LIMITED", -32001, -32001},
}

// testDenials: what the clients show of a refusal, and that they go on after it.
func (s *stage) testDenials(t *testing.T) {
	for _, p := range peers {
		for _, w := range []struct {
			name, prefix string
			way          way
			want         int
			mcp          bool
		}{
			{"mcp", "everything__", s.all(), s.count(s.upstreams), false},
			{"server", "", s.one("everything"), len(s.tools["everything"]), true},
			{"stdio", "everything__", s.pipe(t, s.narrow), s.count(s.few()), false},
		} {
			t.Run(p.name+"/"+w.name, func(t *testing.T) {
				t.Parallel()
				if p.name == "inspector" {
					d := denials[0] // it looks a tool up before it calls
					d.check(t, p, w.mcp, p.run(t, w.way, calling(w.prefix+d.tool, d.args))[0])
					return
				}
				steps := []step{listing(w.want)}
				for _, d := range denials {
					steps = append(steps, calling(w.prefix+d.tool, d.args))
				}
				steps = append(steps, calling(w.prefix+"get-sum", `{"a":2,"b":3}`))
				got := p.run(t, w.way, steps...)
				for i, d := range denials {
					d.check(t, p, w.mcp, got[i+1])
				}
				if last := got[len(got)-1]; !strings.Contains(string(last.Result), "The sum of 2 and 3 is 5.") {
					t.Errorf("afterwards: %s%s", last.Result, last.Failed)
				}
			})
		}
	}
}

// check compares a refusal with what the dialect says, as far as the client
// shows it.
func (d denial) check(t *testing.T, p peer, mcp bool, got seen) {
	t.Helper()
	want := d.gateway
	if mcp {
		want = d.mcp
	}
	switch {
	case d.code == "":
		return
	case want == 0:
		var r struct {
			IsError bool
			Meta    map[string]struct{ Code string } `json:"_meta"`
		}
		if err := json.Unmarshal(got.Result, &r); err != nil || !r.IsError || r.Meta["io.toolgate/error"].Code != d.code {
			t.Errorf("%s: got %s%s, want a result with isError and %s", d.what, got.Result, got.Failed, d.code)
		}
		return
	case got.Failed == "" || got.Result != nil:
		t.Errorf("%s: got %s, want an error", d.what, got.Result)
		return
	}
	if p.showsCode && got.Code != want {
		t.Errorf("%s: code %d, want %d (%s)", d.what, got.Code, want, got.Failed)
	}
	var data struct{ Code string }
	if p.showsData && (json.Unmarshal(got.Data, &data) != nil || data.Code != d.code) {
		t.Errorf("%s: data %s, want the code %s", d.what, got.Data, d.code)
	}
}

// testProgress: progress of a long call reaches the client, from a server
// behind each transport.
func (s *stage) testProgress(t *testing.T) {
	args := fmt.Sprintf(`{"duration":0.3,"steps":%d}`, wantSteps)
	for _, p := range peers {
		if !p.progress {
			continue
		}
		for name, w := range s.both(t) {
			t.Run(p.name+"/"+name, func(t *testing.T) {
				t.Parallel()
				steps := []step{listing(w.want)}
				servers := []string{"everything", "remote", "legacy"}
				for _, server := range servers {
					one := calling(server+"__"+longRunning, args)
					one.Progress = true
					steps = append(steps, one)
				}
				want := wantSteps
				if p.missesLast {
					want--
				}
				for i, got := range p.run(t, w.way, steps...)[1:] {
					if got.Progress < want || got.Progress > wantSteps || !strings.Contains(string(got.Result), "completed") {
						t.Errorf("%s: %d notifications, want %d: %s%s", servers[i], got.Progress, want, got.Result, got.Failed)
					}
				}
			})
		}
	}
	t.Run("raw", func(t *testing.T) { s.testProgressBytes(t, args) })
}

// testProgressBytes: every notification comes, in order, with the caller's own
// token and before the answer.
func (s *stage) testProgressBytes(t *testing.T, args string) {
	pipe := openStdio(t, filepath.Dir(s.narrow))
	awaitTools(t, pipe, s.count(s.few()))
	for name, d := range map[string]door{"mcp": openHTTP(t, s.all().URL, agentToken), "stdio": pipe} {
		for _, server := range []string{"everything", "remote", "legacy"} {
			message := `{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"_meta":{"progressToken":"mine"},"name":"` + server + `__` + longRunning + `","arguments":` + args + `}}`
			answer := d.exchange(t, []byte(message))
			if result, _ := parts(answer); result == nil {
				t.Errorf("%s, %s: %s", name, server, answer)
			}
			var want, got []string
			for i := range wantSteps {
				want = append(want, fmt.Sprintf(`mine %d of %d`, i+1, wantSteps))
			}
			for _, note := range d.heard() {
				var n struct {
					Method string
					Params struct {
						ProgressToken   string
						Progress, Total int
					}
				}
				if err := json.Unmarshal(note, &n); err != nil {
					t.Fatal(err)
				}
				if n.Method == "notifications/progress" {
					got = append(got, fmt.Sprintf("%s %d of %d", n.Params.ProgressToken, n.Params.Progress, n.Params.Total))
				}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s, %s (-want +got):\n%s", name, server, diff)
			}
		}
	}
}

// testCancel: a client that cancels gets no answer and goes on, and the trail
// says that the call was cancelled.
func (s *stage) testCancel(t *testing.T) {
	want := 0
	t.Run("clients", func(t *testing.T) {
		for _, p := range peers {
			for name, w := range s.both(t) {
				if name == "mcp" && !p.cancelsHTTP || name == "stdio" && !p.cancelsStdio {
					continue
				}
				want++
				t.Run(p.name+"/"+name, func(t *testing.T) {
					t.Parallel()
					long := calling("everything__"+longRunning, `{"duration":60,"steps":300}`)
					long.Cancel = true
					got := p.run(t, w.way, listing(w.want), long, calling("everything__get-sum", `{"a":2,"b":3}`))
					if got[1].Result != nil || got[1].Progress == 0 {
						t.Errorf("the cancelled call after %d notifications: %s", got[1].Progress, got[1].Result)
					}
					if !strings.Contains(string(got[2].Result), "The sum of 2 and 3 is 5.") {
						t.Errorf("afterwards: %s%s", got[2].Result, got[2].Failed)
					}
				})
			}
		}
	})
	program.Await(t, "the trail tells of every cancelled call", func() bool {
		return s.cancelled(t, s.Dir)+s.cancelled(t, filepath.Dir(s.narrow)) == want
	})
}

// cancelled counts the long calls that a trail says were cancelled.
func (s *stage) cancelled(t *testing.T, dir string) (n int) {
	t.Helper()
	out, _ := command(t, dir, "audit", "tail", "-n", "10000")
	for line := range strings.Lines(out) {
		var r audit.Record
		if err := json.Unmarshal([]byte(line), &r); err == nil && r.Code == signal.CodeCancelled && r.Tool == longRunning {
			n++
		}
	}
	return n
}

// testHeld: clients that check results against the tool's output schema take a
// held call as a tool result, then its one run, then the stored result. On
// stdio the call is held by one process and decided at another.
func (s *stage) testHeld(t *testing.T) {
	for _, p := range []peer{goSDK, typescript, mcpGo} {
		for name, w := range map[string]struct {
			tool string
			way  way
			want int
		}{
			"mcp":    {"memory__create_entities", s.all(), s.count(s.upstreams)},
			"server": {"create_entities", s.one("memory"), len(s.tools["memory"])},
			"stdio":  {"memory__create_entities", s.pipe(t, s.beside), len(s.tools["memory"])},
		} {
			t.Run(p.name+"/"+name, func(t *testing.T) {
				t.Parallel()
				held := calling(w.tool, fmt.Sprintf(`{"entities":[{"name":"%s %s","entityType":"held","observations":[]}]}`, p.name, name))
				var ticket string
				for _, got := range p.run(t, w.way, listing(w.want), held, held)[1:] {
					if got.Result == nil {
						t.Fatalf("a held call: %s (%d)", got.Failed, got.Code)
					}
					status, id := ticketOf(t, got.Result)
					if status != "pending" || ticket != "" && id != ticket {
						t.Fatalf("status %q, tickets %q and %q: %s", status, ticket, id, got.Result)
					}
					ticket = id
				}
				s.approve(t, ticket)
				done := p.run(t, w.way, listing(w.want), held, held)[1:]
				for i, want := range []string{"", "replayed"} {
					if done[i].Result == nil {
						t.Fatalf("run %d after approval: %s (%d)", i+1, done[i].Failed, done[i].Code)
					}
					if status, _ := ticketOf(t, done[i].Result); status != want || !strings.Contains(string(done[i].Result), `"structuredContent"`) {
						t.Errorf("run %d after approval: status %q, want %q: %s", i+1, status, want, done[i].Result)
					}
				}
			})
		}
	}
}
