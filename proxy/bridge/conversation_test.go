package bridge_test

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/identity"
	"github.com/toolgate/toolgate/proxy"
	"github.com/toolgate/toolgate/proxy/bridge"
	"github.com/toolgate/toolgate/proxy/mcp"
	"github.com/toolgate/toolgate/registry"
	"github.com/toolgate/toolgate/signal"
)

var update = flag.Bool("update", false, "write what the bridge does into testdata")

// TestConversations holds the bridge before a door of toolgate to the wire,
// byte for byte. Each file of testdata is one conversation:
//
//	-- client --    one line that the client writes
//	-- POST --      the headers of the protocol with which it reaches the door;
//	                absent when it does not get there
//	-- bridge --    the lines that the client gets
//
// $SESSION is the session id, $TOKEN the bearer token. The comment of a file
// may begin with the token to show: "token: …".
func TestConversations(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no conversations found: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) { converse(t, file) })
	}
}

func converse(t *testing.T, file string) {
	archive, err := txtar.ParseFile(file)
	if err != nil {
		t.Fatal(err)
	}
	const known = "alice-token"
	token := known
	if m := regexp.MustCompile(`(?m)^token: (\S+)$`).FindSubmatch(archive.Comment); m != nil {
		token = string(m[1])
	}
	door := newDoor(t)
	c := connect(t, door.URL, func(o *bridge.Options) { o.Token = token })
	got := &txtar.Archive{Comment: archive.Comment}
	for _, section := range archive.Files {
		if section.Name != "client" {
			continue
		}
		got.Files = append(got.Files, section)
		line := strings.TrimSuffix(string(section.Data), "\n")
		c.Send(line)
		var answer string
		if m, err := jsonrpc.Decode([]byte(line), jsonrpc.Limits{}); err != nil || m.Kind == jsonrpc.Request {
			answer = c.Answer()
		} else {
			c.Ask(`{"jsonrpc":"2.0","id":"barrier","method":"ping"}`) // what has no answer is delivered before it
		}
		if post := door.post(line); post != "" {
			got.Files = append(got.Files, txtar.File{Name: "POST", Data: []byte(strings.ReplaceAll(post, token, "$TOKEN"))})
		}
		if answer != "" {
			got.Files = append(got.Files, txtar.File{Name: "bridge", Data: []byte(answer)})
		}
	}
	if _, err := c.End(); (err == nil) != (token == known) {
		t.Errorf("ended with %v", err)
	}
	if *update {
		if err := os.WriteFile(file, txtar.Format(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(string(txtar.Format(archive)), string(txtar.Format(got))); diff != "" {
		t.Errorf("%s (-file +bridge):\n%s", file, diff)
	}
}

// A change of the tools reaches the client on the door's own stream.
func TestToolsChanged(t *testing.T) {
	d := newDoor(t)
	c := connect(t, d.URL, func(o *bridge.Options) { o.Token = "alice-token" }).open()
	d.ToolsChanged()
	if got := c.Receive(); got != `{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}` {
		t.Errorf("heard %s", got)
	}
}

// door is a door of toolgate that notes what reaches it.
type door struct {
	*mcp.Door
	*httptest.Server

	mu      sync.Mutex        // protects the fields below
	posts   map[string]string // :: body -> headers
	session string
}

func newDoor(t *testing.T) *door {
	t.Helper()
	g := &gate{}
	d, err := mcp.New(mcp.Options{Gate: g, Refuser: g, Version: "1.2.3"})
	if err != nil {
		t.Fatal(err)
	}
	o := &door{Door: d, posts: map[string]string{}}
	o.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		r.Body = io.NopCloser(bytes.NewReader(body))
		o.note(r, string(body))
		d.ServeHTTP(w, r)
	}))
	t.Cleanup(func() {
		ctx, stop := context.WithTimeout(context.Background(), patience)
		defer stop()
		if err := d.Close(ctx); err != nil {
			t.Errorf("closing the door: %v", err)
		}
		o.Server.Close()
	})
	return o
}

func (d *door) note(r *http.Request, body string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	var b strings.Builder
	for _, name := range []string{"Authorization", "Mcp-Session-Id", "Mcp-Protocol-Version", "Mcp-Method", "Mcp-Name"} {
		if value := r.Header.Get(name); value != "" {
			fmt.Fprintf(&b, "%s: %s\n", name, value)
		}
	}
	if id := r.Header.Get("Mcp-Session-Id"); id != "" {
		d.session = id
	}
	d.posts[body] = b.String()
}

// post gives the headers with which a line reached the door.
func (d *door) post(line string) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	head := d.posts[line]
	if d.session != "" {
		head = strings.ReplaceAll(head, d.session, "$SESSION")
	}
	return head
}

