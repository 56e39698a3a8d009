package config

import (
	_ "embed"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// Client says how long one kind of client may be kept waiting for a decision.
type Client struct {
	// Name is the clientInfo.name that it fits, without regard to case; "*" at the
	// end stands for any rest. "" = any, when Transport says something.
	Name      string
	Transport string         // http, stdio, ndjson or rest; "" = any
	Hold      *time.Duration // how long when nothing else says; nil = not said
	Longest   *time.Duration // the most, whatever else says; nil = no bound
}

//go:embed clients.json
var knownClients []byte

// KnownClients gives the clients that toolgate knows of itself, the first that
// fits being the one that counts. The caller must not change them.
var KnownClients = sync.OnceValue(func() []Client {
	l := &loader{cfg: defaults(), opts: Options{Getenv: func(string) (string, bool) { return "", false }}}
	clients := l.profiles(&file{name: "clients.json", data: knownClients})
	if len(l.faults) > 0 { // a test reads the embedded file
		panic("reading the embedded client profiles: " + (&Faults{List: l.faults}).Error())
	}
	return clients
})

// clients reads the file that takes the place of the embedded profiles.
func (l *loader) clients(n *node) {
	if f := l.beside(n); f != nil {
		l.cfg.Approvals.Clients = l.profiles(f)
	}
}

// profiles reads a file of client profiles. It gives an empty list, never nil,
// when the file has none or is refused.
func (l *loader) profiles(f *file) []Client {
	list := []Client{}
	root := l.parse(f, "")
	if root == nil {
		return list
	}
	l.object(root, fields{"clients": func(n *node) {
		l.list(n, func(item *node) { list = append(list, l.profile(item)) })
	}})
	l.require(root, "clients", "the list of profiles, may be empty")
	return list
}

// profile reads one entry. Basis and source are for people.
func (l *loader) profile(n *node) (c Client) {
	var forPeople string
	l.object(n, fields{
		"name":      l.filledTo(&c.Name),
		"transport": l.oneOf(&c.Transport, "http", "stdio", "ndjson", "rest"),
		"hold":      l.optional(&c.Hold),
		"longest":   l.optional(&c.Longest),
		"basis":     l.oneOf(&forPeople, "known", "assumed"),
		"source":    l.filledTo(&forPeople),
	})
	if n.kind != kindObject {
		return c
	}
	if (n.get("name") == nil || c.Name == "*") && n.get("transport") == nil {
		l.fault(n, "fits every client", "give it a name or a transport; approvals.hold is for all")
	}
	if i := strings.IndexByte(c.Name, '*'); i >= 0 && i < len(c.Name)-1 {
		l.fault(n.get("name"), `has "*" before its end`, "only the end of a name may be left open")
	}
	if c.Hold != nil && c.Longest != nil && *c.Hold > *c.Longest {
		l.fault(n.get("hold"), "is longer than longest", "hold less, or raise longest")
	}
	return c
}

// optional reads a duration that may be 0 and is not the same as none.
func (l *loader) optional(to **time.Duration) func(*node) {
	return func(n *node) {
		d := time.Duration(-1)
		if l.span(&d, 0)(n); d >= 0 {
			*to = &d
		}
	}
}

// beside reads the file that n names, relative to n's own. It gives nil, with a
// fault at the name, when that fails.
func (l *loader) beside(n *node) *file {
	name, ok := l.filled(n)
	if !ok {
		return nil
	}
	before := len(l.faults)
	f := l.readNamed(n.resolve(name))
	if len(l.faults) > before {
		// The place to mend is the key that names the file.
		last := l.faults[before]
		l.faults = l.faults[:before]
		l.files = l.files[:len(l.files)-1]
		l.fault(n, "names a file that cannot be used: "+last.Message, "")
		return nil
	}
	f.name = n.text // as written: a variable in it is not for people
	if !filepath.IsAbs(f.name) {
		f.name = filepath.Join(filepath.Dir(n.file.name), f.name)
	}
	return f
}
