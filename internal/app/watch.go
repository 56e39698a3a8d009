package app

import (
	"context"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"time"

	"github.com/toolgate/toolgate/policy/rego"
	"github.com/toolgate/toolgate/registry/config"
)

// Reload says how Run reads the configuration again, when a file that was read
// changes or when asked. The zero Reload never does.
type Reload struct {
	Begun *config.Config                 // as it was read for Open, ports as written
	Next  func() (*config.Config, error) // reads it as the next start would; nil = never reload
	Now   func() (*config.Config, error) // reads it with the addresses and the state that are in use
	Asked <-chan os.Signal               // a value asks for a reload, changed files or not; nil = nobody asks
}

// watchEvery is how often files are looked at. A change is taken over when nothing
// changed from one look to the next, as editors write in several steps, or after
// watchMost looks.
const (
	watchEvery = 200 * time.Millisecond
	watchMost  = 5
)

// reloadStatus is what people are shown of reloads.
type reloadStatus struct {
	failed  string   // why the last reload failed, "" when it went well
	waiting []string // settings that were changed and need a restart
}

// watch reloads when asked and when a watched file changes, until ctx ends. A
// reload that fails changes nothing; the log and /readyz report it. Files are polled:
// that also finds changes on network volumes and behind symbolic links.
func (a *App) watch(ctx context.Context, r Reload) error {
	if r.Next == nil {
		<-ctx.Done()
		return nil
	}
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	looks := 1 // since the change that is not taken over, 0 = there is none; files may have changed since they were read
	for seen := stampFiles(a.Config()); ; {
		asked := false
		select {
		case <-ctx.Done():
			return nil
		case <-r.Asked:
			asked = true
		case <-tick.C:
			before := seen
			seen = stampFiles(a.Config())
			changed := !maps.Equal(before, seen)
			if changed || looks > 0 {
				looks++
			}
			if looks == 0 || changed && looks < watchMost {
				continue
			}
		}
		looks = 0
		a.reloadOnce(ctx, r, asked)
	}
}

// stamp tells one content of a file from another.
type stamp struct {
	size, modified int64 // bytes, Unix nanoseconds
}

// stampFiles returns the stamps of the files that cfg was read from, those of
// policies in directories included. A file that cannot be read has none: loading it
// says why.
func stampFiles(cfg *config.Config) map[string]stamp {
	paths := slices.Clone(cfg.Files)
	for _, s := range []*config.PolicySource{&cfg.Policy.PolicySource, cfg.Policy.Shadow} {
		if s != nil && s.Path != "" && !s.Remote() {
			paths = append(paths, s.Path)
		}
	}
	stamps := make(map[string]stamp)
	for _, path := range paths {
		if real, err := filepath.EvalSymlinks(path); err == nil {
			path = real
		}
		_ = filepath.WalkDir(path, func(path string, _ fs.DirEntry, _ error) error {
			if info, err := os.Stat(path); err == nil {
				stamps[path] = stamp{info.Size(), info.ModTime().UnixNano()}
			}
			return nil
		})
	}
	return stamps
}

// reloadOnce reloads and logs the outcome.
func (a *App) reloadOnce(ctx context.Context, r Reload, asked bool) {
	a.policy.swap.Lock()
	defer a.policy.swap.Unlock()
	applied, err := a.readAgain(ctx, r, asked)
	a.mu.Lock()
	before, servers := a.reload, len(a.cfg.Servers)
	a.reload.failed = ""
	if err != nil {
		a.reload.failed = err.Error()
	}
	a.mu.Unlock()
	switch {
	case err != nil:
		a.log.Error("reload failed, the old configuration stays", "error", err)
	case applied:
		a.log.Info("reloaded", "policy", short(a.Revision()), "servers", servers)
		a.LogWarnings()
		for _, name := range before.waiting {
			a.log.Warn("a changed setting is taken over by the next start", "setting", name)
		}
	case before.failed != "":
		a.log.Info("the configuration is again the one that serves")
	}
}

// readAgain reads the configuration and applies it, unless nothing has changed
// and nobody asked. It reports whether it did. What the next start would refuse is
// refused now. The caller must hold a.policy.swap.
func (a *App) readAgain(ctx context.Context, r Reload, asked bool) (bool, error) {
	next, err := r.Next()
	if err != nil {
		return false, err
	}
	cfg, err := r.Now()
	if err != nil {
		return false, err
	}
	if !asked && !a.changed(ctx, cfg) {
		return false, nil
	}
	if err := a.apply(ctx, cfg); err != nil {
		return false, err
	}
	a.mu.Lock()
	a.reload.waiting = needRestart(r.Begun, next)
	a.mu.Unlock()
	return true, nil
}

// needRestart names the settings in which two configurations differ and that
// only a start reads.
func needRestart(begun, next *config.Config) (names []string) {
	for _, s := range []struct {
		name   string
		differ bool
	}{
		{"toolgate.listen", begun.Listen != next.Listen},
		{"toolgate.admin", begun.Admin != next.Admin},
		{"toolgate.state", begun.State != next.State},
		{"toolgate.errors", begun.Errors != next.Errors},
		{"toolgate.envelope", begun.Envelope != next.Envelope},
		{"toolgate.deterministic", begun.Deterministic != next.Deterministic},
		{"toolgate.artifacts.ttl", begun.Artifacts.TTL != next.Artifacts.TTL},
		{"toolgate.artifacts.max_mib", begun.Artifacts.MaxMiB != next.Artifacts.MaxMiB},
		{"toolgate.console", !reflect.DeepEqual(begun.Console, next.Console)},
		{"toolgate.audit.durability", begun.Audit != next.Audit},
		{"toolgate.approvals.ttl", begun.Approvals.TTL != next.Approvals.TTL},
		{"toolgate.approvals.max_live", begun.Approvals.MaxLive != next.Approvals.MaxLive},
	} {
		if s.differ {
			names = append(names, s.name)
		}
	}
	return names
}

// changed compares what was read with what serves.
func (a *App) changed(ctx context.Context, cfg *config.Config) bool {
	if a.Config().SHA256 != cfg.SHA256 || a.shadowPolicy().differs(ctx, cfg) {
		return true
	}
	if cfg.Policy.Remote() {
		return false // a server is polled
	}
	fresh, err := rego.RevisionOf(PolicyOptions(&cfg.Policy.PolicySource))
	return err != nil || fresh != a.Revision()
}
