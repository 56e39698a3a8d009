// Package registry holds the catalogue: which tools the configured upstreams
// offer, with their compiled schemas and pins, and the one way in which a
// judged call reaches an upstream, Registry.Forward.
package registry

import (
	"context"
	"encoding/json"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/registry/config"
	"github.com/toolgate/toolgate/registry/upstream"
)

// Options say what a Registry needs. The zero value is valid.
type Options struct {
	// DB keeps the pins; nil keeps them in memory, for the life of the process.
	DB *store.DB
	// Logger receives states, restarts and what upstreams write to stderr; nil
	// discards it.
	Logger hclog.Logger
	// Version is what we tell upstreams of ourselves; "" means "dev".
	Version string
	// Executable is our own binary: it supervises stdio upstreams, and the
	// command "toolgate" means it. "" means os.Executable.
	Executable string
	// MaxAnswerBytes bounds one message of an upstream; 0 means 4 MiB.
	MaxAnswerBytes int
	// SessionTTL is how long an idle session's connection is kept; 0 means 10
	// minutes.
	SessionTTL time.Duration
	// Now is the clock; nil means time.Now.
	Now func() time.Time
}

// pinPoll is how often pins are looked at again while one of them keeps a tool
// back: it may be accepted by another process.
const pinPoll = 2 * time.Second

// Registry runs the upstreams and keeps the catalogue. It is safe for
// concurrent use.
type Registry struct {
	opts      Options
	log       hclog.Logger
	pins      *Pins
	schemas   *SchemaRegistry
	catalogue atomic.Pointer[Catalogue]
	running   atomic.Pointer[fleet]
	tasks     sync.WaitGroup
	life      context.Context // ends with Close
	end       context.CancelFunc

	building sync.Mutex // held while tools are built and published, so that an older list never follows a newer one

	mu       sync.Mutex // protects the fields below; taken after building
	entries  []*entry
	onChange []func()
	onLists  []func(server, method string)
	closed   bool
}

// entry is one configured server.
type entry struct {
	server *upstream.Server // nil when disabled
	since  time.Time        // when a disabled server was seen

	// The fields below are protected by Registry.mu, and written with
	// Registry.building held.
	cfg         config.Server
	definitions []json.RawMessage // as last listed
	own         []json.RawMessage // what only connections of sessions listed since
	known       map[string]bool   // :: fingerprint ⇒ it is one of these two
	tools       []*Tool
	warnings    []string
}

// New makes a Registry without upstreams; Apply gives it some.
func New(opts Options) *Registry {
	if opts.Now == nil {
		opts.Now = time.Now
	}
	if opts.Logger == nil {
		opts.Logger = hclog.NewNullLogger()
	}
	r := &Registry{opts: opts, log: opts.Logger, schemas: NewSchemaRegistry()}
	r.life, r.end = context.WithCancel(context.Background())
	r.pins = OpenPins(opts.DB, opts.Now)
	r.pins.accepted = r.recheck
	r.catalogue.Store(catalogueOf(nil, nil, nil))
	r.running.Store(newFleet(nil))
	r.tasks.Go(r.poll)
	return r
}

// Pins gives the accepted definitions.
func (r *Registry) Pins() *Pins { return r.pins }

// Catalogue gives the current catalogue, never nil.
func (r *Registry) Catalogue() *Catalogue { return r.catalogue.Load() }

// OnChange adds a function to be called when what some client sees of the
// catalogue may have changed. It must return soon and must not call Apply or
// Close.
func (r *Registry) OnChange(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.onChange = append(r.onChange, f)
}

// OnListChanged adds a function to be called when a server says to everybody
// that a list has changed which is not in the catalogue; method is
// notifications/resources/list_changed or notifications/prompts/list_changed.
// It must return soon and must not call Apply or Close.
func (r *Registry) OnListChanged(f func(server, method string)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.onLists = append(r.onLists, f)
}

// listChanged tells whoever wants to know of a list of a server's.
func (r *Registry) listChanged(server, method string) {
	r.mu.Lock()
	tell := r.onLists
	r.mu.Unlock()
	for _, f := range tell {
		f(server, method)
	}
}

// Apply starts, keeps, drains and stops upstreams so that they are those of
// cfg, and returns without waiting for any of them. An upstream whose Identity
// is unchanged keeps its connections, whatever else about it changed; one that
// is gone or another finishes its calls within its timeout and is then
// stopped. The error is ErrClosed after Close, and nothing else.
func (r *Registry) Apply(_ context.Context, cfg *config.Config) error {
	r.building.Lock()
	defer r.building.Unlock()
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return ErrClosed
	}
	old := make(map[string]*entry, len(r.entries))
	for _, e := range r.entries {
		old[e.cfg.Name] = e
	}
	entries := make([]*entry, 0, len(cfg.Servers))
	for _, server := range cfg.Servers {
		e := old[server.Name]
		if e != nil && e.cfg.Identity() == server.Identity() && e.cfg.Disabled == server.Disabled {
			e.cfg = server
			delete(old, server.Name)
		} else {
			e = r.start(server)
		}
		entries = append(entries, e)
	}
	r.entries = entries
	r.running.Store(newFleet(entries))
	r.mu.Unlock()
	for _, e := range old {
		r.retire(e)
	}
	for _, e := range entries {
		r.build(e)
	}
	r.publish()
	return nil
}

