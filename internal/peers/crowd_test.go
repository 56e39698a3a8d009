package peers_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strconv"
	"sync"
	"syscall"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"golang.org/x/sync/errgroup"

	"github.com/toolgate/toolgate/internal/testkit/parts"
	"github.com/toolgate/toolgate/internal/testkit/program"
)

// progressPerPhase is the number of progress notifications of a call before its
// question, and again after it.
const progressPerPhase = 2

// newCrowdServer returns a server with one tool. A call reports progress, asks its
// client for the word of the call, reports progress again and answers with the word.
// Each message has the name of its call, so that messages of different calls differ.
func newCrowdServer(revision string) *sdk.Server {
	s := sdk.NewServer(&sdk.Implementation{Name: "crowd", Version: "1"}, nil)
	if revision == sessionRevision {
		refuseDiscover(s)
	}
	type in struct {
		Name string `json:"name"`
	}
	sdk.AddTool(s, &sdk.Tool{Name: "ask"}, func(ctx context.Context, r *sdk.CallToolRequest, in in) (*sdk.CallToolResult, any, error) {
		report := func(from int) error {
			for i := range progressPerPhase {
				if err := r.Session.NotifyProgress(ctx, &sdk.ProgressNotificationParams{
					ProgressToken: r.Params.GetProgressToken(), Progress: float64(from + i), Message: in.Name,
				}); err != nil {
					return err
				}
			}
			return nil
		}
		ask := &sdk.ElicitParams{Message: in.Name, RequestedSchema: wordSchema}
		answer, answered := r.Params.InputResponses["word"].(*sdk.ElicitResult)
		if !answered {
			if err := report(1); err != nil {
				return nil, nil, err
			}
			if _, stateless := r.Params.Meta[sdk.MetaKeyProtocolVersion]; stateless {
				return &sdk.CallToolResult{InputRequests: sdk.InputRequestMap{"word": ask}, RequestState: "asked " + in.Name}, nil, nil
			}
			var err error
			if answer, err = r.Session.Elicit(ctx, ask); err != nil {
				return nil, nil, err
			}
		} else if r.Params.RequestState != "asked "+in.Name {
			return nil, nil, fmt.Errorf("%s returned with the state %q", in.Name, r.Params.RequestState)
		}
		if err := report(1 + progressPerPhase); err != nil {
			return nil, nil, err
		}
		return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: fmt.Sprint(in.Name, " ", answer.Content["word"])}}}, nil, nil
	})
	return s
}

// refuseDiscover makes a server one with sessions only.
func refuseDiscover(s *sdk.Server) {
	s.AddReceivingMiddleware(func(next sdk.MethodHandler) sdk.MethodHandler {
		return func(ctx context.Context, method string, r sdk.Request) (sdk.Result, error) {
			if method == "server/discover" {
				return nil, &jsonrpc.Error{Code: jsonrpc.CodeMethodNotFound, Message: "method not found"}
			}
			return next(ctx, method, r)
		}
	})
}

var wordSchema = map[string]any{"type": "object", "properties": map[string]any{"word": map[string]any{"type": "string"}}, "required": []any{"word"}}

// crowdServerVar makes this binary a crowd server of a revision, on stdio.
const crowdServerVar = "PEERS_CONFIDING"

