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
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/app"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/command"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/crash"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/report"
	"github.com/toolgate/toolgate/policy/identity"
	"github.com/toolgate/toolgate/proxy/bridge"
	"github.com/toolgate/toolgate/registry/config"
	"github.com/toolgate/toolgate/tools"
)

func serveCommand(e *command.Env) *cobra.Command {
	var listen, admin string
	load := func() (*config.Config, error) { return e.LoadAs(listen, admin) }
	c := command.WithForms(command.New("serve", "serve agents and people", func(ctx context.Context, _ []string) error {
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
				e.Logger().Warn(err.Error())
			}
		}
		opts := e.AppOptions()
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
	}), command.NoReport)
	c.Flags().StringVar(&listen, "listen", "", "`ADDRESS` for agents, HOST:PORT (default: as configured)")
	c.Flags().StringVar(&admin, "admin", "", "`ADDRESS` for people, HOST:PORT (default: as configured)")
	return withLogCalls(e, c)
}

// keepCrash logs the crashes of earlier processes on a state directory, and has the stacks of
// this one kept there until stop. Serving matters more than that they can be.
func keepCrash(e *command.Env, state string) (stop func()) {
	found, stop, err := crash.Keep(crash.Dir(state))
	for _, file := range found {
		e.Logger().Error("toolgate has crashed: its stacks are kept", "file", file)
	}
	if err != nil {
		e.Logger().Warn("the stacks of a crash will not be kept", "error", err)
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
func newBanner(e *command.Env, a *app.App, moved bool) banner {
	cfg := a.Config()
	agents, call := app.URL(cfg.Listen, cfg.TLS), ""
	var demo []config.Token
	for _, t := range cfg.Identity.Tokens {
		if t.Demo() != "" {
			demo = append(demo, t)
		}
	}
	if len(demo) == len(config.DemoTokens) {
		at := e.ConfigFlag()
		if moved {
			at = " --addr " + agents
		}
		call = fmt.Sprintf(`%s tool call search_internet --args '{"query":"model context protocol"}' --token demo-researcher%s`, os.Args[0], at)
	}
	return banner{agents, app.URL(cfg.Admin, cfg.AdminTLS), a.Revision(), cfg.State, demo, call}
}

func stdioCommand(e *command.Env) (c *cobra.Command) {
	var address string
	c = command.WithForms(command.New("stdio", "serve one MCP client on stdin and stdout", func(ctx context.Context, _ []string) error {
		if c.Flags().Changed("connect") {
			return connectStdio(e, c, address)
		}
		return attached(ctx, e, func(a *app.App, who identity.Credential) error {
			return a.ServeStdio(ctx, who, clientOf(e), e.Stdout)
		})
	}), command.NoReport)
	c.Flags().StringVar(&address, "connect", "", "`URL` of the MCP endpoint to connect the client to")
	return withLogCalls(e, c)
}

// connectStdio connects the client on stdin and stdout to a running endpoint.
func connectStdio(e *command.Env, c *cobra.Command, address string) error {
	for _, name := range []string{"config", "overlay", "state", "role", "log-calls"} {
		if c.Flags().Changed(name) {
			return command.Usage(fmt.Errorf("--%s means nothing with --connect\nhint: the endpoint has its own configuration, and knows the caller by --token", name))
		}
	}
	surviveClosedPipes()
	secure, err := e.Trust("", nil)
	if err != nil {
		return err
	}
	b, err := bridge.New(bridge.Options{URL: address, Token: e.Token, TLS: secure, Log: e.Logger().Named("bridge")})
	if err == nil {
		err = b.Serve(c.Context(), clientOf(e), e.Stdout)
	}
	switch {
	case errors.Is(err, bridge.ErrAddress):
		return command.Usage(fmt.Errorf("--connect cannot be used: %w\nhint: --connect http://127.0.0.1:8787", err))
	case errors.Is(err, bridge.ErrToken):
		return command.Usage(fmt.Errorf("--token cannot be used: %w\nhint: check --token or TOOLGATE_TOKEN for spaces and line ends", err))
	case errors.Is(err, bridge.ErrUnauthorised):
		return &command.Exit{Code: command.ExitUnauthorised, Err: fmt.Errorf("%w\nhint: say who asks with --token or TOOLGATE_TOKEN", err)}
	case errors.Is(err, bridge.ErrUnreachable):
		return &command.Exit{Code: command.ExitUnreachable, Err: fmt.Errorf("%w\nhint: is toolgate serve running, does --connect name its listener for agents, and --ca its authority?", err)}
	}
	return err
}

// errLocalOff reports that nobody says who the caller is, and that --role does not.
var errLocalOff = &command.Exit{Code: command.ExitUnauthorised, Err: errors.New("identity is configured, so the principal local and --role are off\n" +

	"hint: say who calls with --token or TOOLGATE_TOKEN, or set \"local\": true in toolgate.identity")}

// attached opens an app without listeners, which may share its state with one
// that serves, for as long as serve takes. The caller is the principal of --token,
// or else local, where the configuration admits it.
func attached(ctx context.Context, e *command.Env, serve func(*app.App, identity.Credential) error) error {
	surviveClosedPipes()
	cfg, err := e.Load()
	if err != nil {
		return err
	}
	if e.Token == "" && cfg.Identity.Configured && !cfg.Identity.Local {
		return errLocalOff
	}
	a, err := app.Open(ctx, cfg, e.AppOptions())
	if err != nil {
		return err
	}
	defer keepCrash(e, cfg.State)()
	a.LogWarnings()
	return errors.Join(serve(a, identity.Credential{Bearer: e.Token, Local: e.Token == ""}), a.Close())
}

// clientOf returns stdin, from which a client is served. It makes a pipe or a socket
// non-blocking, so that reads wait in Go's poller: a read that blocks a thread wakes the
// monitor of Go's scheduler at each line, which costs more than the line. When stdin and
// stdout are one file, it stays as it is, because the mode would hold for both.
func clientOf(e *command.Env) io.Reader {
	if e.Stdin != io.Reader(os.Stdin) || runtime.GOOS == "windows" || os.Stdin.SetReadDeadline(time.Time{}) == nil { // waits there already
		return e.Stdin
	}
	in, err := os.Stdin.Stat()
	out, failed := os.Stdout.Stat()
	if errors.Join(err, failed) != nil || in.Mode()&(os.ModeNamedPipe|os.ModeSocket) == 0 || os.SameFile(in, out) || syscall.SetNonblock(0, true) != nil {
		return e.Stdin
	}
	return os.NewFile(0, "stdin") // of which os.Stdin has no part any longer
}

// surviveClosedPipes turns a write to a pipe without a reader into an error instead of the
// end of the process: a client that disappears takes its ends of stdout and
// stderr along, and calls under way still need their outcome recorded. SIGPIPE
// is caught, not ignored, because children would inherit that.
func surviveClosedPipes() { signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) }

func ndjsonCommand(e *command.Env) *cobra.Command {
	return withLogCalls(e, command.WithForms(command.New("ndjson", "serve the NDJSON action protocol on stdin and stdout", func(ctx context.Context, _ []string) error {
		return attached(ctx, e, func(a *app.App, who identity.Credential) error {
			return a.ServeNDJSON(ctx, who, clientOf(e), e.Stdout)
		})
	}), command.NoReport))
}

func toolsCommand(e *command.Env) *cobra.Command {
	var flags command.ToolsFlags
	c := &cobra.Command{
		Use: "tools", Short: "serve the standard tools as an MCP server on stdin and stdout, or describe them",
		RunE: func(c *cobra.Command, _ []string) error {
			if dir, ok := e.Lookup(app.ToolsDir); ok && !c.Flags().Changed("dir") {
				flags.Dir = dir
			}
			if flags.BackendsFile != "" {
				if err := config.LoadBackends(config.Options{Path: flags.BackendsFile, Getenv: e.Lookup}, &flags.Backends); err != nil {
					return &command.Exit{Code: command.ExitUsage, Err: err, Findings: command.FaultsOf(err, "")}
				}
			}
			if !flags.Describe {
				if c.Flags().Changed("output") {
					return command.Usage(errors.New("toolgate tools serves a protocol on stdout, and has no -o\nhint: with --describe it has"))
				}
				flags.Version, flags.Log = command.Version, e.Stderr
				return tools.Serve(c.Context(), flags.Options, e.Stdin, e.Stdout)
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
	flags.Bind(c.Flags(), ".toolgate/tools")
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
