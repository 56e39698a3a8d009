package upstream

import (
	"context"
	"time"

	"github.com/toolgate/toolgate/internal/share"
)

// A SessionConnection is the connection to a server that one downstream session has for itself.
type SessionConnection struct {
	Server   string
	Session  string // key of the downstream session
	Revision string // of MCP, "" while it is being opened and for NDJSON
	PID      int    // of the process that was started for it, which the sandbox watches; 0 = none was
	Used     time.Time
	Calls    int // under way
}

// Connections returns the connections that belong to one downstream session each.
func (s *Server) Connections() (all []SessionConnection) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, sl := range s.slots {
		c := SessionConnection{Server: s.cfg.Name, Session: key, Used: sl.last, Calls: sl.busy}
		if sess := sl.opened(); sess != nil {
			c.Revision, c.PID = sess.conn.Revision(), sess.conn.pid
		}
		all = append(all, c)
	}
	return all
}

// slot holds the connection of one downstream session. It is the share.Holder of a
// place among those of its server.
type slot struct {
	ready  chan struct{}   // closed when s or err is set
	round  context.Context // Server.round when the connection began to be opened
	s      *session
	err    error
	server *Server
	key    string
	of     *client
	place  *share.Place[owner]
	// profile is the key of the client with which the connection is opened.
	profile profileKey

	// The fields below are protected by Server.mu.
	busy   int
	last   time.Time
	missed bool // while it was being opened, a client got another list for it
}

// opened returns the connection of a slot, nil for a nil slot, while it is being
// opened, and when that failed.
func (sl *slot) opened() *session {
	if sl == nil {
		return nil
	}
	select {
	case <-sl.ready:
		return sl.s
	default:
		return nil
	}
}

// State implements share.Holder. A connection is busy while it is opened and while it
// has requests; it is pinned while its client has subscriptions, or its server waits for
// an answer.
func (sl *slot) State() share.State {
	select {
	case <-sl.ready:
	default:
		return share.Busy
	}
	switch {
	case sl.busy > 0:
		return share.Busy
	case sl.of.subscribed() || sl.s != nil && sl.s.conn.asking.Load() > 0:
		return share.Pinned
	}
	return share.Idle
}

// Used implements share.Holder.
func (sl *slot) Used() int64 { return sl.last.UnixNano() }

// Evict implements share.Holder.
func (sl *slot) Evict() { sl.releaseLocked() }

// releaseLocked forgets a slot and closes its connection in the background. The caller must hold Server.mu.
func (sl *slot) releaseLocked() {
	sl.dropLocked()
	sl.server.tasks.Go(func() {
		<-sl.ready
		if sl.s != nil {
			sl.s.conn.close()
		}
	})
}

// dropLocked forgets a slot and gives up its place. The caller must hold Server.mu.
func (sl *slot) dropLocked() {
	if s := sl.server; s.slots[sl.key] == sl {
		delete(s.slots, sl.key)
	}
	sl.place.Release()
}

// conclude ends the opening of a slot. If it was the first with the capabilities of
// its client, it records what the connection listed.
func (sl *slot) conclude(sess *session, err error) {
	s := sl.server
	s.mu.Lock()
	if s.profiles.opening[sl.profile] == sl {
		delete(s.profiles.opening, sl.profile)
		if sess != nil {
			if len(s.profiles.known) >= maxProfiles {
				clear(s.profiles.known)
			}
			s.profiles.known[sl.profile] = sess.profile.Load()
		}
	}
	if sl.s, sl.err = sess, err; err != nil {
		sl.dropLocked() // the next request opens another
	}
	missed := sl.missed && sess != nil
	close(sl.ready)
	s.places.Settle()
	s.mu.Unlock()
	if missed {
		s.opts.Relisted()
	}
}
