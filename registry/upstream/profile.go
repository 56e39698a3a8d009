package upstream

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/toolgate/toolgate/registry/config"
)

const (
	// maxProfiles bounds the profiles of one server that are remembered.
	maxProfiles = 16
	// profilePatience is how long a list waits for a connection that it has to
	// be asked on.
	profilePatience = 5 * time.Second
)

// Profile is what one connection listed. Servers may offer more tools to
// clients that can do more. It is immutable.
type Profile struct {
	// Tools are the definitions in the order of the server. Of two with one
	// name the first counts, and those without a name are left out.
	Tools []Offer

	prints map[string]string // :: tool name ⇒ fingerprint
}

// Offer is one tool that a connection listed.
type Offer struct {
	Name        string
	Fingerprint string
	Definition  json.RawMessage
}

// newProfile makes a profile of a list.
func newProfile(definitions []json.RawMessage) *Profile {
	p := &Profile{prints: make(map[string]string, len(definitions))}
	for _, definition := range definitions {
		name, ok := NameOf(definition)
		if _, dup := p.prints[name]; !ok || dup {
			continue
		}
		print := Fingerprint(definition)
		p.prints[name] = print
		p.Tools = append(p.Tools, Offer{name, print, definition})
	}
	return p
}

// Offers gives the fingerprint of a tool, "" when it is not offered.
func (p *Profile) Offers(tool string) string {
	if p == nil {
		return ""
	}
	return p.prints[tool]
}

// same reports whether two profiles list the same in the same order.
func (p *Profile) same(other *Profile) bool {
	return other != nil && slices.EqualFunc(p.Tools, other.Tools, func(a, b Offer) bool {
		return a.Name == b.Name && a.Fingerprint == b.Fingerprint
	})
}

// profiles are what the connections of clients listed, by the capabilities
// that they were initialized with. They are protected by Server.mu.
type profiles struct {
	known   map[string]*Profile      // :: capabilities ⇒ what the last such connection listed at first
	order   []string                 // keys of known, the oldest first
	opening map[string]chan struct{} // :: capabilities ⇒ closed when a connection has listed or failed
	missed  map[string]bool          // :: capabilities ⇒ somebody did not wait for that
}

// Isolated reports whether sessions have connections of their own, which may offer
// other tools than the shared one.
func (s *Server) Isolated() bool {
	return s.cfg.Isolation != config.IsolationShared && s.cfg.Type != config.TypeNDJSON
}

// Profile returns what the connection of a client offers or would offer, nil
// when that equals the shared connection. It opens a connection only for
// capabilities that no connection had so far, and waits for it until ctx ends, for
// at most five seconds. Without a connection by then, the client gets what the
// shared connection offers.
func (s *Server) Profile(ctx context.Context, from Downstream) *Profile {
	if from.Session == "" || !s.Isolated() {
		return nil
	}
	p, found := s.knownProfile(from)
	if found {
		return p
	}
	ctx, stop := context.WithTimeout(ctx, profilePatience)
	defer stop()
	if !s.awaitOpening(ctx, string(from.Capabilities)) {
		s.openFor(ctx, from)
	}
	if p, found = s.knownProfile(from); !found {
		s.missProfile(string(from.Capabilities))
	}
	return p
}

// missProfile records that a list was given out while the connection that knows
// better was still being opened.
func (s *Server) missProfile(can string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.profiles.opening[can] != nil {
		s.profiles.missed[can] = true
	}
}

// knownProfile returns the profile of a client, and whether it is known without
// opening a connection.
func (s *Server) knownProfile(from Downstream) (*Profile, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.profiles.known[string(from.Capabilities)]
	if sess := s.slots[from.Session].opened(); sess != nil && !sess.conn.Dead() {
		p = sess.profile.Load()
	}
	switch {
	case p != nil && p == s.listed:
		return nil, true
	case p != nil:
		return p, true
	}
	return nil, s.shared == nil || isEmpty(from.Capabilities)
}

// awaitOpening waits for a connection that is being opened with the same
// capabilities, and reports whether there is one.
func (s *Server) awaitOpening(ctx context.Context, can string) bool {
	s.mu.Lock()
	opening := s.profiles.opening[can]
	s.mu.Unlock()
	if opening == nil {
		return false
	}
	select {
	case <-opening:
	case <-ctx.Done():
	}
	return true
}

// openFor opens the connection of a client.
func (s *Server) openFor(ctx context.Context, from Downstream) {
	if !s.calls.Enter() {
		return
	}
	defer s.calls.Leave()
	cl := s.acquireClient(from)
	defer s.releaseClient(from.Session, cl)
	_, sl, e := s.session(ctx, from.Session, cl)
	if e != nil {
		s.log.Debug("listing the tools for a session", "error", e)
		return
	}
	s.idle(sl)
}

// openingLocked records that a connection with some capabilities is being
// opened, and returns the function to call when that is over. The caller must
// hold s.mu.
func (s *Server) openingLocked(can json.RawMessage) (opened func(*session)) {
	key := string(can)
	if isEmpty(can) || s.profiles.opening[key] != nil {
		return func(*session) {}
	}
	if s.profiles.opening == nil {
		s.profiles.opening, s.profiles.missed = make(map[string]chan struct{}), make(map[string]bool)
	}
	ready := make(chan struct{})
	s.profiles.opening[key] = ready
	return func(sess *session) {
		s.mu.Lock()
		missed := s.profiles.missed[key] && sess != nil
		delete(s.profiles.opening, key)
		delete(s.profiles.missed, key)
		close(ready)
		if sess != nil {
			s.profiles.learn(key, sess.profile.Load())
		}
		s.mu.Unlock()
		if missed {
			s.opts.Relisted()
		}
	}
}

// learn adds a profile and drops the oldest beyond the limit.
func (p *profiles) learn(can string, profile *Profile) {
	p.forget(can)
	if len(p.order) >= maxProfiles {
		p.forget(p.order[0])
	}
	if p.known == nil {
		p.known = make(map[string]*Profile)
	}
	p.known[can] = profile
	p.order = append(p.order, can)
}

// forget drops one profile.
func (p *profiles) forget(can string) {
	delete(p.known, can)
	p.order = slices.DeleteFunc(p.order, func(key string) bool { return key == can })
}

// forgetAll drops all profiles.
func (p *profiles) forgetAll() { p.known, p.order = nil, nil }

// sharedListed records what the shared connection has listed, for the first
// time or again. When that changed, the profiles of other connections are
// dropped.
func (s *Server) sharedListed(sess *session, first bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if first {
		s.profiles.forgetAll()
	}
	if now := sess.profile.Load(); s.listed != nil && now.same(s.listed) {
		sess.profile.Store(s.listed)
		return
	}
	s.listed = sess.profile.Load()
	s.profiles.forgetAll()
}

// adopt replaces the profile of a connection by the shared one when they are
// equal, so that it is kept once and compared by pointer.
func (s *Server) adopt(sess *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.listed != nil && s.listed.same(sess.profile.Load()) {
		sess.profile.Store(s.listed)
	}
}

// ownListed records what the connection of a client has listed again, and
// returns it. When that changed, the profile for its capabilities is dropped.
func (s *Server) ownListed(sess *session, before *Profile) *Profile {
	s.adopt(sess)
	now := sess.profile.Load()
	if now.same(before) {
		return now
	}
	s.mu.Lock()
	s.profiles.forget(string(sess.conn.client.clientCapabilities()))
	s.mu.Unlock()
	s.opts.Relisted()
	return now
}
