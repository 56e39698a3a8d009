//lint:file-ignore SA1019 what later revisions deprecate, the revisions before them still have

package peers_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os/exec"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toolgate/toolgate/internal/testkit/program"
)

// goSession is one session of the official Go SDK.
type goSession struct {
	*sdk.ClientSession
	era   string
	level string // for requests of the modern era
	journal
}

// playGoSDK plays acts with the official Go SDK.
func playGoSDK(t *testing.T, w way, era string, acts []act) []saw {
	t.Helper()
	s := &goSession{era: era}
	c := sdk.NewClient(&sdk.Implementation{Name: "go-sdk", Version: "1"}, s.options())
	c.AddRoots(&sdk.Root{URI: rootURI, Name: "root"})
	session, err := c.Connect(t.Context(), goTransport(w), &sdk.ClientSessionOptions{ProtocolVersion: era})
	if err != nil {
		t.Fatalf("connecting: %v", err)
	}
	if got := session.InitializeResult().ProtocolVersion; got != era {
		t.Fatalf("it speaks %s, want %s", got, era)
	}
	s.ClientSession = session
	var out []saw
	for i, a := range acts {
		out = append(out, s.play(t, a, i))
	}
	if err := session.Close(); err != nil && !w.lingers {
		t.Errorf("closing: %v", err)
	}
	return out
}

func goTransport(w way) sdk.Transport {
	if w.URL != "" {
		return &sdk.StreamableClientTransport{Endpoint: w.URL, HTTPClient: &http.Client{Transport: bearer{w.Token, http.DefaultTransport}}}
	}
	cmd := exec.Command(w.Command, w.Args...)
	cmd.Dir = w.Dir
	program.Tether(cmd)
	return &sdk.CommandTransport{Command: cmd}
}

// options hear and answer everything.
func (s *goSession) options() *sdk.ClientOptions {
	return &sdk.ClientOptions{
		Capabilities: &sdk.ClientCapabilities{
			RootsV2:     &sdk.RootCapabilities{ListChanged: true},
			Elicitation: &sdk.ElicitationCapabilities{Form: &sdk.FormElicitationCapabilities{}, URL: &sdk.URLElicitationCapabilities{}},
		},
		CreateMessageHandler: func(_ context.Context, r *sdk.CreateMessageRequest) (*sdk.CreateMessageResult, error) {
			s.ask(sampleMethod, r.Params)
			text, _ := r.Params.Messages[0].Content.(*sdk.TextContent)
			return &sdk.CreateMessageResult{Model: answeredModel, Role: "assistant", Content: &sdk.TextContent{Text: sampled(text.Text)}}, nil
		},
		ElicitationHandler: func(_ context.Context, r *sdk.ElicitRequest) (*sdk.ElicitResult, error) {
			s.ask(elicitMethod, r.Params)
			if r.Params.Mode == "url" {
				return &sdk.ElicitResult{Action: "accept"}, nil
			}
			schema, _ := r.Params.RequestedSchema.(map[string]any)
			return &sdk.ElicitResult{Action: "accept", Content: filledIn(schema)}, nil
		},
		ToolListChangedHandler:     func(_ context.Context, r *sdk.ToolListChangedRequest) { s.hear(toolsNote, r.Params) },
		PromptListChangedHandler:   func(_ context.Context, r *sdk.PromptListChangedRequest) { s.hear(promptsNote, r.Params) },
		ResourceListChangedHandler: func(_ context.Context, r *sdk.ResourceListChangedRequest) { s.hear(resourcesNote, r.Params) },
		ResourceUpdatedHandler:     func(_ context.Context, r *sdk.ResourceUpdatedNotificationRequest) { s.hear(updatedNote, r.Params) },
		LoggingMessageHandler:      func(_ context.Context, r *sdk.LoggingMessageRequest) { s.hear(messageNote, r.Params) },
		ProgressNotificationHandler: func(_ context.Context, r *sdk.ProgressNotificationClientRequest) {
			s.hear(progressNote, r.Params)
		},
	}
}

// play plays one act, the n-th.
func (s *goSession) play(t *testing.T, a act, n int) saw { return s.perform(t, a, n, s.do) }

// object gives a value as it is on the wire.
func object(t testing.TB, v any) (out map[string]any) {
	t.Helper()
	if err := json.Unmarshal([]byte(jsonText(t, v)), &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// do makes the call of an act.
func (s *goSession) do(ctx context.Context, a act, n int) (names []string, result any, err error) {
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
		if s.level = a.Value; s.era != modernEra {
			err = s.SetLoggingLevel(ctx, &sdk.SetLoggingLevelParams{Level: sdk.LoggingLevel(a.Value)})
		}
	case "listen":
		err = s.Subscribe(ctx, &sdk.SubscribeParams{URI: a.URI})
	case "hush":
		err = s.Unsubscribe(ctx, &sdk.UnsubscribeParams{URI: a.URI})
	default:
		program.Settles(func() bool {
			names, err = s.list(ctx, a.Op)
			return err != nil || len(names) >= a.Want
		})
	}
	return names, result, err
}

func (s *goSession) call(ctx context.Context, a act, n int) (*sdk.CallToolResult, error) {
	params := &sdk.CallToolParams{Name: a.Name, Arguments: a.arguments(), Meta: sdk.Meta{}}
	if a.Progress || a.Cancel {
		params.SetProgressToken(n)
	}
	if s.level != "" && s.era == modernEra {
		params.Meta[sdk.MetaKeyLogLevel] = s.level
	}
	return s.CallTool(ctx, params)
}

func (s *goSession) list(ctx context.Context, op string) (names []string, err error) {
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
		err = fmt.Errorf("%s is no act of this client", op)
	}
	return names, err
}
