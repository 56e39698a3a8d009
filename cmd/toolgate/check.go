package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/toolgate/toolgate/docs/schemas"
	"github.com/toolgate/toolgate/internal/app"
	"github.com/toolgate/toolgate/registry/config"
	"github.com/toolgate/toolgate/registry/upstream"
)

func checkCommand(e *env) *cobra.Command {
	var offline, schema bool
	c := &cobra.Command{
		Use: "check", Short: "check configuration and policy", Args: cobra.NoArgs,
		Long: `check reads mcp.json, the overlay and the policy as serve would, and says every
fault at once with file, line and a hint. Exit 0: sound, warnings or not; 2: not.
It then starts the upstreams, in a state of its own that is not kept, asks each for
its tools, and warns of those that do not answer and of limit rules that name a tool
or a role which nothing has. With --offline it starts nothing. With --schema it prints
the JSON Schema of mcp.json and of the overlay, for editors, and reads no file.`,
		Example: `  toolgate check
  toolgate check --config mcp.json --offline -o json
  toolgate check --schema`,
		RunE: func(c *cobra.Command, _ []string) error {
			if schema {
				return e.printSchema()
			}
			return e.check(c.Context(), !offline)
		},
	}
	c.Flags().BoolVar(&offline, "offline", false, "look at the files only, start nothing")
	c.Flags().BoolVar(&schema, "schema", false, "print the JSON Schema of the configuration")
	return c
}

// printSchema prints the schema that configurations are checked against.
func (e *env) printSchema() error {
	text, err := schemas.Files.ReadFile("config.json")
	if err == nil {
		_, err = e.out.Write(text)
	}
	return err
}

// finding is one thing that check says.
type finding struct {
	Level   string `json:"level"`          // error, warning or note
	Code    string `json:"code,omitempty"` // what kind it is, of findings about a policy
	Where   string `json:"where"`
	Message string `json:"message"`
	Hint    string `json:"hint,omitempty"`

	file string // of Where, and its line; zero = unknown
	row  int
}

func warning(where, message, hint string) finding {
	return finding{Level: "warning", Where: where, Message: message, Hint: hint}
}

// String is how people are told.
func (f finding) String() string {
	text := f.Level + ": "
	if f.Where != "" {
		text += f.Where + ": "
	}
	text += f.Message
	if f.Hint != "" {
		text += "\nhint: " + f.Hint
	}
	return text
}

func (e *env) check(ctx context.Context, live bool) error {
	cfg, err := e.load()
	if err != nil {
		return e.unsound(err)
	}
	if err := e.here(ctx, cfg); err != nil {
		return err
	}
	engine, err := loadPolicy(ctx, cfg)
	if err != nil {
		return e.unsound(fmt.Errorf("policy: %w", err))
	}
	found := findings(app.Warnings(cfg, engine))
	if live {
		if found, err = e.checkLive(ctx, cfg); err != nil {
			return err
		}
	}
	if e.output == "json" {
		return e.json(map[string]any{"ok": true, "servers": len(cfg.Servers), "policy": engine.Revision(), "findings": found})
	}
	for _, f := range found {
		fmt.Fprintln(e.out, printable(f.String()))
	}
	_, err = fmt.Fprintf(e.out, "ok: %d servers, policy %s\n", len(cfg.Servers), short(engine.Revision()))
	return err
}

// unsound says why nothing would serve: on stderr, and as a document where one
// was asked for.
func (e *env) unsound(err error) error {
	if e.output != "json" {
		return usage(err)
	}
	found, faults := []finding{{Level: "error", Message: err.Error()}}, (*config.Faults)(nil)
	if errors.As(err, &faults) {
		found = found[:0]
		for _, f := range faults.List {
			found = append(found, finding{Level: "error", Where: f.Place(), Message: f.Message, Hint: f.Hint})
		}
	}
	return errors.Join(e.json(map[string]any{"ok": false, "findings": found}), usage(err))
}

// findings takes over what an app says.
func findings(said []app.Finding) []finding {
	found := make([]finding, len(said))
	for i, f := range said {
		found[i] = warning(f.Where, f.Message, f.Hint)
	}
	return found
}

// checkLive starts the upstreams and gives all findings.
func (e *env) checkLive(ctx context.Context, cfg *config.Config) (found []finding, err error) {
	err = e.withUpstreams(ctx, cfg, func(a *app.App) {
		found = findings(a.Findings())
		for _, u := range a.Upstreams().Status() {
			where := "mcpServers." + u.Name
			if u.Error != "" {
				found = append(found, warning(where, u.State+": "+u.Error, ""))
			} else if u.State == string(upstream.StateStarting) {
				found = append(found, warning(where, fmt.Sprintf("has not answered within %v", liveBound), ""))
			}
			for _, w := range u.Warnings {
				found = append(found, warning(where, w, ""))
			}
		}
	})
	return found, err
}

// withUpstreams opens a toolgate with a state of its own, so that looking changes
// nothing that is kept, and calls look when every upstream has answered, failed or
// had its time.
func (e *env) withUpstreams(ctx context.Context, cfg *config.Config, look func(*app.App)) (err error) {
	dir, err := os.MkdirTemp("", "toolgate-check-")
	if err != nil {
		return fmt.Errorf("making a state directory: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	alone := *cfg
	alone.State = dir
	a, err := app.Open(ctx, &alone, e.appOptions())
	if err != nil {
		return err
	}
	ctx, stop := context.WithTimeout(ctx, liveBound)
	defer stop()
	a.WaitForUpstreams(ctx)
	look(a)
	return a.Close()
}

// liveBound is how long a command waits for upstreams.
const liveBound = 15 * time.Second