// runCrowdServer is that server. It exits when its stdin ends.
func runCrowdServer() {
	if err := newCrowdServer(os.Getenv(crowdServerVar)).Run(context.Background(), &sdk.StdioTransport{}); err != nil && !errors.Is(err, io.EOF) {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(0)
}

// crowdClient is one client of a crowd.
type crowdClient struct {
	id, revision string
	session      *sdk.ClientSession // set by makeCalls; the caller closes it

	mu          sync.Mutex        // protects the fields below
	words       map[string]string // :: name of a running call ⇒ its word
	asked       map[string]int    // :: name of a call ⇒ number of its questions
	progress    map[string][]int  // :: name of a call ⇒ its progress in order
	misdirected []string          // messages of calls of other clients
}

// record calls take for a message of one of the client's calls, and notes any other
// message as misdirected.
func (c *crowdClient) record(name string, take func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ours := c.words[name]; !ours {
		c.misdirected = append(c.misdirected, fmt.Sprintf("%s received a message of %q", c.id, name))
		return
	}
	take()
}

// options returns handlers that record progress and answer questions.
func (c *crowdClient) options() *sdk.ClientOptions {
	return &sdk.ClientOptions{
		Capabilities: &sdk.ClientCapabilities{},
		ElicitationHandler: func(_ context.Context, r *sdk.ElicitRequest) (*sdk.ElicitResult, error) {
			answer := &sdk.ElicitResult{Action: "decline"}
			c.record(r.Params.Message, func() {
				c.asked[r.Params.Message]++
				answer = &sdk.ElicitResult{Action: "accept", Content: map[string]any{"word": c.words[r.Params.Message]}}
			})
			return answer, nil
		},
		ProgressNotificationHandler: func(_ context.Context, r *sdk.ProgressNotificationClientRequest) {
			name := r.Params.Message
			c.record(name, func() {
				if r.Params.ProgressToken != "token of "+name {
					c.misdirected = append(c.misdirected, fmt.Sprintf("%s: progress of %q has the token %v", c.id, name, r.Params.ProgressToken))
				}
				c.progress[name] = append(c.progress[name], int(r.Params.Progress))
			})
		},
	}
}

// makeCalls makes calls in a new session, together of them at a time, and returns
// every fault.
func (c *crowdClient) makeCalls(ctx context.Context, w target, calls, together int) error {
	session, err := sdk.NewClient(&sdk.Implementation{Name: c.id, Version: "1"}, c.options()).
		Connect(ctx, goTransport(w), &sdk.ClientSessionOptions{ProtocolVersion: c.revision})
	if err != nil {
		return fmt.Errorf("%s: connecting: %w", c.id, err)
	}
	c.session = session
	var all errgroup.Group
	all.SetLimit(together)
	for n := range calls {
		name := fmt.Sprintf("%s call %d", c.id, n)
		word := fmt.Sprintf("word %d of %s", n*n, c.id)
		c.mu.Lock()
		c.words[name] = word
		c.mu.Unlock()
		all.Go(func() error {
			params := &sdk.CallToolParams{Name: "ask", Arguments: map[string]any{"name": name}}
			params.SetProgressToken("token of " + name)
			result, err := session.CallTool(ctx, params)
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			text, _ := result.Content[0].(*sdk.TextContent)
			if want := name + " " + word; result.IsError || text == nil || text.Text != want {
				return fmt.Errorf("%s: got %q, want %q", name, jsonTextOf(result), want)
			}
			return nil
		})
	}
	return errors.Join(all.Wait(), c.checkComplete(calls))
}

// checkComplete reports progress and questions that are missing, repeated or out of
// order. The client handles the last progress notification later than the answer.
func (c *crowdClient) checkComplete(calls int) error {
	program.Settles(func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, progress := range c.progress {
			if len(progress) < 2*progressPerPhase {
				return false
			}
		}
		return len(c.progress) == calls
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	var wrong []error
	for _, text := range c.misdirected {
		wrong = append(wrong, errors.New(text))
	}
	for name := range c.words {
		progress := c.progress[name]
		ordered := len(progress) == 2*progressPerPhase
		for i, n := range progress {
			ordered = ordered && n == i+1
		}
		if !ordered || c.asked[name] != 1 {
			wrong = append(wrong, fmt.Errorf("%s: progress %v, %d questions", name, progress, c.asked[name]))
		}
	}
	return errors.Join(wrong...)
}

// runCrowd runs clients at the same time.
func runCrowd(t *testing.T, w target, revision string, clients, calls, together int) {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), 3*timeout)
	defer stop()
	var all errgroup.Group
	crowd := make([]*crowdClient, clients)
	for n := range crowd {
		c := &crowdClient{
			id: fmt.Sprintf("client %d", n), revision: revision,
			words: map[string]string{}, asked: map[string]int{}, progress: map[string][]int{},
		}
		crowd[n] = c
		all.Go(func() error { return c.makeCalls(ctx, w, calls, together) })
	}
	err := all.Wait()
	for _, c := range crowd { // in turn: the client gives each DELETE five seconds
		if c.session != nil {
			err = errors.Join(err, c.session.Close())
		}
	}
	if err != nil {
		t.Error(truncate(err.Error()))
	}
}

