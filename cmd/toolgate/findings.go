package main

import (
	"cmp"
	"errors"
	"fmt"
	"path"
	"strings"

	"github.com/toolgate/toolgate/internal/app"
	"github.com/toolgate/toolgate/policy/rego"
	"github.com/toolgate/toolgate/registry/config"
)

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
	found := make([]finding, len(slips))
	for i, s := range slips {
		f := finding{Level: string(s.Level), Code: s.Code, Where: s.Where(), Message: s.Message, Hint: s.Hint, File: s.File, Row: s.Row}
		if s.File != "" && root != "" && !strings.HasSuffix(root, ".gz") && !path.IsAbs(s.File) {
			f.File = path.Join(root, s.File)
			f.Where = strings.Replace(f.Where, s.File, f.File, 1)
		}
		found[i] = f
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

// unservable is the error of a configuration or a policy that cannot serve, after
// its faults in the form that -o asks for.
func (e *env) unservable(err error, root string) error {
	found := faultsOf(err, root)
	refused := &exit{code: exitUsage, err: err, document: map[string]any{"ok": false, "findings": found}}
	if e.output == "github" {
		return errors.Join(e.annotate(found), refused)
	}
	return refused
}

var (
	annotationText     = strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A")
	annotationProperty = strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A", ":", "%3A", ",", "%2C")
)

// annotate prints findings as workflow commands of GitHub.
func (e *env) annotate(found []finding) error {
	var b strings.Builder
	for _, f := range found {
		level := map[string]string{levelError: "error", levelWarning: "warning"}[f.Level]
		fmt.Fprintf(&b, "::%s", cmp.Or(level, "notice"))
		if f.File != "" {
			fmt.Fprintf(&b, " file=%s", annotationProperty.Replace(f.File))
		}
		if f.Row > 0 {
			fmt.Fprintf(&b, ",line=%d", f.Row)
		}
		if f.Hint != "" {
			f.Message += "\nhint: " + f.Hint
		}
		fmt.Fprintf(&b, "::%s\n", annotationText.Replace(f.Message))
	}
	return e.write(b.String())
}
