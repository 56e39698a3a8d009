package upstream

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/mcpclient"
	"github.com/toolgate/toolgate/registry/config"
)

const (
	methodDiscover = "server/discover"
	// probeTimeout is how long a server may think about server/discover before
	// it counts as one that does not know it.
	probeTimeout = 5 * time.Second
)

// spoken is what is known of the revisions that a server speaks.
type spoken struct {
	handshake bool            // it was initialized, and does not know server/discover
	revision  string          // without a handshake, "" = not known
	offer     json.RawMessage // its capabilities, with revision
	both      bool            // it names revisions with a handshake, too
	stateless bool            // it refused a handshake
}

// revisions is the server's answer to which revision a connection speaks. It is safe for concurrent use.
type revisions struct {
	atomic.Pointer[spoken]
	cfg *config.Server
}

// keyOf returns what decides which tools the server lists for a client.
func (v *revisions) keyOf(from Downstream) profileKey {
	return profileKey{string(from.Capabilities), v.inSession(from)}
}

// inSession reports whether a client's own connection is initialized: the client is, and
// the server's revision is not configured.
func (v *revisions) inSession(from Downstream) bool {
	return v.cfg.Revision == "" && from.Revision != "" && !slices.Contains(mcpclient.StatelessRevisions, from.Revision)
}

// Both reports whether the server said that it speaks revisions with a handshake and
// without, of which none is configured.
func (s *Server) Both() bool {
	known := s.era.Load()
	return s.cfg.Revision == "" && known.both && !known.stateless
}

// negotiate makes a new connection ready for requests (MCP 2026-07-28
// basic/versioning). A configured revision is the only one. The connection of a client
// with a session is initialized, because the server may be able to ask a client only in
// its own kind of revision. Otherwise the remembered revision decides; an unknown server is
// asked with server/discover, and initialized when it does not know that. A
// remembered revision that fails is forgotten, because the server may be
// another one by now. With fresh, a stateless server is asked again, because
// its offer may have changed.
func (v *revisions) negotiate(ctx context.Context, c *conn, fresh bool) error {
	switch {
	case c.IsMCP() && v.cfg.Revision != "":
		return v.negotiatePinned(ctx, c)
	case !c.IsMCP() || v.cfg.Type == config.TypeSSE: // both older than any other way
		return c.initialize(ctx)
	}
	known := *v.Load()
	if c.client != nil && c.client.handshake && !known.stateless && !known.handshake {
		if done, err := v.tryHandshake(ctx, c); done {
			return err
		}
	}
	if known.revision != "" && !fresh {
		c.offer = known.offer
		c.Speak(known.revision)
		return nil
	}
	if !known.handshake {
		if done, err := v.tryStateless(ctx, c); done {
			return err
		}
	}
	e := c.initialize(ctx)
	if e == nil {
		v.Store(&spoken{handshake: true})
		return nil
	}
	v.Store(&spoken{})
	// It answers, and not to this: it was too slow for the probe, or is a newer
	// one than the server that is remembered.
	if !c.Dead() && ctx.Err() == nil {
		if done, err := v.tryStateless(ctx, c); done && err == nil {
			return nil
		}
	}
	return e
}

// negotiatePinned agrees with the server on the configured revision, and on no other.
func (v *revisions) negotiatePinned(ctx context.Context, c *conn) error {
	c.Speak(v.cfg.Revision)
	var err error
	if slices.Contains(mcpclient.Revisions, v.cfg.Revision) {
		err = c.initialize(ctx)
	} else if e := c.discover(ctx, v.cfg.Timeout); e != nil {
		err = e
	}
	if err == nil && c.Revision() != v.cfg.Revision {
		err = fmt.Errorf("the server answered with MCP %s", c.Revision())
	}
	if err != nil {
		return fmt.Errorf("%w\nhint: servers.%s.revision is %s: is it a revision of the server?", err, v.cfg.Name, v.cfg.Revision)
	}
	return nil
}

// tryHandshake initializes a connection to a stateless server that may allow it, and
// reports whether that settles the matter. A server that refuses is not asked again, and
// neither is one that gives no session over HTTP, because it can ask its client only in
// results of the stateless revision.
func (v *revisions) tryHandshake(ctx context.Context, c *conn) (bool, error) {
	within, stop := context.WithTimeout(ctx, v.cfg.Timeout/2)
	defer stop()
	err := c.initialize(within)
	if err == nil && c.InSession() || ctx.Err() != nil {
		return true, err
	}
	if within.Err() == nil {
		next := *v.Load()
		next.stateless = next.revision != ""
		v.Store(&next)
	}
	return c.Dead(), err
}

// tryStateless asks the server for its stateless revisions, and reports whether
// that settles the matter: with nil when it speaks one, with an error when the
// connection did not survive the question.
func (v *revisions) tryStateless(ctx context.Context, c *conn) (bool, error) {
	e := c.discover(ctx, min(probeTimeout, v.cfg.Timeout/2))
	switch {
	case e == nil:
		v.Store(&spoken{revision: c.Revision(), offer: c.offer, both: c.both})
		return true, nil
	case c.Dead():
		// A process that dies of the question is asked nothing before its
		// handshake the next time.
		v.Store(&spoken{handshake: mcpclient.AsError(context.Cause(c.Life())).Kind == Failed})
		return true, fmt.Errorf("discovering: %w", e)
	case ctx.Err() != nil:
		return true, fmt.Errorf("discovering: %w", e)
	}
	return false, nil
}

// discover asks the server which revisions it speaks. On success the connection
// speaks one of them; otherwise it is unchanged and can be initialized. Errors
// do not matter unless they name a revision of ours: servers with a handshake
// answer an early request in many ways.
func (c *conn) discover(ctx context.Context, within time.Duration) *Error {
	ctx, stop := context.WithTimeout(ctx, within)
	defer stop()
	c.Speak(mcpclient.StatelessRevisions[0])
	result, e := c.do(ctx, &request{method: methodDiscover, lasting: true})
	if codeOf(e) == codeUnsupported {
		data, _ := jsonrpc.Get(e.RPC, "data")
		if common := commonRevision(data, "supported", mcpclient.StatelessRevisions); common != "" {
			c.Speak(common)
			result, e = c.do(ctx, &request{method: methodDiscover, lasting: true})
		}
	}
	common := commonRevision(result, "supportedVersions", mcpclient.StatelessRevisions)
	c.both = commonRevision(result, "supportedVersions", mcpclient.Revisions) != ""
	if c.Speak(common); common != "" {
		c.keepIntroduction(result)
	} else if e == nil {
		e = failed(fmt.Errorf("the server speaks none of %v", mcpclient.StatelessRevisions))
	}
	return e
}

// commonRevision returns the first of ours in an array of an object, "" for none.
func commonRevision(obj json.RawMessage, key string, ours []string) string {
	offered, _ := jsonrpc.Get(obj, key)
	var theirs []string
	_ = json.Unmarshal(offered, &theirs) // what is no string is no revision
	for _, revision := range ours {
		if slices.Contains(theirs, revision) {
			return revision
		}
	}
	return ""
}

// markLost marks an error with which another server refused a request because
// of its revision: it has replaced the one that we connected to, and did not
// execute the request.
func (c *conn) markLost(e *Error) *Error {
	switch codeOf(e) {
	case codeUnsupported:
		e.Lost = true
	case codeHeaders:
		e.Lost = !c.Stateless() // we sent none, as was right
	}
	return e
}
