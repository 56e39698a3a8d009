package mcp_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/mark3labs/mcp-go/client"
	"github.com/mark3labs/mcp-go/client/transport"
	mcpgo "github.com/mark3labs/mcp-go/mcp"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toolgate/toolgate/proxy"
	"github.com/toolgate/toolgate/proxy/mcp"
	"github.com/toolgate/toolgate/registry"
	"github.com/toolgate/toolgate/signal"
)

// TestModernConversations holds the door to the wire of the revision without
// sessions; the files are read as those of TestConversations. What calls no tool
// is served on the roads of single servers.
func TestModernConversations(t *testing.T) {
	converse(t, "testdata/modern/*.txtar", func(o *mcp.Options) {
		o.PageSize = 4
		library{o.Gate.(*fakeGate)}.serve(o)
	})
}

// modernLine is a request without a session as one line.
func modernLine(id, method, members string) string {
	if members != "" {
		members += ","
	}
	return `{"jsonrpc":"2.0","id":` + id + `,"method":"` + method + `","params":{` + members + modernMeta + `}}`
}

func cancelLine(id string) string {
	return `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":` + id + `}}`
}

// On stdio a stream of notifications shares the pipe, and ends without a word
// when its own id is cancelled; the ids of other types are others.
func TestStdioListens(t *testing.T) {
	d := newDoor(t, newGate(), func(o *mcp.Options) { o.MaxListens = 1 })
	c := dial(t, d)
	if got := c.Ask(modernLine(`7`, "subscriptions/listen", `"notifications":{"toolsListChanged":true}`)); !strings.Contains(got, `"io.modelcontextprotocol/subscriptionId":7`) {
		t.Errorf("acknowledged: %s", got)
	}
	d.ToolsChanged()
	const changed = `{"jsonrpc":"2.0","method":"notifications/tools/list_changed","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":7}}}`
	if got := c.Receive(); got != changed {
		t.Errorf("got %s", got)
	}
	if got := c.Ask(modernLine(`7`, "tools/list", "")); !strings.Contains(got, "in flight") {
		t.Errorf("the same id again: %s", got)
	}
	c.Send(cancelLine(`"7"`))
	d.ToolsChanged()
	if got := c.Receive(); got != changed {
		t.Errorf("after another id was cancelled: %s", got)
	}
	c.Send(cancelLine(`7`))
	for n := 1; ; n++ { // what was cancelled frees its place in its own time
		got := c.Ask(modernLine(fmt.Sprint(100+n), "subscriptions/listen", `"notifications":{}`))
		if strings.Contains(got, "acknowledged") {
			break
		} else if !strings.Contains(got, "OVERLOADED") {
			t.Fatalf("got %s", got)
		}
	}
}

// On stdio a call is cancelled by a notification, gets its reports on the pipe,
// and asks as over HTTP.
func TestStdioCalls(t *testing.T) {
	g := newGate()
	c := dial(t, newDoor(t, g, nil))
	c.Send(modernLine(`1`, "tools/call", `"name":"demo__wait"`))
	<-g.started
	c.Send(cancelLine(`1`))
	if got := c.Ask(modernLine(`2`, "tools/call", `"name":"demo__echo","arguments":{}`)); !strings.Contains(got, `"id":2`) {
		t.Errorf("after a cancelled call: %s", got)
	}
	withToken := strings.Replace(modernLine(`3`, "tools/call", `"name":"demo__steps","arguments":{}`), `"_meta":{`, `"_meta":{"progressToken":"p",`, 1)
	if got := c.Ask(withToken); !strings.Contains(got, `"progressToken":"p"`) {
		t.Errorf("progress: %s", got)
	}
	c.Receive()
	c.Receive()
	var asked struct{ Result struct{ RequestState string } }
	if err := json.Unmarshal([]byte(c.Ask(modernLine(`4`, "tools/call", askRoots))), &asked); err != nil || asked.Result.RequestState == "" {
		t.Fatalf("asked: %+v, %v", asked, err)
	}
	got := c.Ask(modernLine(`5`, "tools/call", askRoots+`,`+rootsAnswer+`,"requestState":"`+asked.Result.RequestState+`"`))
	if !strings.Contains(got, `"result 0":{"roots":[]}`) {
		t.Errorf("answered: %s", got)
	}
}

// A cancellation may say of which revision it is, and need not.
func TestStdioCancels(t *testing.T) {
	for name, line := range map[string]string{
		"plain":         cancelLine(`1`),
		"with revision": strings.Replace(cancelLine(`1`), `"requestId":1`, `"requestId":1,`+modernMeta, 1),
	} {
		t.Run(name, func(t *testing.T) {
			g := newGate()
			c := dial(t, newDoor(t, g, func(o *mcp.Options) { o.MaxFlights = 1 }))
			c.Send(modernLine(`1`, "tools/call", `"name":"demo__wait"`))
			<-g.started
			c.Send(modernLine(`2`, "tools/list", ""))
			c.Send(line)
			if got := c.Receive(); !strings.Contains(got, `"id":2,"result"`) {
				t.Errorf("after the call: %s", got)
			}
		})
	}
}

