// Package cli is the command line of toolgate: its flags, commands, output and exit codes.
//
// Main runs one command line. Each command reads the configuration with load, does its work with
// the packages of the gate or asks a running toolgate over HTTP, and prints one result in the form
// that -o names. An error carries its exit code; exit.go has the list. Standard output carries
// protocol or results only, and all else goes to standard error.
package cli

import (
	"bufio"
	"cmp"
	"context"
	_ "embed" // the help
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/spf13/cobra"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/app"
	_ "github.com/toolgate/toolgate/cmd/toolgate/internal/cli/garbage" // sets how often it is collected
	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/logfold"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/progress"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/report"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/clients"
	"github.com/toolgate/toolgate/console"
	"github.com/toolgate/toolgate/internal/guardian"
	"github.com/toolgate/toolgate/internal/sandbox"
	"github.com/toolgate/toolgate/registry/config"
)

// version is what the command version prints.
var version = "0.1.0-dev"

// Main runs the command line of the process as a toolgate of a version, and exits with its code.
func Main(built string) {
	version = built
	if !sandbox.IsGuardian(os.Args[1:]) { // a guardian protects itself when it has an identity
		if err := sandbox.Protect(); err != nil {
			fmt.Fprintln(os.Stderr, "warning: other processes of this user can read the secrets of this one:", err)
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the program at once
	code := run(ctx, os.Args[1:], stdio{os.Stdin, os.Stdout, os.Stderr}, os.LookupEnv)
	stop()
	os.Exit(code)
}

// stdio is where a command reads and writes. Stdout carries protocol or
// results only.
type stdio struct {
	in       io.Reader
	out, err io.Writer
}

// defaultConfig is what is read when nobody says otherwise.
const defaultConfig = "mcp.json"

// lookup reads the environment.
type lookup func(string) (string, bool)

// env is what every command gets: its streams, its environment and the flags
// that all share.
type env struct {
	stdio
	lookup lookup

	report.Printer // of results; Form is what -o says

	config, overlay, state, keys string
	role, token, addr            string
	ca, clientCert               string
	logLevel, logFormat          string
	logCalls                     bool
	log                          *logfold.Writer

	args      []string        // the command line
	ended     <-chan struct{} // closed when the command has ended
	temporary string          // see scratch
	unhelped  error           // why no help was printed
	lines     *bufio.Reader   // see ask
}

// run executes a command line and returns its exit code; tests call it as Main
// does.
func run(ctx context.Context, args []string, s stdio, l lookup) int {
	if sandbox.IsGuardian(args) {
		return guardian.Main(args[1:])
	}
	ended := make(chan struct{})
	e := &env{stdio: s, lookup: l, args: args, ended: ended, log: logfold.New(s.err), Printer: report.Printer{Out: s.out}}
	defer e.log.Close()
	defer close(ended)
	defer func() {
		if e.temporary != "" {
			_ = os.RemoveAll(e.temporary) // a leftover in the temporary directory is the system's
		}
	}()
	root := rootCommand(e)
	root.SetArgs(args)
	root.SetIn(s.in)
	root.SetOut(s.out)
	root.SetErr(s.err)
	c, err := root.ExecuteContextC(ctx)
	err = cmp.Or(err, e.unhelped)
	if !slices.Contains(formsOf(c), string(e.Form)) {
		e.Form = report.Table // errors are text where the command has no such documents
	}
	return e.fail(err)
}

// serveGroup is the group of the commands that serve clients.
const serveGroup = "Serve:"

// endGrace is how long a command that serves nobody may take to end after a signal. It can
// wait for input or for a file system, where no context reaches it.
const endGrace = 5 * time.Second

func rootCommand(e *env) *cobra.Command {
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
		return requireCommand(c, args)
	}
	f := root.PersistentFlags()
	f.StringVar(&e.config, "config", "", "`FILE` of the configuration (default mcp.json, or TOOLGATE_CONFIG)")
	f.StringVar(&e.overlay, "overlay", "", "`FILE` that holds the toolgate object alone")
	f.StringVar(&e.state, "state", "", "`DIR` of the state (default: as configured)")
	f.StringVar(&e.keys, "keys", "", "`DIR` of toolgate's keys (default: as configured)")
	f.StringVar(&e.role, "role", "observer", "`ROLE` of the principal local, where no identity is configured or identity.local is true")
	f.StringVar(&e.token, "token", "", "bearer `TOKEN` that says who asks (or TOOLGATE_TOKEN)")
	f.StringVar(&e.ca, "ca", "", "PEM `FILE` of certificate authorities, in addition to the system's (or TOOLGATE_CA)")
	f.StringVar(&e.clientCert, "client-cert", "", "PEM `FILE` of a client certificate and its key (or TOOLGATE_CLIENT_CERT)")
	f.StringVarP((*string)(&e.Form), "output", "o", report.Table, "`FORM` of the result: table, wide, json or yaml; some commands have more (or TOOLGATE_OUTPUT)")
	f.StringVar(&e.logLevel, "log-level", "info", "least `LEVEL` of log lines")
	f.StringVar(&e.logFormat, "log-format", "text", "form of log lines: `text|json`")
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error { return flagFault(e, c, err) })
	for _, g := range []struct {
		title   string
		members []*cobra.Command
	}{
		{"Set up:", []*cobra.Command{initCommand(e), checkCommand(e), doctorCommand(e), serviceCommand(e), lockCommand(e), tokenCommand(e), keysCommand(e)}},
		{serveGroup, []*cobra.Command{serveCommand(e), stdioCommand(e), ndjsonCommand(e), toolsCommand(e)}},
		{"Clients:", []*cobra.Command{importCommand(e), exportCommand(e), connectCommand(e), disconnectCommand(e), adoptCommand(e)}},
		{"Look and decide:", []*cobra.Command{serverCommand(e), toolCommand(e), policyCommand(e), approvalCommand(e), stopCommand(e), resumeCommand(e), sessionCommand(e), limitsCommand(e), connectionCommand(e)}},
		{"Keep records:", []*cobra.Command{auditCommand(e), indexCommand(e), backupCommand(e), restoreCommand(e), storeCommand(e), replicaCommand(e), supportBundleCommand(e)}},
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
			e.unhelped = requireCommand(c, words)
			return
		}
		printHelp(c, args)
	})
	return root
}

