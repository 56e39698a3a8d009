//lint:file-ignore SA1019 earlier revisions have what later revisions deprecate

package peers_test

import (
	"context"
	"fmt"
	"net/http"
	"os/exec"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toolgate/toolgate/internal/testkit/program"
)

// goClient is one session of the client of the official Go SDK.
type goClient struct {
	*sdk.ClientSession
	revision string
	level    string // log level sent with each request of the stateless revision
	journal
}

// runGo performs actions with the official Go SDK.
func runGo(t *testing.T, at target, revision string, actions []action) (all []observation) {
	t.Helper()
	s := &goClient{revision: revision}
	c := sdk.NewClient(&sdk.Implementation{Name: "go-sdk", Version: "1"}, s.options(at.Bare))
	if !at.Bare {
		c.AddRoots(&sdk.Root{URI: rootURI, Name: "root"})
	}
	session, err := c.Connect(t.Context(), goTransport(at), &sdk.ClientSessionOptions{ProtocolVersion: revision})
	if err != nil {
		t.Fatalf("connecting: %v", err)
	}
	if got := session.InitializeResult().ProtocolVersion; got != revision {
		t.Fatalf("negotiated revision %s, want %s", got, revision)
	}
	s.ClientSession = session
	for i, a := range actions {
		all = append(all, s.observe(t, a, i, s.do))
	}
	if err := session.Close(); err != nil && !at.lingers {
		t.Errorf("closing: %v", err)
	}
	return all
}

func goTransport(at target) sdk.Transport {
	if at.URL != "" {
		return &sdk.StreamableClientTransport{Endpoint: at.URL, HTTPClient: &http.Client{Transport: bearer{at.Token, http.DefaultTransport}}}
	}
	cmd := exec.Command(at.Command, at.Args...)
	cmd.Dir = at.Dir
	program.Tether(cmd)
	return &sdk.CommandTransport{Command: cmd}
}

// options returns handlers that record every notification. Unless bare, they
// declare every capability and answer every request of the server.
func (s *goClient) options(bare bool) *sdk.ClientOptions {
	options := &sdk.ClientOptions{
		Capabilities:               &sdk.ClientCapabilities{},
		ToolListChangedHandler:     func(_ context.Context, r *sdk.ToolListChangedRequest) { s.notify(toolsNote, r.Params) },
		PromptListChangedHandler:   func(_ context.Context, r *sdk.PromptListChangedRequest) { s.notify(promptsNote, r.Params) },
		ResourceListChangedHandler: func(_ context.Context, r *sdk.ResourceListChangedRequest) { s.notify(resourcesNote, r.Params) },
		ResourceUpdatedHandler:     func(_ context.Context, r *sdk.ResourceUpdatedNotificationRequest) { s.notify(updatedNote, r.Params) },
		LoggingMessageHandler:      func(_ context.Context, r *sdk.LoggingMessageRequest) { s.notify(messageNote, r.Params) },
		ProgressNotificationHandler: func(_ context.Context, r *sdk.ProgressNotificationClientRequest) {
			s.notify(progressNote, r.Params)
		},
	}
	if bare {
		return options
	}
	options.Capabilities = &sdk.ClientCapabilities{
		RootsV2:     &sdk.RootCapabilities{ListChanged: true},
		Elicitation: &sdk.ElicitationCapabilities{Form: &sdk.FormElicitationCapabilities{}, URL: &sdk.URLElicitationCapabilities{}},
	}
	options.CreateMessageHandler = func(_ context.Context, r *sdk.CreateMessageRequest) (*sdk.CreateMessageResult, error) {
		s.request(sampleMethod, r.Params)
		text, _ := r.Params.Messages[0].Content.(*sdk.TextContent)
		return &sdk.CreateMessageResult{Model: answeredModel, Role: "assistant", Content: &sdk.TextContent{Text: sampled(text.Text)}}, nil
	}
	options.ElicitationHandler = func(_ context.Context, r *sdk.ElicitRequest) (*sdk.ElicitResult, error) {
		s.request(elicitMethod, r.Params)
		if r.Params.Mode == "url" {
			return &sdk.ElicitResult{Action: "accept"}, nil
		}
		schema, _ := r.Params.RequestedSchema.(map[string]any)
		return &sdk.ElicitResult{Action: "accept", Content: fillForm(schema)}, nil
	}
	return options
}

// do performs one action.
func (s *goClient) do(ctx context.Context, a action, n int) (names []string, result any, err error) {
	switch a.Op {
	case "call":
		result, err = s.call(ctx, a, n)
	case "read":
		result, err = s.ReadResource(ctx, &sdk.ReadResourceParams{URI: a.URI})
	case "prompt":
		args := map[string]string{}
		for k, v := range a.Args {
			args[k] = fmt.Sprint(v)
		}
		result, err = s.GetPrompt(ctx, &sdk.GetPromptParams{Name: a.Name, Arguments: args})
	case "complete":
		result, err = s.Complete(ctx, &sdk.CompleteParams{
			Ref: &sdk.CompleteReference{Type: "ref/prompt", Name: a.Name}, Argument: sdk.CompleteParamsArgument{Name: a.Argument, Value: a.Value},
		})
	case "level":
		if s.level = a.Value; s.revision != statelessRevision {
			err = s.SetLoggingLevel(ctx, &sdk.SetLoggingLevelParams{Level: sdk.LoggingLevel(a.Value)})
		}
	case "subscribe":
		err = s.Subscribe(ctx, &sdk.SubscribeParams{URI: a.URI})
	case "unsubscribe":
		err = s.Unsubscribe(ctx, &sdk.UnsubscribeParams{URI: a.URI})
	default:
		names, err = a.repeat(ctx, s.list)
	}
	return names, result, err
}

func (s *goClient) call(ctx context.Context, a action, n int) (*sdk.CallToolResult, error) {
	params := &sdk.CallToolParams{Name: a.Name, Arguments: a.arguments(), Meta: sdk.Meta{}}
	if a.Progress || a.Cancel {
		params.SetProgressToken(n)
	}
	if s.level != "" && s.revision == statelessRevision {
		params.Meta[sdk.MetaKeyLogLevel] = s.level
	}
	return s.CallTool(ctx, params)
}

func (s *goClient) list(ctx context.Context, op string) (names []string, err error) {
	names = []string{}
	switch op {
	case "tools":
		for one, e := range s.Tools(ctx, nil) {
			if err = e; err == nil {
				names = append(names, one.Name)
			}
		}
	case "resources":
		for one, e := range s.Resources(ctx, nil) {
			if err = e; err == nil {
				names = append(names, one.URI)
			}
		}
	case "templates":
		for one, e := range s.ResourceTemplates(ctx, nil) {
			if err = e; err == nil {
				names = append(names, one.URITemplate)
			}
		}
	case "prompts":
		for one, e := range s.Prompts(ctx, nil) {
			if err = e; err == nil {
				names = append(names, one.Name)
			}
		}
	default:
		err = fmt.Errorf("unknown action %s", op)
	}
	return names, err
}
