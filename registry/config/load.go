package config

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/toolgate/toolgate/internal/files"
	"github.com/toolgate/toolgate/internal/schema"
	"github.com/toolgate/toolgate/internal/text"
	"github.com/toolgate/toolgate/internal/tree"
	"github.com/toolgate/toolgate/registry/lock"
)

// loader is one reading. Its Report collects everything that is wrong.
type loader struct {
	tree.Report
	opts    Options
	cfg     *Config
	root    *tree.Node // what mcp.json and the overlay say to us
	servers *tree.Node // of root; nil = none
	leftOut []string   // servers that Translate leaves out
}

// Load reads mcp.json and the overlay, and fills in the defaults. The error is
// always *Faults, with everything that is wrong; there is no Config then.
func Load(opts Options) (*Config, error) {
	l := &loader{opts: opts.withDefaults(), cfg: defaults()}
	published := make(chan *schema.Own, 1)
	go func() { published <- read("config.json", "", formats) }() // meanwhile: to read it takes as long as the files
	l.readRoot()
	l.expandRoot()
	l.Check(l.root, <-published)
	l.root.Walk(func(n *tree.Node) {
		if n.Kind == tree.String && paths.MatchString(n.Path) {
			n.Value = n.Resolve(n.Value)
		}
	})
	l.decode(l.settings(), l.cfg)
	l.finishSettings() // what only code can say
	l.readServers()
	l.readLock()
	l.overrides()
	if err := l.Err(); err != nil {
		return nil, err
	}
	l.cfg.Warnings, l.cfg.SecretFiles = l.Warnings, l.secretFiles()
	sum := sha256.New()
	for _, f := range l.Files {
		if !slices.Contains(l.cfg.Files, f.Path) {
			l.cfg.Files = append(l.cfg.Files, f.Path)
		}
		one := sha256.Sum256(f.Data)
		sum.Write(one[:])
	}
	l.cfg.SHA256 = hex.EncodeToString(sum.Sum(nil))
	return l.cfg, nil
}

// paths are the settings that name a file or a directory, relative to the file that has them.
var paths = regexp.MustCompile(`^toolgate\.(state|keys|(admin_)?tls\.(cert|key|client_ca)|replica\.tls\.(cert|key|ca)|telemetry\.(ca|cert|key)|servers\..+\.tls\.(cert|key|ca)|shared\.ca|` +
	`audit\.(anchors\[[0-9]+\]\.(directory|witness_key)|signer\.public_key)|policy\.log\.file)$`)

func (o Options) withDefaults() Options {
	o.Path = cmp.Or(o.Path, "mcp.json")
	if o.Getenv == nil {
		o.Getenv = os.LookupEnv
	}
	if o.ReadFile == nil {
		o.ReadFile = ReadFile
	}
	if o.Workspace == nil {
		o.Workspace = filepath.Dir
	}
	return o
}

// defaults returns the settings of a file that has none. A test holds the
// defaults in the published schema to them.
func defaults() *Config {
	return &Config{
		Listen:     defaultListen,
		Admin:      "127.0.0.1:8788",
		Limits:     Limits{Default: &Rate{Count: 60, Per: time.Minute, Burst: 60}, Refused: &Rate{Count: 60, Per: time.Minute, Burst: 60}, MaxMessage: 4, MaxDepth: 64, InFlight: 64, InFlightShare: 0.25},
		Policy:     Policy{PolicySource: PolicySource{Timeout: 250 * time.Millisecond}, Verify: Verify{Sample: 0.001}},
		Approvals:  Approvals{TTL: 15 * time.Minute, Keep: 30 * 24 * time.Hour, MaxLive: 64},
		Console:    Console{Session: 8 * time.Hour},
		Artifacts:  Artifacts{TTL: 7 * 24 * time.Hour, MaxMiB: 1024, InlineKiB: 64},
		Audit:      Audit{Durability: "sync", ReserveMiB: 64, Index: true},
		Errors:     "gateway",
		Results:    "compact",
		Sandbox:    "auto",
		RetryAfter: time.Second,
		Shutdown:   Shutdown{Drain: 20 * time.Second},
		Envelope:   "mcp",
	}
}

// Document reads mcp.json and the overlay into one tree in toolgate's own form, which is
// neither expanded nor checked. The Report has what was found on the way.
func Document(opts Options) (root *tree.Node, r *tree.Report) {
	l := &loader{opts: opts.withDefaults()}
	l.readRoot()
	return l.root, &l.Report
}

