package upstream_test

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/testkit/recorder"
	"github.com/toolgate/toolgate/registry/config"
	"github.com/toolgate/toolgate/registry/upstream"
)

// peer is a client for tests: it answers what it is asked and keeps what it is
// told.
type peer struct {
	answer func(upstream.Question) upstream.Answer

	mu     sync.Mutex // protects the fields below
	rounds [][]upstream.Question
	told   []string
}

// Ask implements upstream.Peer.
func (p *peer) Ask(ctx context.Context, round []upstream.Question) []upstream.Answer {
	p.mu.Lock()
	p.rounds = append(p.rounds, round)
	p.mu.Unlock()
	var out []upstream.Answer
	for _, q := range round {
		if p.answer == nil {
			<-ctx.Done()
			return nil
		}
		out = append(out, p.answer(q))
	}
	return out
}

// Tell implements upstream.Peer.
func (p *peer) Tell(method string, params json.RawMessage) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.told = append(p.told, method+" "+string(params))
}

// heard gives what was told so far.
func (p *peer) heard() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.told)
}

// asked gives the rounds so far.
func (p *peer) asked() [][]upstream.Question {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.rounds)
}

// overModern runs f with a modern recorder over both transports, in isolation
// "session". The recorder must see nothing that its revision forbids.
func overModern(t *testing.T, cfg recorder.Stateless, f func(*testing.T, *recorder.Recorder, *running)) {
	overModernWith(t, cfg, func() upstream.Options { return upstream.Options{} }, f)
}

func overModernWith(t *testing.T, cfg recorder.Stateless, opts func() upstream.Options, f func(*testing.T, *recorder.Recorder, *running)) {
	for _, tr := range []struct {
		name  string
		start func(testing.TB, recorder.Config) *recorder.Recorder
		serve func(*recorder.Recorder) config.Server
	}{{"stdio", recorder.Stdio, stdioServer}, {"http", recorder.HTTP, httpServer}} {
		t.Run(tr.name, func(t *testing.T) {
			rec := tr.start(t, recorder.Config{Stateless: &cfg})
			server := tr.serve(rec)
			server.Isolation = "session"
			up := start(t, server, opts())
			f(t, rec, up)
			if got := rec.Violations(); got != nil {
				t.Errorf("violations: %q", got)
			}
		})
	}
}

// asClient is a session of a client that can be asked.
func asClient(session string, p upstream.Peer) upstream.Downstream {
	return upstream.Downstream{Session: session, Capabilities: json.RawMessage(`{"elicitation":{},"sampling":{},"roots":{}}`), Level: "info", Peer: p, Home: p}
}

// send calls a tool for a session.
func (r *running) send(who upstream.Downstream, tool, arguments string) (json.RawMessage, *upstream.Error) {
	return r.Do(context.Background(), upstream.Call{Tool: tool, Fingerprint: r.fingerprint(tool), Arguments: json.RawMessage(arguments), Meta: json.RawMessage(`{}`), From: who})
}

