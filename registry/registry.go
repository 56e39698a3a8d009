// Package registry holds the catalogue: which tools the configured upstreams
// offer, with their compiled schemas and pins, and the one way in which a
// judged call reaches an upstream, Registry.Forward.
package registry

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/toolgate/toolgate/internal/sandbox"
	"github.com/toolgate/toolgate/internal/span"
	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/internal/text"
	"github.com/toolgate/toolgate/internal/wait"
	"github.com/toolgate/toolgate/registry/config"
	"github.com/toolgate/toolgate/registry/lock"
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
	// Sandbox starts stdio upstreams; nil means one that hides nothing.
	Sandbox *sandbox.Host
	// Accepted records the definitions of one server that are about to be accepted;
	// its error keeps them out. Nil records nothing.
	Accepted func([]Acceptance) error
	// Changed records the definitions of one server that have changed since they were
	// accepted, each once; its error keeps the server's tools out until it is nil. Nil
	// records nothing.
	Changed func([]Change) error
	// Ended receives each connection to a server that was a session of MCP and is over.
	// Nil discards.
	Ended func(span.Session)
	// Crowded is called for each notification of a server that is dropped because its client is
	// too slow. It must not block. Nil discards.
	Crowded func(server string)
	// Credentials finds those of callers at servers where each has a credential of his own. Required
	// with such a server.
	Credentials Credentials
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
	tasks     sync.WaitGroup
	life      context.Context // ends with Close
	end       context.CancelFunc

	mu       sync.Mutex // protects the fields below; held while tools are built and published
	entries  []*entry
	lock     *lock.File // of the configuration, nil for none
	onChange []func()
	closed   bool

	keepMu sync.Mutex // held while what a server listed is kept, so that the last is

	listMu  sync.Mutex // protects onLists
	onLists []func(server, method string)
}

// entry is one configured server. The entries of the Registry are protected by
// Registry.mu; a Catalogue has copies, which do not change.
type entry struct {
	server   *upstream.Server // nil when disabled, and with people
	people   *people          // nil but where each caller has a credential of his own
	shared   *sharedTokens    // nil but where one grant serves all callers
	isolated bool             // connections may offer other tools than the shared one
	since    time.Time        // when the entry was made

	cfg      config.Server
	listed   upstream.Listing                // last; Own is what only connections of sessions have listed since
	seen     bool                            // listed is not zero
	fresh    bool                            // server itself has listed that, and not an earlier one
	known    map[string][]upstream.Condition // :: form of a definition ⇒ for whom it is in listed
	variants map[string]bool                 // :: tool and fingerprint ⇒ accepted for some clients
	names    map[string]bool                 // :: tool ⇒ it is in listed.Tools; of an earlier list false; nil before the first of server
	tools    []*Tool
	warnings []string
}

// maxNames bounds how many names of tools are remembered of one server.
const maxNames = 20_000

// New makes a Registry without upstreams; Apply gives it some.
func New(opts Options) *Registry {
	if opts.Now == nil {
		opts.Now = time.Now
	}
	if opts.Ended == nil {
		opts.Ended = func(span.Session) {}
	}
	if opts.Crowded == nil {
		opts.Crowded = func(string) {}
	}
	opts.Logger = cmp.Or(opts.Logger, hclog.NewNullLogger())
	r := &Registry{opts: opts, log: opts.Logger, schemas: NewSchemaRegistry()}
	r.life, r.end = context.WithCancel(context.Background())
	r.pins = OpenPins(opts.DB, opts.Now, opts.Accepted)
	r.pins.accepted, r.pins.changed = r.recheck, r.definitionsChanged
	r.catalogue.Store(newCatalogue(nil))
	r.tasks.Go(r.poll)
	return r
}

// definitionsChanged logs and records definitions of one server that have changed since they
// were accepted.
func (r *Registry) definitionsChanged(all []Change) error {
	if r.opts.Changed != nil {
		if err := r.opts.Changed(all); err != nil {
			return err
		}
	}
	for _, c := range all {
		r.log.Warn("a tool is withheld: its definition has changed since it was accepted", "server", c.Server, "tool", label(c.Tool, c.Condition), "differs_first_in", c.Differs,
			"tools", max(1, c.Count), "hint", "toolgate tool diff "+c.Server+" "+c.Tool)
	}
	return nil
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
	r.listMu.Lock()
	defer r.listMu.Unlock()
	r.onLists = append(r.onLists, f)
}