// truncate cuts a long text.
func truncate(text string) string {
	if len(text) > 4000 {
		return text[:4000] + fmt.Sprintf("… and %d bytes more", len(text)-4000)
	}
	return text
}

func jsonTextOf(result *sdk.CallToolResult) string {
	text, err := result.MarshalJSON()
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// TestCrowd: many sessions with many concurrent calls, each with progress and a
// question. Every notification and every question reaches its own call exactly once.
// Afterwards no goroutine and no process of them remains.
func TestCrowd(t *testing.T) {
	parts.Long(t, "starts whole programs")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	isolated := map[string]any{"isolation": "session", "max_sessions": 128, "timeout": "120s"}
	pipe := func(revision string) map[string]any {
		return map[string]any{"command": self, "env": map[string]string{crowdServerVar: revision, "GORACE": "atexit_sleep_ms=0"}}
	}
	servers := []*httptest.Server{serveCrowdServer(t, sessionRevision), serveCrowdServer(t, statelessRevision)}
	g := &gate{program.ServeWatched(t, configure(t, setup{results: "off", limits: `{"default": "1000000/1m"}`, servers: []server{
		{"http-legacy", map[string]any{"type": "http", "url": servers[0].URL}, isolated},
		{"http-modern", map[string]any{"type": "http", "url": servers[1].URL}, isolated},
		{"stdio-legacy", pipe(sessionRevision), isolated},
		{"stdio-modern", pipe(statelessRevision), isolated},
	}}))}
	before := g.goroutines(t)
	for _, tc := range []struct {
		server, revision         string // revision of the clients
		clients, calls, together int
	}{
		{"http-legacy", sessionRevision, 100, 20, 20},
		{"http-modern", sessionRevision, 20, 20, 20},
		{"stdio-legacy", sessionRevision, 6, 20, 20},
		{"stdio-modern", sessionRevision, 6, 20, 20},
		// The number of calls of one principal that may wait for answers is bounded.
		{"http-legacy", statelessRevision, 6, 20, 5},
		{"http-modern", statelessRevision, 6, 20, 5},
		{"stdio-legacy", statelessRevision, 1, 20, 1}, // a question on stdio does not name its call
		{"stdio-modern", statelessRevision, 6, 20, 5},
	} {
		t.Run(tc.server+" "+tc.revision, func(t *testing.T) {
			runCrowd(t, target{URL: g.Agents + "/mcp/" + tc.server, Token: agentToken}, tc.revision, tc.clients, tc.calls, tc.together)
		})
	}
	for _, far := range servers {
		far.CloseClientConnections() // toolgate keeps idle connections
	}
	// The connections of stateless clients, one for each name, stay open until their
	// idle time is over.
	const kept = (6 + 6 + 1 + 6) * 6
	after := 0
	if !program.Settles(func() bool { after = g.goroutines(t); return after <= before+kept }) {
		t.Errorf("%d goroutines before the sessions, %d after them", before, after)
	}
	gone := trackDescendants(t, g.Cmd.Process.Pid)
	if err := g.Cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	g.Wait(t)
	gone()
}

// serveCrowdServer serves a crowd server over HTTP.
func serveCrowdServer(t *testing.T, revision string) *httptest.Server {
	t.Helper()
	far := httptest.NewServer(sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return newCrowdServer(revision) },
		&sdk.StreamableHTTPOptions{Stateless: revision == statelessRevision}))
	t.Cleanup(func() {
		far.CloseClientConnections()
		far.Close()
	})
	return far
}

var goroutinesLine = regexp.MustCompile(`(?m)^go_goroutines (\d+)$`)

// goroutines returns the number of goroutines in toolgate.
func (g *gate) goroutines(t testing.TB) int {
	t.Helper()
	res := program.Get(t, g.Admin+"/metrics", "")
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	found := goroutinesLine.FindSubmatch(text)
	if found == nil {
		t.Fatal("/metrics has no go_goroutines")
	}
	n, err := strconv.Atoi(string(found[1]))
	if err != nil {
		t.Fatal(err)
	}
	return n
}
