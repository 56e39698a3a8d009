package mcp

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/proxy/eventlog"
	"github.com/toolgate/toolgate/registry"
	"github.com/toolgate/toolgate/signal"
)

// A Keeper keeps sessions of Streamable HTTP where the doors of other replicas find them. Its
// methods are safe for concurrent use.
type Keeper interface {
	// Keep keeps the record of a session and returns the replica that has the session: another
	// one when it took the session over. With take, the session is that of another replica, and is
	// this one's from now on if that is gone; the zero ID says that the session has ended.
	Keep(ctx context.Context, session string, record []byte, take bool) (owner [8]byte, err error)
	eventlog.Keeper
	// Load returns the record of a session, or the events of one of its streams in order; nothing
	// of one that is not kept, or whose ID no replica made.
	Load(ctx context.Context, session, stream string) ([][]byte, error)
}

// record is what is kept of a session.
type record struct {
	Subject      string          `json:"subject"`
	Tenant       string          `json:"tenant,omitempty"`
	Route        string          `json:"route,omitempty"`
	Version      string          `json:"version"`
	Client       string          `json:"client,omitempty"`
	Capabilities json.RawMessage `json:"capabilities,omitempty"`
	Level        string          `json:"level,omitempty"`
	Key          string          `json:"key"`
	Began        time.Time       `json:"began"`
	Subscribed   bool            `json:"subscribed,omitempty"`
}

// record returns what is kept of s.
func (s *session) record() []byte {
	text, _ := json.Marshal(record{ // fails for no session
		s.owner.Subject, s.owner.Tenant, s.route, s.version, s.client, s.capabilities, *s.level.Load(), s.key, s.began, s.subscribed.Load(),
	})
	return text
}

// sessionOf returns the session with a record, nil for bytes that are no record.
func sessionOf(text []byte) *session {
	var r record
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if d.Decode(&r) != nil || d.More() || !slices.Contains(httpVersions, r.Version) || !strings.HasPrefix(r.Key, "ses_") || r.Capabilities != nil && !isObject(r.Capabilities) {
		return nil
	}
	s := newSession(policy.Principal{Subject: r.Subject, Tenant: r.Tenant}, r.Route, r.Version, r.Client)
	s.key, s.capabilities, s.began, s.transport, s.taken = r.Key, r.Capabilities, r.Began, "http", true
	if i := strings.LastIndexByte(r.Client, '/'); i > 0 { // the rest of what it said is not kept
		s.clientInfo = setIn(setIn(json.RawMessage("{}"), jsonrpc.Quote(r.Client[:i]), "name"), jsonrpc.Quote(r.Client[i+1:]), "version")
	}
	s.extensions = registry.ExtensionsIn(r.Capabilities)
	s.level.Store(&r.Level)
	s.subscribed.Store(r.Subscribed)
	return s
}

// beKept lets made be kept for other replicas.
func (s *sessionServer) beKept(made *session) {
	if s.opts.Keeper != nil && made.sseClient == nil {
		made.streams.Kept = made.id
		made.keep = func() bool { return s.keep(made) }
	}
}

// keep keeps the record of an open session, and ends the session when another replica has taken it
// over. It returns false when records cannot be kept.
func (s *sessionServer) keep(open *session) bool {
	owner, err := s.opts.Keeper.Keep(s.base, open.id, open.record(), false)
	switch {
	case err != nil:
		s.opts.Log.Debug("a session is not kept for other replicas", "session", open.key, "error", err)
		return false
	case owner != s.opts.Replica:
		s.opts.Log.Info("another replica has taken a session over", "session", open.key)
		s.events.Leave(&open.streams)
		s.endSession(open)
		return true
	}
	open.mu.Lock()
	defer open.mu.Unlock()
	if open.ended {
		s.opts.Keeper.KeepEvent(open.id, "", 0)
	}
	return true
}

// KeepSessions keeps the records of all sessions again, because they expire or were lost, and ends
// the sessions that other replicas have taken over.
func (d *Door) KeepSessions() {
	if d.opts.Keeper == nil {
		return
	}
	for _, s := range d.session.sessions.all() {
		if !s.keep() || d.closing.Err() != nil {
			return
		}
	}
}

// subscribe is govern for a request after which the owner of the session has state that no other
// replica can make again.
func (c *core) subscribe(ctx context.Context, x *exchange) outcome {
	if !x.session.subscribed.Swap(true) {
		x.session.keep()
	}
	return c.govern(ctx, x)
}

