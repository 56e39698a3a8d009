package upstream

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
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

// spoken is how a server spoke last.
type spoken struct {
	handshake bool            // it was initialized
	revision  string          // without a handshake, "" = not known
	offer     json.RawMessage // its capabilities, with revision
}

// agree readies a new connection for requests, in the way that the server
// speaks (MCP 2026-07-28 basic/versioning). What is remembered decides; a
// server that is not known is asked with server/discover and initialized when
// it does not know that. A remembered way that fails is forgotten: the server
// may be another by now. With fresh the server itself is asked again, even if
// it is known to have no handshake, for it may offer something else.
func (s *Server) agree(ctx context.Context, c *conn, fresh bool) error {
	if !c.IsMCP() || s.cfg.Type == config.TypeSSE { // both older than any other way
		return c.initialize(ctx)
	}
	known := *s.era.Load()
	if known.revision != "" && !fresh {
		c.offer = known.offer
		c.Speak(known.revision)
		return nil
	}
	if !known.handshake {
		if done, err := s.inquire(ctx, c); done {
			return err
		}
	}
	e := c.initialize(ctx)
	if e == nil {
		s.era.Store(&spoken{handshake: true})
		return nil
	}
	s.era.Store(&spoken{})
	// It answers, and not to this: it was too slow for the probe, or is a newer
	// one than the server that is remembered.
	if !c.Dead() && ctx.Err() == nil {
		if done, err := s.inquire(ctx, c); done && err == nil {
			return nil
		}
	}
	return e
}

// inquire asks the server how it speaks, and reports whether that settles the
// matter: with nil when it needs no handshake, with an error when the
// connection did not live through it.
func (s *Server) inquire(ctx context.Context, c *conn) (bool, error) {
	e := c.discover(ctx, min(probeTimeout, s.cfg.Timeout/2))
	switch {
	case e == nil:
		s.era.Store(&spoken{revision: c.Revision(), offer: c.offer})
		return true, nil
	case c.Dead():
		// A process that dies of the question is asked nothing before its
		// handshake the next time.
		s.era.Store(&spoken{handshake: mcpclient.AsError(context.Cause(c.Life())).Kind == Failed})
		return true, fmt.Errorf("discovering: %w", e)
	case ctx.Err() != nil:
		return true, fmt.Errorf("discovering: %w", e)
	}
	return false, nil
}

// discover asks the server which revisions it speaks. On success the connection
// speaks one of them; otherwise it is as it was, ready to be initialized. Which
// error came does not matter, unless it names a revision of ours: servers with a
// handshake say many things to a request that comes before it, or nothing.
func (c *conn) discover(ctx context.Context, within time.Duration) *Error {
	ctx, stop := context.WithTimeout(ctx, within)
	defer stop()
	c.Speak(mcpclient.StatelessRevisions[0])
	result, e := c.do(ctx, request{method: methodDiscover, lasting: true})
	if codeOf(e) == codeUnsupported {
		data, _ := jsonrpc.Get(e.RPC, "data")
		if common := commonRevision(data, "supported"); common != "" {
			c.Speak(common)
			result, e = c.do(ctx, request{method: methodDiscover, lasting: true})
		}
	}
	if e == nil {
		if common := commonRevision(result, "supportedVersions"); common != "" {
			c.Speak(common)
			c.offer, _ = jsonrpc.Get(result, "capabilities")
			return nil
		}
		e = failed(fmt.Errorf("the server speaks none of %v", mcpclient.StatelessRevisions))
	}
	c.Speak("")
	return e
}

// commonRevision gives the newest of our revisions without a handshake that an
// array in an object names, "" for none.
func commonRevision(obj json.RawMessage, key string) string {
	offered, _ := jsonrpc.Get(obj, key)
	var theirs []string
	for raw := range jsonrpc.Elements(offered) {
		if revision, ok := jsonrpc.Text(raw); ok {
			theirs = append(theirs, revision)
		}
	}
	for _, ours := range mcpclient.StatelessRevisions {
		if slices.Contains(theirs, ours) {
			return ours
		}
	}
	return ""
}

// judge marks an error that says that another server has taken the place of the
// one that we connected to: it refused the request because of the era in which
// that was sent, and certainly did not execute it.
func (c *conn) judge(e *Error) *Error {
	switch codeOf(e) {
	case codeUnsupported:
		e.Lost = true
	case codeHeaders:
		e.Lost = !c.Stateless() // we sent none, as was right
	}
	return e
}
