package session

import (
	"maps"
	"slices"
	"strings"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/yosida95/uritemplate/v3"

	"github.com/toolgate/toolgate/registry"
)

const (
	maxPlaces     = 10_000 // of one session, resources and prompts together
	maxLinks      = 1_000  // of one session, and of one principal; the least recently used is forgotten
	templateBytes = 2 << 10
	linkBytes     = 2 << 10         // of the uri of a link
	lookAgain     = 5 * time.Second // before the lists of a session are read again
)

// The kinds of what has a place; all but Subscription are the members of the answers that list them.
const (
	Resource = "resources"
	Template = "resourceTemplates"
	Prompt   = "prompts"
	Skill    = "skills" // and the files that it names
	// A Subscription is at the server where it was begun.
	Subscription = "subscriptions"
)

// Place is where something that is listed on /mcp comes from.
type Place struct {
	Server string
	Name   string // as the server calls it
	order  int    // of the server in the configuration
}

// placeKey names what has a place, as it is exposed.
type placeKey struct{ kind, name string }

// Put remembers that o has what it calls name. The first configured server that has
// it stays.
func (s *Session) Put(kind string, o registry.Offer, name string) {
	key := placeKey{kind, name}
	if kind == Prompt {
		key.name = o.Prefix + name
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if old, ok := s.places[key]; ok && old.order < o.Order || !ok && len(s.places) >= maxPlaces {
		return
	}
	s.places[key] = Place{Server: o.Server, Name: name, order: o.Order}
}

// Find returns where something of one of kinds is, as far as it is remembered: where it was listed,
// else, for a resource, at the server whose tool linked to it, or at the first
// configured server whose template describes its uri (RFC 6570). A link cannot take a
// listed resource from its server.
func (s *Session) Find(name string, kinds ...string) (found Place, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, kind := range kinds {
		if found, ok = s.places[placeKey{kind, name}]; ok {
			return found, true
		}
	}
	if slices.Contains(kinds, Resource) {
		if found, ok = s.linkedLocked(name); ok {
			return found, true
		}
	}
	if !slices.Contains(kinds, Template) {
		return Place{}, false
	}
	for key, at := range s.places {
		if key.kind != Template || len(key.name) > templateBytes || ok && found.order <= at.order {
			continue
		}
		if t, err := uritemplate.New(key.name); err == nil && t.Match(name) != nil {
			found, ok = Place{Server: at.Server, Name: name, order: at.order}, true
		}
	}
	return found, ok
}

// Look forgets where things are and calls read, which puts what all lists name, unless they were
// read a moment ago. Callers at the same time share one call. It reports whether lists were read.
func (s *Session) Look(now time.Time, read func()) bool {
	looked, _, _ := s.looks.Do("", func() (any, error) {
		s.mu.Lock()
		begins := s.read.IsZero() || now.Sub(s.read) >= lookAgain
		if begins {
			s.unlistLocked()
			s.read = now
		}
		s.mu.Unlock()
		if begins {
			read()
		}
		return begins, nil
	})
	return looked == true
}

// Unlist forgets where things are: a server says that its lists have changed.
func (s *Session) Unlist() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unlistLocked()
}

// unlistLocked is Unlist; the caller must hold s.mu.
func (s *Session) unlistLocked() {
	s.read = time.Time{}
	maps.DeleteFunc(s.places, func(key placeKey, _ Place) bool { return key.kind != Subscription })
}

// Subscribe remembers the subscription that a request begins or ends, if it does.
func (s *Session) Subscribe(method, uri, server string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := placeKey{Subscription, uri}
	switch {
	case strings.HasSuffix(method, "/unsubscribe"):
		delete(s.places, key)
	case strings.HasSuffix(method, "/subscribe") && len(s.places) < maxPlaces:
		s.places[key] = Place{Server: server, Name: uri}
	}
}

// Link remembers that a tool of server linked to uri. The latest one stays; a long uri is not kept.
func (s *Session) Link(uri, server string) {
	if len(uri) > linkBytes {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.links == nil {
		s.links, _ = lru.New[string, string](maxLinks) // fails for no positive size
	}
	s.links.Add(uri, server)
}

// Linked returns where a tool linked to uri.
func (s *Session) Linked(uri string) (Place, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.linkedLocked(uri)
}

// linkedLocked is Linked; the caller must hold s.mu.
func (s *Session) linkedLocked(uri string) (Place, bool) {
	if s.links == nil {
		return Place{}, false
	}
	server, ok := s.links.Get(uri)
	return Place{Server: server, Name: uri}, ok
}
