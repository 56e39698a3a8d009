// Package command is what every command of the command line has: streams, flags and environment; errors with
// their exit codes; the state directory; and the listeners of a running toolgate.
//
// A command gets an Env and returns an error. Printing makes a command of a function that returns a report:
//
//	return e.Printing("list", "list the keys", func(ctx context.Context, args []string) (*report.Report, error) {
//		...
//	})
//
// An Env belongs to one command line, and is not safe for concurrent use.
package command

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/hashicorp/go-hclog"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/app"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/logfold"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/progress"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/report"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/clients"
	"github.com/toolgate/toolgate/console"
	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/registry/config"
)

// Version is what the command version prints.
var Version = "0.1.0-dev"

// Stdio is where a command reads and writes. Stdout carries protocol or
// results only.
type Stdio struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
}

// DefaultConfig is what is read when nobody says otherwise.
const DefaultConfig = "mcp.json"

// Lookup reads the environment.
type Lookup func(string) (string, bool)

// Env is what every command gets: its streams, its environment and the flags
// that all share.
type Env struct {
	Stdio
	Lookup Lookup

	report.Printer // of results; Form is what -o says

	Config, Overlay, State, Keys string
	Role, Token, Addr            string
	CA, ClientCert               string
	LogLevel, LogFormat          string
	LogCalls                     bool
	Log                          *logfold.Writer

	TrialText func(console.PolicyTrial) string // writes a trial as markdown
	Args      []string                         // the command line
	Ended     <-chan struct{}                  // closed when the command has ended
	Temporary string                           // made by scratch, and removed when the command ends; "" = none
	Unhelped  error                            // why no help was printed
	lines     *bufio.Reader                    // see Prompt
}

// Outputs is the annotation of a command with other forms of output than the usual:
// the names of those that it has in addition, with commas between, or NoReport.
const Outputs = "outputs"

// NoReport is the annotation of a command whose stdout is protocol, or has a form of its
// own.
const NoReport = "-"

// FormsOf returns the forms of output that c has; nil = it has none to choose from.
func FormsOf(c *cobra.Command) []string {
	switch more := c.Annotations[Outputs]; more {
	case NoReport:
		return nil
	case "":
		return report.Forms()
	default:
		return append(report.Forms(), strings.Split(more, ",")...)
	}
}

// ApplyEnvironment fills from the environment what no flag set.
func (e *Env) ApplyEnvironment() {
	for name, to := range map[string]*string{
		"TOOLGATE_CONFIG": &e.Config, "TOOLGATE_TOKEN": &e.Token, "TOOLGATE_CA": &e.CA, "TOOLGATE_CLIENT_CERT": &e.ClientCert,
	} {
		if v, ok := e.Lookup(name); ok && *to == "" {
			*to = v
		}
	}
	e.Config = cmp.Or(e.Config, DefaultConfig)
}

// Logger writes to stderr, so that stdout stays protocol.
func (e *Env) Logger() hclog.Logger {
	return hclog.New(&hclog.LoggerOptions{
		Name: "toolgate", Level: hclog.LevelFromString(e.LogLevel),
		Output: e.Log, JSONFormat: e.LogFormat == "json",
	})
}

// Load reads the configuration.
func (e *Env) Load() (*config.Config, error) { return e.LoadAs("", "") }

// LoadAs reads the configuration with these addresses in the place of what it
// says; "" leaves what it says.
func (e *Env) LoadAs(listen, admin string) (*config.Config, error) {
	cfg, err := config.Load(clients.Options(config.Options{
		Path: e.Config, Overlay: e.Overlay, Getenv: e.Lookup,
		State: e.State, Keys: e.Keys, Listen: listen, Admin: admin,
	}))
	if err != nil {
		return nil, &Exit{Code: ExitUsage, Err: err, Findings: FaultsOf(err, "")}
	}
	return cfg, nil
}

// Progress returns a line on stderr that shows how far a long command is: on a terminal,
// unless the output is for programs, and elsewhere where somebody wants lines.
func (e *Env) Progress(wanted bool) *progress.Line {
	form := progress.None
	if kind, _ := e.Lookup("TERM"); isTerminal(e.Stderr) && kind != "dumb" && !e.Structured() {
		form = progress.Bar
	} else if wanted {
		form = progress.Lines
	}
	return progress.New(e.Stderr, form)
}

// JSONObject reads a flag that is a JSON object, or names where to read one: @FILE, or -
// for stdin. It is as strict as the server, so that a slip is found without one.
func (e *Env) JSONObject(name, flag string) (json.RawMessage, error) {
	text, err := []byte(flag), error(nil)
	if file, ok := strings.CutPrefix(flag, "@"); ok {
		text, err = os.ReadFile(file)
	} else if flag == "-" {
		text, err = io.ReadAll(e.Stdin)
	}
	if err != nil {
		return nil, Usage(fmt.Errorf("reading --%s: %w\nhint: @FILE reads a file, - stdin", name, err))
	}
	object, _, err := jsonrpc.CheckValue(text, jsonrpc.MostLimits())
	if err == nil && !bytes.HasPrefix(object, []byte("{")) {
		err = errors.New("a value that is no object")
	}
	if err != nil {
		return nil, Usage(fmt.Errorf("--%s is not a JSON object: %w\nhint: --args '{\"query\":\"mcp\"}'", name, err))
	}
	return object, nil
}

// Terminal reports whether a person can be asked.
func (e *Env) Terminal() bool { return isTerminal(e.Stdin) }

// isTerminal reports whether a stream is a terminal.
func isTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// Prompt asks a question and returns the line that answers it, without space around it. It
// reports false at the end of the input.
func (e *Env) Prompt(question string) (answer string, ok bool) {
	if e.lines == nil {
		e.lines = bufio.NewReader(e.Stdin)
	}
	fmt.Fprint(e.Stderr, question)
	answer, err := e.lines.ReadString('\n')
	return strings.TrimSpace(answer), err == nil
}

// Confirm asks a question. Anything but y or yes is no.
func (e *Env) Confirm(question string) bool {
	answer, _ := e.Prompt(question + " [y/N] ") // "" = no
	answer = strings.ToLower(answer)
	return answer == "y" || answer == "yes"
}

// ConfigFlag returns the flag with which a command finds this configuration, after a
// space; "" where it needs none.
func (e *Env) ConfigFlag() string {
	if here, err := filepath.Abs(DefaultConfig); e.Config == DefaultConfig || err == nil && e.Config == here {
		return ""
	}
	return " --config " + e.Config
}

// AppOptions are what the flags say to a toolgate that this command opens.
func (e *Env) AppOptions() app.Options {
	o := app.Options{Role: e.Role, Version: Version, Log: e.Logger(), TrialText: e.TrialText}
	if e.LogCalls { // each line counts, so that none is folded
		o.Calls = hclog.New(&hclog.LoggerOptions{Name: "toolgate", Output: e.Stderr, JSONFormat: e.LogFormat == "json"})
	}
	return o
}
