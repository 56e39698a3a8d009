package upstream

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/toolgate/toolgate/internal/jsonrpc"
)

// keptLists are the lists, apart from that of tools, that are kept of each server.
var keptLists = []keptList{
	{"prompts", "prompts/list", "prompts", methodPrompts},
	{"resources", "resources/list", "resources", methodResources},
	{"resources", "resources/templates/list", "resourceTemplates", methodResources},
}

// keptList is the capability of servers that have the list, the method, the member of its
// result, and the notification of a change.
type keptList struct{ capability, method, member, changed string }

// kept is what the shared connection of a server listed last, apart from tools. It is
// protected by Server.mu.
type kept struct {
	lists json.RawMessage // Listing.Lists
	// missed has the notifications of lists that clients got from here, although their
	// own connections may have others.
	missed map[string]bool
}

// recalled returns the result of a request for a list while the server is not
// connected: the kept list as one page. It returns nil for other requests, for lists
// that are not kept, and for requests with a cursor, whose page only the server has.
func (s *Server) recalled(ask Ask) json.RawMessage {
	i := slices.IndexFunc(keptLists, func(l keptList) bool { return l.method == ask.Method })
	if _, further := jsonrpc.Get(ask.Params, "cursor"); i < 0 || further {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	list, ok := jsonrpc.Get(s.kept.lists, keptLists[i].member)
	if !ok || s.shared != nil || s.life.Err() != nil {
		return nil
	}
	if ask.From.Session != "" && s.Isolated() && s.ownKeyLocked(s.era.keyOf(ask.From)) {
		s.kept.missed[keptLists[i].changed] = true
	}
	return object(member{keptLists[i].member, list})
}

// Recalls reports whether lists other than that of tools are kept of the server.
func (s *Server) Recalls() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !isEmpty(s.kept.lists)
}

// keepLists keeps the lists of the server until its shared connection ends. Clients are
// notified when the first lists of the connection differ from what was kept or, of a list
// that was not kept, when the server is late. The server announces later changes.
func (s *Server) keepLists(sess *session, late bool) {
	changed := s.readLists(sess.conn.Life(), sess, late)
	for _, l := range listened {
		if changed[l.method] {
			sess.conn.listChanged(&jsonrpc.Message{Method: l.method})
		}
	}
	sess.paced(s, "resources or prompts", sess.conn.relist, func(ctx context.Context) error {
		s.readLists(ctx, sess, false)
		return nil
	})
}

// readLists lists what is kept of the server, and returns the notifications of lists that
// differ from what clients got: from what was kept and, with late, of those that were not
// kept, or cannot be had now. Such a list stays as it was.
func (s *Server) readLists(ctx context.Context, sess *session, late bool) map[string]bool {
	s.mu.Lock()
	before := s.kept.lists
	s.mu.Unlock()
	changed := make(map[string]bool)
	var now []member
	for _, l := range keptLists {
		was, kept := jsonrpc.Get(before, l.member)
		is, err := sess.readList(ctx, l, s.cfg.Timeout)
		if err != nil {
			s.log.Warn("keeping a list of the server", "error", err)
			is = was
		}
		if kept && !bytes.Equal(was, is) || late && (err != nil || !kept && is != nil) {
			changed[l.changed] = true
		}
		now = append(now, member{l.member, is})
	}
	if sess.conn.Dead() {
		return nil
	}
	lists := object(now...)
	s.mu.Lock()
	maps.Copy(changed, s.kept.missed)
	s.kept = kept{lists: lists, missed: make(map[string]bool)}
	s.mu.Unlock()
	if !bytes.Equal(lists, before) {
		s.opts.Kept(lists)
	}
	return changed
}

// readList returns a list of the server as an array, which is no longer than a message of
// the server may be; nil for a list that the server does not offer.
func (s *session) readList(ctx context.Context, l keptList, within time.Duration) (json.RawMessage, error) {
	if _, offered := jsonrpc.Get(s.conn.offer, l.capability); !offered {
		return nil, nil
	}
	ctx, stop := context.WithTimeout(ctx, within)
	defer stop()
	elements, err := s.pages(ctx, l.method, l.member)
	if err != nil {
		return nil, err
	}
	list := jsonrpc.Array(elements)
	if len(list) > s.conn.opts.MaxAnswerBytes {
		return nil, fmt.Errorf("listing %s: more than %d bytes", l.member, s.conn.opts.MaxAnswerBytes)
	}
	return list, nil
}