// listChanged reports a changed list of a server.
func (r *Registry) listChanged(server, method string) {
	r.listMu.Lock()
	listeners := r.onLists
	r.listMu.Unlock()
	for _, f := range listeners {
		f(server, method)
	}
}

// Apply starts, keeps, drains and stops upstreams so that they are those of
// cfg, and returns without waiting for any of them. An upstream whose Identity
// is unchanged keeps its connections, whatever else about it changed; one that
// is gone or another finishes its calls within its timeout and is then
// stopped. The error is ErrClosed after Close, and nothing else.
func (r *Registry) Apply(_ context.Context, cfg *config.Config) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return ErrClosed
	}
	old := make(map[string]*entry, len(r.entries))
	for _, e := range r.entries {
		old[e.cfg.Name] = e
	}
	r.entries, r.lock = nil, cfg.Lock
	for _, server := range cfg.Servers {
		e := old[server.Name]
		if e != nil && e.cfg.Identity() == server.Identity() && e.cfg.Disabled == server.Disabled {
			e.cfg = server
			delete(old, server.Name)
		} else {
			e = r.start(server)
		}
		r.entries = append(r.entries, e)
	}
	r.rebuildLocked(false, r.entries...)
	for _, e := range old {
		r.retire(e)
	}
	return nil
}

// start makes the entry of a server and starts it.
func (r *Registry) start(cfg config.Server) *entry {
	e := &entry{cfg: cfg, since: r.opts.Now()}
	if cfg.Disabled {
		return e
	}
	if l := r.recall(cfg); l != nil && !cfg.Credential.Personal() {
		e.listed, e.seen = *l, true
	}
	opts := upstream.Options{
		Version: r.opts.Version, Sandbox: r.opts.Sandbox, Logger: r.log, Now: r.opts.Now,
		First: func() bool {
			r.mu.Lock()
			defer r.mu.Unlock()
			return r.first(e.cfg)
		},
		Listed: func(l upstream.Listing) {
			r.update(e, false, func() {
				l.Lists = e.listed.Lists
				e.listed, e.seen, e.fresh = l, true, true
			})
			r.remember(e)
		},
		Lists: e.listed.Lists,
		Kept: func(lists json.RawMessage) {
			r.mu.Lock()
			e.listed.Lists = lists
			r.mu.Unlock()
			r.remember(e)
		},
		// What only some connections listed may be gone, although the shared list is unchanged.
		Relisted:    func() { r.update(e, true, func() { e.listed.Own = nil }) },
		ListChanged: func(method string) { r.listChanged(cfg.Name, method) },
		Ended: func(s span.Session) {
			s.Server = cfg.Name
			r.opts.Ended(s)
		},
		Crowded: func() { r.opts.Crowded(cfg.Name) },
	}
	switch {
	case cfg.Credential.Personal():
		r.startPeople(e, opts)
		return e
	case cfg.Credential != nil && cfg.Credential.Shared:
		e.shared = &sharedTokens{find: func(ctx context.Context) (*Credential, error) { return r.credential(ctx, cfg, Downstream{}) }}
		opts.Tokens = e.shared
	}
	e.server = upstream.Start(cfg, opts)
	e.isolated = e.server.Isolated()
	return e
}

// retire lets a server's calls finish and stops it, in the background.
func (r *Registry) retire(e *entry) {
	for _, server := range e.end() {
		r.tasks.Go(func() {
			ctx, stop := context.WithTimeout(r.life, e.cfg.Timeout)
			defer stop()
			server.Close(ctx)
		})
	}
}

// end returns the servers of an entry that is over; the caller closes them.
func (e *entry) end() []*upstream.Server {
	if e.people != nil {
		return e.people.close()
	}
	return e.connections()
}

