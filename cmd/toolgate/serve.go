package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/toolgate/toolgate/internal/app"
	"github.com/toolgate/toolgate/registry/config"
)

func serveCommand(e *env) *cobra.Command {
	var listen, adminAddr string
	c := &cobra.Command{
		Use: "serve", Short: "serve agents and people", Args: cobra.NoArgs,
		Long: `serve reads mcp.json, starts its servers side by side and serves agents on
toolgate.listen (/mcp, /mcp/{server}, /sse, /sse/{server}) and people on
toolgate.admin (/console/, /v1/approvals, /livez, /readyz, /metrics). SIGTERM drains, SIGHUP reloads, and so
does a change of any file that was read; a broken file changes nothing.`,
		Example: `  toolgate serve
  toolgate serve --config mcp.json --overlay toolgate.json --listen 127.0.0.1:9000`,
		RunE: func(c *cobra.Command, _ []string) error { return e.serve(c.Context(), listen, adminAddr) },
	}
	c.Flags().StringVar(&listen, "listen", "", "address for agents (default: as configured)")
	c.Flags().StringVar(&adminAddr, "admin", "", "address for people (default: as configured)")
	return c
}

func (e *env) serve(ctx context.Context, listen, adminAddr string) error {
	outlive()
	begun, err := e.loadAs(listen, adminAddr, e.state)
	if err != nil {
		return err
	}
	listeners, err := app.Listen(begun)
	if err != nil {
		return err
	}
	defer listeners.Close()
	cfg := listeners.Bound(begun)
	a, err := app.Open(ctx, cfg, e.appOptions())
	if err != nil {
		return err
	}
	agents, people := listeners.Agents.Addr().String(), listeners.People.Addr().String()
	e.banner(a, agents, people, listen != "")
	a.LogWarnings()
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	defer signal.Stop(hup)
	err = a.Run(ctx, listeners, app.Reload{
		Begun: begun, Asked: hup,
		Next: func() (*config.Config, error) { return e.loadAs(listen, adminAddr, e.state) },
		Now:  func() (*config.Config, error) { return e.loadAs(agents, people, cfg.State) },
	})
	return errors.Join(err, a.Close())
}

// banner shows people where agents connect, where people look, which demo tokens
// are configured, and a first call to paste. moved says that the agents' address
// is not the one that the configuration names.
func (e *env) banner(a *app.App, agents, people string, moved bool) {
	var b strings.Builder
	fmt.Fprintf(&b, "toolgate %s\n\n", version)
	fmt.Fprintf(&b, "  agents connect   http://%s/mcp   (one server: /mcp/{server})\n", agents)
	fmt.Fprintf(&b, "  programs call    http://%s/v1/jobs   (described at /v1/openapi.json)\n", agents)
	fmt.Fprintf(&b, "  people look      http://%s/console/   (health: /readyz)\n", people)
	fmt.Fprintf(&b, "  policy           %s\n  state            %s\n", short(a.Revision()), a.Config().State)
	known := 0
	for _, t := range a.Config().Identity.Tokens {
		if d := app.DemoToken(t); d != "" {
			if known++; known == 1 {
				fmt.Fprintf(&b, "\n  demo tokens, known to everybody:\n")
			}
			fmt.Fprintf(&b, "    %-18s %s\n", d, strings.Join(t.Roles, ", "))
		}
	}
	if known == len(app.DemoTokens) {
		fmt.Fprintf(&b, "\n  a first call:\n    %s tool call search_internet --args '{\"query\":\"model context protocol\"}' --token demo-researcher%s\n",
			os.Args[0], e.addressFlags(agents, moved))
	}
	fmt.Fprintln(e.out, b.String())
}

// addressFlags gives the flags by which a command finds this toolgate.
func (e *env) addressFlags(agents string, moved bool) string {
	switch {
	case moved:
		return " --addr http://" + app.Reachable(agents)
	case e.config != defaultConfig:
		return " --config " + e.config
	}
	return ""
}
