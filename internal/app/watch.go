package app

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/hashicorp/go-hclog"

	"github.com/toolgate/toolgate/policy/rego"
	"github.com/toolgate/toolgate/registry/config"
)

// Reload describes how Run reads the configuration again, when a file changes
// or on request. The zero Reload never reloads.
type Reload struct {
	Begun *config.Config                 // as it was read for Open, ports as written
	Next  func() (*config.Config, error) // reads it as the next start would; nil = never reload
	Now   func() (*config.Config, error) // reads it with the addresses and the state that are in use
	Asked <-chan os.Signal               // a value asks for a reload, changed files or not; nil = nobody asks
}

// debounce is how long a burst of file events is gathered: editors write in
// several steps.
const debounce = 100 * time.Millisecond

// reloadStatus describes the last reload for people.
type reloadStatus struct {
	failed  string   // why the last reload failed, "" when it went well
	waiting []string // settings that were changed and need a restart
}

// watch reloads on request and when a watched file changes, until ctx ends. A
// reload that fails changes nothing; the log and /readyz report it.
func (a *App) watch(ctx context.Context, r Reload) error {
	if r.Next == nil {
		<-ctx.Done()
		return nil
	}
	events, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watching configuration: %w", err)
	}
	defer func() { _ = events.Close() }() // nothing was written
	w := &fileWatch{events: events, log: a.log}
	w.follow(a.Config())
	pending := burst{}
	pending.add(time.Now()) // for what has changed since it was read
	for {
		asked := false
		select {
		case <-ctx.Done():
			return nil
		case ev := <-events.Events:
			if w.covers(ev.Name) {
				pending.add(time.Now())
			}
			continue
		case err := <-events.Errors:
			if err != nil {
				a.log.Warn("watching configuration", "error", err)
			}
			continue
		case <-r.Asked:
			asked = true
		case <-pending.over:
		}
		pending = burst{}
		a.reloadOnce(ctx, r, asked)
		if w.follow(a.Config()) {
			pending.add(time.Now())
		}
	}
}

// burst gathers events until they pause, but not for ever.
type burst struct {
	first time.Time
	over  <-chan time.Time
}

func (b *burst) add(now time.Time) {
	if b.over == nil {
		b.first = now
	}
	if now.Sub(b.first) < 10*debounce {
		b.over = time.After(debounce)
	}
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

// fileWatch watches the directories of every file that was read. Directories,
// because editors and Kubernetes replace files instead of writing to them. What
// is behind a symbolic link is watched too.
type fileWatch struct {
	events *fsnotify.Watcher
	log    hclog.Logger
	files  map[string]bool
	trees  []string // directories, with all that they hold
}

// covers reports whether an event at path may concern a file that was read. A
// file that did not change is found to be unchanged later.
func (w *fileWatch) covers(path string) bool {
	return w.files[path] || strings.HasPrefix(filepath.Base(path), "..") || // how Kubernetes exchanges files
		slices.ContainsFunc(w.trees, func(tree string) bool { return strings.HasPrefix(path, tree) })
}

// follow watches the files that cfg was read from, and reports whether it added
// any.
func (w *fileWatch) follow(cfg *config.Config) (more bool) {
	before := len(w.events.WatchList())
	w.files, w.trees = map[string]bool{}, nil
	policies := []string{cfg.Policy.Path}
	if cfg.Policy.Shadow != nil {
		policies = append(policies, cfg.Policy.Shadow.Path)
	}
	policies = slices.DeleteFunc(policies, func(path string) bool { return path == "" || strings.Contains(path, "://") })
	for _, path := range slices.Concat(cfg.Files, policies) {
		for _, path := range []string{path, behind(path)} {
			w.files[path] = true
			w.addDir(filepath.Dir(path))
		}
	}
	for _, path := range policies {
		w.trees = append(w.trees, path+string(filepath.Separator), behind(path)+string(filepath.Separator))
		w.addTree(behind(path))
	}
	return len(w.events.WatchList()) > before
}

// behind returns the target of a path, or the path itself if it leads nowhere.
func behind(path string) string {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		return real
	}
	return path
}

// addTree watches a directory and all directories below it. A directory that
// cannot be read is reported when it is loaded.
func (w *fileWatch) addTree(root string) {
	_ = filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			w.addDir(path)
		}
		return nil
	})
}

func (w *fileWatch) addDir(dir string) {
	if err := w.events.Add(dir); err != nil && !errors.Is(err, fsnotify.ErrClosed) {
		w.log.Warn("watching configuration", "directory", dir, "error", err, "hint", "send SIGHUP after a change")
	}
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
