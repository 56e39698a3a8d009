package cli

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/app"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/command"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/policies"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/report"
	"github.com/toolgate/toolgate/console"
	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/text"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/proxy/wire"
	"github.com/toolgate/toolgate/registry"
	"github.com/toolgate/toolgate/registry/config"
)

func toolCommand(e *command.Env) *cobra.Command {
	return command.Group("tool", "list, show, call, accept and refuse tools", toolList(e), toolShow(e), toolCall(e), toolDiff(e), toolAccept(e), toolRefuse(e))
}

func toolList(e *command.Env) *cobra.Command {
	var all bool
	c := command.New("list", "list the tools that a principal sees, or that the servers offer", func(ctx context.Context, _ []string) error {
		if all {
			found, err := offeredTools(ctx, e, url.Values{})
			if err != nil {
				return err
			}
			return e.Print(report.Of(found, offeredToolsText))
		}
		a, err := e.Agent(ctx)
		if err != nil {
			return err
		}
		defer a.Close()
		found, err := listTools(ctx, a)
		if err != nil {
			return err
		}
		explainList(ctx, e, len(found) == 0)
		return e.Print(report.Of(found, toolsText))
	})
	c.Flags().BoolVar(&all, "all", false, "list what the servers offer, also what does not serve, as the admin listener shows it to operators")
	c.Flags().StringVar(&e.Addr, "addr", "", "`URL` of the agents' listener, with --all of the admin listener (default: as configured)")
	return c
}

// explainList says on stderr what the admin listener of the configuration knows about a list:
// why it is empty, and which tools do not serve. One that does not answer is not needed.
func explainList(ctx context.Context, e *command.Env, empty bool) {
	if !empty && e.Addr != "" {
		return
	}
	at := *e
	at.Addr = ""
	var s console.Status
	err := at.ReadStatus(ctx, &s)
	if empty && err != nil {
		fmt.Fprintln(e.Stderr, "no tools are visible\nhint: toolgate check says what each role sees")
	}
	if err != nil {
		return
	}
	total := 0
	var withheld []string
	for _, u := range s.Upstreams {
		if total += u.Tools; empty && u.Error != "" {
			fmt.Fprintf(e.Stderr, "server %s: %s: %s\n", u.Name, u.State, report.Printable(u.Error))
		}
		for _, tool := range slices.Sorted(maps.Keys(u.Withheld)) {
			withheld = append(withheld, fmt.Sprintf("tool %s of server %s is quarantined: %s", tool, u.Name, u.Withheld[tool]))
		}
	}
	if empty {
		for _, sight := range s.Sights {
			switch {
			case sight.Blind():
				fmt.Fprintf(e.Stderr, "%s\nhint: %s\n", report.Printable(sight.String()), sight.Hint)
			case sight.Duty != "":
				fmt.Fprintln(e.Stderr, report.Printable(sight.String()))
			}
		}
		if total == 0 {
			fmt.Fprintln(e.Stderr, "no server offers a tool\nhint: toolgate check says what each server answers")
		}
	}
	if e.Addr != "" { // the list may be of another toolgate
		return
	}
	const most = 10
	for _, line := range withheld[:min(len(withheld), most)] {
		fmt.Fprintln(e.Stderr, report.Printable(line))
	}
	if more := len(withheld) - most; more > 0 {
		fmt.Fprintf(e.Stderr, "%s more in quarantine\nhint: toolgate server show\n", text.Count(more, "tool"))
	}
}

// listedTool is a tool as tools/list has it.
type listedTool struct {
	json.RawMessage
	Name, Title, Description string
	Hidden                   []string // kinds of hidden characters in it
}

// UnmarshalJSON implements json.Unmarshaler.
func (t *listedTool) UnmarshalJSON(definition []byte) error {
	var shown struct{ Name, Title, Description string }
	err := json.Unmarshal(definition, &shown)
	*t = listedTool{bytes.Clone(definition), shown.Name, shown.Title, text.EscapeHidden(report.Printable(shown.Description)), text.HiddenKinds(definition)}
	return err
}

// Arguments returns the names of the arguments. Optional ones end in a question mark.
func (t listedTool) Arguments() string {
	var shown struct {
		InputSchema struct {
			Properties map[string]json.RawMessage
			Required   []string
		}
	}
	_ = json.Unmarshal(t.RawMessage, &shown) // a schema of another form names none
	schema := shown.InputSchema
	names := slices.Sorted(maps.Keys(schema.Properties))
	for i, name := range names {
		if !slices.Contains(schema.Required, name) {
			names[i] += "?"
		}
	}
	return strings.Join(names, ",")
}

