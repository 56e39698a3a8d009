//lint:file-ignore SA1019 what later revisions deprecate, the revisions before them still have

package peers_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"testing"

	"github.com/mark3labs/mcp-go/client"
	"github.com/mark3labs/mcp-go/client/transport"
	mcpgo "github.com/mark3labs/mcp-go/mcp"

	"github.com/toolgate/toolgate/internal/testkit/program"
)

// mcpGoSession is one session of mcp-go's client.
type mcpGoSession struct {
	*client.Client
	era  string
	stop func() // ends what it listens to, nil for nothing
	journal
}

// Elicit implements client.ElicitationHandler.
func (s *mcpGoSession) Elicit(_ context.Context, r mcpgo.ElicitationRequest) (*mcpgo.ElicitationResult, error) {
	s.ask(elicitMethod, r.Params)
	answer := mcpgo.ElicitationResponse{Action: mcpgo.ElicitationResponseActionAccept}
	if r.Params.Mode != "url" {
		schema, _ := r.Params.RequestedSchema.(map[string]any)
		answer.Content = filledIn(schema)
	}
	return &mcpgo.ElicitationResult{ElicitationResponse: answer}, nil
}

// CreateMessage implements client.SamplingHandler.
func (s *mcpGoSession) CreateMessage(_ context.Context, r mcpgo.CreateMessageRequest) (*mcpgo.CreateMessageResult, error) {
	s.ask(sampleMethod, r.CreateMessageParams)
	said := struct{ Text string }{}
	text, err := json.Marshal(r.Messages[0].Content)
	if err == nil {
		err = json.Unmarshal(text, &said)
	}
	if err != nil {
		return nil, err
	}
	return &mcpgo.CreateMessageResult{
		Model:           answeredModel,
		SamplingMessage: mcpgo.SamplingMessage{Role: mcpgo.RoleAssistant, Content: mcpgo.NewTextContent(sampled(said.Text))},
	}, nil
}

// ListRoots implements client.RootsHandler.
func (s *mcpGoSession) ListRoots(context.Context, mcpgo.ListRootsRequest) (*mcpgo.ListRootsResult, error) {
	return &mcpgo.ListRootsResult{Roots: []mcpgo.Root{{URI: rootURI, Name: "root"}}}, nil
}

// playMCPGo plays acts with mcp-go's client.
func playMCPGo(t *testing.T, w way, era string, acts []act) []saw {
	t.Helper()
	s := &mcpGoSession{era: era}
	capabilities := mcpgo.ClientCapabilities{Elicitation: &mcpgo.ElicitationCapability{
		Form: &struct{}{}, URL: &struct{}{},
	}}
	s.Client = client.NewClient(mcpGoTransport(t, w, era), client.WithProtocolVersion(era), client.WithClientCapabilities(capabilities),
		client.WithElicitationHandler(s), client.WithSamplingHandler(s), client.WithRootsHandler(s))
	s.OnNotification(func(n mcpgo.JSONRPCNotification) { s.hear(n.Method, n.Params) })
	if err := s.Start(t.Context()); err != nil {
		t.Fatalf("connecting: %v", err)
	}
	if _, err := s.Initialize(t.Context(), mcpgo.InitializeRequest{Params: mcpgo.InitializeParams{Capabilities: capabilities}}); err != nil {
		t.Fatalf("initializing: %v", err)
	}
	if got := s.ProtocolVersion(); got != era {
		t.Fatalf("it speaks %s, want %s", got, era)
	}
	var out []saw
	for i, a := range acts {
		out = append(out, s.play(t, a, i))
	}
	if s.stop != nil {
		s.stop()
	}
	if err := s.Close(); err != nil && !w.lingers {
		t.Errorf("closing: %v", err)
	}
	return out
}

// mcpGoTransport connects to a server. The constructor for stdio leaves
// notifications unheard; Start does not.
func mcpGoTransport(t *testing.T, w way, era string) transport.Interface {
	t.Helper()
	if w.URL == "" {
		return transport.NewStdioWithOptions(w.Command, nil, w.Args, transport.WithCommandFunc(
			func(_ context.Context, name string, env, args []string) (*exec.Cmd, error) {
				cmd := exec.Command(name, args...)
				cmd.Dir, cmd.Env = w.Dir, append(os.Environ(), env...)
				program.Tether(cmd)
				return cmd, nil
			}))
	}
	headers := map[string]string{}
	if w.Token != "" {
		headers["Authorization"] = "Bearer " + w.Token
	}
	// Connections of its own: what one session cancels is nothing to another's.
	pool := http.DefaultTransport.(*http.Transport).Clone()
	t.Cleanup(pool.CloseIdleConnections)
	options := []transport.StreamableHTTPCOption{transport.WithHTTPHeaders(headers), transport.WithHTTPBasicClient(&http.Client{Transport: pool})}
	if era != modernEra { // it would not try the modern era
		options = append(options, transport.WithContinuousListening())
	}
	over, err := transport.NewStreamableHTTP(w.URL, options...)
	if err != nil {
		t.Fatalf("connecting: %v", err)
	}
	return over
}