// requireCommand is the action of a command that needs a subcommand. It prints nothing on
// stdout, where a client that left out "stdio" expects protocol.
func requireCommand(c *cobra.Command, args []string) error {
	var names []string
	for _, s := range c.Commands() {
		if s.IsAvailableCommand() {
			names = append(names, s.Name())
		}
	}
	all := hintMark + "one of " + strings.Join(names, ", ") + "; --help says more"
	if len(args) == 0 {
		return usage(fmt.Errorf("%s needs a command%s", c.CommandPath(), all))
	}
	return usage(fmt.Errorf("unknown command %q for %q%s", args[0], c.CommandPath(), cmp.Or(didYouMean(args[0], names), all)))
}

// helpAbout prints the help of the command that args name. Cobra's own would print that of
// the nearest command above a mistyped one.
func helpAbout(c *cobra.Command, args []string) error {
	found, rest, err := c.Root().Find(args)
	switch {
	case err != nil:
		return err
	case found.HasSubCommands() && len(rest) > 0:
		return requireCommand(found, rest)
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
func describe(e *env, c *cobra.Command, help string) {
	_, text, _ := strings.Cut(help, "\n# "+c.CommandPath()+"\n")
	text, _, _ = strings.Cut(text, "\n\n# ")
	c.Long, c.Example, _ = strings.Cut(strings.TrimRight(text, "\n"), "\nExamples:\n")
	if !c.HasSubCommands() {
		c.Args = checkArguments
	}
	complete(e, c)
	for _, s := range c.Commands() {
		describe(e, s, help)
	}
}

// outputs is the annotation of a command with other forms of output than the usual:
// the names of those that it has in addition, with commas between, or noReport.
const outputs = "outputs"

// noReport is the annotation of a command whose stdout is protocol, or has a form of its
// own.
const noReport = "-"

// formsOf returns the forms of output that c has; nil = it has none to choose from.
func formsOf(c *cobra.Command) []string {
	switch more := c.Annotations[outputs]; more {
	case noReport:
		return nil
	case "":
		return report.Forms()
	default:
		return append(report.Forms(), strings.Split(more, ",")...)
	}
}

// prepare fills from the environment what no flag set, and refuses values that c cannot
// use.
func prepare(e *env, c *cobra.Command) error {
	e.applyEnvironment()
	if c.GroupID != serveGroup { // which ends when its clients have their answers
		context.AfterFunc(c.Context(), func() { // ends the program unless the command ends
			select {
			case <-e.ended:
			case <-time.After(endGrace):
				fmt.Fprintf(e.err, "toolgate: error: the command has not ended %s after the signal\n", endGrace)
				os.Exit(exitUnexpected)
			}
		})
	}
	known, source := formsOf(c), "output"
	if form, ok := e.lookup("TOOLGATE_OUTPUT"); ok && form != "" && known != nil && !c.Flags().Changed("output") {
		e.Form, source = report.Form(form), "TOOLGATE_OUTPUT"
	}
	switch {
	case known == nil && c.Flags().Changed("output"):
		return usage(fmt.Errorf("%s prints no report, and has no -o\nhint: leave it out", c.CommandPath()))
	case known != nil && !slices.Contains(known, string(e.Form)):
		return unknown(source, string(e.Form), known)
	}
	return checkFlags(c)
}

// applyEnvironment fills from the environment what no flag set.
func (e *env) applyEnvironment() {
	for name, to := range map[string]*string{
		"TOOLGATE_CONFIG": &e.config, "TOOLGATE_TOKEN": &e.token, "TOOLGATE_CA": &e.ca, "TOOLGATE_CLIENT_CERT": &e.clientCert,
	} {
		if v, ok := e.lookup(name); ok && *to == "" {
			*to = v
		}
	}
	e.config = cmp.Or(e.config, defaultConfig)
}

// logger writes to stderr, so that stdout stays protocol.
func (e *env) logger() hclog.Logger {
	return hclog.New(&hclog.LoggerOptions{
		Name: "toolgate", Level: hclog.LevelFromString(e.logLevel),
		Output: e.log, JSONFormat: e.logFormat == "json",
	})
}

// appOptions are what the flags say to a toolgate that this command opens.
func (e *env) appOptions() app.Options {
	o := app.Options{Role: e.role, Version: version, Log: e.logger()}
	o.TrialText = func(t console.PolicyTrial) string { return report.Of(tried{&t}, triedText).Text("markdown") }
	if e.logCalls { // each line counts, so that none is folded
		o.Calls = hclog.New(&hclog.LoggerOptions{Name: "toolgate", Output: e.err, JSONFormat: e.logFormat == "json"})
	}
	return o
}

// withLogCalls gives c the flag --log-calls.
func withLogCalls(e *env, c *cobra.Command) *cobra.Command {
	c.Flags().BoolVar(&e.logCalls, "log-calls", false, "log each call at info: principal, tool, outcome and decision id, without arguments")
	return c
}

// load reads the configuration.
func (e *env) load() (*config.Config, error) { return e.loadAs("", "") }

// loadAs reads the configuration with these addresses in the place of what it
// says; "" leaves what it says.
func (e *env) loadAs(listen, admin string) (*config.Config, error) {
	cfg, err := config.Load(clients.Options(config.Options{
		Path: e.config, Overlay: e.overlay, Getenv: e.lookup,
		State: e.state, Keys: e.keys, Listen: listen, Admin: admin,
	}))
	if err != nil {
		return nil, &exit{code: exitUsage, err: err, findings: faultsOf(err, "")}
	}
	return cfg, nil
}

func versionCommand(e *env) *cobra.Command {
	return command("version", "print the version", func(context.Context, []string) error { return e.Print(versionOf()) })
}

func versionOf() *report.Report {
	return report.Of(map[string]string{"version": version, "go": runtime.Version()}, versionText)
}

// The functions through which reports pass what callers and servers wrote.
var line, code, plain, indent = report.OneLine, report.CodeMarkdown, report.PlainMarkdown, report.Indented

// dash returns s as a cell, and - in place of nothing.
func dash(s string) string { return line(cmp.Or(s, "-")) }

// firstLine returns the first line of s.
func firstLine(s string) string {
	first, _, _ := strings.Cut(s, "\n")
	return first
}

// layout returns v as indented JSON with a line end.
func layout(v any) string {
	text, _ := json.MarshalIndent(v, "", "  ") // what a report holds can be encoded
	return string(text) + "\n"
}

// progress returns a line on stderr that shows how far a long command is: on a terminal,
// unless the output is for programs, and elsewhere where somebody wants lines.
func (e *env) progress(wanted bool) *progress.Line {
	form := progress.None
	if kind, _ := e.lookup("TERM"); isTerminal(e.err) && kind != "dumb" && !e.Structured() {
		form = progress.Bar
	} else if wanted {
		form = progress.Lines
	}
	return progress.New(e.err, form)
}

// short returns a revision or digest as people read it.
func short(revision string) string { return revision[:min(len(revision), len("sha256:")+12)] }

// clock returns a time to the second in UTC.
func clock(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05Z") }

// clockOrDash returns a time as clock does, and - for none.
func clockOrDash(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return clock(t)
}

// title returns an ASCII text with its first letter in upper case.
func title(text string) string { return strings.ToUpper(text[:1]) + text[1:] }
