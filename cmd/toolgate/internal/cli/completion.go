package cli

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/app"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/command"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/policies"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/report"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/clients"
	"github.com/toolgate/toolgate/console/tickets"
	"github.com/toolgate/toolgate/internal/keys"
	"github.com/toolgate/toolgate/internal/text"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/approval"
	"github.com/toolgate/toolgate/policy/rego"
	"github.com/toolgate/toolgate/registry/config"
)

// completionTime bounds how long a shell waits for the values of a word. Tests wait
// longer.
var completionTime = time.Second

// A source lists the values that a word of a Use line or of a flag stands for. c is the
// command whose line is completed, with args before the word. A source reads files and
// asks a running toolgate. It starts no server, prints nothing and returns no secret;
// nil is its answer to every fault.
type source func(ctx context.Context, e *command.Env, c *cobra.Command, args []string) []string

// sources are the words whose values are known.
var sources = map[string]source{
	"TOOL":       toolValues,
	"SERVER":     serverValues,
	"TICKET":     ticketValues,
	"CONNECTION": connectionValues,
	"STOP":       stopValues,
	"SESSION":    sessionValues,
	"SUBJECT":    tokenValues(func(t config.Token) string { return described(t.Subject, strings.Join(t.Roles, ", ")) }),
	"ROLE":       roleValues,
	"SHA256":     tokenValues(func(t config.Token) string { return described(t.SHA256[:fewHashDigits], t.Subject) }),
	"KEY":        keyValues,
	"CLIENT":     clientValues,
	"FORM": func(_ context.Context, _ *command.Env, c *cobra.Command, _ []string) []string {
		return command.FormsOf(c)
	},
}