// What an upstream's error says in numbers that the revision has no longer, or
// has for others, never leaves as it came.
func TestErrorsOfUpstreams(t *testing.T) {
	for upstream, want := range map[string]struct {
		status               int
		transparent, gateway string
	}{
		`{"code":-32002,"message":"no","data":{"a":1}}`:                                   {200, `{"code":-32602,"message":"no","data":{"a":1,"uri":"file:///x"}}`, `"code":-32602`},
		`{"code":-32002,"message":"no"}`:                                                  {200, `{"code":-32602,"message":"no","data":{"uri":"file:///x"}}`, `"code":-32602`},
		`{"code":-32042,"message":"go","data":{"elicitations":[]}}`:                       {200, `{"code":-32603,"message":"go","data":{"elicitations":[]}}`, `"code":-32603`},
		`{"code":-32020,"message":"hop"}`:                                                 {200, `{"code":-32603,"message":"hop"}`, `"code":-32000`},
		`{"code":-32022,"message":"hop"}`:                                                 {200, `{"code":-32603,"message":"hop"}`, `"code":-32000`},
		`{"code":-32021,"message":"can","data":{"requiredCapabilities":{"sampling":{}}}}`: {400, `{"code":-32021,"message":"can","data":{"requiredCapabilities":{"sampling":{}}}}`, `"code":-32021`},
		`{"code":-32050,"message":"own","data":{"b":1e2}}`:                                {200, `{"code":-32050,"message":"own","data":{"b":1e2}}`, `"code":-32000`},
	} {
		g := newGate()
		g.behave["fails"] = func(_ context.Context, g *fakeGate, _ *proxyCall, _ raw) (raw, *proxyFailure) {
			f := g.fail(signal.CodeToolFailed, "no")
			f.Upstream = raw(upstream)
			return nil, f
		}
		d := newDoor(t, g, nil)
		rec := serve(d, sessionless("alice", "/mcp/demo", "tools/call", `"name":"fails","uri":"file:///x"`))
		if rec.Code != want.status || !strings.Contains(rec.Body.String(), `"error":`+want.transparent+`}`) {
			t.Errorf("%s: %d %s", upstream, rec.Code, rec.Body)
		}
		req := sessionless("alice", "/mcp", "tools/call", `"name":"demo__fails"`)
		if rec := serve(d, req); rec.Code != want.status || !strings.Contains(rec.Body.String(), `"error":{`+want.gateway) {
			t.Errorf("%s on the road of all: %d %s", upstream, rec.Code, rec.Body)
		}
	}
}

// A result of the road that asks is none: its state would be another's.
func TestForeignQuestionsDoNotPass(t *testing.T) {
	for result, want := range map[string]string{
		`{"resultType":"input_required","requestState":"x"}`: "-32603",
		`{"resultType":7}`:                               "-32603",
		`{"resultType":"task","taskId":"t"}`:             `"resultType":"task","taskId":"t"`,
		`{"resultType":"complete","_meta":{"a":1}}`:      `"_meta":{"a":1,"io.modelcontextprotocol/serverInfo"`,
		`{"content":[],"_meta":null}`:                    `"_meta":{"io.modelcontextprotocol/serverInfo"`,
		`{"content":[],"ttlMs":5,"cacheScope":"public"}`: `"ttlMs":5,"cacheScope":"public"`, // says nothing of a call
	} {
		g := newGate()
		g.behave["says"] = func(context.Context, *fakeGate, *proxyCall, raw) (raw, *proxyFailure) { return raw(result), nil }
		if rec := serve(newDoor(t, g, nil), sessionless("alice", "/mcp", "tools/call", `"name":"demo__says"`)); !strings.Contains(rec.Body.String(), want) {
			t.Errorf("%s: %s", result, rec.Body)
		}
	}
}

// keeping is a library whose results say how long they may be kept.
type keeping struct {
	library
	ttl string
}

func (k keeping) Relay(context.Context, *proxy.Call) (*proxy.Reply, *proxy.Failure) {
	return &proxy.Reply{Result: raw(`{"contents":[],"ttlMs":` + k.ttl + `,"cacheScope":"public"}`)}, nil
}

