package registry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/toolgate/toolgate/registry/config"
	"github.com/toolgate/toolgate/registry/credential"
	"github.com/toolgate/toolgate/registry/upstream"
)

// Credentials finds those of callers at servers. *credential.Broker implements it. Implementations are
// safe for concurrent use.
type Credentials interface {
	// Find returns the credential of a caller at a server. The error is a *Missing, or says that the
	// credential cannot be looked up.
	Find(ctx context.Context, server config.Server, caller credential.Caller) (*Credential, error)
	// Ended returns those of ids whose credential does not count any longer.
	Ended(ctx context.Context, ids []string) ([]string, error)
}

const (
	maxPeople  = 4096             // credentials of one server with connections at a time
	idlePeople = 10 * time.Minute // how long the connections of one are kept that nobody uses
)

// people are the connections to a server where each caller has a credential of his own: one
// upstream.Server for each credential, so that no request, list or stream of one caller ever uses
// the connection of another. It is safe for concurrent use.
type people struct {
	start func(*Credential) *upstream.Server

	mu      sync.Mutex             // protects the fields below
	servers map[string]*connection // :: Credential.ID
	closed  bool
}

// connection is the server of one credential. The mutex of people protects it.
type connection struct {
	server *upstream.Server
	used   time.Time
}

// open returns the server of a credential, starting it if needed.
func (p *people) open(c *Credential, now time.Time) (*upstream.Server, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	known := p.servers[c.ID]
	switch {
	case p.closed:
		return nil, errors.New("the server is being stopped")
	case known == nil && len(p.servers) >= maxPeople:
		return nil, fmt.Errorf("%d people are connected to the server, which is the most\nhint: try again later", maxPeople)
	case known == nil:
		known = &connection{server: p.start(c)}
		p.servers[c.ID] = known
	}
	known.used = now
	return known.server, nil
}

// all returns the servers that run.
func (p *people) all() (out []*upstream.Server) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.servers {
		out = append(out, c.server)
	}
	return out
}

// ids returns the credentials whose servers run.
func (p *people) ids() (out []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for id := range p.servers {
		out = append(out, id)
	}
	return out
}

// remove forgets the servers of credentials that have ended, and those that nobody has used since
// before and that have no sessions. It returns them: the caller closes them.
func (p *people) remove(ended []string, before time.Time) (gone []*upstream.Server) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for id, c := range p.servers {
		if slices.Contains(ended, id) || c.used.Before(before) && c.server.Status().Sessions == 0 {
			delete(p.servers, id)
			gone = append(gone, c.server)
		}
	}
	return gone
}

// close refuses new servers and returns those that run: the caller closes them.
func (p *people) close() []*upstream.Server {
	running := p.all()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	clear(p.servers)
	return running
}

// Credential returns what the requests of a caller to a server are made with, nil where they are
// made with what mcp.json says. The error is a *Missing, or says that the credential cannot be
// looked up: then no request can be made.
func (r *Registry) Credential(ctx context.Context, server string, from Downstream) (*Credential, error) {
	e := r.Catalogue().entry(server)
	if e == nil || e.people == nil && e.shared == nil {
		return nil, nil
	}
	return r.credential(ctx, e.cfg, from)
}

// credential returns that of a caller at a server. A caller without a name has none of his own.
func (r *Registry) credential(ctx context.Context, cfg config.Server, from Downstream) (*Credential, error) {
	if from.Subject == "" && cfg.Credential.Personal() {
		return nil, &Missing{Server: cfg.Name, Reason: "the caller has no name"}
	}
	return r.opts.Credentials.Find(ctx, cfg, credential.Caller{
		Person: credential.Person{Issuer: from.Issuer, Tenant: from.Tenant, Subject: from.Subject}, Token: from.Token,
	})
}

// serverOf returns the server that the requests of a caller go to. It fails closed: where each
// caller has a credential of his own, the error is a *ForwardError, of the kind Unconnected for one
// who has none.
func (r *Registry) serverOf(ctx context.Context, e *entry, from Downstream) (*upstream.Server, error) {
	if e.people == nil {
		return e.server, nil
	}
	c, err := r.credential(ctx, e.cfg, from)
	if err == nil && from.Credential != "" && from.Credential != c.ID {
		err = &Missing{Server: e.cfg.Name, Reason: "the person has connected anew since the call was judged"}
	}
	if err == nil {
		var server *upstream.Server
		if server, err = e.people.open(c, r.opts.Now()); err == nil {
			return server, nil
		}
	}
	if _, missing := errors.AsType[*Missing](err); missing {
		return nil, &ForwardError{Kind: Unconnected, Err: err}
	}
	return nil, &ForwardError{Kind: Unavailable, Err: err}
}

// connections returns the servers that run for an entry.
func (e *entry) connections() []*upstream.Server {
	switch {
	case e.people != nil:
		return e.people.all()
	case e.server != nil:
		return []*upstream.Server{e.server}
	}
	return nil
}

