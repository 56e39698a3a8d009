package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/app"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/command"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/report"
	"github.com/toolgate/toolgate/console"
	"github.com/toolgate/toolgate/docs/schemas"
	"github.com/toolgate/toolgate/policy/fact"
	"github.com/toolgate/toolgate/policy/rego"
	"github.com/toolgate/toolgate/registry/config"
	"github.com/toolgate/toolgate/tools/chain"
)

// checkReport is the report of check.
type checkReport struct {
	Findings []command.Finding `json:"findings"`
	OK       bool              `json:"ok"`
	Policy   string            `json:"policy"`  // revision
	Servers  int               `json:"servers"` // how many
	Visible  []console.Sight   `json:"visible"`
}

func checkCommand(e *command.Env) *cobra.Command {
	var offline, schema bool
	var strict command.Strictness
	c := e.Printing("check", "check configuration and policy", func(ctx context.Context, _ []string) (*report.Report, error) {
		if schema {
			text := schemas.Read("config.json")
			if e.Form == report.YAML {
				return nil, e.Document(json.RawMessage(text))
			}
			return nil, e.Write(string(text))
		}
		s, err := checkFiles(ctx, e)
		if err != nil {
			return nil, err
		}
		found, sights := s.found, []console.Sight{}
		if offline {
			found = append(found, app.UnknownTools(s.cfg, s.engine, nil)...)
		} else if err := e.WithUpstreams(ctx, command.LiveBound, s.cfg, func(a *app.App) {
			sights = append(sights, a.Sights()...)
			for _, f := range findings(a) {
				if !slices.Contains(found, f) {
					found = append(found, f)
				}
			}
		}); err != nil {
			return nil, err
		}
		failed := strict.Refuse(found)
		return report.Of(checkReport{found, failed == nil, s.engine.Revision(), len(s.cfg.Servers), sights}, checkText), failed
	})
	c.Flags().BoolVar(&offline, "offline", false, "look at the files only, start nothing")
	strict.Bind(c)
	c.Flags().BoolVar(&schema, "schema", false, "print the JSON Schema of the configuration")
	return c
}

// A filesCheck has what the files of a configuration say.
type filesCheck struct {
	cfg    *config.Config
	engine *rego.Engine
	found  []command.Finding
}

// checkFiles reads the configuration, its policy and its other files, and starts nothing.
func checkFiles(ctx context.Context, e *command.Env) (*filesCheck, error) {
	cfg, err := e.Load()
	if err != nil {
		return nil, e.Unservable(err, "")
	}
	if err := e.FetchRemotePolicy(ctx, cfg); err != nil {
		return nil, err
	}
	engine, err := rego.Load(ctx, app.PolicyOptions(&cfg.Policy.PolicySource))
	if err != nil {
		return nil, e.Unservable(fmt.Errorf("policy: %w", err), "")
	}
	found, err := app.CheckFiles(cfg)
	if err != nil {
		return nil, e.Unservable(err, "")
	}
	return &filesCheck{cfg, engine, slices.Concat(app.Warnings(cfg, engine, nil), found, backendFindings(cfg, engine, e.Lookup))}, nil
}

// findings lists what an app reports about itself and its upstreams.
func findings(a *app.App) []command.Finding {
	return slices.Concat(a.Findings(), command.ServerFindings(a), a.SightFindings())
}

// backendFindings warns of files of backends that cannot be read, and of wallets that pay
// by other decimals or addresses than those by which the policy judges.
func backendFindings(cfg *config.Config, engine *rego.Engine, environment command.Lookup) (found []command.Finding) {
	for i := range cfg.Servers {
		s := &cfg.Servers[i]
		started := command.ToolsFlagsOf(s)
		if s.Disabled || started.BackendsFile == "" {
			continue
		}
		path := started.BackendsFile
		if !filepath.IsAbs(path) {
			path = filepath.Join(s.Dir, path)
		}
		getenv := func(name string) (string, bool) {
			if v, ok := s.Env[name]; ok {
				return v, true
			}
			return environment(name)
		}
		if err := config.LoadBackends(config.Options{Path: path, Getenv: getenv}, &started.Backends); err != nil {
			for _, f := range command.FaultsOf(err, "") {
				f.Level, f.Code = command.LevelWarning, "backends"
				found = append(found, f)
			}
			continue
		}
		tool := s.Prefix + "manage_wallet"
		if facts := engine.Facts(tool); facts != nil && started.Backends.OnChain() {
			found = append(found, compareWallet(started.Backends.Wallet, facts, "mcpServers."+s.Name, started.BackendsFile, "data.facts."+tool)...)
		}
	}
	return found
}

// compareWallet compares the wallet of a file of backends, which the server at where has,
// with the facts that data declares.
func compareWallet(w *chain.Options, facts *fact.Set, where, file, data string) (found []command.Finding) {
	warn := func(level, hint, format string, args ...any) {
		found = append(found, command.Finding{Level: level, Code: "wallet-policy", Where: where, Message: fmt.Sprintf(format, args...), Hint: hint})
	}
	// address compares what one label means, where both say so.
	address := func(member, label, paid string, judged []string) {
		if len(judged) > 0 && !slices.Contains(judged, paid) {
			warn(command.LevelWarning, "state the right address in both", "%s is %s in %s and %s in %s.%s", label, paid, file, strings.Join(judged, ", "), data, member)
		}
	}
	if d := facts.Declared("amount"); d.Kind == fact.Amount {
		paid, at := w.Decimals(), data+".amount.decimals"
		for _, asset := range slices.Sorted(maps.Keys(paid)) {
			switch n, ok := d.Decimals[asset]; {
			case !ok:
				warn(command.LevelWarning, fmt.Sprintf("add \"%s\": %d to %s", asset, paid[asset], at), "asset %s of %s has no decimals in the policy, which reads no amount of it", asset, file)
			case n != paid[asset]:
				warn(command.LevelWarning, "state the decimals of the contract in both", "asset %s has %d decimals in %s and %d in %s: the wallet pays another amount than the policy judges", asset, paid[asset], file, n, at)
			}
		}
		unpaid := slices.DeleteFunc(slices.Sorted(maps.Keys(d.Decimals)), func(asset string) bool { _, ok := paid[asset]; return ok })
		if len(unpaid) > 0 { // no wallet pays them
			warn(command.LevelNote, "remove what is not paid elsewhere, or add it to wallet.tokens", "assets of %s that %s does not pay: %s", at, file, strings.Join(unpaid, ", "))
		}
	}
	if d := facts.Declared("asset"); d.Kind == fact.Label {
		for _, symbol := range slices.Sorted(maps.Keys(w.Tokens)) {
			address("asset.labels", symbol, w.Tokens[symbol].Address, d.Labels[symbol])
		}
	}
	if d := facts.Declared("destination"); d.Kind == fact.Label {
		at := data + ".destination.labels"
		for _, name := range slices.Sorted(maps.Keys(w.Recipients)) {
			if _, ok := d.Labels[name]; !ok {
				warn(command.LevelWarning, fmt.Sprintf("add \"%s\": [\"%s\"] to %s", name, w.Recipients[name], at), "recipient %s of %s is no label of the policy: its address is an unknown recipient", name, file)
			}
			address("destination.labels", name, w.Recipients[name], d.Labels[name])
		}
		for _, name := range slices.Sorted(maps.Keys(d.Labels)) {
			if _, ok := w.Recipients[name]; !ok {
				warn(command.LevelWarning, "add it to wallet.recipients, or remove the label", "label %s of %s is no recipient of %s", name, at, file)
			}
		}
	}
	return found
}
