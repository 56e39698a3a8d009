package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/user"
	"slices"
	"time"

	"github.com/rogpeppe/go-internal/diff"
	"github.com/spf13/cobra"

	"github.com/toolgate/toolgate/internal/app"
	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/registry"
	"github.com/toolgate/toolgate/registry/config"
	"github.com/toolgate/toolgate/registry/lock"
)

// withPins opens the pins of the state directory for f. A toolgate that serves
// from the same directory notices accepted definitions by itself. Those that the user of
// this program accepts are in the trail, signed as a serving toolgate signs.
func (e *env) withPins(ctx context.Context, f func(*registry.Pins) error) error {
	record := func(all []registry.Acceptance) error { return e.record(app.AcceptedRecord(systemUser(), all)) }
	err := e.withStore(ctx, func(db *store.DB) error { return f(registry.OpenPins(db, time.Now, record)) })
	if errors.Is(err, registry.ErrNoPin) || errors.Is(err, registry.ErrNoOffer) || errors.Is(err, registry.ErrOtherOffer) {
		err = usage(err)
	}
	return err
}

// systemUser names the user that runs this program, as the system knows it.
func systemUser() string {
	if u, err := user.Current(); err == nil {
		return "system user " + u.Username
	}
	return fmt.Sprintf("system user %d", os.Getuid())
}

func toolDiff(e *env) *cobra.Command {
	return command("diff [SERVER TOOL]", "show how a tool's definition changed since it was accepted", func(ctx context.Context, args []string) error {
		return e.withPins(ctx, func(p *registry.Pins) error {
			if len(args) == 0 {
				return e.listChanged(ctx, p)
			}
			return e.showDiff(ctx, p, args[0], args[1])
		})
	})
}

func (e *env) listChanged(ctx context.Context, p *registry.Pins) error {
	pins, err := p.List(ctx)
	if err != nil {
		return err
	}
	changed := append([]registry.Pin{}, slices.DeleteFunc(pins, func(p registry.Pin) bool { return p.Offered == "" })...)
	return errors.Join(e.Print("pins", changed), exitIf(len(changed) > 0, exitDiffer))
}

func (e *env) showDiff(ctx context.Context, p *registry.Pins, server, tool string) error {
	accepted, offered, err := p.Diff(ctx, server, tool)
	if err != nil {
		return err
	}
	return errors.Join(e.Print("definitions", definitions{accepted, offered}), exitIf(!bytes.Equal(accepted, offered), exitDiffer))
}

// definitions are the two of a tool that changed.
type definitions struct {
	Accepted json.RawMessage `json:"accepted"`
	Offered  json.RawMessage `json:"offered"`
}

// Diff returns the difference as text.
func (d definitions) Diff() string {
	return string(diff.Diff("accepted", lines(d.Accepted), "offered", lines(d.Offered)))
}

// lines lays a definition out for comparison. What cannot be laid out is shown
// as it is.
func lines(definition json.RawMessage) []byte {
	var b bytes.Buffer
	if json.Indent(&b, definition, "", "  ") != nil {
		return append(definition, '\n')
	}
	return append(b.Bytes(), '\n')
}

// pinnedByState refuses a server whose tools only the lock accepts. Where the
// configuration cannot be read, the state directory was named and its word counts.
func (e *env) pinnedByState(server string) error {
	cfg, err := e.load()
	if err != nil && e.state != "" {
		return nil
	}
	if err != nil {
		return err
	}
	for _, s := range cfg.Servers {
		if s.Name == server && s.Pin == config.PinStrict {
			return usage(fmt.Errorf("server %s is pinned by %s\nhint: toolgate lock %s accepts what it lists now", server, lock.Name, server))
		}
	}
	return nil
}

func toolAccept(e *env) *cobra.Command {
	var fingerprint string
	c := command("accept SERVER TOOL", "accept the definition that a server now offers", func(ctx context.Context, args []string) error {
		if err := e.pinnedByState(args[0]); err != nil {
			return err
		}
		return e.withPins(ctx, func(p *registry.Pins) error {
			if err := p.Accept(ctx, args[0], args[1], fingerprint); err != nil {
				return err
			}
			return e.Print("accepted", map[string]string{"server": args[0], "tool": args[1], "state": "accepted"})
		})
	})
	c.Flags().StringVar(&fingerprint, "fingerprint", "", "accept only the definition with this `DIGEST`, the one that was looked at")
	return c
}
