package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/advice"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/app"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/report"
	"github.com/toolgate/toolgate/console"
	"github.com/toolgate/toolgate/docs/schemas"
	"github.com/toolgate/toolgate/policy/fact"
	"github.com/toolgate/toolgate/policy/rego"
	"github.com/toolgate/toolgate/registry/config"
	"github.com/toolgate/toolgate/registry/upstream"
	"github.com/toolgate/toolgate/tools/chain"
)

// checkReport is the report of check.
type checkReport struct {
	Findings []finding       `json:"findings"`
	OK       bool            `json:"ok"`
	Policy   string          `json:"policy"`  // revision
	Servers  int             `json:"servers"` // how many
	Visible  []console.Sight `json:"visible"`
}

func checkCommand(e *env) *cobra.Command {
	var offline, schema bool
	var strict strictness
	c := e.printing("check", "check configuration and policy", func(ctx context.Context, _ []string) (*report.Report, error) {
		if schema {
			text, err := schemas.Files.ReadFile("config.json")
			if err == nil && e.Form == report.YAML {
				return nil, e.Document(json.RawMessage(text))
			}
			return nil, errors.Join(err, e.Write(string(text)))
		}
		s, err := e.checkFiles(ctx)
		if err != nil {
			return nil, err
		}
		found, sights := s.found, []console.Sight{}
		if offline {
			found = append(found, app.UnknownTools(s.cfg, s.engine, nil)...)
		} else if err := e.withUpstreams(ctx, liveBound, s.cfg, func(a *app.App) {
			sights = append(sights, a.Sights()...)
			for _, f := range findings(a) {
				if !slices.Contains(found, f) {
					found = append(found, f)
				}
			}
		}); err != nil {
			return nil, err
		}
		failed := strict.refuse(found)
		return report.Of(checkReport{found, failed == nil, s.engine.Revision(), len(s.cfg.Servers), sights}, checkText), failed
	})
	c.Flags().BoolVar(&offline, "offline", false, "look at the files only, start nothing")
	strict.bind(c)
	c.Flags().BoolVar(&schema, "schema", false, "print the JSON Schema of the configuration")
	return c
}

// A filesCheck has what the files of a configuration say.
type filesCheck struct {
	cfg    *config.Config
	engine *rego.Engine
	found  []finding
}

// checkFiles reads the configuration, its policy and its other files, and starts nothing.
func (e *env) checkFiles(ctx context.Context) (*filesCheck, error) {
	cfg, err := e.load()
	if err != nil {
		return nil, e.unservable(err, "")
	}
	if err := e.fetchRemotePolicy(ctx, cfg); err != nil {
		return nil, err
	}
	engine, err := rego.Load(ctx, app.PolicyOptions(&cfg.Policy.PolicySource))
	if err != nil {
		return nil, e.unservable(fmt.Errorf("policy: %w", err), "")
	}
	found, err := app.CheckFiles(cfg)
	if err != nil {
		return nil, e.unservable(err, "")
	}
	return &filesCheck{cfg, engine, slices.Concat(app.Warnings(cfg, engine, nil), found, backendFindings(cfg, engine, e.lookup))}, nil
}

// strictness says which warnings are faults.
type strictness struct {
	on      bool
	allowed []string // codes of warnings that are accepted
}

// bind adds the flags of a command that looks for warnings.
func (s *strictness) bind(c *cobra.Command) {
	c.Flags().BoolVar(&s.on, "strict", false, "fail on warnings too")
	c.Flags().StringSliceVar(&s.allowed, "allow", nil, "with --strict: accept warnings with this `CODE`; may be repeated")
}