// update changes what a server listed, and rebuilds its tools.
func (r *Registry) update(e *entry, notify bool, change func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change()
	r.rebuildLocked(notify, e)
}

// rebuildLocked makes the tools of entries from what their servers listed, and
// publishes the catalogue. It calls the functions of OnChange if a client may see
// a difference, or notify says so. The caller must hold r.mu, so that an older
// list never follows a newer one.
func (r *Registry) rebuildLocked(notify bool, entries ...*entry) {
	for _, e := range entries {
		e.tools, e.warnings = r.discover(e)
		if e.fresh {
			e.names = namesOf(e.listed.Tools, e.names)
		}
	}
	next := newCatalogue(r.entries)
	if !next.looksLike(r.catalogue.Swap(next)) || notify {
		for _, f := range r.onChange {
			f()
		}
	}
}

// namesOf returns the names in a list, and those of earlier lists. Catalogues share the
// maps, so none is changed.
func namesOf(definitions []json.RawMessage, earlier map[string]bool) map[string]bool {
	if definitions == nil {
		return earlier
	}
	names := make(map[string]bool, len(definitions))
	for _, definition := range definitions {
		if name, ok := upstream.NameOf(definition); ok {
			names[name] = true
		}
	}
	for name := range earlier {
		if len(names) < maxNames && !names[name] {
			names[name] = false
		}
	}
	return names
}

// poll looks at the pins again while one of them keeps a tool back, and for credentials that have
// ended.
func (r *Registry) poll() {
	for wait.For(r.life, wait.Beat(pinPoll)) {
		if r.Catalogue().waitsForPin() {
			r.recheck()
		}
		r.endPeople(r.life)
	}
}

// recheck builds everything again from what was listed.
func (r *Registry) recheck() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.rebuildLocked(false, r.entries...)
}

// Settle waits until every upstream that was never seen has answered, failed or had its
// StartWait, or until ctx ends.
func (r *Registry) Settle(ctx context.Context) { awaitUnseen(ctx, r.Catalogue().running[""], every) }

// every is a condition that all entries meet.
func every(*entry) bool { return true }

// awaitUnseen waits until those of entries that were never seen, and are wanted, have
// answered, failed or had their StartWait, or until ctx ends. It reports whether there
// are any.
func awaitUnseen(ctx context.Context, entries []*entry, wanted func(*entry) bool) (found bool) {
	for _, e := range entries {
		if e.seen || e.server == nil || !wanted(e) {
			continue
		}
		found = true
		select {
		case <-e.server.Started():
		case <-ctx.Done():
		}
	}
	return found
}

// Settled reports whether every upstream has answered, failed or had a second.
func (r *Registry) Settled() bool {
	for _, e := range r.Catalogue().running[""] {
		if e.server == nil {
			continue
		}
		select {
		case <-e.server.Settled():
		default:
			return false
		}
	}
	return true
}

// Restart ends the connections of a server and starts it again; calls under way on them
// fail. It waits until the server has answered, failed or had its StartWait, or until ctx
// ends, and returns the server's state then. Tools stay listed, and calls wait for the
// server's new list. The error is ErrNoServer for a server that does not run.
func (r *Registry) Restart(ctx context.Context, server string) (ServerStatus, error) {
	e := r.Catalogue().entry(server)
	if e == nil {
		return ServerStatus{}, ErrNoServer
	}
	var started []<-chan struct{}
	for _, s := range e.connections() {
		started = append(started, s.Restart())
	}
	for _, done := range started {
		select {
		case <-done:
		case <-ctx.Done():
		}
	}
	all := r.Status()
	i := slices.IndexFunc(all, func(s ServerStatus) bool { return s.Name == server })
	if i < 0 {
		return ServerStatus{}, ErrNoServer
	}
	return all[i], nil
}

// SessionConnection is the connection to a server that one downstream session has for itself; see
// package upstream.
type SessionConnection = upstream.SessionConnection

// SessionConnections returns the connections that belong to one downstream session each.
func (r *Registry) SessionConnections() (all []SessionConnection) {
	for _, e := range r.Catalogue().running[""] {
		for _, s := range e.connections() {
			all = append(all, s.Connections()...)
		}
	}
	return all
}

