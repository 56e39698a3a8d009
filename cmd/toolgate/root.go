package main

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"

	"github.com/hashicorp/go-hclog"
	"github.com/spf13/cobra"

	"github.com/toolgate/toolgate/internal/app"
	"github.com/toolgate/toolgate/internal/guardian"
	"github.com/toolgate/toolgate/internal/logfold"
	"github.com/toolgate/toolgate/internal/sandbox"
	"github.com/toolgate/toolgate/registry/config"
)

// version is set by the build with -ldflags.
var version = "0.1.0-dev"

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

	config, overlay, state, keys string
	role, token, addr            string
	ca, clientCert, output       string
	logLevel, logFormat          string
	log                          *logfold.Writer

	temporary string // see scratch
}

// run executes a command line and returns its exit code; tests call it as main
// does.
func run(ctx context.Context, args []string, s stdio, l lookup) int {
	if sandbox.IsGuardian(args) {
		return guardian.Main(args[1:])
	}
	e := &env{stdio: s, lookup: l, log: logfold.New(s.err)}
	defer e.log.Close()
	defer e.removeScratch()
	root := rootCommand(e)
	root.SetArgs(args)
	root.SetIn(s.in)
	root.SetOut(s.out)
	root.SetErr(s.err)
	return e.report(root.ExecuteContext(ctx))
}

func rootCommand(e *env) *cobra.Command {
	root := &cobra.Command{
		Use:          "toolgate",
		Short:        "govern what AI agents do with MCP tools",
		Version:      version,
		SilenceUsage: true, SilenceErrors: true,
		PersistentPreRunE: func(c *cobra.Command, _ []string) error { return e.applyDefaults(c.Annotations[outputs]) },
	}
	f := root.PersistentFlags()
	f.StringVar(&e.config, "config", "", "path of mcp.json (default mcp.json, or TOOLGATE_CONFIG)")
	f.StringVar(&e.overlay, "overlay", "", "path of a file that holds the toolgate object alone")
	f.StringVar(&e.state, "state", "", "state directory (default: as configured)")
	f.StringVar(&e.keys, "keys", "", "directory of toolgate's keys (default: as configured)")
	f.StringVar(&e.role, "role", "observer", "role of the principal local, where no identity is configured or identity.local is true")
	f.StringVar(&e.token, "token", "", "bearer token that says who asks (or TOOLGATE_TOKEN)")
	f.StringVar(&e.ca, "ca", "", "PEM file of certificate authorities, in addition to the system's (or TOOLGATE_CA)")
	f.StringVar(&e.clientCert, "client-cert", "", "PEM file of a client certificate and its key (or TOOLGATE_CLIENT_CERT)")
	f.StringVarP(&e.output, "output", "o", "table", "table or json; some commands have more")
	f.StringVar(&e.logLevel, "log-level", "info", "trace, debug, info, warn or error")
	f.StringVar(&e.logFormat, "log-format", "text", "text or json")
	root.SetFlagErrorFunc(flagFault)
	root.SetVersionTemplate(renderReport("version", versionOf()))
	root.CompletionOptions.HiddenDefaultCmd = true
	group(root, serveCommand(e), stdioCommand(e), ndjsonCommand(e), toolsCommand(e), checkCommand(e), doctorCommand(e), versionCommand(e),
		serverCommand(e), toolCommand(e), lockCommand(e), tokenCommand(e), keysCommand(e), policyCommand(e), approvalCommand(e), auditCommand(e), backupCommand(e), restoreCommand(e),
		importCommand(e), exportCommand(e), connectCommand(e), disconnectCommand(e), adoptCommand(e))
	describe(root)
	return root
}

// group makes c a command that only holds others. Cobra would answer a word
// that is none of them with help and success.
func group(c *cobra.Command, members ...*cobra.Command) *cobra.Command {
	c.Args, c.RunE = cobra.ArbitraryArgs, requireCommand
	c.AddCommand(members...)
	return c
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
	what := fmt.Sprintf("%s needs a command", c.CommandPath())
	if len(args) > 0 {
		what = fmt.Sprintf("unknown command %q for %q%s", args[0], c.CommandPath(), didYouMean(args[0], names))
	}
	return usage(fmt.Errorf("%s\nhint: one of %s; --help says more", what, strings.Join(names, ", ")))
}

// helpText has the long help and the examples of every command, each under a
// heading that is the command's path.
//
//go:embed help.md
var helpText string