// A request says all that the server has to know of its client, whatever its
// params held before; the arguments go byte for byte.
func TestModernRequest(t *testing.T) {
	overModern(t, recorder.Stateless{Tools: []recorder.StatelessTool{{Name: "echo"}}}, func(t *testing.T, rec *recorder.Recorder, up *running) {
		up.ready()
		meta := json.RawMessage(`{"vendor/x":9007199254740993,"io.modelcontextprotocol/protocolVersion":"1999-01-01","io.modelcontextprotocol/logLevel":"debug"}`)
		call := upstream.Call{Tool: "echo", Fingerprint: up.fingerprint("echo"), Arguments: json.RawMessage(`{ "n" : 9007199254740993 }`), Meta: meta}
		got, e := up.Do(context.Background(), call)
		if e != nil {
			t.Fatal(e)
		}
		want := `{"resultType":"complete","content":[],"structuredContent":{"name":"echo","arguments":{ "n" : 9007199254740993 },"_meta":` +
			`{"vendor/x":9007199254740993,"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"toolgate","version":"dev"},"io.modelcontextprotocol/clientCapabilities":{}}}}`
		if diff := cmp.Diff(want, string(got)); diff != "" {
			t.Error(diff)
		}
		call.From, call.Meta = asClient("one", nil), nil
		if got, e = up.Do(context.Background(), call); e != nil {
			t.Fatal(e)
		}
		want = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"toolgate","version":"dev"},` +
			`"io.modelcontextprotocol/clientCapabilities":{"elicitation":{},"sampling":{},"roots":{}},"io.modelcontextprotocol/logLevel":"info"}`
		if !strings.Contains(string(got), want) {
			t.Errorf("got %s, want %s", got, want)
		}
		if slices.Contains(rec.Methods(), "initialize") {
			t.Errorf("it was initialized: %q", rec.Methods())
		}
	})
}

// How a server is found to speak, and what it then gets to see.
func TestEra(t *testing.T) {
	probe := []string{"server/discover"}
	shaken := []string{"initialize", "notifications/initialized", "tools/list"}
	tools := []recorder.StatelessTool{{Name: "echo"}}
	for _, tt := range []struct {
		name string
		cfg  recorder.Config
		want []string // methods until the server is ready
		http bool
	}{
		{"it does not know the question", recorder.Config{}, slices.Concat(probe, shaken), true},
		{"it says nothing", recorder.Config{IgnoreDiscover: true}, slices.Concat(probe, shaken), false},
		{"it dies of the question", recorder.Config{CrashOnDiscover: true}, slices.Concat(probe, shaken), false},
		{"it speaks no revision of ours", recorder.Config{Stateless: &recorder.Stateless{Revisions: []string{"2027-01-01"}}}, slices.Concat(probe, []string{"initialize"}, probe), true},
		{"it wants to be asked again", recorder.Config{Stateless: &recorder.Stateless{RefuseFirst: true, Tools: tools, Capabilities: json.RawMessage(`{"tools":{}}`)}}, []string{"server/discover", "server/discover", "tools/list"}, true},
		{"it speaks ours", recorder.Config{Stateless: &recorder.Stateless{Revisions: []string{"2027-01-01", "2026-07-28"}, Tools: tools, Capabilities: json.RawMessage(`{"tools":{}}`)}}, []string{"server/discover", "tools/list"}, true},
	} {
		for _, over := range []string{"stdio", "http"} {
			if over == "http" && !tt.http {
				continue
			}
			t.Run(tt.name+" "+over, func(t *testing.T) {
				var rec *recorder.Recorder
				var cfg config.Server
				if over == "http" {
					rec = recorder.HTTP(t, tt.cfg)
					cfg = httpServer(rec)
				} else {
					rec = recorder.Stdio(t, tt.cfg)
					cfg = stdioServer(rec)
				}
				cfg.Timeout = patience // half of it is for the question, and for starting a program
				if tt.cfg.IgnoreDiscover {
					cfg.Timeout = 4 * time.Second
				}
				start(t, cfg, upstream.Options{})
				await(t, strings.Join(tt.want, " "), func() bool {
					got := rec.Methods()
					return len(got) >= len(tt.want) && slices.Equal(got[:len(tt.want)], tt.want)
				})
			})
		}
	}
}

// A later connection does what worked before.
func TestEraIsRemembered(t *testing.T) {
	for _, modern := range []*recorder.Stateless{nil, {Tools: []recorder.StatelessTool{{Name: "echo"}}, Capabilities: json.RawMessage(`{"tools":{}}`)}} {
		rec := recorder.Stdio(t, recorder.Config{Tools: []recorder.Tool{{Name: "echo"}}, Stateless: modern})
		cfg := stdioServer(rec)
		cfg.Isolation = "session"
		up := start(t, cfg, upstream.Options{})
		up.ready()
		if _, e := up.send(asClient("one", nil), "echo", `{}`); e != nil {
			t.Fatal(e)
		}
		probes := 0
		for _, method := range rec.Methods() {
			if method == "server/discover" {
				probes++
			}
		}
		if probes != 1 || len(rec.Starts()) != 2 {
			t.Errorf("modern %v: %d probes of %d processes: %q", modern != nil, probes, len(rec.Starts()), rec.Methods())
		}
	}
}

// What headers repeat, and how.
func TestMirroredArguments(t *testing.T) {
	definition := json.RawMessage(`{"name":"q","inputSchema":{"type":"object","properties":{
		"region":{"type":"string","x-mcp-header":"Region"},"n":{"type":"integer","x-mcp-header":"count"},"b":{"type":"boolean","x-mcp-header":"B"},
		"deep":{"type":"object","properties":{"s":{"type":"string","x-mcp-header":"Deep-One"}}}}}}`)
	cfg := recorder.Stateless{Tools: []recorder.StatelessTool{{Name: "q", Definition: definition}, {Name: "resources/read"}, {Name: "prompts/get"}}}
	rec := recorder.HTTP(t, recorder.Config{Stateless: &cfg})
	up := start(t, httpServer(rec), upstream.Options{})
	up.ready()
	for _, arguments := range []string{
		`{}`, `{"region":"us-west1","n":42,"b":true}`, `{"region":null,"deep":null}`, `{"region":"Hello, 世界","deep":{"s":" padded "}}`,
		`{"region":"line1\nline2","n":-7,"b":false}`, `{"region":"=?base64?literal?="}`, `{"region":"","n":9007199254740991}`, `{"n":42.0}`, `{"n":4.2e1}`, "{\"region\":\"a\\tb\"}",
	} {
		if _, e := up.call(up.last, "q", arguments); e != nil {
			t.Errorf("%s: %v", arguments, e)
		}
	}
	for _, ask := range []upstream.Ask{
		{Method: "resources/read", Params: json.RawMessage(`{"uri":"file:///ä b"}`)}, {Method: "prompts/get", Params: json.RawMessage(`{"name":"p"}`)},
	} {
		if _, e := up.Ask(context.Background(), ask); e != nil {
			t.Errorf("%s: %v", ask.Params, e)
		}
	}
	if got := rec.Violations(); got != nil {
		t.Errorf("violations: %q", got)
	}
}

// What comes in the course of a call: progress without our token, and the rest
// as it is, to the client of the call and to no other.
func TestModernCourse(t *testing.T) {
	sends := []string{
		`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":TOKEN,"progress":9007199254740993}}`,
		`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":9007199254740993}}`,
		`{"jsonrpc":"2.0","id":1,"method":"sampling/createMessage","params":{}}`,
	}
	overModern(t, recorder.Stateless{Tools: []recorder.StatelessTool{{Name: "t", Sends: sends}}}, func(t *testing.T, rec *recorder.Recorder, up *running) {
		up.ready()
		var mu sync.Mutex
		var progress []string
		p := &peer{}
		_, e := up.Do(context.Background(), upstream.Call{Tool: "t", Fingerprint: up.fingerprint("t"), From: asClient("one", p), Progress: func(params json.RawMessage) {
			mu.Lock()
			defer mu.Unlock()
			progress = append(progress, string(params))
		}})
		if e != nil {
			t.Fatal(e)
		}
		mu.Lock()
		defer mu.Unlock()
		if diff := cmp.Diff([]string{`{"progress":9007199254740993}`}, progress); diff != "" {
			t.Error(diff)
		}
		if diff := cmp.Diff([]string{`notifications/message {"level":"info","data":9007199254740993}`}, p.heard()); diff != "" {
			t.Error(diff)
		}
		if up.Status().Dropped != 1 {
			t.Errorf("%d messages dropped, want the server's own request", up.Status().Dropped)
		}
	})
}

