package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/toolgate/toolgate/docs/schemas"
	"github.com/toolgate/toolgate/policy/rego"
	"github.com/toolgate/toolgate/registry"
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
  toolgate check --schema >toolgate.schema.json`,
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
	found := warnings(cfg, engine)
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
			found = append(found, finding{Level: "error", Where: place(config.Warning(f)), Message: f.Message, Hint: f.Hint})
		}
	}
	return errors.Join(e.json(map[string]any{"ok": false, "findings": found}), usage(err))
}

// warnings is what configuration and policy alone can say.
func warnings(cfg *config.Config, engine *rego.Engine) []finding {
	found := []finding{}
	for _, w := range cfg.Warnings {
		found = append(found, warning(place(w), w.Message, w.Hint))
	}
	for _, w := range engine.Warnings() {
		found = append(found, warning("policy", w, ""))
	}
	if cfg.Deterministic {
		found = append(found, warning("toolgate.deterministic", "ids and times come from a counter and repeat from run to run", "for golden runs only: nowhere else should anybody rely on such a trail"))
	}
	return append(append(found, unreachableLinks(cfg)...), demoTokens(cfg)...)
}

// checkLive starts the upstreams with a state of its own, so that looking
// changes nothing that is kept, and gives all findings.
func (e *env) checkLive(ctx context.Context, cfg *config.Config) (found []finding, err error) {
	dir, err := os.MkdirTemp("", "toolgate-check-")
	if err != nil {
		return nil, fmt.Errorf("making a state directory: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	cfg.State = dir
	in, err := open(ctx, cfg, e.role, e.logger())
	if err != nil {
		return nil, err
	}
	in.answered(ctx)
	found = in.findings()
	for _, u := range in.upstream.Status() {
		if u.Error != "" {
			found = append(found, warning("mcpServers."+u.Name, u.State+": "+u.Error, ""))
		} else if u.State == string(upstream.StateStarting) {
			found = append(found, warning("mcpServers."+u.Name, fmt.Sprintf("has not answered within %v", liveBound), ""))
		}
		for _, w := range u.Warnings {
			found = append(found, warning("mcpServers."+u.Name, w, ""))
		}
	}
	return found, in.close()
}

// answered waits until every upstream has answered or failed. Serving waits for
// none longer than a second, but whoever asks wants to know.
func (in *instance) answered(ctx context.Context) {
	ctx, stop := context.WithTimeout(ctx, liveBound)
	defer stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		starting := func(u registry.ServerStatus) bool { return u.State == string(upstream.StateStarting) }
		if !slices.ContainsFunc(in.upstream.Status(), starting) {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// liveBound is how long check waits for upstreams.
const liveBound = 15 * time.Second

// place is where a warning of the configuration points.
func place(w config.Warning) string {
	at := w.File
	if w.Line > 0 {
		at = fmt.Sprintf("%s:%d:%d", w.File, w.Line, w.Column)
	}
	if w.Path != "" {
		at += ": " + w.Path
	}
	return at
}
