package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/app"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/report"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/clients"
	"github.com/toolgate/toolgate/console"
	"github.com/toolgate/toolgate/internal/keys"
	"github.com/toolgate/toolgate/internal/text"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/approval"
	"github.com/toolgate/toolgate/policy/rego"
	"github.com/toolgate/toolgate/registry/config"
)

// command returns a command that runs run. Its Use line says which arguments it takes.
func command(use, short string, run func(ctx context.Context, args []string) error) *cobra.Command {
	return &cobra.Command{Use: use, Short: short, RunE: func(c *cobra.Command, args []string) error { return run(c.Context(), args) }}
}

// printing returns a command that prints the report that run returns. Nothing is printed for
// nil, and with an error, unless that is an exit that is reported.
func (e *env) printing(use, short string, run func(ctx context.Context, args []string) (*report.Report, error)) *cobra.Command {
	return command(use, short, func(ctx context.Context, args []string) error {
		result, err := run(ctx, args)
		if x := (*exit)(nil); result == nil || err != nil && !(errors.As(err, &x) && x.reported) {
			return err
		}
		return errors.Join(e.Print(result), err)
	})
}

// group returns a command that only holds others. Cobra would answer a word that is none of
// them with help and success.
func group(use, short string, members ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{Use: use, Short: short, Args: cobra.ArbitraryArgs, RunE: requireCommand}
	c.AddCommand(members...)
	return c
}

// withForms gives c forms of output in addition to the usual: their names, with commas
// between, or noReport.
func withForms(c *cobra.Command, forms string) *cobra.Command {
	c.Annotations = map[string]string{outputs: forms}
	return c
}

// An argument is one of a Use line, such as
//
//	diff [SERVER TOOL]
//	test [POLICY [TESTS...]]
//	completion bash|zsh|fish|powershell
//
// The Use line decides how many arguments a command takes, which words it accepts, and
// how a shell completes them.
type argument struct {
	word string // TOOL, or alternatives: CLIENT|FILE, bash|zsh
	stop bool   // the arguments may end before this one
	many bool   // it may be repeated
}

// argumentsOf returns the arguments of a Use line.
func argumentsOf(use string) (all []argument) {
	_, line, _ := strings.Cut(use, " ")
	for _, word := range strings.Fields(strings.ReplaceAll(line, " | ", "|")) {
		a := argument{stop: strings.HasPrefix(word, "[")}
		a.word, a.many = strings.CutSuffix(strings.Trim(word, "[]"), "...")
		all = append(all, a)
	}
	return all
}

// checkArguments refuses arguments that the Use line of c does not have.
func checkArguments(c *cobra.Command, args []string) error {
	want := argumentsOf(c.Use)
	if n := len(args); n < len(want) && !want[n].stop {
		return usage(fmt.Errorf("missing argument %s\nhint: %s", want[n].word, c.UseLine()))
	}
	for i, arg := range args {
		at := min(i, len(want)-1)
		if at < 0 || at < i && !want[at].many {
			return usage(fmt.Errorf("unexpected argument %q\nhint: %s", arg, c.UseLine()))
		}
		if err := checkChoice("argument", arg, want[at].word); err != nil {
			return err
		}
	}
	return nil
}

// checkFlags refuses values that the words of the flags of c do not allow.
func checkFlags(c *cobra.Command) (err error) {
	c.Flags().Visit(func(f *pflag.Flag) {
		values := []string{f.Value.String()}
		if list, ok := f.Value.(pflag.SliceValue); ok {
			values = list.GetSlice()
		}
		for _, value := range values {
			if err == nil {
				err = checkChoice("--"+f.Name, value, valueWord(f))
			}
		}
	})
	return err
}

// valueWord returns what the value of a flag is: the word between backquotes of its usage.
func valueWord(f *pflag.Flag) string {
	word, _ := pflag.UnquoteUsage(f)
	return word
}

// vocabularies are the words that stand for one of many values.
var vocabularies = map[string][]string{
	"KIND":    {"open", "decision", "outcome", "ticket", "event", "close"},
	"OUTCOME": {"allowed", "denied", "held", "limited", "invalid", "unknown", "failed", "cancelled"},
	"STATE":   {"proposed", "approved", "needs_connection", "denied", "expired", "superseded", "dispatching", "done", "failed", "unknown"},
	"LEVEL":   {"trace", "debug", "info", "warn", "error"},
}

// choices returns the values that a word allows, nil if it allows any. Those of a word in
// lower case have | between them.
func choices(word string) []string {
	if word == "-" || strings.Contains(word, "|") && strings.ToLower(word) == word {
		return strings.Split(word, "|")
	}
	return vocabularies[word]
}

// checkChoice refuses a value that is none of the choices of a word.
func checkChoice(what, value, word string) error {
	if known := choices(word); known != nil && !slices.Contains(known, value) {
		return unknown(what, value, known)
	}
	return nil
}

// A moment is the value of a flag: a time, or how long ago it is.
type moment time.Time

// Set implements pflag.Value.
func (m *moment) Set(text string) error {
	if d, err := time.ParseDuration(text); err == nil && d >= 0 {
		*m = moment(time.Now().Add(-d))
		return nil
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return err
	}
	*m = moment(at)
	return nil
}

// String implements pflag.Value. The usage of a flag says what its default is.
func (m *moment) String() string { return "" }

// Type implements pflag.Value.
func (m *moment) Type() string { return "time" }

// completionTime bounds how long a shell waits for the values of a word. Tests wait
// longer.
var completionTime = time.Second

