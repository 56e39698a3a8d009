package upstream

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/toolgate/toolgate/internal/mcpclient"
	"github.com/toolgate/toolgate/internal/paramheader"
	"github.com/toolgate/toolgate/registry/config"
)

const (
	// maxProfiles bounds the profiles of one server that are remembered; beyond it
	// all are forgotten.
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
	// Condition is that of the client of the connection, "" for the shared one.
	Condition Condition

	offers map[string]Offer // :: name ⇒ tool
}

// Offer is one tool that a connection listed.
type Offer struct {
	Name        string
	Fingerprint string
	Form        string // see Form
	Definition  json.RawMessage

	bound []paramheader.Parameter // arguments that headers repeat
}

// newProfile makes a profile of a list.
func newProfile(definitions []json.RawMessage) *Profile {
	p := &Profile{offers: make(map[string]Offer, len(definitions))}
	for _, definition := range definitions {
		name, ok := NameOf(definition)
		if _, dup := p.offers[name]; !ok || dup {
			continue
		}
		o := Offer{Name: name, Fingerprint: Fingerprint(definition), Form: Form(definition), Definition: definition}
		o.bound, _ = paramheader.Parameters(definition) // a tool with an invalid one is not called over HTTP
		p.offers[name] = o
		p.Tools = append(p.Tools, o)
	}
	return p
}

// Offers returns the fingerprint of a tool, "" when it is not offered.
func (p *Profile) Offers(tool string) string {
	if p == nil {
		return ""
	}
	return p.offers[tool].Fingerprint
}

// Lists reports whether p has a tool with a definition of that Form. Servers write
// definitions otherwise in revisions with sessions.
func (p *Profile) Lists(tool, form string) bool {
	if p == nil {
		return false
	}
	o, ok := p.offers[tool]
	return ok && o.Form == form
}

// same reports whether two profiles list the same in the same order.
func (p *Profile) same(other *Profile) bool {
	return other != nil && slices.EqualFunc(p.Tools, other.Tools, func(a, b Offer) bool {
		return a.Name == b.Name && a.Fingerprint == b.Fingerprint
	})
}

// capable are the capabilities of clients to whom a server may offer more tools, or other
// definitions: those that answer whatever a server asks, and those that show MCP Apps (SEP
// 1865), as hosts declare it now and did before MCP had extensions.
var capable = []string{
	`{"roots":{"listChanged":true},"sampling":{"context":{},"tools":{}},"elicitation":{"form":{},"url":{}}}`,
	`{"extensions":{"io.modelcontextprotocol/ui":{"mimeTypes":["text/html;profile=mcp-app"]}},"experimental":{"io.modelcontextprotocol/ui":{"mimeTypes":["text/html;profile=mcp-app"]}}}`,
}

// A Variant is a definition that a server lists for clients that meet a condition, and not
// on the shared connection.
type Variant struct {
	Condition  Condition
	Definition json.RawMessage
	Live       bool // a client's connection has listed it, and not only one for the first list
	Unproven   bool // it is not accepted because it is in the first list
}

// listFor returns the definitions that the server lists for clients with some capabilities and not on the
// shared connection. It opens a connection, which may take as long as any. A server that refuses it lists no
// more. The error says that the server has not answered, so that its first list is not known yet.
func (s *Server) listFor(round context.Context, shared *session, capabilities json.RawMessage) (own []Variant, err error) {
	ctx, stop := context.WithCancelCause(round)
	defer stop(nil)
	life := shared.conn.Life()
	defer context.AfterFunc(life, func() { stop(context.Cause(life)) })()
	sess, _, err := s.connect(ctx, &client{capabilities: capabilities})
	condition := ConditionOf(capabilities)
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case err != nil && mcpclient.AsError(err).Kind == Timeout:
		return nil, fmt.Errorf("listing the tools %s: %w\nhint: set isolation to shared for a server that serves one connection only", condition.Words(), err)
	case err != nil:
		s.log.Warn("the server refuses a connection "+condition.Words()+": its first list is without the tools for them", "error", err)
		return nil, nil
	}
	defer sess.conn.close()
	known := shared.profile.Load()
	for _, offer := range sess.profile.Load().Tools {
		if !known.Lists(offer.Name, offer.Form) {
			own = append(own, Variant{Condition: condition, Definition: offer.Definition})
		}
	}
	return own, nil
}