// readRoot reads both files into one tree. What other programs keep in mcp.json is left out.
func (l *loader) readRoot() {
	mcp := l.open(l.opts.Path, "", "toolgate init makes one; --config names another file")
	l.root = &tree.Node{Kind: tree.Object, File: l.Files[0]}
	if mcp != nil {
		if l.opts.Translate != nil {
			l.leftOut = l.opts.Translate(mcp, &l.Report)
		} else {
			l.refuseOthers(mcp)
		}
		l.root.Members = slices.DeleteFunc(mcp.Members, func(m *tree.Node) bool {
			return m.Key != "toolgate" && m.Key != "$schema" && m.Key != "mcpServers" && m.Key != "servers"
		})
		l.servers = cmp.Or(l.root.Get("mcpServers"), l.root.Get("servers"))
		switch s := l.servers; {
		case s == nil:
			l.Warnings = append(l.Warnings, Warning{File: mcp.File.Name, Message: "no server is configured", Hint: `add one under "mcpServers"`})
		case s.Kind == tree.Object && len(s.Members) == 0 && len(l.leftOut) == 0:
			l.Warn(s, "no server is configured", `add one: "name": { "command": "…" } or { "url": "…" }`)
		}
	}
	if l.opts.Overlay == "" {
		return
	}
	overlay := l.open(l.opts.Overlay, "toolgate", "write one, or leave out --overlay")
	switch own := l.settings(); {
	case overlay == nil:
	case own == nil:
		overlay.Key = "toolgate"
		l.root.Members = append(l.root.Members, overlay)
	case own.Kind == tree.Object:
		l.Merge(own, overlay)
	}
}

// EntryKeys are the keys of a server's entry in toolgate's own form.
var EntryKeys = []string{"type", "command", "args", "env", "cwd", "envFile", "url", "headers", "disabled", "timeout", "expose", "exclude"}

// refuseOthers reports keys of entries that toolgate's own form does not have: a filter of
// another client would be lost.
func (l *loader) refuseOthers(mcp *tree.Node) {
	for _, s := range slices.Concat(mcp.Get("mcpServers").Each(), mcp.Get("servers").Each()) {
		for _, m := range s.Members {
			if slices.Contains(EntryKeys, m.Key) {
				continue
			}
			hint := "the keys here are " + strings.Join(EntryKeys, ", ")
			if near := text.Nearest(m.Key, EntryKeys); near != "" {
				hint = fmt.Sprintf("did you mean %q?", near)
			}
			l.Fault(m.Named(), "unknown key", hint)
		}
	}
}

// readLock reads the lock next to mcp.json, if there is one. A server that is
// pinned by it makes the file one to watch before it exists.
func (l *loader) readLock() {
	l.cfg.LockPath = filepath.Join(filepath.Dir(l.Files[0].Path), lock.Name)
	data, err := l.opts.ReadFile(l.cfg.LockPath)
	missing := errors.Is(err, fs.ErrNotExist)
	if missing && !slices.ContainsFunc(l.cfg.Servers, func(s Server) bool { return s.Pin == PinStrict }) {
		return
	}
	l.Files = append(l.Files, &tree.File{Name: lock.Name, Path: l.cfg.LockPath, Data: slices.Clone(data)})
	if missing {
		return
	}
	if err == nil {
		l.cfg.Lock, err = lock.Parse(data)
	}
	if err != nil {
		l.Faults = append(l.Faults, Fault{File: lock.Name, Message: err.Error(), Hint: "toolgate lock writes it"})
	}
}

// settings gives the toolgate object, or nil.
func (l *loader) settings() *tree.Node { return l.root.Get("toolgate") }

// open reads and parses a file that must be one object; nil when it is not.
func (l *loader) open(name, root, hint string) *tree.Node {
	f, cause := l.readNamed(name)
	if cause != "" {
		l.Faults = append(l.Faults, Fault{File: name, Message: cause, Hint: hint})
		return nil
	}
	return l.ParseObject(f, root)
}

// readNamed reads a file. The cause says why it cannot be read, "" if it can.
func (l *loader) readNamed(name string) (f *tree.File, cause string) {
	f = &tree.File{Name: name, Path: absolute(name)}
	l.Files = append(l.Files, f)
	data, err := l.opts.ReadFile(f.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return f, "there is no such file"
	}
	if named, ok := errors.AsType[*fs.PathError](err); ok {
		err = named.Err
	}
	if err != nil {
		return f, fmt.Sprintf("reading it: %v", err)
	}
	f.Data = slices.Clone(data)
	return f, ""
}

// ReadFile reads a regular file of at most 1 MiB. Load reads with it unless Options say
// otherwise.
func ReadFile(path string) ([]byte, error) { return files.Read(path, 1<<20) }

// absolute gives the absolute form of a path that comes from a flag; "" stays "".
func absolute(path string) string {
	if abs, err := filepath.Abs(path); err == nil && path != "" {
		return abs
	}
	return path
}
