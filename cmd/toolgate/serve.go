package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/toolgate/toolgate/internal/app"
	"github.com/toolgate/toolgate/registry/config"
)

func serveCommand(e *env) *cobra.Command {
	var listen, adminAddr string
	c := withForms(command("serve", "serve agents and people", func(ctx context.Context, _ []string) error { return e.serve(ctx, listen, adminAddr) }), noReport)
	c.Flags().StringVar(&listen, "listen", "", "`ADDRESS` for agents, HOST:PORT (default: as configured)")
	c.Flags().StringVar(&adminAddr, "admin", "", "`ADDRESS` for people, HOST:PORT (default: as configured)")
	return c
}

func (e *env) serve(ctx context.Context, listen, adminAddr string) error {
	surviveClosedPipes()
	begun, err := e.loadAs(listen, adminAddr)
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
	_ = e.Print("banner", e.newBanner(a, listen != "")) // serving matters more
	a.LogWarnings()
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	defer signal.Stop(hup)
	next := func() (*config.Config, error) { return e.loadAs(listen, adminAddr) }
	err = a.Run(ctx, listeners, app.Reload{Begun: begun, Asked: hup, Next: next})
	return errors.Join(err, a.Close())
}

// banner is what serve prints first: where agents connect, where people look, which
// demo tokens are configured, and a first call to paste.
type banner struct {
	Version, Agents, People, Policy, State string
	Demo                                   []demoToken
	FirstCall                              string // "" = the tokens of a first call are not configured
}

type demoToken struct {
	Token string
	Roles []string
}

// newBanner describes a. moved says that the agents' address is not the one that
// the configuration names.
func (e *env) newBanner(a *app.App, moved bool) banner {
	cfg := a.Config()
	b := banner{Version: version, Agents: app.URL(cfg.Listen, cfg.TLS), People: app.URL(cfg.Admin, cfg.AdminTLS), Policy: a.Revision(), State: cfg.State}
	for _, t := range cfg.Identity.Tokens {
		if d := app.DemoToken(t); d != "" {
			b.Demo = append(b.Demo, demoToken{d, t.Roles})
		}
	}
	if len(b.Demo) == len(app.DemoTokens) {
		at := e.configFlag()
		if moved {
			at = " --addr " + b.Agents
		}
		b.FirstCall = fmt.Sprintf(`%s tool call search_internet --args '{"query":"model context protocol"}' --token demo-researcher%s`, os.Args[0], at)
	}
	return b
}

// configFlag returns the flag with which a command finds this configuration, after a
// space; "" where it needs none.
func (e *env) configFlag() string {
	if here, err := filepath.Abs(defaultConfig); e.config == defaultConfig || err == nil && e.config == here {
		return ""
	}
	return " --config " + e.config
}
