package config

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

// loader is one reading. It collects everything that is wrong.
type loader struct {
	opts      Options
	files     []*file // in the order of reading
	faults    []Fault
	warnings  []Warning
	cfg       *Config
	root      *node  // what mcp.json and the overlay say to us
	container string // the member of root with the servers; "" = none
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
	slices.SortStableFunc(l.warnings, func(a, b Warning) int { return l.before(Fault(a), Fault(b)) })
	l.cfg.Warnings = l.warnings
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
	if o.Path == "" {
		o.Path = "mcp.json"
	}
	if o.Getenv == nil {
		o.Getenv = os.LookupEnv
	}
	if o.ReadFile == nil {
		o.ReadFile = readFile
	}
	return o
}

func defaults() *Config {
	return &Config{
		Listen:    DefaultListen,
		Admin:     DefaultAdmin,
		Limits:    Limits{Default: &Rate{Count: 60, Per: defaultPer, Burst: 60}},
		Policy:    Policy{PolicySource: PolicySource{Timeout: DefaultPolicyTimeout}, Verify: Verify{Sample: DefaultSample}},
		Approvals: Approvals{TTL: DefaultTTL, MaxLive: DefaultMaxLive},
		Console:   Console{Session: DefaultSession},
		Artifacts: Artifacts{TTL: DefaultArtifactTTL, MaxMiB: DefaultMaxMiB, InlineKiB: DefaultInlineKiB},
		Audit:     Audit{Durability: "sync"},
		Errors:    "gateway",
		Results:   "compact",

		RetryAfter: DefaultRetryAfter,
		Envelope:   "mcp",
	}
}

// read does the whole reading: both files into one tree, the tree against the
// schema, then into structs, and at last what only code can say.
func (l *loader) read() {
	mcp := l.open(l.opts.Path, "", "write one, or name it with --config")
	l.root = &node{kind: kindObject, file: l.files[0]}
	if mcp != nil {
		l.root.members = l.ours(mcp)
	}
	if l.opts.Overlay != "" {
		overlay := l.open(l.opts.Overlay, "toolgate", "write one, or leave out --overlay")
		l.addOverlay(overlay)
	}
	l.expandRoot()
	l.checkShape(l.root, fileSchema())
	l.decode(l.settings(), l.cfg)
	l.finishSettings()
	l.readServers()
	l.overrides()
}

// settings gives the toolgate object, or nil.
func (l *loader) settings() *node { return l.root.get("toolgate") }

// addOverlay joins the overlay with the member toolgate.
func (l *loader) addOverlay(overlay *node) {
	for i, m := range l.root.members {
		if m.key == "toolgate" && overlay != nil {
			if m.value.kind == kindObject {
				l.root.members[i].value = l.merge(m.value, overlay)
			}
			return
		}
	}
	if overlay != nil {
		l.root.members = append(l.root.members, member{key: "toolgate", value: overlay})
	}
}

// open reads and parses a file that must be one object; nil when it is not.
func (l *loader) open(name, root, hint string) *node {
	f := l.readNamed(name)
	if f.data == nil {
		l.faults[len(l.faults)-1].Hint = hint
		return nil
	}
	n := l.parse(f, root)
	if n != nil && n.kind != kindObject {
		l.fault(n, "is not an object", "the file is one { … }")
		return nil
	}
	return n
}

// readNamed reads a file. When that fails, the last fault says so and data is nil.
func (l *loader) readNamed(name string) *file {
	f := &file{name: name, path: name}
	if abs, err := filepath.Abs(name); err == nil {
		f.path = abs
	}
	l.files = append(l.files, f)
	data, err := l.opts.ReadFile(f.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		l.faults = append(l.faults, Fault{File: name, Message: "there is no such file"})
	case err != nil:
		var named *fs.PathError
		if errors.As(err, &named) {
			err = named.Err
		}
		l.faults = append(l.faults, Fault{File: name, Message: fmt.Sprintf("reading it: %v", err)})
	default:
		f.data = append([]byte{}, data...)
	}
	return f
}

var (
	errNotRegular = errors.New("it is not a regular file")
	errTooBig     = fmt.Errorf("it is larger than %d bytes", maxFileBytes)
)

// readFile reads a regular file of at most maxFileBytes.
func readFile(path string) ([]byte, error) {
	// A pipe would block the opening: look before.
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errNotRegular
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFileBytes+1))
	if err == nil && len(data) > maxFileBytes {
		return nil, errTooBig
	}
	return data, err
}

// merge joins the toolgate member and the overlay, key by key. Only what one of
// them says is taken: two opinions on one key are a fault, even equal ones.
func (l *loader) merge(a, b *node) *node {
	out := *a
	out.members = slices.Clone(a.members)
	for _, m := range b.members {
		i := slices.IndexFunc(out.members, func(o member) bool { return fold(o.key) == fold(m.key) })
		switch {
		case i < 0:
			out.members = append(out.members, m)
		case out.members[i].key == m.key && out.members[i].value.kind == kindObject && m.value.kind == kindObject:
			out.members[i].value = l.merge(out.members[i].value, m.value)
		default:
			line, _ := out.members[i].value.file.position(out.members[i].offset)
			l.faultAt(m.value.file, m.offset, m.value.path,
				fmt.Sprintf("is set in %s:%d too", out.members[i].value.file.name, line), "keep one of them")
		}
	}
	return &out
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
	l.faultAt(n.file, n.offset, n.path, message, hint)
}

func (l *loader) faultAt(f *file, offset int, path, message, hint string) {
	l.faults = append(l.faults, faultAt(f, offset, path, message, hint))
}

func (l *loader) warn(n *node, message, hint string) {
	l.warnAt(n.file, n.offset, n.path, message, hint)
}

func (l *loader) warnAt(f *file, offset int, path, message, hint string) {
	l.warnings = append(l.warnings, Warning(faultAt(f, offset, path, message, hint)))
}

func faultAt(f *file, offset int, path, message, hint string) Fault {
	line, column := f.position(offset)
	return Fault{File: f.name, Line: line, Column: column, Path: path, Message: message, Hint: hint}
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