// profiles are what the connections of clients listed, by the capabilities
// and the kind of revision that they were opened with. They are protected by Server.mu.
type profiles struct {
	known   map[profileKey]*Profile // what the last such connection listed at first
	opening map[profileKey]*slot    // connection that is being opened
}

// profileKey is what decides which tools a server lists for a client.
type profileKey struct {
	capabilities string
	handshake    bool // client.handshake
}

// ownKeyLocked reports whether a server may list other tools for clients of key than on the
// shared connection. The caller must hold s.mu.
func (s *Server) ownKeyLocked(key profileKey) bool {
	return !isEmpty(json.RawMessage(key.capabilities)) ||
		key.handshake && s.shared != nil && s.shared.conn.Stateless() && !s.era.Load().stateless
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
// shared connection offers, and so it does while the server is not connected;
// Relisted is called later.
func (s *Server) Profile(ctx context.Context, from Downstream) *Profile {
	if from.Session == "" || !s.Isolated() {
		return nil
	}
	p, found := s.knownProfile(from)
	if found {
		s.prepareSpare(from.Session)
		return p
	}
	ctx, stop := context.WithTimeout(ctx, profilePatience)
	defer stop()
	s.awaitProfile(ctx, from)
	p, found = s.knownProfile(from)
	s.mu.Lock()
	defer s.mu.Unlock()
	if sl := s.profiles.opening[s.era.keyOf(from)]; sl != nil && !found {
		sl.missed = true
	}
	return p
}

// Listed returns what the shared connection lists, nil while it has listed nothing. It waits for a
// server that is starting until ctx ends, for at most five seconds.
func (s *Server) Listed(ctx context.Context) *Profile {
	ctx, stop := context.WithTimeout(ctx, profilePatience)
	defer stop()
	select {
	case <-s.Started():
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.listed
}

// knownProfile returns the profile of a client, and whether it is known without
// opening a connection.
func (s *Server) knownProfile(from Downstream) (*Profile, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.knownProfileLocked(from)
}

// knownProfileLocked is knownProfile for a caller that holds s.mu.
func (s *Server) knownProfileLocked(from Downstream) (*Profile, bool) {
	p := s.profiles.known[s.era.keyOf(from)]
	if sess := s.slots[from.Session].opened(); sess != nil && !sess.conn.Dead() {
		p = sess.profile.Load()
	}
	switch {
	case p != nil && p == s.listed:
		return nil, true
	case p != nil && p.Condition == "": // what the shared connection listed before, and the client's still does
		of := *p
		of.Condition = ConditionOf(from.Capabilities)
		return &of, true
	case p != nil:
		return p, true
	}
	own := s.ownKeyLocked(s.era.keyOf(from))
	s.missed = s.missed || own && s.shared == nil
	return nil, s.shared == nil || !own
}

// awaitProfile waits for a connection that is being opened with the capabilities of
// a client, and opens the client's own if there is none.
func (s *Server) awaitProfile(ctx context.Context, from Downstream) {
	if !s.calls.Enter() {
		return
	}
	defer s.calls.Leave()
	cl := s.acquireClient(from)
	defer s.releaseClient(from.Session, cl)
	if _, _, e := s.session(ctx, "", nil); e != nil {
		return
	}
	s.mu.Lock()
	_, found := s.knownProfileLocked(from)
	opening := s.profiles.opening[s.era.keyOf(from)]
	if !found && opening == nil {
		_, sl, e := s.ownSession(ctx, from.Session, cl) // unlocks
		if e != nil {
			s.log.Debug("listing the tools for a session", "error", e)
			return
		}
		sl.idle()
		return
	}
	s.mu.Unlock()
	if !found {
		select {
		case <-opening.ready:
		case <-opening.round.Done():
		case <-ctx.Done():
		}
	}
}

// recordList records what a connection has listed, and returns it. A list that
// equals the shared one is kept once and compared by pointer. When the shared list
// changes, the profiles of other connections are dropped.
func (s *Server) recordList(sess *session) *Profile {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := sess.profile.Load()
	switch {
	case now.same(s.listed):
		now = s.listed
		sess.profile.Store(now)
	case sess.conn.client == nil:
		s.listed = now
		clear(s.profiles.known)
	}
	return now
}
