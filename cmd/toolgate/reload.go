package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/toolgate/toolgate/policy/rego"
	"github.com/toolgate/toolgate/registry/config"
)

// debounce is how long a burst of file events is gathered: editors write in
// several steps.
const debounce = 100 * time.Millisecond

// source reads the configuration again.
type source struct {
	next func() (*config.Config, error) // as the next start would
	now  func() (*config.Config, error) // with the addresses and the state that are in use
}

// watch reloads on SIGHUP and when a watched file changes, until ctx ends. A
// reload that fails changes nothing and is said in the log and on /readyz.
func (in *instance) watch(ctx context.Context, from source) error {
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	defer signal.Stop(hup)
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watching configuration: %w", err)
	}
	defer func() { _ = w.Close() }() // nothing was written
	followed, events := in.follow(w), burst{}
	events.add(time.Now()) // for what has changed since it was read
	for {
		asked := false
		select {
		case <-ctx.Done():
			return nil
		case ev := <-w.Events:
			if followed.covers(ev.Name) {
				events.add(time.Now())
			}
			continue
		case err := <-w.Errors:
			if err != nil {
				in.log.Warn("watching configuration", "error", err)
			}
			continue
		case <-hup:
			asked = true
		case <-events.over:
		}
		events = burst{}
		in.again(ctx, from, asked)
		before := len(w.WatchList())
		if followed = in.follow(w); len(w.WatchList()) > before {
			events.add(time.Now())
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

// again reloads and says how it went.
func (in *instance) again(ctx context.Context, from source, asked bool) {
	in.swap.Lock()
	defer in.swap.Unlock()
	applied, err := in.reread(ctx, from, asked)
	in.mu.Lock()
	failed, servers, waiting := in.reload, len(in.cfg.Servers), in.waiting
	in.reload = ""
	if err != nil {
		in.reload = err.Error()
	}
	in.mu.Unlock()
	switch {
	case err != nil:
		in.log.Error("reload failed, the old configuration stays", "error", err)
	case applied:
		in.log.Info("reloaded", "policy", short(in.revision()), "servers", servers)
		in.warn()
		for _, name := range waiting {
			in.log.Warn("a changed setting is taken over by the next start", "setting", name)
		}
	case failed != "":
		in.log.Info("the configuration is again the one that serves")
	}
}

// reread reads the configuration and applies it, unless nothing has changed and
// nobody asked. It reports whether it did. What the next start would refuse is
// refused now.
func (in *instance) reread(ctx context.Context, from source, asked bool) (bool, error) {
	next, err := from.next()
	if err != nil {
		return false, err
	}
	cfg, err := from.now()
	if err != nil {
		return false, err
	}
	if !asked && !in.changed(ctx, cfg) {
		return false, nil
	}
	if err := in.apply(ctx, cfg); err != nil {
		return false, err
	}
	in.mu.Lock()
	in.waiting = needRestart(in.begun, next)
	in.mu.Unlock()
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

// watched is what the watch is about.
type watched struct {
	files map[string]bool
	trees []string // directories, with all that they hold
}

// covers tells whether an event at path may be about what was read. What it
// lets through falsely is found to be unchanged.
func (f watched) covers(path string) bool {
	return f.files[path] || strings.HasPrefix(filepath.Base(path), "..") || // how Kubernetes exchanges files
		slices.ContainsFunc(f.trees, func(tree string) bool { return strings.HasPrefix(path, tree) })
}

// follow watches the directories of every file that was read. Directories,
// because editors and Kubernetes replace files instead of writing to them. What
// is behind a symbolic link is watched too.
func (in *instance) follow(w *fsnotify.Watcher) watched {
	in.mu.Lock()
	cfg := in.cfg
	in.mu.Unlock()
	found := watched{files: map[string]bool{}}
	policies := []string{cfg.Policy.Path}
	if cfg.Policy.Shadow != nil {
		policies = append(policies, cfg.Policy.Shadow.Path)
	}
	policies = slices.DeleteFunc(policies, func(path string) bool { return !local(path) })
	paths := slices.Concat(cfg.Files, policies)
	for _, path := range paths {
		for _, path := range []string{path, behind(path)} {
			found.files[path] = true
			in.watchDir(w, filepath.Dir(path))
		}
	}
	for _, path := range policies {
		found.trees = append(found.trees, path+string(filepath.Separator), behind(path)+string(filepath.Separator))
		in.watchTree(w, behind(path))
	}
	return found
}

// behind gives what a path leads to, or the path itself when it leads nowhere.
func behind(path string) string {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		return real
	}
	return path
}

// watchTree watches a directory and all below it. What cannot be read says so
// when it is loaded.
func (in *instance) watchTree(w *fsnotify.Watcher, root string) {
	_ = filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			in.watchDir(w, path)
		}
		return nil
	})
}

func (in *instance) watchDir(w *fsnotify.Watcher, dir string) {
	if err := w.Add(dir); err != nil && !errors.Is(err, fsnotify.ErrClosed) {
		in.log.Warn("watching configuration", "directory", dir, "error", err, "hint", "send SIGHUP after a change")
	}
}

func local(path string) bool { return path != "" && !strings.Contains(path, "://") }

// changed compares what was read with what serves.
func (in *instance) changed(ctx context.Context, cfg *config.Config) bool {
	in.mu.Lock()
	old, engine := in.cfg, in.engine
	in.mu.Unlock()
	if old.SHA256 != cfg.SHA256 || in.asked().differs(ctx, cfg) {
		return true
	}
	if cfg.Policy.Remote() {
		return false // a server is polled
	}
	fresh, err := rego.RevisionOf(policyOptions(&cfg.Policy.PolicySource))
	return err != nil || fresh != engine.Revision()
}

func (in *instance) revision() string {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.engine.Revision()
}