// A call that is given up is cancelled in the way of its transport.
func TestModernCancel(t *testing.T) {
	overModern(t, recorder.Stateless{Tools: []recorder.StatelessTool{{Name: "t", Sends: []string{"hang"}}}}, func(t *testing.T, rec *recorder.Recorder, up *running) {
		up.ready()
		ctx, stop := context.WithCancel(context.Background())
		go func() {
			await(t, "the call", func() bool { return len(rec.Calls()) == 1 })
			stop()
		}()
		_, e := up.Do(ctx, upstream.Call{Tool: "t", Fingerprint: up.fingerprint("t"), From: asClient("one", nil)})
		wantError(t, e, upstream.Cancelled, true)
		await(t, "the server hears of it", func() bool { return len(rec.Cancelled()) == 1 })
		told := slices.Contains(rec.Methods(), "notifications/cancelled")
		if over := rec.URL != ""; told == over {
			t.Errorf("over HTTP %v, notifications/cancelled sent %v", over, told)
		}
	})
}

// Errors come as the server sent them, whatever their HTTP status.
func TestModernErrors(t *testing.T) {
	for _, object := range []string{
		`{"code":-32601,"message":"m"}`, `{"code":-32602,"message":"unknown tool","data":9007199254740993}`, `{"code":-32020,"message":"m"}`,
		`{"code":-32021,"message":"m","data":{"requiredCapabilities":{"sampling":{}}}}`,
	} {
		overModern(t, recorder.Stateless{Tools: []recorder.StatelessTool{{Name: "t", Answers: []json.RawMessage{json.RawMessage(object)}}}}, func(t *testing.T, rec *recorder.Recorder, up *running) {
			up.ready()
			_, e := up.send(asClient("one", nil), "t", `{}`)
			wantError(t, e, upstream.Failed, true)
			if string(e.RPC) != object {
				t.Errorf("got %s, want %s", e.RPC, object)
			}
			if len(rec.Calls()) != 1 {
				t.Errorf("%d calls", len(rec.Calls()))
			}
		})
	}
}

// What older clients send and this revision has not.
func TestAnsweredForTheServer(t *testing.T) {
	overModern(t, recorder.Stateless{Tools: []recorder.StatelessTool{{Name: "completion/complete"}}}, func(t *testing.T, rec *recorder.Recorder, up *running) {
		up.ready()
		for _, tt := range []struct{ method, code string }{
			{"ping", ""}, {"logging/setLevel", ""}, {"completion/complete", ""},
			{"tasks/get", "-32601"}, {"tasks/list", "-32601"}, {"tasks/result", "-32601"}, {"tasks/cancel", "-32601"},
		} {
			_, e := up.Ask(context.Background(), upstream.Ask{Method: tt.method, Params: json.RawMessage(`{}`), From: asClient("one", nil)})
			code := ""
			if e != nil {
				raw, _ := jsonrpc.Get(e.RPC, "code")
				code = string(raw)
			}
			if code != tt.code {
				t.Errorf("%s: %v, want code %q", tt.method, e, tt.code)
			}
		}
		up.Notify("one", "notifications/roots/list_changed", nil)
		if _, e := up.Ask(context.Background(), upstream.Ask{Method: "completion/complete", From: asClient("one", nil)}); e != nil {
			t.Error(e)
		}
		if slices.Contains(rec.Methods(), "notifications/roots/list_changed") {
			t.Error("a notification went out that the revision does not have")
		}
	})
}
