package app

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/internal/sandbox"
	"github.com/toolgate/toolgate/policy/rego"
	"github.com/toolgate/toolgate/registry/config"
	"github.com/toolgate/toolgate/registry/upstream"
)

// sandboxOptions says what no upstream of cfg may see or change: state, keys, what the
// configuration was read from, the keys of certificates, the policy, and the sockets of the
// user's session.
func sandboxOptions(cfg *config.Config) sandbox.Options {
	needed := neededPaths(cfg)
	hidden := append([]string{cfg.State}, sandbox.UserSockets()...)
	if cfg.Keys != "" {
		hidden = append(hidden, cfg.Keys)
	}
	files := slices.Clone(cfg.Files)
	for _, key := range certificateKeys(cfg) {
		real, _ := filepath.EvalSymlinks(key) // "" = no such file yet
		files = append(files, key, real)
	}
	if filepath.IsAbs(cfg.Policy.Path) {
		files = append(files, cfg.Policy.Path)
	}
	for _, path := range slices.DeleteFunc(files, func(path string) bool { return path == "" }) {
		// A file that is hidden by itself can be replaced, by whoever edits it, with one that is not.
		if dir := filepath.Dir(path); !holdsAny(dir, needed) {
			path = dir
		}
		if !slices.Contains(hidden, path) && !holdsAny(path, needed) {
			hidden = append(hidden, path)
		}
	}
	outermost := slices.DeleteFunc(slices.Clone(hidden), func(path string) bool {
		return slices.ContainsFunc(hidden, func(other string) bool { return other != path && holdsAny(other, []string{path}) })
	})
	executable, _ := os.Executable() // "" = nothing to protect by name
	return sandbox.Options{
		Hide: outermost, Keep: []string{filepath.Join(cfg.State, toolsDir)},
		ReadOnly: slices.DeleteFunc([]string{executable}, func(path string) bool { return path == "" }),
	}
}

// applyUpstreams starts and stops servers as cfg says. How a command is confined is in
// the trail before the command runs, once until it changes; without that record no
// server starts.
func (a *App) applyUpstreams(ctx context.Context, cfg *config.Config) error {
	for _, s := range cfg.Servers {
		how := a.upstreams.Confinement(s)
		if how == "" || a.confined[s.Name] == how {
			continue
		}
		rec := &audit.Record{Server: s.Name, Event: &audit.Event{Name: audit.EventConfined, Reason: how}}
		if err := a.state.trail.Write(audit.KindEvent, rec); err != nil {
			return fmt.Errorf("recording how %s is confined: %w", s.Name, err)
		}
		a.confined[s.Name] = how
	}
	return a.upstreams.Apply(ctx, cfg)
}

// neededPaths returns paths that upstreams have to reach: their working directories,
// programs, the system's certificate authorities, and what their arguments and environment name.
func neededPaths(cfg *config.Config) []string {
	dir, _ := os.Getwd() // "" when it was removed: then nobody needs it
	paths := append(filepath.SplitList(os.Getenv("PATH")), dir, os.Getenv("HOME"), os.TempDir(), "/etc/ssl/certs", "/etc/pki")
	for _, s := range cfg.Servers {
		paths = append(append(paths, s.Dir, s.Command), s.Args...)
		for _, value := range s.Env {
			paths = append(paths, value)
		}
	}
	return slices.DeleteFunc(paths, func(path string) bool { return !filepath.IsAbs(path) })
}

// holdsAny reports whether one of paths is dir or below dir.
func holdsAny(dir string, paths []string) bool {
	return slices.ContainsFunc(paths, func(path string) bool {
		path = filepath.Clean(path)
		return path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
	})
}

// confinement warns of upstreams that are not to be confined or, unless host is nil,
// that the system cannot confine, and notes which resources the system cannot limit.
func confinement(cfg *config.Config, host *sandbox.Host) (found []Finding) {
	var partly []string
	unlimited := map[string]bool{}
	var why error
	for _, s := range cfg.Servers {
		if s.Command == "" || s.Disabled {
			continue
		}
		if s.Sandbox == string(sandbox.Off) {
			found = append(found, warning("no-sandbox", "mcpServers."+s.Name, "runs without a sandbox: it can read and change whatever toolgate can", `set "sandbox" to "auto"`))
		} else if host != nil && s.User == "" && !host.Support().Whole() {
			partly = append(partly, s.Name)
		}
		if host != nil {
			names, cause := host.Unlimited(upstream.Confined(s))
			for _, name := range names {
				unlimited[name+": not limited"], why = true, cause
			}
		}
	}
	if len(unlimited) > 0 {
		found = append(found, Finding{Level: string(rego.LevelNote), Code: "resources", Where: "toolgate.servers", Message: strings.Join(slices.Sorted(maps.Keys(unlimited)), ", ") + ": " + why.Error(),
			Hint: "delegate a control group of version 2 to toolgate alone, for example with Delegate=yes in its systemd unit"})
	}
	if len(partly) > 0 {
		found = append(found, warning("no-sandbox", "toolgate.sandbox", "this system cannot confine "+strings.Join(partly, ", ")+" wholly: "+host.Support().Missing,
			"allow what is missing, or run the commands in containers or as another user"))
	}
	return found
}
