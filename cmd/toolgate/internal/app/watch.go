package app

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/toolgate/toolgate/internal/text"
	"github.com/toolgate/toolgate/internal/wait"
	"github.com/toolgate/toolgate/registry/config"
)

// Reload describes how Run reads the configuration again, when a file changes
// or on request. The zero Reload never reloads.
type Reload struct {
	Begun *config.Config                 // as it was read for Open, ports as written
	Next  func() (*config.Config, error) // reads it as the next start would; nil = never reload
	Asked <-chan os.Signal               // a value asks for a reload, changed files or not; nil = nobody asks
}

// Files are looked at every pollFiles. A change is read once two looks in a row agree,
// settleFiles apart, because editors write in several steps, and after maxLooks at most.
const (
	pollFiles   = time.Second
	settleFiles = 250 * time.Millisecond
	maxLooks    = 8
)

// How reloads end, the outcomes of toolgate_reloads_total.
const (
	reloadApplied = "applied" // the configuration that was read serves
	reloadRefused = "refused" // the old one stays
)

// A reloader reads the configuration again. It is safe for concurrent use.
type reloader struct {
	*serving
	apply     func(context.Context, *config.Config) error
	inventory *inventory
	shadow    *shadowPolicy
	outcomes  *prometheus.CounterVec

	mu      sync.Mutex // protects the fields below
	failed  string     // why the last reload failed, "" when it went well
	waiting []string   // settings that were changed and need a restart
}

// watch reloads on request and when a file changes, until ctx ends. A reload that
// fails changes nothing; the log and /readyz report it. The first look is a change,
// for what has changed since the files were read.
func (l *reloader) watch(ctx context.Context, r Reload) error {
	if r.Next == nil {
		<-ctx.Done()
		return nil
	}
	tick := time.NewTicker(settleFiles)
	defer tick.Stop()
	var seen, read string // what stampFiles returned at the last look, and before the last reload
	looks := 0            // at files that keep changing
	for {
		asked := false
		select {
		case <-ctx.Done():
			return nil
		case <-r.Asked:
			asked = true
		case <-tick.C:
			before := seen
			if seen = stampFiles(l.Config()); seen == read {
				looks = 0
				tick.Reset(wait.Beat(pollFiles))
				continue
			}
			tick.Reset(settleFiles)
			if looks++; seen != before && looks < maxLooks {
				continue
			}
		}
		read, looks = seen, 0
		l.reloadOnce(ctx, r, asked)
	}
}

// reloadOnce reads certificates and configuration again and logs the outcome.
func (l *reloader) reloadOnce(ctx context.Context, r Reload, asked bool) {
	// Certificates do not wait for a configuration that can be loaded: they end whatever else is wrong.
	for _, c := range l.listeners.Load().certificates() {
		changed, err := c.renew()
		switch {
		case err != nil:
			l.log.Error("the new certificate cannot be used, the old one stays", "error", err)
		case changed:
			leaf := c.current().Certificates[0].Leaf
			l.log.Info("certificate exchanged", "listener", c.key, "serial", leaf.SerialNumber.Text(16), "expires", leaf.NotAfter.UTC().Format(time.RFC3339))
		}
	}
	applied, err := l.readAgain(ctx, r, asked)
	l.mu.Lock()
	before, waiting := l.failed, l.waiting
	l.failed = ""
	if err != nil {
		l.failed = err.Error()
	}
	l.mu.Unlock()
	switch {
	case err != nil:
		l.outcomes.WithLabelValues(reloadRefused).Inc()
		l.log.Error("reload failed, the old configuration stays", "error", err)
		l.inventory.recordRefusal(err)
	case applied:
		l.outcomes.WithLabelValues(reloadApplied).Inc()
		l.inventory.record()
		l.log.Info("reloaded", "policy", text.ShortDigest(l.Revision()), "servers", len(l.Config().Servers))
		l.LogWarnings()
		for _, name := range waiting {
			l.log.Warn("a changed setting is taken over by the next start", "setting", name)
		}
	case before != "":
		l.log.Info("the configuration is again the one that serves")
	}
}

