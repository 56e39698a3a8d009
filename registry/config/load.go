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
	"slices"
	"time"

	"github.com/toolgate/toolgate/internal/files"
	"github.com/toolgate/toolgate/registry/dialect"
	"github.com/toolgate/toolgate/registry/lock"
)

// loader is one reading. It collects everything that is wrong.
type loader struct {
	opts        Options
	files       []*file // in the order of reading
	faults      []Fault
	warnings    []Warning
	cfg         *Config
	root        *node           // what mcp.json and the overlay say to us
	entries     string          // the member of root with the servers; "" = none
	client      dialect.Client  // whose form the servers have; zero = not known
	own         bool            // the file of the servers has settings too
	given       []string        // variables of inputs that somebody gives a value
	inputs      []Input         // that the file describes
	asked       string          // ID of the dialect that somebody says the file has; "" = none
	foreignFile bool            // the file is a client's, and names of servers are made to fit
	leftOut     []string        // servers whose transport toolgate does not have
	noted       map[string]bool // what has been said of a file and need not be said again
}

// Load reads mcp.json and the overlay, and fills in the defaults. The error is
// always *Faults, with everything that is wrong; there is no Config then.
func Load(opts Options) (*Config, error) {
	l := &loader{opts: opts.withDefaults(), cfg: defaults()}
	l.read()
	if len(l.faults) > 0 {
		slices.SortStableFunc(l.faults, l.before)
		return nil, &Faults{List: l.faults}
	}
	slices.SortStableFunc(l.warnings, l.before)
	l.cfg.Warnings, l.cfg.SecretFiles = l.warnings, l.secretFiles()
	sum := sha256.New()
	for _, f := range l.files {
		if !slices.Contains(l.cfg.Files, f.path) {
			l.cfg.Files = append(l.cfg.Files, f.path)
		}
		one := sha256.Sum256(f.data)
		sum.Write(one[:])
	}
	l.cfg.SHA256 = hex.EncodeToString(sum.Sum(nil))
	return l.cfg, nil
}

func (o Options) withDefaults() Options {
	o.Path = cmp.Or(o.Path, "mcp.json")
	if o.Getenv == nil {
		o.Getenv = os.LookupEnv
	}
	if o.ReadFile == nil {
		o.ReadFile = ReadFile
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
		Audit:      Audit{Durability: "sync", ReserveMiB: 64},
		Errors:     "gateway",
		Results:    "compact",
		Sandbox:    "auto",
		RetryAfter: time.Second,
		Shutdown:   Shutdown{Drain: 20 * time.Second},
		Envelope:   "mcp",
	}
}

// read does the whole reading: both files into one tree, the tree against the
// schema, then into structs, and at last what only code can say.
func (l *loader) read() {
	l.readRoot()
	l.expandRoot()
	l.checkShape(l.root, fileSchema())
	l.decode(l.settings(), l.cfg)
	l.finishSettings()
	l.readServers()
	l.readLock()
	l.overrides()
}

// readRoot reads both files into one tree.
func (l *loader) readRoot() {
	mcp := l.open(l.opts.Path, "", "toolgate init makes one; --config names another file")
	l.root = &node{kind: kindObject, file: l.files[0]}
	if mcp != nil {
		l.root.members = l.ours(mcp)
	}
	if l.opts.Overlay != "" {
		overlay := l.open(l.opts.Overlay, "toolgate", "write one, or leave out --overlay")
		l.addOverlay(overlay)
	}
}

// readLock reads the lock next to mcp.json, if there is one. A server that is
// pinned by it makes the file one to watch before it exists.
func (l *loader) readLock() {
	l.cfg.LockPath = filepath.Join(filepath.Dir(l.files[0].path), lock.Name)
	data, err := l.opts.ReadFile(l.cfg.LockPath)
	missing := errors.Is(err, fs.ErrNotExist)
	if missing && !slices.ContainsFunc(l.cfg.Servers, func(s Server) bool { return s.Pin == PinStrict }) {
		return
	}
	l.files = append(l.files, &file{name: lock.Name, path: l.cfg.LockPath, data: slices.Clone(data)})
	if missing {
		return
	}
	if err == nil {
		l.cfg.Lock, err = lock.Parse(data)
	}
	if err != nil {
		l.faults = append(l.faults, Fault{File: lock.Name, Message: err.Error(), Hint: "toolgate lock writes it"})
	}
}

