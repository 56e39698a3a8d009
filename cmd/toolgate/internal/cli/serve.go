package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/app"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/crash"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/report"
	"github.com/toolgate/toolgate/policy/identity"
	"github.com/toolgate/toolgate/proxy/bridge"
	"github.com/toolgate/toolgate/registry/config"
	"github.com/toolgate/toolgate/tools"
)

func serveCommand(e *env) *cobra.Command {
	var listen, admin string
	load := func() (*config.Config, error) { return e.loadAs(listen, admin) }
	c := withForms(command("serve", "serve agents and people", func(ctx context.Context, _ []string) error {
		surviveClosedPipes()
		begun, err := load()
		if err != nil {
			return err
		}
		listeners, err := app.Listen(begun)
		if err != nil {
			return err
		}
		defer listeners.Close()
		cfg := listeners.Bound(begun)
		// One that cannot be told is a warning, because toolgate serves without it.
		tell := func(state string) {
			if err := tellServiceManager(state); err != nil {
				e.logger().Warn(err.Error())
			}
		}
		opts := e.appOptions()
		opts.Draining = func() { tell("STOPPING=1") }
		a, err := app.Open(ctx, cfg, opts)
		if err != nil {
			return err
		}
		defer keepCrash(e, cfg.State)()
		_ = e.Print(report.Of(newBanner(e, a, listen != ""), bannerText)) // serving matters more
		a.LogWarnings("demo-token")                                       // the banner names them
		tell("READY=1")
		hup := make(chan os.Signal, 1)
		signal.Notify(hup, syscall.SIGHUP)
		defer signal.Stop(hup)
		err = a.Run(ctx, listeners, app.Reload{Begun: begun, Asked: hup, Next: load})
		return errors.Join(err, a.Close())
	}), noReport)
	c.Flags().StringVar(&listen, "listen", "", "`ADDRESS` for agents, HOST:PORT (default: as configured)")
	c.Flags().StringVar(&admin, "admin", "", "`ADDRESS` for people, HOST:PORT (default: as configured)")
	return withLogCalls(e, c)
}

// keepCrash logs the crashes of earlier processes on a state directory, and has the stacks of
// this one kept there until stop. Serving matters more than that they can be.
func keepCrash(e *env, state string) (stop func()) {
	found, stop, err := crash.Keep(crash.Dir(state))
	for _, file := range found {
		e.logger().Error("toolgate has crashed: its stacks are kept", "file", file)
	}
	if err != nil {
		e.logger().Warn("the stacks of a crash will not be kept", "error", err)
	}
	return stop
}

// A banner is what serve prints first.
type banner struct {
	Agents, People string // addresses
	Policy         string // revision
	State          string
	Demo           []config.Token
	FirstCall      string // command line; "" = none works as it is
}

// newBanner returns what serve prints first: where agents connect, where people look, which
// demo tokens are configured, and a first call to paste if all are. moved says that the
// agents' address is not the one that the configuration names.
func newBanner(e *env, a *app.App, moved bool) banner {
	cfg := a.Config()
	agents, call := app.URL(cfg.Listen, cfg.TLS), ""
	var demo []config.Token
	for _, t := range cfg.Identity.Tokens {
		if t.Demo() != "" {
			demo = append(demo, t)
		}
	}
	if len(demo) == len(config.DemoTokens) {
		at := e.configFlag()
		if moved {
			at = " --addr " + agents
		}
		call = fmt.Sprintf(`%s tool call search_internet --args '{"query":"model context protocol"}' --token demo-researcher%s`, os.Args[0], at)
	}
	return banner{agents, app.URL(cfg.Admin, cfg.AdminTLS), a.Revision(), cfg.State, demo, call}
}

// configFlag returns the flag with which a command finds this configuration, after a
// space; "" where it needs none.
func (e *env) configFlag() string {
	if here, err := filepath.Abs(defaultConfig); e.config == defaultConfig || err == nil && e.config == here {
		return ""
	}
	return " --config " + e.config
}

func stdioCommand(e *env) (c *cobra.Command) {
	var address string
	c = withForms(command("stdio", "serve one MCP client on stdin and stdout", func(ctx context.Context, _ []string) error {
		if c.Flags().Changed("connect") {
			return connectStdio(e, c, address)
		}
		return attached(ctx, e, func(a *app.App, who identity.Credential) error {
			return a.ServeStdio(ctx, who, clientOf(e), e.out)
		})
	}), noReport)
	c.Flags().StringVar(&address, "connect", "", "`URL` of the MCP endpoint to connect the client to")
	return withLogCalls(e, c)
}