// readAgain reads the configuration and applies it, unless nothing has changed
// and nobody asked. It reports whether it did. What the next start would refuse is
// refused now.
func (l *reloader) readAgain(ctx context.Context, r Reload, asked bool) (bool, error) {
	next, err := r.Next()
	if err != nil {
		return false, err
	}
	cfg, serving := *next, l.Config()
	cfg.Listen, cfg.Admin, cfg.State, cfg.Keys = serving.Listen, serving.Admin, serving.State, serving.Keys
	cfg.PublicURL = serving.PublicURL
	cfg.TLS, cfg.AdminTLS, cfg.Replica = serving.TLS, serving.AdminTLS, serving.Replica
	if !asked && serving.SHA256 == cfg.SHA256 && !l.policy.differs(&cfg.Policy.PolicySource) && !l.shadow.differs(cfg.Policy.Shadow) {
		return false, nil
	}
	if err := l.apply(ctx, &cfg); err != nil {
		return false, err
	}
	l.mu.Lock()
	l.waiting = needRestart(r.Begun, next)
	l.mu.Unlock()
	return true, nil
}

// last returns why the last reload failed, "" when it went well, and which changed settings wait for a restart.
func (l *reloader) last() (failed string, waiting []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.failed, l.waiting
}

// startSettings are the keys of the settings that only a start reads.
var startSettings = []string{
	"listen", "public_url", "admin", "tls", "admin_tls", "allowed_hosts", "allowed_origins", "state", "store", "shared", "replica", "keys",
	"limits.max_message_mib", "limits.max_depth", "limits.in_flight_mib", "limits.in_flight_share", "errors", "min_revision", "envelope", "deterministic",
	"artifacts.ttl", "artifacts.max_mib", "telemetry", "console",
	"audit.reserve_mib", "audit.durability", "audit.anchors", "audit.signer", "audit.index", "audit.arguments",
	"approvals.ttl", "approvals.keep", "approvals.require_person", "approvals.max_live",
}

// needRestart names the startSettings in which two configurations differ.
func needRestart(begun, next *config.Config) (names []string) {
	for _, key := range startSettings {
		was, is := settingAt(begun, key), settingAt(next, key)
		none := was.Kind() == reflect.Slice && was.Len()+is.Len() == 0 // a list without members, or no list
		if !none && !reflect.DeepEqual(was.Interface(), is.Interface()) {
			names = append(names, "toolgate."+key)
		}
	}
	return names
}

// settingAt returns the setting with a key, which exists.
func settingAt(cfg *config.Config, key string) reflect.Value {
	v := reflect.ValueOf(cfg).Elem()
	for name := range strings.SplitSeq(key, ".") {
		fields := reflect.VisibleFields(v.Type())
		v = v.FieldByIndex(fields[slices.IndexFunc(fields, func(f reflect.StructField) bool {
			tag, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			return tag == name
		})].Index)
	}
	return v
}

// stampFiles returns the places, sizes and times of the files that cfg was read
// from, of its certificates, and of all files of its policies. It follows symbolic links, which
// Kubernetes exchanges.
func stampFiles(cfg *config.Config) string {
	var stamps strings.Builder
	stamp := func(path string, _ fs.DirEntry, _ error) error { // a file that cannot be read is reported when it is loaded
		if info, err := os.Stat(path); err == nil {
			fmt.Fprintln(&stamps, path, info.Mode(), info.Size(), info.ModTime().UnixNano())
		}
		return nil
	}
	paths := slices.Clone(cfg.Files)
	for _, t := range []*config.TLS{cfg.TLS, cfg.AdminTLS, cfg.Replica.Files()} {
		if t != nil {
			paths = append(paths, t.Cert, t.Key, t.ClientCA)
		}
	}
	for _, s := range []*config.PolicySource{&cfg.Policy.PolicySource, cfg.Policy.Shadow} {
		if s != nil && s.Path != "" && !s.Remote() {
			paths = append(paths, s.Path)
		}
	}
	for _, path := range paths {
		if real, err := filepath.EvalSymlinks(path); err == nil {
			path = real
		}
		_ = filepath.WalkDir(path, stamp) // stamp returns no error
	}
	return stamps.String()
}