// What servers ask comes to the client on the stream of the request and on the
// door's own, and its answers reach who asked.
func TestAsked(t *testing.T) {
	d := newDoor(t)
	c := connect(t, d.URL, func(o *bridge.Options) { o.Token = "alice-token" })
	c.Ask(strings.Replace(initialize, `"capabilities":{}`, `"capabilities":{"roots":{}}`, 1))
	c.Send(initialized)
	d.ToolsChanged()
	c.Receive() // so the door's own stream is open
	for n, args := range []string{`{}`, `{"home":true}`} {
		question := c.Ask(`{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"demo__ask","arguments":` + args + `}}`)
		id := fmt.Sprintf(`"ask_%d"`, n+1)
		if want := `{"jsonrpc":"2.0","id":` + id + `,"method":"roots/list","params":{"_meta":{"progressToken":` + id + `}}}`; question != want {
			t.Fatalf("asked %s, want %s", question, want)
		}
		c.Send(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":` + id + `,"progress":1e0}}`)
		if got, want := c.Receive(), `{"jsonrpc":"2.0","method":"notifications/message","params":{"progress":1e0}}`; got != want {
			t.Errorf("then told %s, want %s", got, want)
		}
		got := c.Ask(`{"jsonrpc":"2.0","id":` + id + `,"result":{"roots":[], "n":9007199254740993}}`)
		if want := `{"jsonrpc":"2.0","id":7,"result":{"content":[],"structuredContent":{"roots":[], "n":9007199254740993}}}`; got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

// gate is a road without stages. What a future door may want of it besides is
// not there.
type gate struct {
	mcp.Gate
	mcp.Refuser

	mu    sync.Mutex // protects count
	count int        // ids given out
}

func (g *gate) Call(ctx context.Context, in *proxy.Call) (*proxy.Reply, *proxy.Failure) {
	if in.Fault != nil {
		return nil, g.fail(signal.CodeEnvelopeInvalid, in.Fault.Reason)
	}
	name, _ := jsonrpc.Get(in.Message.Params, "name")
	args, _ := jsonrpc.Get(in.Message.Params, "arguments")
	if string(name) == `"demo__ask"` {
		return &proxy.Reply{Result: json.RawMessage(`{"content":[],"structuredContent":` + ask(ctx, in, args) + `}`)}, nil
	}
	if string(name) != `"demo__echo"` {
		return nil, g.fail(signal.CodePolicyDenied, "not you")
	}
	if in.Progress != nil {
		in.Progress(json.RawMessage(`{"progress":1,"total":2}`))
		in.Progress(json.RawMessage(`{"progress":2,"total":2}`))
	}
	return &proxy.Reply{Result: json.RawMessage(`{"content":[{"type":"text","text":` + string(jsonrpc.Quote(string(args))) + `}], "big":9007199254740993}`)}, nil
}

// ask asks the client for its roots, in the course of the call or beside it, and
// tells it of its own progress.
func ask(ctx context.Context, in *proxy.Call, args json.RawMessage) string {
	peer := in.Peer
	if _, home := jsonrpc.Get(args, "home"); home {
		peer = in.Home
	}
	a := peer.Ask(ctx, []registry.Question{{
		Method: "roots/list", Progress: func(params json.RawMessage) { peer.Tell("notifications/message", params) },
	}})
	return string(a[0].Result) + string(a[0].Error)
}

func (g *gate) Listing(context.Context, *proxy.Call, policy.Principal) *proxy.Listing {
	const definition = `{"name":"demo__echo", "inputSchema":{"type":"object"},"x-vendor":{"big":9007199254740993}}`
	return &proxy.Listing{Tools: []*registry.Tool{{Server: "demo", Name: "echo", Exposed: "demo__echo", Definition: json.RawMessage(definition), Listed: json.RawMessage(definition)}}}
}

func (g *gate) Identify(_ context.Context, c identity.Credential) (policy.Principal, *proxy.Failure) {
	if c.Bearer != "alice-token" {
		return policy.Principal{}, g.fail(signal.CodeUnauthenticated, "the token is not known")
	}
	return policy.Principal{Subject: "alice", Roles: []string{"researcher"}}, nil
}

func (g *gate) Refuse(_ context.Context, _ *proxy.Call, code, reason string) *proxy.Failure {
	return g.fail(code, reason)
}

func (g *gate) fail(code, reason string) *proxy.Failure {
	kernel, err := signal.ErrorFor(code, reason, signal.ModuleRef{Tier: 4, Module: "gate", Function: "fake"}, nil, nil)
	if err != nil {
		panic(err)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.count++
	return &proxy.Failure{Kernel: kernel, Reason: reason, DecisionID: fmt.Sprintf("dec_%d", g.count), TraceID: "trc"}
}
