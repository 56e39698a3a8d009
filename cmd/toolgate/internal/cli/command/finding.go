package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/advice"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/app"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/report"
	"github.com/toolgate/toolgate/policy/rego"
	"github.com/toolgate/toolgate/registry/config"
	"github.com/toolgate/toolgate/registry/upstream"
)

// Strictness says which warnings are faults.
type Strictness struct {
	on      bool
	allowed []string // codes of warnings that are accepted
}

// Bind adds the flags of a command that looks for warnings.
func (s *Strictness) Bind(c *cobra.Command) {
	c.Flags().BoolVar(&s.on, "strict", false, "fail on warnings too")
	c.Flags().StringSliceVar(&s.allowed, "allow", nil, "with --strict: accept warnings with this `CODE`; may be repeated")
}

// Refuse returns the error of findings with warnings that are not accepted, or else nil.
func (s *Strictness) Refuse(found []Finding) error {
	var refused, codes []string
	for _, f := range found {
		if !s.on || f.Level != LevelWarning || slices.Contains(s.allowed, f.Code) {
			continue
		}
		refused, codes = append(refused, f.Code+" ("+f.Where+")"), append(codes, f.Code)
	}
	if refused == nil {
		return nil
	}
	slices.Sort(refused)
	slices.Sort(codes)
	return &Exit{Code: ExitUsage, Reported: true, Err: fmt.Errorf("warnings, which --strict refuses: %s\nhint: fix them, or accept them with --allow %s",
		strings.Join(slices.Compact(refused), ", "), strings.Join(slices.Compact(codes), ","))}
}

// DeadServer is the code of a server that does not answer.
const DeadServer = "dead-server"

// ServerFindings lists what an app reports about its upstreams.
func ServerFindings(a *app.App) (found []Finding) {
	for _, u := range a.Upstreams().Status() {
		warn := func(code, message string) {
			found = append(found, Finding{Level: LevelWarning, Code: code, Where: "mcpServers." + u.Name, Message: message})
		}
		if u.Error != "" {
			warn(DeadServer, u.State+": "+u.Error)
		} else if u.State == string(upstream.StateStarting) {
			warn(DeadServer, fmt.Sprintf("has not answered within %v", LiveBound))
		}
		for _, message := range u.Warnings {
			warn("server", message)
		}
	}
	return found
}

// WithUpstreams opens a toolgate with a state of its own, so that looking changes
// nothing that is kept, and calls look when every upstream has answered or failed, or
// after a time.
func (e *Env) WithUpstreams(ctx context.Context, most time.Duration, cfg *config.Config, look func(*app.App)) error {
	dir, err := e.scratch()
	if err != nil {
		return err
	}
	alone := *cfg
	alone.Store = ""
	alone.State, alone.Keys = filepath.Join(dir, "state"), filepath.Join(dir, "keys")
	alone.Shared = nil // it is no replica
	a, err := app.Open(ctx, &alone, e.AppOptions())
	if err != nil {
		return err
	}
	ctx, stop := context.WithTimeout(ctx, most)
	defer stop()
	a.WaitForUpstreams(ctx)
	look(a)
	return a.Close()
}

// LiveBound is how long a command waits for upstreams.
const LiveBound = 15 * time.Second

// The levels of a finding.
const (
	LevelError   = string(rego.LevelError)
	LevelWarning = string(rego.LevelWarning)
	LevelNote    = string(rego.LevelNote)
)

// Finding is one fault, warning or note about a configuration or a policy.
type Finding = app.Finding

// Placed returns findings of a policy with paths as one sees them from here.
func Placed(slips []rego.Finding, root string) []Finding {
	found := append([]Finding{}, advice.Findings(slips)...) // none is [], not null
	for i, s := range slips {
		if f := &found[i]; s.File != "" && root != "" && !strings.HasSuffix(root, ".gz") && !path.IsAbs(s.File) {
			f.File = path.Join(root, s.File)
			f.Where = strings.Replace(f.Where, s.File, f.File, 1)
		}
	}
	return found
}

// FaultsOf takes apart why a configuration, or the policy below root, cannot
// serve.
func FaultsOf(err error, root string) []Finding {
	if faults := rego.Faults(nil); errors.As(err, &faults) {
		return Placed(faults, root)
	}
	faults, found := (*config.Faults)(nil), []Finding{}
	if !errors.As(err, &faults) {
		return append(found, Finding{Level: LevelError, Message: err.Error()})
	}
	for _, f := range faults.List {
		found = append(found, Finding{Level: LevelError, Where: f.Place(), Message: f.Message, Hint: f.Hint})
	}
	return found
}

// Unservable is the error of a configuration or a policy that cannot serve.
func (e *Env) Unservable(err error, root string) error {
	found := FaultsOf(err, root)
	refused := &Exit{Code: ExitUsage, Err: err, Findings: found}
	if e.Form == "github" {
		return errors.Join(e.Print(report.Of(found, GitHubText)), refused)
	}
	return refused
}

var (
	annotationText     = strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A", "\t", "%09")
	annotationProperty = strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A", "\t", "%09", ":", "%3A", ",", "%2C")
)

// annotation returns the finding as a workflow command of GitHub.
func annotation(f Finding) string {
	level := map[string]string{LevelError: "error", LevelWarning: "warning"}[f.Level]
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

// GitHubText returns findings as workflow commands of GitHub, one a line.
func GitHubText(all []Finding, _ report.Form) (text string) {
	for _, f := range all {
		text += annotation(f) + "\n"
	}
	return text
}

// FindingText returns a finding as people read it: a line, and one for its hint.
func FindingText(level, where, message, hint string) string {
	if where != "" {
		message = where + ": " + message
	}
	if hint != "" {
		message += "\nhint: " + hint
	}
	return level + ": " + message + "\n"
}

// FindingsText returns the FindingText of all.
func FindingsText(all []Finding) (text string) {
	for _, f := range all {
		text += FindingText(f.Level, f.Where, f.Message, f.Hint)
	}
	return text
}