// running returns the state of an entry that is not disabled, and how many messages had a secret. A
// server where each caller has a credential of his own is ready; its Err is that of some connection
// that is down.
func (e *entry) running() (s upstream.Status, redacted int64) {
	if e.people != nil {
		s = upstream.Status{State: upstream.StateReady, Since: e.since}
	}
	for _, server := range e.connections() {
		now := server.Status()
		redacted += server.Redacted()
		if e.people == nil {
			return now, redacted
		}
		s.Dropped, s.Sessions, s.Revision = s.Dropped+now.Dropped, s.Sessions+now.Sessions, cmp.Or(now.Revision, s.Revision)
		s.Err = cmp.Or(now.Err, s.Err)
	}
	return s, redacted
}

// startPeople makes an entry one whose callers have credentials of their own.
func (r *Registry) startPeople(e *entry, opts upstream.Options) {
	e.isolated = true
	e.listed.Own = r.recallAccepted(e.cfg)
	e.people = &people{servers: make(map[string]*connection), start: func(c *Credential) *upstream.Server {
		opts := opts
		opts.Tokens, opts.Logger = c.Tokens, r.log.With("credential", c.ID)
		opts.First, opts.Lists, opts.Kept = nil, nil, nil
		opts.Listed = func(l upstream.Listing) { r.learnFrom(e, c, l) }
		opts.Relisted = func() { r.update(e, true, func() {}) }
		return upstream.Start(e.cfg, opts)
	}}
}

// recallAccepted returns the accepted definitions of a server whose callers have credentials of
// their own. Nobody has to be connected for them to be listed.
func (r *Registry) recallAccepted(cfg config.Server) (own []upstream.Variant) {
	ctx, stop := context.WithTimeout(context.Background(), pinTimeout)
	defer stop()
	pins, err := r.pins.read(ctx, cfg.Name)
	if err != nil {
		r.log.Warn("reading which definitions of a server are accepted", "server", cfg.Name, "error", err)
	}
	for _, pin := range pins {
		if pin.Server == cfg.Name && pin.accepted != nil {
			own = append(own, upstream.Variant{Condition: upstream.ConditionOfForm(pin.accepted), Definition: pin.accepted, Live: true})
		}
	}
	return own
}

// learnFrom learns what the connection of a credential lists. What a server says to one caller is
// shown to no other, so nothing but definitions, which others see when they are accepted, and the
// server's name is kept.
func (r *Registry) learnFrom(e *entry, c *Credential, l upstream.Listing) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e.listed.Capabilities, e.listed.Info = l.Capabilities, l.Info
	before, first := len(e.listed.Own), !e.fresh
	for _, definition := range l.Tools {
		e.learnOwn(upstream.Variant{Condition: upstream.ConditionOfForm(definition), Definition: definition, Live: true, Unproven: !c.Operator})
	}
	if e.fresh = true; first || c.Operator || len(e.listed.Own) > before {
		r.rebuildLocked(false, e)
	}
}

// learnOwn adds a definition that some people are offered to an entry, unless it is there: its
// condition names it.
func (e *entry) learnOwn(v upstream.Variant) {
	i := slices.IndexFunc(e.listed.Own, func(known upstream.Variant) bool { return known.Condition == v.Condition })
	switch {
	case i < 0 && len(e.listed.Own) < maxOwn:
		e.listed.Own = append(e.listed.Own, v)
	case i >= 0 && e.listed.Own[i].Unproven && !v.Unproven:
		e.listed.Own = slices.Clone(e.listed.Own) // catalogues have the list
		e.listed.Own[i].Unproven = false
	}
}

// sharedTokens are those of a server's one grant, which serves all callers. It is safe for concurrent
// use.
type sharedTokens struct {
	find func(context.Context) (*Credential, error)
	last atomic.Pointer[Credential] // that was found
}

// Token implements credential.Tokens.
func (s *sharedTokens) Token(ctx context.Context) (string, error) {
	c, err := s.find(ctx)
	if err != nil {
		return "", err
	}
	s.last.Store(c)
	return c.Tokens.Token(ctx)
}

// Refused implements credential.Tokens.
func (s *sharedTokens) Refused(token string, challenge []string) {
	if c := s.last.Load(); c != nil {
		c.Tokens.Refused(token, challenge)
	}
}

// endPeople closes the connections of credentials that have ended, and those that nobody uses, as
// long as ctx lasts.
func (r *Registry) endPeople(ctx context.Context) {
	before := r.opts.Now().Add(-idlePeople)
	now, stop := context.WithCancel(ctx)
	stop() // calls under way do not outlive their credential
	for _, e := range r.Catalogue().running[""] {
		var ids []string
		switch {
		case e.people != nil:
			ids = e.people.ids()
		case e.shared != nil && e.shared.last.Load() != nil:
			ids = []string{e.shared.last.Load().ID}
		}
		if len(ids) == 0 {
			continue
		}
		ended, err := r.opts.Credentials.Ended(ctx, ids)
		if err != nil {
			r.log.Warn("looking for credentials that have ended", "server", e.cfg.Name, "error", err)
		}
		if e.people == nil {
			if len(ended) > 0 {
				e.shared.last.Store(nil)
				e.server.Restart()
			}
			continue
		}
		for _, server := range e.people.remove(ended, before) {
			r.tasks.Go(func() { server.Close(now) })
		}
	}
}