// Hints names the annotations that are true, such as readOnlyHint.
func (t listedTool) Hints() string {
	var shown struct{ Annotations map[string]any }
	_ = json.Unmarshal(t.RawMessage, &shown) // annotations of another form say nothing
	names := slices.Sorted(maps.Keys(shown.Annotations))
	return strings.Join(slices.DeleteFunc(names, func(name string) bool { return shown.Annotations[name] != true }), ",")
}

// list reads every page of tools/list.
func listTools(ctx context.Context, a *command.Agent) ([]listedTool, error) {
	found := []listedTool{}
	params := json.RawMessage("{}")
	for {
		result, err := a.Request(ctx, "tools/list", params)
		if err != nil {
			return nil, err
		}
		var page struct {
			Tools      []listedTool
			NextCursor string
		}
		if err := json.Unmarshal(result, &page); err != nil {
			return nil, fmt.Errorf("reading the list: %w", err)
		}
		found = append(found, page.Tools...)
		if page.NextCursor == "" {
			return found, nil
		}
		params = json.RawMessage(`{"cursor":` + string(jsonrpc.Quote(page.NextCursor)) + `}`)
	}
}

func toolCall(e *command.Env) *cobra.Command {
	var args string
	c := command.New("call TOOL", "call one tool", func(ctx context.Context, names []string) error {
		object, err := e.JSONObject("args", args)
		if err != nil {
			return err
		}
		a, err := e.Agent(ctx)
		if err != nil {
			return err
		}
		defer a.Close()
		result, err := callTool(ctx, a, names[0], object)
		if refused := (*command.Exit)(nil); errors.As(err, &refused) && refused.Word == string(wire.ToolNotFound) {
			return withNearestTool(ctx, a, refused, names[0])
		}
		if err != nil {
			return err
		}
		if e.Structured() {
			return errors.Join(e.Document(result), verdictOf(result))
		}
		text, err := contentText(result)
		return errors.Join(err, e.Write(text), verdictOf(result))
	})
	c.Flags().StringVar(&args, "args", "{}", "arguments as a `JSON` object; @FILE reads a file, - stdin")
	c.Flags().StringVar(&e.Addr, "addr", "", "`URL` of the agents' listener (default: as configured)")
	return c
}

// call calls a tool.
func callTool(ctx context.Context, a *command.Agent, tool string, args json.RawMessage) (json.RawMessage, error) {
	return a.Request(ctx, "tools/call", fmt.Appendf(nil, `{"name":%s,"arguments":%s}`, jsonrpc.Quote(tool), args))
}

// contentText returns the text blocks of a result, and names the others.
func contentText(result json.RawMessage) (string, error) {
	var r struct {
		Content []struct{ Type, Text, MimeType string }
	}
	text := ""
	if err := json.Unmarshal(result, &r); err != nil {
		return "", fmt.Errorf("reading the result: %w", err)
	}
	for _, block := range r.Content {
		if block.Type == "text" {
			text += report.Printable(block.Text) + "\n"
			continue
		}
		text += fmt.Sprintf("[%s %s; -o json shows it]\n", block.Type, block.MimeType)
	}
	return text, nil
}

// verdictOf returns the exit of a result: a pending approval and a tool's own
// error are no success.
func verdictOf(result json.RawMessage) error {
	var r struct {
		IsError bool
		Meta    struct {
			Approval struct{ Status string }  `json:"io.toolgate/approval"`
			Error    struct{ Code wire.Code } `json:"io.toolgate/error"`
		} `json:"_meta"`
	}
	if err := json.Unmarshal(result, &r); err != nil {
		return fmt.Errorf("reading the result: %w", err)
	}
	switch {
	case r.Meta.Approval.Status == "pending":
		return &command.Exit{Code: command.ExitApproval}
	case r.Meta.Error.Code != "":
		return &command.Exit{Code: command.CodeFor(r.Meta.Error.Code)}
	case r.IsError:
		return &command.Exit{Code: command.ExitTool}
	}
	return nil
}

