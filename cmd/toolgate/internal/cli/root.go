// Package cli is the command line of toolgate: its flags, commands, output and exit codes.
//
// Main runs one command line. Each command reads the configuration with Load, does its work with
// the packages of the gate or asks a running toolgate over HTTP, and prints one result in the form
// that -o names. An error carries its exit code; package command has the list. Standard output carries
// protocol or results only, and all else goes to standard error.
package cli

import (
	"cmp"
	"context"
	_ "embed" // the help
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/command"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/connect"
	_ "github.com/toolgate/toolgate/cmd/toolgate/internal/cli/garbage" // sets how often it is collected
	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/logfold"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/policies"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/records"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/report"
	"github.com/toolgate/toolgate/internal/guardian"
	"github.com/toolgate/toolgate/internal/sandbox"
)

// Main runs the command line of the process as a toolgate of a version, and exits with its code.
func Main(built string) {
	command.Version = built
	if !sandbox.IsGuardian(os.Args[1:]) { // a guardian protects itself when it has an identity
		if err := sandbox.Protect(); err != nil {
			fmt.Fprintln(os.Stderr, "warning: other processes of this user can read the secrets of this one:", err)
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the program at once
	code := run(ctx, os.Args[1:], command.Stdio{Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr}, os.LookupEnv)
	stop()
	os.Exit(code)
}

// run executes a command line and returns its exit code; tests call it as Main
// does.
func run(ctx context.Context, args []string, s command.Stdio, l command.Lookup) int {
	if sandbox.IsGuardian(args) {
		return guardian.Main(args[1:])
	}
	ended := make(chan struct{})
	e := &command.Env{Stdio: s, Lookup: l, Args: args, Ended: ended, Log: logfold.New(s.Stderr), TrialText: policies.TrialText, Printer: report.Printer{Out: s.Stdout}}
	defer e.Log.Close()
	defer close(ended)
	defer func() {
		if e.Temporary != "" {
			_ = os.RemoveAll(e.Temporary) // a leftover in the temporary directory is the system's
		}
	}()
	root := rootCommand(e)
	root.SetArgs(args)
	root.SetIn(s.Stdin)
	root.SetOut(s.Stdout)
	root.SetErr(s.Stderr)
	c, err := root.ExecuteContextC(ctx)
	err = cmp.Or(err, e.Unhelped)
	if !slices.Contains(command.FormsOf(c), string(e.Form)) {
		e.Form = report.Table // errors are text where the command has no such documents
	}
	return e.Fail(err)
}

// serveGroup is the group of the commands that serve clients.
const serveGroup = "Serve:"

// endGrace is how long a command that serves nobody may take to end after a signal. It can
// wait for input or for a file system, where no context reaches it.
const endGrace = 5 * time.Second

func rootCommand(e *command.Env) *cobra.Command {
	root := &cobra.Command{
		Use:          "toolgate",
		Short:        "govern what AI agents do with MCP tools",
		Args:         cobra.ArbitraryArgs,
		SilenceUsage: true, SilenceErrors: true,
	}
	// Cobra's own flag would print another text, or a template.
	wanted := root.Flags().BoolP("version", "v", false, "version for toolgate")
	root.PersistentPreRunE = func(c *cobra.Command, _ []string) error {
		if *wanted {
			return nil
		}
		return prepare(e, c)
	}
	root.RunE = func(c *cobra.Command, args []string) error {
		if *wanted {
			return e.Write(versionOf().Text(report.Table))
		}
		return command.RequireCommand(c, args)
	}
	f := root.PersistentFlags()
	f.StringVar(&e.Config, "config", "", "`FILE` of the configuration (default mcp.json, or TOOLGATE_CONFIG)")
	f.StringVar(&e.Overlay, "overlay", "", "`FILE` that holds the toolgate object alone")
	f.StringVar(&e.State, "state", "", "`DIR` of the state (default: as configured)")
	f.StringVar(&e.Keys, "keys", "", "`DIR` of toolgate's keys (default: as configured)")
	f.StringVar(&e.Role, "role", "observer", "`ROLE` of the principal local, where no identity is configured or identity.local is true")
	f.StringVar(&e.Token, "token", "", "bearer `TOKEN` that says who asks (or TOOLGATE_TOKEN)")
	f.StringVar(&e.CA, "ca", "", "PEM `FILE` of certificate authorities, in addition to the system's (or TOOLGATE_CA)")
	f.StringVar(&e.ClientCert, "client-cert", "", "PEM `FILE` of a client certificate and its key (or TOOLGATE_CLIENT_CERT)")
	f.StringVarP((*string)(&e.Form), "output", "o", report.Table, "`FORM` of the result: table, wide, json or yaml; some commands have more (or TOOLGATE_OUTPUT)")
	f.StringVar(&e.LogLevel, "log-level", "info", "least `LEVEL` of log lines")
	f.StringVar(&e.LogFormat, "log-format", "text", "form of log lines: `text|json`")
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error { return command.FlagFault(e, c, err) })
	for _, g := range []struct {
		title   string
		members []*cobra.Command
	}{
		{"Set up:", []*cobra.Command{initCommand(e), checkCommand(e), doctorCommand(e), connect.ServiceCommand(e), lockCommand(e), tokenCommand(e), keysCommand(e)}},
		{serveGroup, []*cobra.Command{serveCommand(e), stdioCommand(e), ndjsonCommand(e), toolsCommand(e)}},
		{"Clients:", []*cobra.Command{connect.ImportCommand(e), connect.ExportCommand(e), connect.ConnectCommand(e), connect.DisconnectCommand(e), connect.AdoptCommand(e)}},
		{"Look and decide:", []*cobra.Command{serverCommand(e), toolCommand(e), policies.Command(e), approvalCommand(e), stopCommand(e), resumeCommand(e), sessionCommand(e), limitsCommand(e), connectionCommand(e)}},
		{"Keep records:", []*cobra.Command{records.AuditCommand(e), records.IndexCommand(e), records.BackupCommand(e), records.RestoreCommand(e), records.StoreCommand(e), records.ReplicaCommand(e), supportBundleCommand(e)}},
	} {
		root.AddGroup(&cobra.Group{ID: g.title, Title: g.title})
		for _, c := range g.members {
			c.GroupID = g.title
		}
		root.AddCommand(g.members...)
	}
	root.AddCommand(completionCommand(), versionCommand(e))
	describe(e, root, "\n"+helpText)
	root.InitDefaultHelpCmd()
	help, _, _ := root.Find([]string{"help"}) // it exists
	help.Run, help.RunE = nil, helpAbout
	printHelp := root.HelpFunc()
	root.SetHelpFunc(func(c *cobra.Command, args []string) {
		if words := c.Flags().Args(); c.HasSubCommands() && len(words) > 0 { // --help after a mistyped command
			e.Unhelped = command.RequireCommand(c, words)
			return
		}
		printHelp(c, args)
	})
	return root
}

// helpAbout prints the help of the command that args name. Cobra's own would print that of
// the nearest command above a mistyped one.
func helpAbout(c *cobra.Command, args []string) error {
	found, rest, err := c.Root().Find(args)
	switch {
	case err != nil:
		return err
	case found.HasSubCommands() && len(rest) > 0:
		return command.RequireCommand(found, rest)
	}
	return found.Help()
}

// helpText has the long help and the examples of every command, each under a
// heading that is the command's path.
//
//go:embed help.md
var helpText string

// describe gives c, and the commands below it, their help, which help has, their check of
// arguments and their completion.
func describe(e *command.Env, c *cobra.Command, help string) {
	_, text, _ := strings.Cut(help, "\n# "+c.CommandPath()+"\n")
	text, _, _ = strings.Cut(text, "\n\n# ")
	c.Long, c.Example, _ = strings.Cut(strings.TrimRight(text, "\n"), "\nExamples:\n")
	if !c.HasSubCommands() {
		c.Args = command.CheckArguments
	}
	complete(e, c)
	for _, s := range c.Commands() {
		describe(e, s, help)
	}
}

// prepare fills from the environment what no flag set, and refuses values that c cannot
// use.
func prepare(e *command.Env, c *cobra.Command) error {
	e.ApplyEnvironment()
	if c.GroupID != serveGroup { // which ends when its clients have their answers
		context.AfterFunc(c.Context(), func() { // ends the program unless the command ends
			select {
			case <-e.Ended:
			case <-time.After(endGrace):
				fmt.Fprintf(e.Stderr, "toolgate: error: the command has not ended %s after the signal\n", endGrace)
				os.Exit(command.ExitUnexpected)
			}
		})
	}
	known, source := command.FormsOf(c), "output"
	if form, ok := e.Lookup("TOOLGATE_OUTPUT"); ok && form != "" && known != nil && !c.Flags().Changed("output") {
		e.Form, source = report.Form(form), "TOOLGATE_OUTPUT"
	}
	switch {
	case known == nil && c.Flags().Changed("output"):
		return command.Usage(fmt.Errorf("%s prints no report, and has no -o\nhint: leave it out", c.CommandPath()))
	case known != nil && !slices.Contains(known, string(e.Form)):
		return command.Unknown(source, string(e.Form), known)
	}
	return command.CheckFlags(c)
}

// withLogCalls gives c the flag --log-calls.
func withLogCalls(e *command.Env, c *cobra.Command) *cobra.Command {
	c.Flags().BoolVar(&e.LogCalls, "log-calls", false, "log each call at info: principal, tool, outcome and decision id, without arguments")
	return c
}

func versionCommand(e *command.Env) *cobra.Command {
	return command.New("version", "print the version", func(context.Context, []string) error { return e.Print(versionOf()) })
}

func versionOf() *report.Report {
	return report.Of(map[string]string{"version": command.Version, "go": runtime.Version()}, versionText)
}

// layout returns v as indented JSON with a line end.
func layout(v any) string {
	text, _ := json.MarshalIndent(v, "", "  ") // what a report holds can be encoded
	return string(text) + "\n"
}