// takeOver returns the session id, whose owner is gone, as one of this replica; nil when there is none
// of the principal and the route of x. When another replica was faster, or the Keeper fails, it sets
// x.elsewhere.
func (s *sessionServer) takeOver(x *exchange, id string) *session {
	if s.opts.Keeper == nil {
		return nil
	}
	type taken struct {
		session *session
		holder  [8]byte
		err     error
	}
	who, route := x.call.Principal, x.call.Route
	key := digestOf(id, who.Subject, who.Tenant, route)
	got, _, _ := s.taking.Do(string(key[:]), func() (any, error) {
		if found := s.find(id, who, route, false); found != nil {
			return taken{session: found}, nil // since the request looked for it
		}
		made, holder, err := s.claim(id, who, route)
		if err != nil {
			s.opts.Log.Warn("a session cannot be taken over", "error", err)
		}
		if made != nil {
			made = s.putTaken(made, s.offered(x))
		}
		return taken{made, holder, err}, nil
	})
	result := got.(taken)
	if result.err != nil || result.holder != [8]byte{} {
		x.elsewhere = func(w http.ResponseWriter, r *http.Request, body []byte) {
			if result.err != nil || s.opts.PassOn == nil || !s.opts.PassOn(w, r, body, result.holder) {
				problem(w, http.StatusServiceUnavailable, "the replica that has the session does not answer: try again")
			}
		}
	}
	return result.session
}

// claim makes this replica the owner of the session id, if its record says that it is that of who on
// route. holder is the replica that has it otherwise.
func (s *sessionServer) claim(id string, who policy.Principal, route string) (made *session, holder [8]byte, err error) {
	parts, err := s.opts.Keeper.Load(s.base, id, "")
	if err != nil || len(parts) != 1 {
		return nil, holder, err
	}
	made = sessionOf(parts[0])
	if made == nil || made.owner != ownerOf(who) || made.route != route {
		return nil, holder, nil
	}
	if made.subscribed.Load() {
		s.opts.TakenOver(false)
		return nil, holder, nil
	}
	if holder, err = s.opts.Keeper.Keep(s.base, id, parts[0], true); err != nil || holder != s.opts.Replica {
		return nil, holder, err
	}
	made.id = id
	return made, [8]byte{}, nil
}

// putTaken adds a session that was claimed. Its client may have missed changes of lists, which were
// offered.
func (s *sessionServer) putTaken(made *session, offered json.RawMessage) *session {
	made.onEnd, made.events = s.ending(made), s.events
	made.mayBeNotified = mayBeNotified(made.capabilities, offered)
	made.questionCount.Store(uint64(s.opts.Now().UnixNano())) // no answer to a question of the former owner fits one of ours
	for _, f := range filters {
		if listed, _ := jsonrpc.At(offered, f.capability, "listChanged"); string(listed) == "true" {
			made.changes.add(f.method)
		}
	}
	s.beKept(made)
	s.sessions.mu.Lock()
	defer s.sessions.unlock()
	if !s.sessions.putLocked(made.id, made) {
		return nil
	}
	s.opts.TakenOver(true)
	s.opts.Log.Info("a session of a replica that is gone was taken over", "session", made.key)
	return made
}

// resume continues the stream of s, a session of who, after the event that last names. A stream of the former owner of s ends
// with the error that its answer is lost, unless that was kept.
func (d *Door) resume(who policy.Principal, s *session, last []string) (*eventlog.Reader, bool) {
	rd, ok := d.events.Resume(&s.streams, last)
	stream := eventlog.StreamOf(last[0])
	if ok || !s.taken || stream == "" || len(last) > 1 {
		return rd, ok
	}
	parts, err := d.opts.Keeper.Load(d.base, s.id, stream)
	if err != nil {
		d.opts.Log.Warn("a stream of another replica cannot be continued", "session", s.key, "error", err)
		return nil, false
	}
	restored := d.events.Restore(&s.streams, last[0], parts, func(request json.RawMessage) []byte {
		x := &exchange{id: request}
		x.call.Principal, x.call.Route, x.call.Transport = who, s.route, s.transport
		x.use(s)
		a := d.refuse(x, signal.CodeToolFailed, "the replica that served the request is gone; whether the request took effect is unknown")
		return a.message()
	})
	if !restored {
		return nil, false
	}
	return d.events.Resume(&s.streams, last)
}