// connectStdio connects the client on stdin and stdout to a running endpoint.
func connectStdio(e *env, c *cobra.Command, address string) error {
	for _, name := range []string{"config", "overlay", "state", "role", "log-calls"} {
		if c.Flags().Changed(name) {
			return usage(fmt.Errorf("--%s means nothing with --connect\nhint: the endpoint has its own configuration, and knows the caller by --token", name))
		}
	}
	surviveClosedPipes()
	secure, err := e.trust("", nil)
	if err != nil {
		return err
	}
	b, err := bridge.New(bridge.Options{URL: address, Token: e.token, TLS: secure, Log: e.logger().Named("bridge")})
	if err == nil {
		err = b.Serve(c.Context(), clientOf(e), e.out)
	}
	switch {
	case errors.Is(err, bridge.ErrAddress):
		return usage(fmt.Errorf("--connect cannot be used: %w\nhint: --connect http://127.0.0.1:8787", err))
	case errors.Is(err, bridge.ErrToken):
		return usage(fmt.Errorf("--token cannot be used: %w\nhint: check --token or TOOLGATE_TOKEN for spaces and line ends", err))
	case errors.Is(err, bridge.ErrUnauthorised):
		return &exit{code: exitUnauthorised, err: fmt.Errorf("%w\nhint: say who asks with --token or TOOLGATE_TOKEN", err)}
	case errors.Is(err, bridge.ErrUnreachable):
		return &exit{code: exitUnreachable, err: fmt.Errorf("%w\nhint: is toolgate serve running, does --connect name its listener for agents, and --ca its authority?", err)}
	}
	return err
}

// errLocalOff reports that nobody says who the caller is, and that --role does not.
var errLocalOff = &exit{code: exitUnauthorised, err: errors.New("identity is configured, so the principal local and --role are off\n" +
	"hint: say who calls with --token or TOOLGATE_TOKEN, or set \"local\": true in toolgate.identity")}

// attached opens an app without listeners, which may share its state with one
// that serves, for as long as serve takes. The caller is the principal of --token,
// or else local, where the configuration admits it.
func attached(ctx context.Context, e *env, serve func(*app.App, identity.Credential) error) error {
	surviveClosedPipes()
	cfg, err := e.load()
	if err != nil {
		return err
	}
	if e.token == "" && cfg.Identity.Configured && !cfg.Identity.Local {
		return errLocalOff
	}
	a, err := app.Open(ctx, cfg, e.appOptions())
	if err != nil {
		return err
	}
	defer keepCrash(e, cfg.State)()
	a.LogWarnings()
	return errors.Join(serve(a, identity.Credential{Bearer: e.token, Local: e.token == ""}), a.Close())
}

// clientOf returns stdin, from which a client is served. It makes a pipe or a socket
// non-blocking, so that reads wait in Go's poller: a read that blocks a thread wakes the
// monitor of Go's scheduler at each line, which costs more than the line. When stdin and
// stdout are one file, it stays as it is, because the mode would hold for both.
func clientOf(e *env) io.Reader {
	if e.in != io.Reader(os.Stdin) || runtime.GOOS == "windows" || os.Stdin.SetReadDeadline(time.Time{}) == nil { // waits there already
		return e.in
	}
	in, err := os.Stdin.Stat()
	out, failed := os.Stdout.Stat()
	if errors.Join(err, failed) != nil || in.Mode()&(os.ModeNamedPipe|os.ModeSocket) == 0 || os.SameFile(in, out) || syscall.SetNonblock(0, true) != nil {
		return e.in
	}
	return os.NewFile(0, "stdin") // of which os.Stdin has no part any longer
}

// surviveClosedPipes turns a write to a pipe without a reader into an error instead of the
// end of the process: a client that disappears takes its ends of stdout and
// stderr along, and calls under way still need their outcome recorded. SIGPIPE
// is caught, not ignored, because children would inherit that.
func surviveClosedPipes() { signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) }