// shownTool is the report of tool show.
type shownTool struct {
	Name string `json:"name"` // as agents call it
	registry.Pin
	Variants   []registry.Pin  `json:"variants,omitempty"` // of the definitions that only some clients are offered
	State      string          `json:"state"`              // accepted, changed, or new: never accepted
	Definition json.RawMessage `json:"definition"`         // accepted, or of a new tool the offered one
	Roles      []roleSight     `json:"roles"`
}

// roleSight says whether callers with a role see a tool, and what the policy decides on
// a call without arguments.
type roleSight struct {
	Role    string        `json:"role"`
	Visible bool          `json:"visible"`
	Effect  policy.Effect `json:"effect"`
	Rule    string        `json:"rule,omitempty"`
	Reason  string        `json:"reason,omitempty"`
}

// toolShow shows a tool by its exposed name, from the definitions that the state directory
// keeps. It keeps none for a server with pin off.
func toolShow(e *command.Env) *cobra.Command {
	return e.Printing("show TOOL", "show a tool's definition, its pin and the roles that see it", func(ctx context.Context, args []string) (*report.Report, error) {
		v, err := policies.Open(ctx, e, "")
		if err != nil {
			return nil, err
		}
		pins, err := e.Pins(ctx)
		if err != nil {
			return nil, err
		}
		var names []string
		for i := range pins {
			t, s := policies.Pinned(v.Config, &pins[i])
			switch {
			case s == nil || s.Pin == config.PinOff:
			case t.Exposed == args[0]:
				out := &shownTool{Name: t.Exposed, Pin: pins[i], State: "accepted", Definition: pins[i].Definition(), Roles: []roleSight{}}
				if out.Accepted == "" {
					out.State = "new"
				} else if out.Offered != "" {
					out.State = "changed"
				}
				out.Variants = slices.DeleteFunc(pins, func(p registry.Pin) bool { return p.Server != out.Server || p.Tool != out.Tool || p.Condition == "" })
				return report.Of(out, toolText), out.addSights(ctx, v, t)
			default:
				names = append(names, t.Exposed)
			}
		}
		hint := cmp.Or(command.DidYouMean(args[0], names), command.HintMark+"toolgate tool list shows the names; nothing is kept of servers with \"pin\": \"off\"")
		return nil, command.Usage(fmt.Errorf("no definition of a tool %q is kept%s", args[0], hint))
	})
}

// addSights asks the policy about each role and the tool.
func (t *shownTool) addSights(ctx context.Context, v *policies.View, asked policy.Tool) error {
	for _, role := range app.RolesOf(v.Config, v.Engine, v.Env.Role) {
		who := app.CallerWith(v.Config, role, v.Env.Role)
		seen, err := v.Seen(ctx, who, []policy.Tool{asked})
		if err != nil {
			return err
		}
		d, err := v.Decide(ctx, &policy.Input{
			Principal: who, Tool: asked, Arguments: json.RawMessage("{}"), Usage: policy.Unused(v.Meters(asked)),
			Request: policy.Request{ID: "1", Transport: "cli", Time: time.Now().UTC()},
		})
		if err != nil {
			return err
		}
		visible := seen[0] && t.State == "accepted" // quarantine hides from everybody
		t.Roles = append(t.Roles, roleSight{Role: who.Roles[0], Visible: visible, Effect: d.Effect, Rule: d.Rule, Reason: d.Reason})
	}
	return nil
}

// Layout returns the definition as people read it.
func (t *shownTool) Layout() string { return string(app.Lines(t.Definition)) }

// withNearestTool replaces the hint of a refused tool name with the name that was probably
// meant, or with how to find out why the caller does not see the tool.
func withNearestTool(ctx context.Context, a *command.Agent, refused *command.Exit, name string) error {
	tools, err := listTools(ctx, a)
	if err != nil {
		return refused
	}
	names := command.TextsOf(tools, func(t listedTool) string { return t.Name })
	hint := command.DidYouMean(name, names)
	// A name without its server's prefix is the usual slip.
	if i := slices.IndexFunc(names, func(n string) bool { return strings.HasSuffix(n, "__"+name) }); hint == "" && i >= 0 {
		hint = fmt.Sprintf("\nhint: did you mean %s?", names[i])
	}
	if hint == "" {
		hint = "\nhint: toolgate tool list shows what the caller sees; toolgate policy explain --as ROLE " + name + " says why a role does not"
	}
	return refused.WithHint(hint)
}