// describe gives c, and the commands below it, their help, and makes what cobra
// says about arguments errors of usage, with the line that would have been right.
func describe(c *cobra.Command) {
	_, text, _ := strings.Cut("\n"+helpText, "\n# "+c.CommandPath()+"\n")
	text, _, _ = strings.Cut(text, "\n\n# ")
	c.Long, c.Example, _ = strings.Cut(strings.TrimRight(text, "\n"), "\nExamples:\n")
	if check := c.Args; check != nil {
		c.Args = func(c *cobra.Command, args []string) error {
			err, x := check(c, args), (*exit)(nil)
			if err == nil || errors.As(err, &x) {
				return err
			}
			return usage(fmt.Errorf("%w\nhint: %s", err, c.UseLine()))
		}
	}
	for _, s := range c.Commands() {
		describe(s)
	}
}

// outputs is the annotation of a command that prints in more forms than table
// and json: their names, with commas between.
const outputs = "outputs"

// applyDefaults fills from the environment what no flag set, and refuses values that
// the command cannot use; forms are its output forms besides table and json.
func (e *env) applyDefaults(forms string) error {
	for name, to := range map[string]*string{
		"TOOLGATE_CONFIG": &e.config, "TOOLGATE_TOKEN": &e.token, "TOOLGATE_CA": &e.ca, "TOOLGATE_CLIENT_CERT": &e.clientCert,
	} {
		if v, ok := e.lookup(name); ok && *to == "" {
			*to = v
		}
	}
	e.config = cmp.Or(e.config, defaultConfig)
	known := strings.Split(strings.TrimSuffix("table,json,"+forms, ","), ",")
	if !slices.Contains(known, e.output) {
		return usage(fmt.Errorf("output %q is unknown\nhint: use -o %s", e.output, strings.Join(known, " or -o ")))
	}
	if hclog.LevelFromString(e.logLevel) == hclog.NoLevel {
		return usage(fmt.Errorf("log level %q is unknown\nhint: use trace, debug, info, warn or error", e.logLevel))
	}
	return nil
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
	return app.Options{Role: e.role, Version: version, Log: e.logger()}
}

// load reads the configuration.
func (e *env) load() (*config.Config, error) { return e.loadAs("", "") }

// loadAs reads the configuration with these addresses in the place of what it
// says; "" leaves what it says.
func (e *env) loadAs(listen, admin string) (*config.Config, error) {
	cfg, err := config.Load(config.Options{
		Path: e.config, Overlay: e.overlay, Getenv: e.lookup,
		State: e.state, Keys: e.keys, Listen: listen, Admin: admin,
	})
	if err != nil {
		return nil, usage(err)
	}
	return cfg, nil
}

// The exit codes of every command.
const (
	exitOK           = 0
	exitUnexpected   = 1
	exitUsage        = 2 // usage or invalid configuration
	exitUnauthorised = 3
	exitUnreachable  = 4
	exitTool         = 5 // the tool answered with an error
	exitDenied       = 10
	exitApproval     = 11 // approval required
	exitDiffer       = 12 // tests or replay differ
	exitAudit        = 20 // the audit trail does not verify
)

// An exit is an error with its exit code. A nil err prints nothing.
type exit struct {
	code     int
	err      error
	document any // printed by -o json; nil = nothing

	unknownTool bool // the tool of a call is none that its caller sees
}

func (x *exit) Error() string {
	if x.err == nil {
		return ""
	}
	return x.err.Error()
}

func (x *exit) Unwrap() error { return x.err }

func usage(err error) error { return &exit{code: exitUsage, err: err} }

// report prints an error for people and returns its exit code.
func (e *env) report(err error) int {
	if err == nil {
		return exitOK
	}
	code, x, bad := exitUnexpected, (*exit)(nil), (*app.ConfigError)(nil)
	if errors.As(err, &x) {
		code = x.code
		if x.document != nil && e.output == "json" {
			err = errors.Join(err, e.json(x.document))
		}
	} else if errors.As(err, &bad) {
		code = exitUsage
	}
	if err.Error() != "" {
		fmt.Fprintf(e.err, "toolgate: error: %s\n", printable(err.Error()))
	}
	return code
}

func versionCommand(e *env) *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "print the version", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return e.print("version", versionOf())
		},
	}
}

func versionOf() map[string]string {
	return map[string]string{"version": version, "go": runtime.Version()}
}
