package main

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/toolgate/toolgate/proxy/mcp"
	"github.com/toolgate/toolgate/proxy/wire"
)

func stdioCommand(e *env) *cobra.Command {
	return &cobra.Command{
		Use: "stdio", Short: "serve one MCP client on stdin and stdout", Args: cobra.NoArgs,
		Long: `stdio is for clients that start their servers themselves. The principal is local
with the role of --role, or the one that --token names. It opens no listener and
shares the state directory with a running serve, where held calls are decided.`,
		Example: `  toolgate stdio --config mcp.json --role researcher
  toolgate stdio --token demo-treasurer`,
		RunE: func(c *cobra.Command, _ []string) error { return e.stdioDoor(c.Context()) },
	}
}

func (e *env) stdioDoor(ctx context.Context) error {
	return e.beside(ctx, func(in *instance) error {
		door, err := mcp.New(mcp.Options{
			Gate: in.gate, Refuser: in.gate, Version: version, Errors: wire.Dialect(in.cfg.Errors),
			Profile: wire.Profile(in.cfg.Envelope), Deterministic: in.cfg.Deterministic, Observe: in.observe,
			Stdio: e.stdioCredential(), Ended: in.upstream.EndSession,
		})
		if err != nil {
			return err
		}
		in.upstream.OnChange(door.ToolsChanged)
		err = door.Serve(ctx, e.in, e.out)
		in.drain(context.WithoutCancel(ctx), door.Close)
		return err
	})
}

// beside opens an instance without listeners, which may share its state with
// one that serves, for as long as talk takes.
func (e *env) beside(ctx context.Context, talk func(*instance) error) error {
	outlive()
	cfg, err := e.load()
	if err != nil {
		return err
	}
	in, err := open(ctx, cfg, e.role, e.logger())
	if err != nil {
		return err
	}
	in.warn()
	return errors.Join(talk(in), in.close())
}

// outlive makes a write to a pipe that nobody reads any more an error instead
// of our end: a client that goes away takes its ends of stdout and stderr with
// it, and calls under way still need their outcome recorded. SIGPIPE is caught,
// not ignored, because children would inherit that.
func outlive() { signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) }
