//lint:file-ignore SA1019 earlier revisions have what later revisions deprecate

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

// mcpGoClient is one session of mcp-go's client.
type mcpGoClient struct {
	*client.Client
	revision string
	stop     func() // ends the subscription of the stateless revision, nil without one
	journal
}

// Elicit implements client.ElicitationHandler.
func (s *mcpGoClient) Elicit(_ context.Context, r mcpgo.ElicitationRequest) (*mcpgo.ElicitationResult, error) {
	s.request(elicitMethod, r.Params)
	answer := mcpgo.ElicitationResponse{Action: mcpgo.ElicitationResponseActionAccept}
	if r.Params.Mode != "url" {
		schema, _ := r.Params.RequestedSchema.(map[string]any)
		answer.Content = fillForm(schema)
	}
	return &mcpgo.ElicitationResult{ElicitationResponse: answer}, nil
}

// CreateMessage implements client.SamplingHandler.
func (s *mcpGoClient) CreateMessage(_ context.Context, r mcpgo.CreateMessageRequest) (*mcpgo.CreateMessageResult, error) {
	s.request(sampleMethod, r.CreateMessageParams)
	var content struct{ Text string }
	text, err := json.Marshal(r.Messages[0].Content)
	if err == nil {
		err = json.Unmarshal(text, &content)
	}
	if err != nil {
		return nil, err
	}
	return &mcpgo.CreateMessageResult{
		Model:           answeredModel,
		SamplingMessage: mcpgo.SamplingMessage{Role: mcpgo.RoleAssistant, Content: mcpgo.NewTextContent(sampled(content.Text))},
	}, nil
}

// ListRoots implements client.RootsHandler.
func (s *mcpGoClient) ListRoots(context.Context, mcpgo.ListRootsRequest) (*mcpgo.ListRootsResult, error) {
	return &mcpgo.ListRootsResult{Roots: []mcpgo.Root{{URI: rootURI, Name: "root"}}}, nil
}

// runMCPGo performs actions with mcp-go's client.
func runMCPGo(t *testing.T, at target, revision string, actions []action) (all []observation) {
	t.Helper()
	s := &mcpGoClient{revision: revision}
	var capabilities mcpgo.ClientCapabilities
	options := []client.ClientOption{client.WithProtocolVersion(revision)}
	if !at.Bare {
		capabilities.Elicitation = &mcpgo.ElicitationCapability{Form: &struct{}{}, URL: &struct{}{}}
		options = append(options, client.WithClientCapabilities(capabilities),
			client.WithElicitationHandler(s), client.WithSamplingHandler(s), client.WithRootsHandler(s))
	}
	s.Client = client.NewClient(mcpGoTransport(t, at, revision), options...)
	s.OnNotification(func(n mcpgo.JSONRPCNotification) { s.notify(n.Method, n.Params) })
	if err := s.Start(t.Context()); err != nil {
		t.Fatalf("connecting: %v", err)
	}
	if _, err := s.Initialize(t.Context(), mcpgo.InitializeRequest{Params: mcpgo.InitializeParams{Capabilities: capabilities}}); err != nil {
		t.Fatalf("initializing: %v", err)
	}
	if got := s.ProtocolVersion(); got != revision {
		t.Fatalf("negotiated revision %s, want %s", got, revision)
	}
	for i, a := range actions {
		all = append(all, s.observe(t, a, i, s.do))
	}
	if s.stop != nil {
		s.stop()
	}
	if err := s.Close(); err != nil && !at.lingers {
		t.Errorf("closing: %v", err)
	}
	return all
}

// mcpGoTransport connects to a target. NewStdioWithOptions delivers
// notifications; the constructor that starts the command itself drops them.
func mcpGoTransport(t *testing.T, at target, revision string) transport.Interface {
	t.Helper()
	if at.URL == "" {
		return transport.NewStdioWithOptions(at.Command, nil, at.Args, transport.WithCommandFunc(
			func(_ context.Context, name string, env, args []string) (*exec.Cmd, error) {
				cmd := exec.Command(name, args...)
				cmd.Dir, cmd.Env = at.Dir, append(os.Environ(), env...)
				program.Tether(cmd)
				return cmd, nil
			}))
	}
	headers := map[string]string{}
	if at.Token != "" {
		headers["Authorization"] = "Bearer " + at.Token
	}
	// A cancelled request of one session must not close a connection of another.
	pool := http.DefaultTransport.(*http.Transport).Clone()
	t.Cleanup(pool.CloseIdleConnections)
	options := []transport.StreamableHTTPCOption{transport.WithHTTPHeaders(headers), transport.WithHTTPBasicClient(&http.Client{Transport: pool})}
	if revision != statelessRevision { // with it, the client would not try the stateless revision
		options = append(options, transport.WithContinuousListening())
	}
	over, err := transport.NewStreamableHTTP(at.URL, options...)
	if err != nil {
		t.Fatalf("connecting: %v", err)
	}
	return over
}

// do performs one action.
func (s *mcpGoClient) do(ctx context.Context, a action, n int) (names []string, result any, err error) {
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
	case "subscribe":
		err = s.listen(ctx, a)
	case "unsubscribe":
		if s.revision != statelessRevision {
			err = s.Unsubscribe(ctx, mcpgo.UnsubscribeRequest{Params: mcpgo.UnsubscribeParams{URI: a.URI}})
		}
	default:
		names, err = a.repeat(ctx, s.list)
	}
	return names, result, err
}

// listen subscribes to a resource and, in the stateless revision, to every list.
func (s *mcpGoClient) listen(ctx context.Context, a action) (err error) {
	if s.revision != statelessRevision {
		return s.Subscribe(ctx, mcpgo.SubscribeRequest{Params: mcpgo.SubscribeParams{URI: a.URI}})
	}
	s.stop, err = s.ListenAsync(context.WithoutCancel(ctx), mcpgo.SubscriptionFilter{
		ToolsListChanged: true, PromptsListChanged: true, ResourcesListChanged: true, ResourceSubscriptions: []string{a.URI},
	}, nil)
	return err
}

// task calls a tool as a task and waits for its result.
func (s *mcpGoClient) task(ctx context.Context, a action, n int) (any, error) {
	response, err := s.GetTransport().SendRequest(ctx, transport.JSONRPCRequest{
		JSONRPC: "2.0", ID: mcpgo.NewRequestId(fmt.Sprintf("task-%d", n)), Method: "tools/call",
		Params: map[string]any{"name": a.Name, "arguments": a.Args, "task": map[string]any{"ttl": timeout.Milliseconds()}},
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

func (s *mcpGoClient) list(ctx context.Context, op string) (names []string, err error) {
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
		err = fmt.Errorf("unknown action %s", op)
	}
	return names, err
}
