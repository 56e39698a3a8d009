package config

import (
	_ "embed"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/toolgate/toolgate/internal/schema"
	"github.com/toolgate/toolgate/internal/tree"
)

// Client says how long one kind of client may be kept waiting for a decision, and how
// its model is shown errors and results.
type Client struct {
	// Name is the clientInfo.name that it fits, without regard to case; "*" at the
	// end stands for any rest. "" = any, when Transport says something.
	Name      string         `json:"name"`
	Transport string         `json:"transport"` // http, stdio, ndjson or rest; "" = any
	Hold      *time.Duration `json:"hold"`      // how long when nothing else says; nil = not said
	Longest   *time.Duration `json:"longest"`   // the most, whatever else says; nil = no bound
	Errors    string         `json:"errors"`    // of tool calls: result, a dialect, or "" = as the route does
	Results   string         `json:"results"`   // in place of Config.Results; "" = not said
}

//go:embed clients.json
var knownClients []byte

// KnownClients gives the built-in profiles. The first that fits a client counts.
// The caller must not change them.
var KnownClients = sync.OnceValue(func() []Client {
	l := &loader{cfg: defaults(), opts: Options{Getenv: func(string) (string, bool) { return "", false }}}
	clients := l.profiles(&tree.File{Name: "clients.json", Data: knownClients}, nil)
	if len(l.Faults) > 0 { // a test reads the embedded file
		panic("reading the embedded client profiles: " + (&Faults{List: l.Faults}).Error())
	}
	return clients
})

// profiles reads a file of client profiles, which must meet s; nil = a test has checked
// that. It gives an empty list, never nil, when the file has none or is refused.
func (l *loader) profiles(f *tree.File, s *schema.Own) []Client {
	var read struct {
		Clients []Client `json:"clients"`
	}
	if root := l.Parse(f, ""); root != nil {
		l.expandAll(root, nil)
		if s != nil {
			l.Check(root, s)
		}
		l.decode(root, &read)
		for i, c := range read.Clients {
			n := root.At("clients", strconv.Itoa(i))
			if n.Kind != tree.Object {
				continue
			}
			if (n.Get("name") == nil || c.Name == "*") && n.Get("transport") == nil {
				l.Fault(n, "fits every client", "give it a name or a transport; approvals.hold is for all")
			}
			if c.Hold != nil && c.Longest != nil && *c.Hold > *c.Longest {
				l.Fault(n.Get("hold"), "is longer than longest", "hold less, or raise longest")
			}
		}
	}
	return append([]Client{}, read.Clients...)
}

// openNamed reads the file that n names, relative to n's own. It gives nil, with
// a fault at the name, when that fails.
func (l *loader) openNamed(n *tree.Node) *tree.File {
	f, cause := l.readNamed(n.Resolve(n.Value))
	if cause != "" {
		l.Fault(n, "names a file that cannot be used: "+cause, "")
		return nil
	}
	f.Name = n.Text // as written: a variable in it is not for people
	if !filepath.IsAbs(f.Name) {
		f.Name = filepath.Join(filepath.Dir(n.File.Name), f.Name)
	}
	return f
}