// EndSession closes the upstream connections of one downstream session. Calls
// under way on them fail.
func (r *Registry) EndSession(session string) {
	for _, e := range r.Catalogue().running[""] {
		for _, s := range e.connections() {
			s.EndSession(session)
		}
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
		for _, e := range r.Catalogue().running[""] {
			for _, s := range e.end() {
				servers.Go(func() { s.Close(ctx) })
			}
		}
		servers.Wait()
		r.end()
	}
	r.tasks.Wait()
	return nil
}

// Status returns the state of each configured server, in configured order.
func (r *Registry) Status() []ServerStatus {
	c := r.Catalogue()
	out := make([]ServerStatus, 0, len(c.entries))
	for _, e := range c.entries {
		s := e.status(c.byServer[e.cfg.Name], c.shadows[e.cfg.Name])
		s.Sandbox, s.Transport = r.Confinement(e.cfg), e.cfg.Type
		out = append(out, s)
	}
	return out
}

// Stderr returns the last lines that the processes of a server wrote to stderr, without the secrets
// that it was given; nil for a server that does not run.
func (r *Registry) Stderr(server string) []string {
	if e := r.Catalogue().entry(server); e != nil && e.server != nil {
		return e.server.Stderr()
	}
	return nil
}

// Redacted returns, by server, how many messages had a secret that toolgate gave the
// server, and lost it on their way.
func (r *Registry) Redacted() map[string]float64 {
	out := make(map[string]float64)
	for _, e := range r.Catalogue().running[""] {
		_, redacted := e.running()
		out[e.cfg.Name] = float64(redacted)
	}
	return out
}

// Confinement says how the command of a server is confined, "" for a server without
// one.
func (r *Registry) Confinement(cfg config.Server) string {
	if cfg.Command == "" || cfg.Disabled || r.opts.Sandbox == nil {
		return ""
	}
	return r.opts.Sandbox.Confinement(upstream.Confined(cfg))
}

// status returns the state of one server with its tools, and with warnings about
// their names.
func (e *entry) status(tools []*Tool, shadows []string) ServerStatus {
	if e.cfg.Disabled {
		return ServerStatus{Name: e.cfg.Name, State: "disabled", Since: e.since}
	}
	s, redacted := e.running()
	out := ServerStatus{Name: e.cfg.Name, State: string(s.State), Since: s.Since, Dropped: s.Dropped, Revision: s.Revision, Restarts: max(s.Starts-1, 0), Sessions: s.Sessions, Warnings: slices.Concat(e.warnings, shadows)}
	offer := offerOf(e.cfg, 0, e.listed.Capabilities)
	out.Capabilities, out.Extensions = declaredIn(offer.Capabilities), declaredIn(offer.member("extensions"))
	if s.Err != nil {
		out.Error = s.Err.Error()
	}
	if e.cfg.Isolation == config.IsolationShared && e.server != nil && e.server.Both() {
		out.Warnings = append(out.Warnings, "the server speaks MCP with sessions and without, and has a connection for each, although isolation is shared: "+
			"clients of the two see no state of each other's\nhint: set revision to one that the server speaks")
	}
	if redacted > 0 {
		out.Warnings = append(out.Warnings, text.Count(int(redacted), "message")+" of the server had a secret that it was given; agents do not see it")
	}
	if kinds := e.unseenInIntroduction(); kinds != nil {
		out.Warnings = append(out.Warnings, "its title or instructions have hidden characters: "+strings.Join(kinds, ", "))
	}
	serving := make(map[string]bool)
	for _, t := range tools {
		if t.Quarantine == "" {
			serving[t.Name] = true
			continue
		}
		if out.Quarantined++; out.Withheld == nil {
			out.Withheld = make(map[string]string)
		}
		out.Withheld[label(t.Name, t.Condition)] = t.Quarantine
		out.Warnings = append(out.Warnings, fmt.Sprintf("tool %s is quarantined: %s", label(t.Name, t.Condition), t.Quarantine))
	}
	out.Tools = len(serving)
	return out
}