// settings gives the toolgate object, or nil.
func (l *loader) settings() *node { return l.root.get("toolgate") }

// addOverlay joins the overlay with the member toolgate.
func (l *loader) addOverlay(overlay *node) {
	switch own := l.settings(); {
	case overlay == nil:
	case own == nil:
		overlay.key = "toolgate"
		l.root.members = append(l.root.members, overlay)
	case own.kind == kindObject:
		l.merge(own, overlay)
	}
}

// open reads and parses a file that must be one object; nil when it is not.
func (l *loader) open(name, root, hint string) *node {
	f, cause := l.readNamed(name)
	if cause != "" {
		l.faults = append(l.faults, Fault{File: name, Message: cause, Hint: hint})
		return nil
	}
	return l.parseObject(f, root)
}

// readNamed reads a file. The cause says why it cannot be read, "" if it can.
func (l *loader) readNamed(name string) (f *file, cause string) {
	f = &file{name: name, path: absolute(name)}
	l.files = append(l.files, f)
	data, err := l.opts.ReadFile(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		return f, "there is no such file"
	}
	if named, ok := errors.AsType[*fs.PathError](err); ok {
		err = named.Err
	}
	if err != nil {
		return f, fmt.Sprintf("reading it: %v", err)
	}
	f.data = slices.Clone(data)
	return f, ""
}

// ReadFile reads a regular file of at most 1 MiB. Load reads with it unless Options say
// otherwise.
func ReadFile(path string) ([]byte, error) { return files.Read(path, maxFileBytes) }

// merge adds the members of the overlay to the member toolgate, key by key. A key
// that both have is a fault, even with equal values.
func (l *loader) merge(to, from *node) {
	for _, m := range from.members {
		i := slices.IndexFunc(to.members, func(o *node) bool { return fold(o.key) == fold(m.key) })
		if i < 0 {
			to.members = append(to.members, m)
			continue
		}
		first := to.members[i]
		if first.key == m.key && first.kind == kindObject && m.kind == kindObject {
			l.merge(first, m)
			continue
		}
		line, _ := first.file.position(first.keyAt)
		l.fault(m.named(), fmt.Sprintf("is set in %s:%d too", first.file.name, line), "keep one of them")
	}
}

// absolute gives the absolute form of a path that comes from a flag; "" stays "".
func absolute(path string) string {
	if abs, err := filepath.Abs(path); err == nil && path != "" {
		return abs
	}
	return path
}

// resolve gives the absolute form of a path that n names; "" stays "".
func (n *node) resolve(path string) string {
	switch {
	case path == "":
		return ""
	case filepath.IsAbs(path):
		return filepath.Clean(path)
	}
	return filepath.Join(filepath.Dir(n.file.path), path)
}

// fault reports a value; nothing when there is none.
func (l *loader) fault(n *node, message, hint string) {
	if n == nil {
		return
	}
	l.faults = append(l.faults, *faultAt(n, message, hint))
}

func (l *loader) warn(n *node, message, hint string) {
	l.warnings = append(l.warnings, *faultAt(n, message, hint))
}

func faultAt(n *node, message, hint string) *Fault {
	line, column := n.file.position(n.offset)
	return &Fault{File: n.file.name, Line: line, Column: column, Path: n.path, Message: message, Hint: hint}
}

// before orders by file in the order of reading, then by position.
func (l *loader) before(a, b Fault) int {
	rank := func(f Fault) int {
		if i := slices.IndexFunc(l.files, func(o *file) bool { return o.name == f.File }); i >= 0 {
			return i
		}
		return len(l.files) // a flag is no file
	}
	return cmp.Or(rank(a)-rank(b), a.Line-b.Line, a.Column-b.Column)
}