// How long a result may be kept is the upstream's word, if it is one; for whom
// it may be is not.
func TestCaching(t *testing.T) {
	for ttl, want := range map[string]string{"300000": "300000", "0": "0", "-1": "0", "1.5": "0", `"9"`: "0", "null": "0"} {
		g := newGate()
		d := newDoor(t, g, func(o *mcp.Options) { library{g}.serve(o); o.Relayer = keeping{library{g}, ttl} })
		rec := serve(d, sessionless("alice", "/mcp/demo", "resources/read", `"uri":"a"`))
		if !strings.Contains(rec.Body.String(), `"ttlMs":`+want+`,"cacheScope":"private"`) {
			t.Errorf("%s: %s", ttl, rec.Body)
		}
	}
}

// What the road is told of a request without a session.
func TestModernCall(t *testing.T) {
	g := newGate()
	d := newDoor(t, g, nil)
	req := sessionless("alice", "/mcp/demo", "tools/call", `"name":"echo","inputResponses":{"a":{}}`)
	serve(d, req)
	in := g.reached[0]
	if in.Era != "2026-07-28" || in.Client != "test/1" || string(in.Capabilities) != `{"roots":{}}` || in.Level != "" || in.Peer == nil || in.Home == nil || in.Progress != nil {
		t.Errorf("the call: %+v", in)
	}
	if strings.Contains(string(in.Message.Params), "inputResponses") {
		t.Errorf("params: %s", in.Message.Params)
	}
}

// Only a request that can be answered with questions loses what answers them:
// elsewhere the members are the server's, as those of tasks/update are.
func TestOtherAnswersPass(t *testing.T) {
	g := newGate()
	got := make(chan string, 2)
	d := newDoor(t, g, func(o *mcp.Options) { library{g}.serve(o); o.Relayer = reading{library{g}, got} })
	const answers = `"inputResponses":{"k":{}},"requestState":"s"`
	serve(d, sessionless("alice", "/mcp/demo", "tasks/update", `"taskId":"t",`+answers))
	if params := <-got; !strings.Contains(params, answers) {
		t.Errorf("tasks/update: %s", params)
	}
	serve(d, sessionless("alice", "/mcp/demo", "resources/read", `"uri":"u","inputResponses":{"k":{}}`))
	if params := <-got; strings.Contains(params, "inputResponses") {
		t.Errorf("resources/read: %s", params)
	}
}

// reading is a library that tells what params it gets.
type reading struct {
	library
	got chan string
}

func (r reading) Relay(ctx context.Context, in *proxy.Call) (*proxy.Reply, *proxy.Failure) {
	r.got <- string(in.Message.Params)
	return r.library.Relay(ctx, in)
}

// A panic is the end of its own request, and nothing stays behind.
func TestModernPanic(t *testing.T) {
	g := newGate()
	g.behave["panics"] = func(context.Context, *fakeGate, *proxyCall, raw) (raw, *proxyFailure) { panic("on purpose") }
	d := newDoor(t, g, nil)
	if rec := serve(d, sessionless("alice", "/mcp", "tools/call", `"name":"demo__panics"`)); !strings.Contains(rec.Body.String(), "-32603") {
		t.Errorf("answered %s", rec.Body)
	}
	if rec := serve(d, sessionless("alice", "/mcp", "tools/call", `"name":"demo__echo","arguments":{}`)); !strings.Contains(rec.Body.String(), "complete") {
		t.Errorf("afterwards %s", rec.Body)
	}
}

const askName = `{"ask":[{"method":"elicitation/create","params":{"mode":"form","message":"who?","requestedSchema":{"type":"object","properties":{"name":{"type":"string"}}}}}]}`

// TestGoSDKAnswers: the go-sdk client answers a server's question in the course
// of one call, and listens for a resource.
func TestGoSDKAnswers(t *testing.T) {
	g := newGate()
	srv, _ := newServer(t, g, func(o *mcp.Options) { library{g}.serve(o) })
	updated := make(chan string, 1)
	s := sdkSession(t, srv.URL+"/mcp/demo", modernEra, &sdk.ClientOptions{
		ElicitationHandler: func(_ context.Context, r *sdk.ElicitRequest) (*sdk.ElicitResult, error) {
			return &sdk.ElicitResult{Action: "accept", Content: map[string]any{"name": "to " + r.Params.Message}}, nil
		},
		ResourceUpdatedHandler: func(_ context.Context, r *sdk.ResourceUpdatedNotificationRequest) {
			select {
			case updated <- r.Params.URI:
			default: // told again
			}
		},
	})
	result, err := s.CallTool(t.Context(), &sdk.CallToolParams{Name: "talk", Arguments: json.RawMessage(askName)})
	if err != nil || g.calls() != 1 {
		t.Errorf("calling: %+v, %v, %d calls on the road", result, err, g.calls())
	}
	if err := s.Subscribe(t.Context(), &sdk.SubscribeParams{URI: "file:///a"}); err != nil {
		t.Fatalf("subscribing: %v", err)
	}
	for got := ""; got != "file:///a"; { // the client does not wait for the acknowledgement
		if _, err := s.CallTool(t.Context(), &sdk.CallToolParams{Name: "talk", Arguments: json.RawMessage(
			`{"home":true,"tell":[{"method":"notifications/resources/updated","params":{"uri":"file:///a"}}]}`)}); err != nil {
			t.Fatal(err)
		}
		select {
		case got = <-updated:
		default:
		}
	}
}