// refuse returns the error of findings with warnings that are not accepted, or else nil.
func (s *strictness) refuse(found []finding) error {
	var refused, codes []string
	for _, f := range found {
		if !s.on || f.Level != levelWarning || slices.Contains(s.allowed, f.Code) {
			continue
		}
		refused, codes = append(refused, f.Code+" ("+f.Where+")"), append(codes, f.Code)
	}
	if refused == nil {
		return nil
	}
	slices.Sort(refused)
	slices.Sort(codes)
	return &exit{code: exitUsage, reported: true, err: fmt.Errorf("warnings, which --strict refuses: %s\nhint: fix them, or accept them with --allow %s",
		strings.Join(slices.Compact(refused), ", "), strings.Join(slices.Compact(codes), ","))}
}

// findings lists what an app reports about itself and its upstreams.
func findings(a *app.App) []finding {
	return slices.Concat(a.Findings(), serverFindings(a), a.SightFindings())
}

// deadServer is the code of a server that does not answer.
const deadServer = "dead-server"

// serverFindings lists what an app reports about its upstreams.
func serverFindings(a *app.App) (found []finding) {
	for _, u := range a.Upstreams().Status() {
		warn := func(code, message string) {
			found = append(found, finding{Level: levelWarning, Code: code, Where: "mcpServers." + u.Name, Message: message})
		}
		if u.Error != "" {
			warn(deadServer, u.State+": "+u.Error)
		} else if u.State == string(upstream.StateStarting) {
			warn(deadServer, fmt.Sprintf("has not answered within %v", liveBound))
		}
		for _, message := range u.Warnings {
			warn("server", message)
		}
	}
	return found
}

// withUpstreams opens a toolgate with a state of its own, so that looking changes
// nothing that is kept, and calls look when every upstream has answered or failed, or
// after a time.
func (e *env) withUpstreams(ctx context.Context, most time.Duration, cfg *config.Config, look func(*app.App)) error {
	dir, err := e.scratch()
	if err != nil {
		return err
	}
	alone := *cfg
	alone.Store = ""
	alone.State, alone.Keys = filepath.Join(dir, "state"), filepath.Join(dir, "keys")
	alone.Shared = nil // it is no replica
	a, err := app.Open(ctx, &alone, e.appOptions())
	if err != nil {
		return err
	}
	ctx, stop := context.WithTimeout(ctx, most)
	defer stop()
	a.WaitForUpstreams(ctx)
	look(a)
	return a.Close()
}

// liveBound is how long a command waits for upstreams.
const liveBound = 15 * time.Second

// The levels of a finding.
const (
	levelError   = string(rego.LevelError)
	levelWarning = string(rego.LevelWarning)
	levelNote    = string(rego.LevelNote)
)

// finding is one fault, warning or note about a configuration or a policy.
type finding = app.Finding

// placed returns findings of a policy with paths as one sees them from here.
func placed(slips []rego.Finding, root string) []finding {
	found := append([]finding{}, advice.Findings(slips)...) // none is [], not null
	for i, s := range slips {
		if f := &found[i]; s.File != "" && root != "" && !strings.HasSuffix(root, ".gz") && !path.IsAbs(s.File) {
			f.File = path.Join(root, s.File)
			f.Where = strings.Replace(f.Where, s.File, f.File, 1)
		}
	}
	return found
}

// faultsOf takes apart why a configuration, or the policy below root, cannot
// serve.
func faultsOf(err error, root string) []finding {
	if faults := rego.Faults(nil); errors.As(err, &faults) {
		return placed(faults, root)
	}
	faults, found := (*config.Faults)(nil), []finding{}
	if !errors.As(err, &faults) {
		return append(found, finding{Level: levelError, Message: err.Error()})
	}
	for _, f := range faults.List {
		found = append(found, finding{Level: levelError, Where: f.Place(), Message: f.Message, Hint: f.Hint})
	}
	return found
}

// unservable is the error of a configuration or a policy that cannot serve.
func (e *env) unservable(err error, root string) error {
	found := faultsOf(err, root)
	refused := &exit{code: exitUsage, err: err, findings: found}
	if e.Form == "github" {
		return errors.Join(e.Print(report.Of(found, githubText)), refused)
	}
	return refused
}

var (
	annotationText     = strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A", "\t", "%09")
	annotationProperty = strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A", "\t", "%09", ":", "%3A", ",", "%2C")
)