// A source lists the values that a word of a Use line or of a flag stands for. c is the
// command whose line is completed, with args before the word. A source reads files and
// asks a running toolgate. It starts no server, prints nothing and returns no secret;
// nil is its answer to every fault.
type source func(ctx context.Context, e *env, c *cobra.Command, args []string) []string

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
	"FORM":       func(_ context.Context, _ *env, c *cobra.Command, _ []string) []string { return formsOf(c) },
}

// complete makes a shell complete the arguments and the flags that c itself has.
func complete(e *env, c *cobra.Command) {
	if want := argumentsOf(c.Use); len(want) > 0 {
		c.ValidArgsFunction = func(c *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
			at := min(len(args), len(want)-1)
			if at < len(args) && !want[at].many {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return values(e, c, want[at].word, args)
		}
	} else if !c.HasSubCommands() {
		c.ValidArgsFunction = cobra.NoFileCompletions
	}
	c.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if known := vocabularies[valueWord(f)]; known != nil {
			f.Usage += ": " + strings.Join(known, ", ")
		}
		if f.Name == "help" || f.Value.Type() == "bool" {
			return
		}
		_ = c.RegisterFlagCompletionFunc(f.Name, func(c *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) { // fails for one that has a function
			found, directive := values(e, c, valueWord(f), args)
			if i := strings.LastIndex(typed, ","); i >= 0 && f.Value.Type() == "stringSlice" {
				for n := range found {
					found[n] = typed[:i+1] + found[n]
				}
			}
			return found, directive
		})
	})
}

// values returns what may stand for a word.
func values(e *env, c *cobra.Command, word string, args []string) (found []string, _ cobra.ShellCompDirective) {
	ctx, stop := context.WithTimeout(c.Context(), completionTime)
	defer stop()
	quiet := *e
	quiet.in, quiet.err = strings.NewReader(""), io.Discard
	quiet.applyEnvironment()
	directive := cobra.ShellCompDirectiveNoFileComp
	for _, word := range strings.Split(word, "|") {
		switch list := sources[word]; {
		case choices(word) != nil:
			found = append(found, choices(word)...)
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
func toolValues(ctx context.Context, e *env, _ *cobra.Command, args []string) (found []string) {
	if len(args) > 0 {
		pins, _ := e.pins(ctx)
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
	if e.fetch(ctx, agentsListener, http.MethodGet, "/v1/tools", nil, &list) == nil {
		return textsOf(list.Tools, func(t struct{ Name, Description string }) string { return described(t.Name, t.Description) })
	}
	cfg, err := e.load()
	if err != nil {
		return nil
	}
	kept, _ := keptTools(ctx, e, cfg)
	return textsOf(kept, func(t policy.Tool) string { return t.Exposed })
}

// serverValues are the names of the servers in the configuration, whose variables may be
// unset in the shell.
func serverValues(_ context.Context, e *env, _ *cobra.Command, _ []string) []string {
	n, err := clients.Entries(config.Options{Path: e.config, Overlay: e.overlay, Getenv: e.lookup})
	if err != nil {
		return nil
	}
	return textsOf(n.Servers, func(s clients.Entry) string { return s.Name })
}

// ticketValues are the tickets for which a command is meant, as the running toolgate
// shows them to the caller, or else those in the state directory that wait.
func ticketValues(ctx context.Context, e *env, c *cobra.Command, _ []string) []string {
	query := url.Values{"limit": {"100"}}
	if state := map[string]approval.State{"approve": approval.StateProposed, "deny": approval.StateProposed, "reconcile": approval.StateUnknown}[c.Name()]; state != "" {
		query.Set("state", string(state))
	}
	var list struct{ Approvals []console.Ticket }
	if e.fetch(ctx, peopleListener, http.MethodGet, "/v1/approvals?"+query.Encode(), nil, &list) == nil {
		return textsOf(list.Approvals, func(t console.Ticket) string {
			return described(t.ID, string(t.State)+": "+t.Exposed+" for "+t.Requester)
		})
	}
	found, _ := ofStore(ctx, e, approval.WaitingIDs)
	return found
}

// tokenValues returns a source of what value says about each token of the configuration.
func tokenValues(value func(config.Token) string) source {
	return func(_ context.Context, e *env, _ *cobra.Command, _ []string) []string {
		cfg, err := e.load()
		if err != nil {
			return nil
		}
		return slices.Compact(textsOf(cfg.Identity.Tokens, value))
	}
}

// roleValues are the roles of the tokens and of a policy that is on this machine.
func roleValues(ctx context.Context, e *env, _ *cobra.Command, _ []string) []string {
	cfg, err := e.load()
	if err != nil {
		return nil
	}
	var engine *rego.Engine
	if !cfg.Policy.Remote() {
		engine, _ = rego.Load(ctx, app.PolicyOptions(&cfg.Policy.PolicySource)) // without it, the tokens have roles
	}
	return knownRoles(cfg, engine)
}

// keyValues are the IDs of the public keys.
func keyValues(_ context.Context, e *env, _ *cobra.Command, _ []string) (found []string) {
	versions, err := keys.At(e.keysDir()).Versions()
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

func clientValues(context.Context, *env, *cobra.Command, []string) []string {
	return textsOf(clients.Clients(), func(c clients.Client) string { return described(c.ID, c.Name) })
}

func completionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "completion bash|zsh|fish|powershell", Short: "print the script that makes a shell complete the command line",
		Annotations: map[string]string{outputs: noReport},
		RunE: func(c *cobra.Command, args []string) error {
			return map[string]func(io.Writer) error{
				"bash": func(w io.Writer) error { return c.Root().GenBashCompletionV2(w, true) },
				"zsh":  c.Root().GenZshCompletion, "powershell": c.Root().GenPowerShellCompletionWithDesc,
				"fish": func(w io.Writer) error { return c.Root().GenFishCompletion(w, true) },
			}[args[0]](c.OutOrStdout())
		},
	}
}