// obliging answers what mcp-go's client is asked.
type obliging struct{}

func (obliging) Elicit(_ context.Context, r mcpgo.ElicitationRequest) (*mcpgo.ElicitationResult, error) {
	return &mcpgo.ElicitationResult{ElicitationResponse: mcpgo.ElicitationResponse{Action: mcpgo.ElicitationResponseActionAccept, Content: map[string]any{"name": "to " + r.Params.Message}}}, nil
}

// TestMCPGoModern: mcp-go's client stays with the revision without sessions, and
// answers a server's question.
func TestMCPGoModern(t *testing.T) {
	g := newGate()
	srv, _ := newServer(t, g, nil)
	way, err := transport.NewStreamableHTTP(srv.URL+"/mcp",
		transport.WithHTTPHeaders(map[string]string{"Authorization": "Bearer alice-token"}), transport.WithHTTPBasicClient(srv.Client()))
	if err != nil {
		t.Fatal(err)
	}
	c := client.NewClient(way, client.WithElicitationHandler(obliging{}))
	if err := c.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if result, err := c.Initialize(t.Context(), mcpgo.InitializeRequest{}); err != nil || result.ProtocolVersion != modernEra || result.ServerInfo.Name != "toolgate" {
		t.Fatalf("initializing: %+v, %v", result, err)
	}
	if tools, err := c.ListTools(t.Context(), mcpgo.ListToolsRequest{}); err != nil || len(tools.Tools) != len(g.tools) {
		t.Errorf("listing: %v, %v", tools, err)
	}
	var call mcpgo.CallToolRequest
	call.Params.Name, call.Params.Arguments = "demo__talk", json.RawMessage(askName)
	if answer, err := c.CallTool(t.Context(), call); err != nil || answer.IsError || g.calls() != 1 {
		t.Errorf("calling: %+v, %v, %d calls on the road", answer, err, g.calls())
	}
	if err := c.Close(); err != nil {
		t.Errorf("closing: %v", err)
	}
}

// A request of a client that cannot be asked ends like any other: its client may go, toolgate
// may shut down, and the road may panic. Its server cannot ask.
func TestClientThatCannotBeAsked(t *testing.T) {
	for name, tc := range map[string]struct {
		end  func(d *mcp.Door, hangUp func())
		want string // of the answer
	}{
		"it goes":   {func(_ *mcp.Door, hangUp func()) { hangUp() }, ""},
		"shutdown":  {func(d *mcp.Door, _ func()) { _ = d.Close(canceled()) }, proxy.ErrShutdown.Error()},
		"no end":    {func(*mcp.Door, func()) {}, `"error 0":`},
		"the panic": {func(*mcp.Door, func()) {}, "-32603"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newGate()
				g.behave["talk"] = func(ctx context.Context, _ *fakeGate, in *proxyCall, _ raw) (raw, *proxyFailure) {
					switch name {
					case "the panic":
						panic("planted")
					case "no end":
						return raw(`{"content":[],"error 0":` + string(in.Peer.Ask(ctx, []registry.Question{{Method: "roots/list"}})[0].Error) + `}`), nil
					}
					<-ctx.Done()
					return nil, g.fail(signal.CodeToolTimeout, context.Cause(ctx).Error())
				}
				d := newDoor(t, g, nil)
				ctx, hangUp := context.WithCancel(t.Context())
				defer hangUp()
				req := sessionless("alice", "/mcp", "tools/call", `"name":"demo__talk","arguments":{}`).WithContext(ctx)
				body, _ := io.ReadAll(req.Body)
				req.Body = io.NopCloser(strings.NewReader(strings.Replace(string(body), `{"roots":{}}`, `{}`, 1)))
				req.ContentLength -= int64(len(`"roots":{}`))
				rec, answered := httptest.NewRecorder(), make(chan struct{})
				go func() {
					defer close(answered)
					d.ServeHTTP(rec, req)
				}()
				synctest.Wait()
				tc.end(d, hangUp)
				<-answered
				if got := rec.Body.String(); !strings.Contains(got, tc.want) || tc.want == "" && got != "" {
					t.Errorf("%d %s, want %q", rec.Code, got, tc.want)
				}
			})
		})
	}
}

// canceled is a context that has ended.
func canceled() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}