// complete makes a shell complete the arguments and the flags that c itself has.
func complete(e *command.Env, c *cobra.Command) {
	if want := command.ArgumentsOf(c.Use); len(want) > 0 {
		c.ValidArgsFunction = func(c *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
			at := min(len(args), len(want)-1)
			if at < len(args) && !want[at].Many {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return values(e, c, want[at].Word, args)
		}
	} else if !c.HasSubCommands() {
		c.ValidArgsFunction = cobra.NoFileCompletions
	}
	each := func(f *pflag.Flag) {
		if known := command.Vocabularies[command.ValueWord(f)]; known != nil {
			f.Usage += ": " + strings.Join(known, ", ")
		}
		if f.Name == "help" || f.Value.Type() == "bool" {
			return
		}
		_ = c.RegisterFlagCompletionFunc(f.Name, func(c *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) { // fails for one that has a function
			found, directive := values(e, c, command.ValueWord(f), args)
			if i := strings.LastIndex(typed, ","); i >= 0 && f.Value.Type() == "stringSlice" {
				for n := range found {
					found[n] = typed[:i+1] + found[n]
				}
			}
			return found, directive
		})
	}
	c.Flags().VisitAll(each) // LocalFlags would first add those of the parents to each command
	c.PersistentFlags().VisitAll(each)
}

// values returns what may stand for a word.
func values(e *command.Env, c *cobra.Command, word string, args []string) (found []string, _ cobra.ShellCompDirective) {
	ctx, stop := context.WithTimeout(c.Context(), completionTime)
	defer stop()
	quiet := *e
	quiet.Stdin, quiet.Stderr = strings.NewReader(""), io.Discard
	quiet.ApplyEnvironment()
	directive := cobra.ShellCompDirectiveNoFileComp
	for _, word := range strings.Split(word, "|") {
		switch list := sources[word]; {
		case command.Choices(word) != nil:
			found = append(found, command.Choices(word)...)
		case list != nil:
			found = append(found, list(ctx, &quiet, c, args)...)
		case word == "FILE" || word == "POLICY":
			directive = cobra.ShellCompDirectiveDefault
		case word == "DIR" && directive == cobra.ShellCompDirectiveNoFileComp:
			directive = cobra.ShellCompDirectiveFilterDirs
		case strings.ToLower(word) == word:
			found = append(found, word)
		}
	}
	return slices.DeleteFunc(found, func(value string) bool { return slices.Contains(args, value) }), directive
}

// described returns a value and, for shells that show it, what it is.
func described(value, what string) string {
	return cobra.CompletionWithDesc(value, text.ClipRunes(report.OneLine(what), 60))
}

// toolValues are the names of the tools that the caller sees at the running toolgate, or
// else those of the definitions in the state directory. After a server they are those
// that the server gives its tools.
func toolValues(ctx context.Context, e *command.Env, _ *cobra.Command, args []string) (found []string) {
	if len(args) > 0 {
		pins, _ := e.Pins(ctx)
		for _, pin := range pins {
			if pin.Server == args[0] && pin.Condition == "" {
				found = append(found, pin.Tool)
			}
		}
		return found
	}
	var list struct {
		Tools []struct{ Name, Description string }
	}
	if e.Fetch(ctx, command.AgentsListener, http.MethodGet, "/v1/tools", nil, &list) == nil {
		return command.TextsOf(list.Tools, func(t struct{ Name, Description string }) string { return described(t.Name, t.Description) })
	}
	cfg, err := e.Load()
	if err != nil {
		return nil
	}
	kept, _ := policies.KeptTools(ctx, e, cfg)
	return command.TextsOf(kept, func(t policy.Tool) string { return t.Exposed })
}

// serverValues are the names of the servers in the configuration, whose variables may be
// unset in the shell.
func serverValues(_ context.Context, e *command.Env, _ *cobra.Command, _ []string) []string {
	n, err := clients.Entries(config.Options{Path: e.Config, Overlay: e.Overlay, Getenv: e.Lookup})
	if err != nil {
		return nil
	}
	return command.TextsOf(n.Servers, func(s clients.Entry) string { return s.Name })
}

// ticketValues are the tickets for which a command is meant, as the running toolgate
// shows them to the caller, or else those in the state directory that wait.
func ticketValues(ctx context.Context, e *command.Env, c *cobra.Command, _ []string) []string {
	query := url.Values{"limit": {"100"}}
	if state := map[string]approval.State{"approve": approval.StateProposed, "deny": approval.StateProposed, "reconcile": approval.StateUnknown}[c.Name()]; state != "" {
		query.Set("state", string(state))
	}
	var list struct{ Approvals []tickets.Ticket }
	if e.Fetch(ctx, command.PeopleListener, http.MethodGet, "/v1/approvals?"+query.Encode(), nil, &list) == nil {
		return command.TextsOf(list.Approvals, func(t tickets.Ticket) string {
			return described(t.ID, string(t.State)+": "+t.Exposed+" for "+t.Requester)
		})
	}
	found, _ := command.OfStore(ctx, e, approval.WaitingIDs)
	return found
}

// tokenValues returns a source of what value says about each token of the configuration.
func tokenValues(value func(config.Token) string) source {
	return func(_ context.Context, e *command.Env, _ *cobra.Command, _ []string) []string {
		cfg, err := e.Load()
		if err != nil {
			return nil
		}
		return slices.Compact(command.TextsOf(cfg.Identity.Tokens, value))
	}
}

// roleValues are the roles of the tokens and of a policy that is on this machine.
func roleValues(ctx context.Context, e *command.Env, _ *cobra.Command, _ []string) []string {
	cfg, err := e.Load()
	if err != nil {
		return nil
	}
	var engine *rego.Engine
	if !cfg.Policy.Remote() {
		engine, _ = rego.Load(ctx, app.PolicyOptions(&cfg.Policy.PolicySource)) // without it, the tokens have roles
	}
	return policies.KnownRoles(cfg, engine)
}

// keyValues are the IDs of the public keys.
func keyValues(_ context.Context, e *command.Env, _ *cobra.Command, _ []string) (found []string) {
	versions, err := keys.At(e.KeysDir()).Versions()
	if err != nil {
		return nil
	}
	for _, v := range versions {
		if v.Public != "" {
			found = append(found, described(v.ID, v.Name))
		}
	}
	return found
}

func clientValues(context.Context, *command.Env, *cobra.Command, []string) []string {
	return command.TextsOf(clients.Clients(), func(c clients.Client) string { return described(c.ID, c.Name) })
}

func completionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "completion bash|zsh|fish|powershell", Short: "print the script that makes a shell complete the command line",
		Annotations: map[string]string{command.Outputs: command.NoReport},
		RunE: func(c *cobra.Command, args []string) error {
			return map[string]func(io.Writer) error{
				"bash": func(w io.Writer) error { return c.Root().GenBashCompletionV2(w, true) },
				"zsh":  c.Root().GenZshCompletion, "powershell": c.Root().GenPowerShellCompletionWithDesc,
				"fish": func(w io.Writer) error { return c.Root().GenFishCompletion(w, true) },
			}[args[0]](c.OutOrStdout())
		},
	}
}