// annotation returns the finding as a workflow command of GitHub.
func annotation(f finding) string {
	level := map[string]string{levelError: "error", levelWarning: "warning"}[f.Level]
	text := "::" + cmp.Or(level, "notice")
	if f.File != "" {
		text += " file=" + annotationProperty.Replace(f.File)
	}
	if f.Row > 0 {
		text += fmt.Sprintf(",line=%d", f.Row)
	}
	if f.Hint != "" {
		f.Message += "\nhint: " + f.Hint
	}
	return text + "::" + annotationText.Replace(f.Message)
}

// backendFindings warns of files of backends that cannot be read, and of wallets that pay
// by other decimals or addresses than those by which the policy judges.
func backendFindings(cfg *config.Config, engine *rego.Engine, environment lookup) (found []finding) {
	for i := range cfg.Servers {
		s := &cfg.Servers[i]
		started := toolsFlagsOf(s)
		if s.Disabled || started.backends == "" {
			continue
		}
		path := started.backends
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
			for _, f := range faultsOf(err, "") {
				f.Level, f.Code = levelWarning, "backends"
				found = append(found, f)
			}
			continue
		}
		tool := s.Prefix + "manage_wallet"
		if facts := engine.Facts(tool); facts != nil && started.Backends.OnChain() {
			found = append(found, compareWallet(started.Backends.Wallet, facts, "mcpServers."+s.Name, started.backends, "data.facts."+tool)...)
		}
	}
	return found
}

// compareWallet compares the wallet of a file of backends, which the server at where has,
// with the facts that data declares.
func compareWallet(w *chain.Options, facts *fact.Set, where, file, data string) (found []finding) {
	warn := func(level, hint, format string, args ...any) {
		found = append(found, finding{Level: level, Code: "wallet-policy", Where: where, Message: fmt.Sprintf(format, args...), Hint: hint})
	}
	// address compares what one label means, where both say so.
	address := func(member, label, paid string, judged []string) {
		if len(judged) > 0 && !slices.Contains(judged, paid) {
			warn(levelWarning, "state the right address in both", "%s is %s in %s and %s in %s.%s", label, paid, file, strings.Join(judged, ", "), data, member)
		}
	}
	if d := facts.Declared("amount"); d.Kind == fact.Amount {
		paid, at := w.Decimals(), data+".amount.decimals"
		for _, asset := range slices.Sorted(maps.Keys(paid)) {
			switch n, ok := d.Decimals[asset]; {
			case !ok:
				warn(levelWarning, fmt.Sprintf("add \"%s\": %d to %s", asset, paid[asset], at), "asset %s of %s has no decimals in the policy, which reads no amount of it", asset, file)
			case n != paid[asset]:
				warn(levelWarning, "state the decimals of the contract in both", "asset %s has %d decimals in %s and %d in %s: the wallet pays another amount than the policy judges", asset, paid[asset], file, n, at)
			}
		}
		unpaid := slices.DeleteFunc(slices.Sorted(maps.Keys(d.Decimals)), func(asset string) bool { _, ok := paid[asset]; return ok })
		if len(unpaid) > 0 { // no wallet pays them
			warn(levelNote, "remove what is not paid elsewhere, or add it to wallet.tokens", "assets of %s that %s does not pay: %s", at, file, strings.Join(unpaid, ", "))
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
				warn(levelWarning, fmt.Sprintf("add \"%s\": [\"%s\"] to %s", name, w.Recipients[name], at), "recipient %s of %s is no label of the policy: its address is an unknown recipient", name, file)
			}
			address("destination.labels", name, w.Recipients[name], d.Labels[name])
		}
		for _, name := range slices.Sorted(maps.Keys(d.Labels)) {
			if _, ok := w.Recipients[name]; !ok {
				warn(levelWarning, "add it to wallet.recipients, or remove the label", "label %s of %s is no recipient of %s", name, at, file)
			}
		}
	}
	return found
}