// play plays one act, the n-th.
func (s *mcpGoSession) play(t *testing.T, a act, n int) saw { return s.perform(t, a, n, s.do) }

// do makes the call of an act.
func (s *mcpGoSession) do(ctx context.Context, a act, n int) (names []string, result any, err error) {
	switch a.Op {
	case "call":
		var request mcpgo.CallToolRequest
		request.Params.Name, request.Params.Arguments = a.Name, a.arguments()
		if a.Progress || a.Cancel {
			request.Params.Meta = &mcpgo.Meta{ProgressToken: n}
		}
		result, err = s.CallTool(ctx, request)
	case "task":
		result, err = s.task(ctx, a, n)
	case "read":
		result, err = s.ReadResource(ctx, mcpgo.ReadResourceRequest{Params: mcpgo.ReadResourceParams{URI: a.URI}})
	case "prompt":
		args := map[string]string{}
		for k, v := range a.Args {
			args[k] = fmt.Sprint(v)
		}
		result, err = s.GetPrompt(ctx, mcpgo.GetPromptRequest{Params: mcpgo.GetPromptParams{Name: a.Name, Arguments: args}})
	case "complete":
		result, err = s.Complete(ctx, mcpgo.CompleteRequest{Params: mcpgo.CompleteParams{
			Ref: mcpgo.PromptReference{Type: "ref/prompt", Name: a.Name}, Argument: mcpgo.CompleteArgument{Name: a.Argument, Value: a.Value},
		}})
	case "level":
		err = s.SetLevel(ctx, mcpgo.SetLevelRequest{Params: mcpgo.SetLevelParams{Level: mcpgo.LoggingLevel(a.Value)}})
	case "listen":
		err = s.listen(ctx, a)
	case "hush":
		if s.era != modernEra {
			err = s.Unsubscribe(ctx, mcpgo.UnsubscribeRequest{Params: mcpgo.UnsubscribeParams{URI: a.URI}})
		}
	default:
		program.Settles(func() bool {
			names, err = s.list(ctx, a.Op)
			return err != nil || len(names) >= a.Want
		})
	}
	return names, result, err
}

// listen hears of a resource and, in the modern era, of every list.
func (s *mcpGoSession) listen(ctx context.Context, a act) (err error) {
	if s.era != modernEra {
		return s.Subscribe(ctx, mcpgo.SubscribeRequest{Params: mcpgo.SubscribeParams{URI: a.URI}})
	}
	s.stop, err = s.ListenAsync(context.WithoutCancel(ctx), mcpgo.SubscriptionFilter{
		ToolsListChanged: true, PromptsListChanged: true, ResourcesListChanged: true, ResourceSubscriptions: []string{a.URI},
	}, nil)
	return err
}

// task calls a tool as a task and waits for what comes of it.
func (s *mcpGoSession) task(ctx context.Context, a act, n int) (any, error) {
	response, err := s.GetTransport().SendRequest(ctx, transport.JSONRPCRequest{
		JSONRPC: "2.0", ID: mcpgo.NewRequestId(fmt.Sprintf("task-%d", n)), Method: "tools/call",
		Params: map[string]any{"name": a.Name, "arguments": a.Args, "task": map[string]any{"ttl": patience.Milliseconds()}},
	})
	if err != nil {
		return nil, err
	}
	if response.Error != nil {
		return nil, fmt.Errorf("%d %s", response.Error.Code, response.Error.Message)
	}
	var made struct{ Task struct{ TaskID string } }
	if err := json.Unmarshal(response.Result, &made); err != nil {
		return nil, err
	}
	var request mcpgo.TaskResultRequest
	request.Params.TaskId = made.Task.TaskID
	return s.TaskResult(ctx, request)
}

func (s *mcpGoSession) list(ctx context.Context, op string) (names []string, err error) {
	names = []string{}
	switch op {
	case "tools":
		page, e := s.ListTools(ctx, mcpgo.ListToolsRequest{})
		if err = e; err == nil {
			for _, one := range page.Tools {
				names = append(names, one.Name)
			}
		}
	case "resources":
		page, e := s.ListResources(ctx, mcpgo.ListResourcesRequest{})
		if err = e; err == nil {
			for _, one := range page.Resources {
				names = append(names, one.URI)
			}
		}
	case "templates":
		page, e := s.ListResourceTemplates(ctx, mcpgo.ListResourceTemplatesRequest{})
		if err = e; err == nil {
			for _, one := range page.ResourceTemplates {
				names = append(names, one.URITemplate.Raw())
			}
		}
	case "prompts":
		page, e := s.ListPrompts(ctx, mcpgo.ListPromptsRequest{})
		if err = e; err == nil {
			for _, one := range page.Prompts {
				names = append(names, one.Name)
			}
		}
	default:
		err = fmt.Errorf("%s is no act of this client", op)
	}
	return names, err
}