// start makes the entry of a server and starts it.
func (r *Registry) start(cfg config.Server) *entry {
	e := &entry{cfg: cfg, since: r.opts.Now()}
	if cfg.Disabled {
		return e
	}
	e.server = upstream.Start(cfg, upstream.Options{
		Version: r.opts.Version, Executable: r.opts.Executable, Logger: r.log, Now: r.opts.Now,
		MaxAnswerBytes: r.opts.MaxAnswerBytes, IdleTTL: r.opts.SessionTTL,
		Listed:      func(definitions []json.RawMessage) { r.listed(e, definitions) },
		Relisted:    func() { r.relisted(e) },
		ListChanged: func(method string) { r.listChanged(cfg.Name, method) },
	})
	return e
}

// retire lets a server's calls finish and stops it, in the background.
func (r *Registry) retire(e *entry) {
	if e.server == nil {
		return
	}
	r.tasks.Go(func() {
		ctx, stop := context.WithTimeout(r.life, e.cfg.Timeout)
		defer stop()
		e.server.Close(ctx)
	})
}

// listed takes a new list of definitions from a server.
func (r *Registry) listed(e *entry, definitions []json.RawMessage) {
	r.building.Lock()
	defer r.building.Unlock()
	r.mu.Lock()
	e.definitions, e.own = definitions, nil
	r.mu.Unlock()
	r.build(e)
	r.publish()
}

// build makes the tools of e from what it listed. The caller holds building.
func (r *Registry) build(e *entry) {
	r.mu.Lock()
	cfg, definitions, own := e.cfg, e.definitions, e.own
	r.mu.Unlock()
	tools, warnings := r.discover(cfg, definitions, own)
	known := make(map[string]bool, len(definitions)+len(own))
	for _, definition := range slices.Concat(definitions, own) {
		known[upstream.Fingerprint(definition)] = true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	e.tools, e.warnings, e.known = tools, warnings, known
}

// publish swaps in the catalogue of the entries as they are now, and tells of it
// if somebody may see the difference. The caller holds building.
func (r *Registry) publish() {
	r.mu.Lock()
	var servers []string
	tools, known := make(map[string][]*Tool), make(map[string]map[string]bool)
	for _, e := range r.entries {
		if e.server != nil {
			servers = append(servers, e.cfg.Name)
			tools[e.cfg.Name], known[e.cfg.Name] = e.tools, e.known
		}
	}
	next := catalogueOf(servers, tools, known)
	var tell []func()
	if !next.looksLike(r.catalogue.Swap(next)) {
		tell = r.onChange
	}
	r.mu.Unlock()
	for _, f := range tell {
		f()
	}
}

// poll looks at the pins again while one of them keeps a tool back.
func (r *Registry) poll() {
	tick := time.NewTicker(pinPoll)
	defer tick.Stop()
	for {
		select {
		case <-r.life.Done():
			return
		case <-tick.C:
			if r.Catalogue().waitsForPin() {
				r.recheck()
			}
		}
	}
}

// recheck builds everything again from what was listed.
func (r *Registry) recheck() {
	r.building.Lock()
	defer r.building.Unlock()
	r.mu.Lock()
	entries := r.entries
	r.mu.Unlock()
	for _, e := range entries {
		r.build(e)
	}
	r.publish()
}

// servers returns the running upstreams.
func (r *Registry) servers() []*running { return (*r.running.Load())[""] }

// Settle waits until every upstream has answered, failed or had a second
// since it was started, or until ctx ends.
func (r *Registry) Settle(ctx context.Context) { r.View(ctx, "", Downstream{}) }

// Settled reports whether Settle would return at once.
func (r *Registry) Settled() bool {
	for _, s := range r.servers() {
		select {
		case <-s.settled:
		default:
			return false
		}
	}
	return true
}

// server finds a running upstream by name.
func (r *Registry) server(name string) *upstream.Server {
	if name == "" {
		return nil // the route of all servers
	}
	for _, s := range (*r.running.Load())[name] {
		return s.Server
	}
	return nil
}

// EndSession closes the upstream connections of one downstream session. Calls
// under way on them fail.
func (r *Registry) EndSession(session string) {
	for _, s := range r.servers() {
		s.EndSession(session)
	}
}

// Close stops every upstream: calls under way may finish until ctx ends. It
// returns when no process and no connection is left, and may be called twice.
func (r *Registry) Close(ctx context.Context) error {
	r.mu.Lock()
	again := r.closed
	r.closed = true
	r.mu.Unlock()
	if !again {
		var servers sync.WaitGroup
		for _, s := range r.servers() {
			servers.Go(func() { s.Close(ctx) })
		}
		servers.Wait()
		r.end()
	}
	r.tasks.Wait()
	return nil
}