func ndjsonCommand(e *env) *cobra.Command {
	return withLogCalls(e, withForms(command("ndjson", "serve the NDJSON action protocol on stdin and stdout", func(ctx context.Context, _ []string) error {
		return attached(ctx, e, func(a *app.App, who identity.Credential) error {
			return a.ServeNDJSON(ctx, who, clientOf(e), e.out)
		})
	}), noReport))
}

func toolsCommand(e *env) *cobra.Command {
	var flags toolsFlags
	c := &cobra.Command{
		Use: "tools", Short: "serve the standard tools as an MCP server on stdin and stdout, or describe them",
		RunE: func(c *cobra.Command, _ []string) error {
			if dir, ok := e.lookup(app.ToolsDir); ok && !c.Flags().Changed("dir") {
				flags.Dir = dir
			}
			if flags.backends != "" {
				if err := config.LoadBackends(config.Options{Path: flags.backends, Getenv: e.lookup}, &flags.Backends); err != nil {
					return &exit{code: exitUsage, err: err, findings: faultsOf(err, "")}
				}
			}
			if !flags.describe {
				if c.Flags().Changed("output") {
					return usage(errors.New("toolgate tools serves a protocol on stdout, and has no -o\nhint: with --describe it has"))
				}
				flags.Version, flags.Log = version, e.err
				return tools.Serve(c.Context(), flags.Options, e.in, e.out)
			}
			contracts := flags.Backends.Contracts()
			all := make([]toolContract, len(contracts))
			for i, c := range contracts {
				all[i].Facts = c.Facts
				if err := json.Unmarshal(c.Definition, &all[i].Tool); err != nil {
					return fmt.Errorf("reading the contract of %s: %w", c.Name, err)
				}
			}
			return e.Print(report.Of(all, contractsText))
		},
	}
	flags.bind(c.Flags(), ".toolgate/tools")
	return c
}

// toolContract is the contract of a tool as --describe prints it.
type toolContract struct {
	Tool  listedTool      `json:"definition"`
	Facts json.RawMessage `json:"facts,omitempty"`
}

// FactNames returns the names of the facts.
func (c toolContract) FactNames() string {
	var facts map[string]json.RawMessage
	_ = json.Unmarshal(c.Facts, &facts) // none is no JSON
	return strings.Join(slices.Sorted(maps.Keys(facts)), ",")
}

// tellServiceManager sends a state, such as READY=1, to the service manager that
// started toolgate, as sd_notify(3) describes. It does nothing when no service manager
// waits for one.
func tellServiceManager(state string) error {
	socket := os.Getenv("NOTIFY_SOCKET")
	if socket == "" {
		return nil
	}
	conn, err := net.Dial("unixgram", socket)
	if err != nil {
		return fmt.Errorf("reaching the service manager: %w", err)
	}
	_, err = conn.Write([]byte(state))
	if err = errors.Join(err, conn.Close()); err != nil {
		return fmt.Errorf("telling the service manager: %w", err)
	}
	return nil
}

// toolsFlags are the flags of toolgate tools.
type toolsFlags struct {
	tools.Options
	backends string // path of the file of backends; "" = offline
	describe bool
}

// bind adds the flags to f; dir is the default of --dir.
func (s *toolsFlags) bind(f *pflag.FlagSet, dir string) {
	f.StringVar(&s.Dir, "dir", dir, "`DIR` of the paper wallet (or TOOLGATE_TOOLS_DIR)")
	f.StringVar(&s.backends, "backends", "", "`FILE` that chooses services for search and images and a chain for payments, and allows fetch_page (default: offline)")
	f.StringVar(&s.Docs, "docs", "", "`DIR` of documents to search (default: the embedded ones)")
	f.BoolVar(&s.describe, "describe", false, "print the contracts of the tools, and the facts that policies may know of their calls, and serve nothing")
}

// toolsFlagsOf returns the flags with which a server starts the standard tools. All are
// empty for another server.
func toolsFlagsOf(s *config.Server) (started toolsFlags) {
	if s.Command != "toolgate" {
		return started
	}
	f := pflag.NewFlagSet("", pflag.ContinueOnError)
	f.ParseErrorsAllowlist.UnknownFlags = true
	started.bind(f, s.Env[app.ToolsDir])
	if f.Parse(s.Args) != nil {
		return toolsFlags{}
	}
	return started
}
