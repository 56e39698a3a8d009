package upstream

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/keepalive"
	"github.com/toolgate/toolgate/internal/mcpclient"
	"github.com/toolgate/toolgate/internal/wait"
	"github.com/toolgate/toolgate/registry/config"
)

const (
	maxPages  = 100         // of one list
	maxListed = 20_000      // in one list of a server
	relist    = time.Second // between two lists
	relists   = 5           // in a row, from which on the pause doubles
	maxPause  = time.Minute // between two lists

	maxRelists = 3 // before a connection serves
)

// Fingerprint names a tool definition: "sha256:<hex>" over its bytes as they
// were sent. Two definitions that mean the same and are written differently
// have two fingerprints.
func Fingerprint(definition json.RawMessage) string {
	sum := sha256.Sum256(definition)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// Form names what a definition means: it is equal for definitions that differ in white
// space, order of members and spelling of numbers and texts only (RFC 8785). The Form
// of a definition that has no canonical form is its Fingerprint.
func Form(definition json.RawMessage) string {
	canonical := jsontext.Value(bytes.Clone(definition))
	if canonical.Canonicalize() != nil {
		return Fingerprint(definition)
	}
	return Fingerprint(json.RawMessage(canonical))
}

// session is a connection that is ready for requests and has listed its tools.
type session struct {
	conn *conn

	levelMu sync.Mutex // held while the level is set; protects the field below
	level   string     // from which on the server logs, "" = what it likes

	profile atomic.Pointer[Profile] // what was listed last

	fresh atomic.Int64 // nanoseconds for which the list is valid, 0 when the server did not say

	turn    chan struct{}      // has an element while streams are opened and ended
	streams map[string]*stream // :: URI ⇒ stream of its subscription; turn protects it
}

// list requests the tools, page by page, and records them.
func (s *session) list(ctx context.Context) ([]json.RawMessage, error) {
	all, err := s.pages(ctx, "tools/list", "tools")
	if err == nil {
		if now := newProfile(all); !now.same(s.profile.Load()) { // an unchanged list keeps its Profile
			if s.conn.client != nil {
				now.Condition = ConditionOf(s.conn.client.clientCapabilities())
			}
			s.profile.Store(now)
		}
	}
	return all, err
}

// pages requests a list, page by page; name is the member of the result that has it.
func (s *session) pages(ctx context.Context, method, name string) ([]json.RawMessage, error) {
	var all []json.RawMessage
	seen := map[string]bool{}
	params := json.RawMessage(`{}`)
	for range maxPages {
		page, cursor, err := s.page(ctx, method, name, params)
		if err != nil {
			return nil, fmt.Errorf("listing %s: %w", name, err)
		}
		all = append(all, page...)
		switch {
		case len(all) > maxListed:
			return nil, fmt.Errorf("listing %s: more than %d", name, maxListed)
		case cursor == nil:
			return all, nil
		case seen[string(cursor)]:
			return nil, fmt.Errorf("listing %s: the server repeats a cursor", name)
		}
		seen[string(cursor)] = true
		params = append(append([]byte(`{"cursor":`), cursor...), '}')
	}
	return nil, fmt.Errorf("listing %s: more than %d pages", name, maxPages)
}

// first lists the tools of a new connection. A server that looks at the
// client's capabilities may announce a changed list right away.
func (s *session) first(ctx context.Context) ([]json.RawMessage, error) {
	tools, err := s.list(ctx)
	for range maxRelists {
		if err != nil || s.conn.client == nil || len(s.conn.changed) == 0 {
			break
		}
		<-s.conn.changed
		tools, err = s.list(ctx)
	}
	return tools, err
}

// page requests one page. The cursor is nil after the last one. Tools are judged one by
// one, so that a malformed one takes none of its neighbours with it.
func (s *session) page(ctx context.Context, method, name string, params json.RawMessage) (elements []json.RawMessage, cursor json.RawMessage, err error) {
	result, e := s.conn.do(ctx, &request{method: method, params: params, loose: name == "tools"})
	if codeOf(e) == codeMethod {
		return nil, nil, nil // a server without such a list
	} else if e != nil {
		return nil, nil, e
	}
	limits := jsonrpc.Limits{Bytes: s.conn.opts.MaxAnswerBytes, Mend: true}
	members, err := mcpclient.LooseMembers(result)
	if err != nil {
		return nil, nil, err
	}
	if string(members[name]) == "null" { // an empty list, as some servers write it
		members[name] = json.RawMessage(`[]`)
	}
	if elements, err = mcpclient.LooseElements(members[name]); err != nil {
		return nil, nil, err
	}
	for i, raw := range elements {
		if line, _, err := jsonrpc.CheckValue(raw, limits); err == nil {
			elements[i] = line
		}
	}
	if name == "tools" {
		s.fresh.Store(int64(freshness(members["ttlMs"])))
	}
	if cursor = members["nextCursor"]; len(cursor) > 0 && cursor[0] != '"' {
		cursor = nil // null, or nothing that could be a cursor
	}
	if cursor != nil {
		if cursor, _, err = jsonrpc.CheckValue(cursor, limits); err != nil {
			return nil, nil, fmt.Errorf("reading the cursor: %w", err)
		}
	}
	return elements, cursor, nil
}

// NameOf returns the name in a tool definition that may otherwise be malformed,
// and reports whether there is one.
func NameOf(definition json.RawMessage) (string, bool) {
	members, err := mcpclient.LooseMembers(definition)
	if err != nil {
		return "", false
	}
	return jsonrpc.Text(members["name"])
}

// watch lists the tools again when the server announces a change, until the connection
// ends. A list that fails is requested again. Listed learns whether the list changed, and
// whether the server announced that.
func (s *session) watch(srv *Server, listed func(tools []json.RawMessage, changed, announced bool)) {
	before := s.profile.Load()
	s.paced(srv, "tools", s.conn.changed, func(ctx context.Context) error {
		announced := s.conn.announced.Swap(false) // a later announcement is for the next list
		tools, err := s.list(ctx)
		if err == nil {
			now := srv.recordList(s)
			listed(tools, !now.same(before), announced)
			before = now
		} else if announced {
			s.conn.announced.Store(true)
		}
		return err
	})
}

// paced lists again whenever changed has an element, at most once a second, and at most
// once a minute when that never stops, until the connection ends. A list that fails is
// requested again.
func (s *session) paced(srv *Server, what string, changed chan struct{}, list func(context.Context) error) {
	for row := 0; ; row++ { // lists without a quiet pause between them
		if len(changed) == 0 {
			row = 0
		}
		select {
		case <-s.conn.Life().Done():
			return
		case <-changed:
		}
		ctx, stop := context.WithTimeout(s.conn.Life(), srv.cfg.Timeout)
		err := list(ctx)
		stop()
		if err != nil && !s.conn.Dead() {
			srv.log.Warn("listing changed "+what, "error", err)
			wait.Signal(changed)
		}
		if row == relists {
			srv.log.Warn("the server announces changed " + what + " without end: they are listed less often")
		}
		if !srv.opts.sleep(s.conn.Life(), relistPause(row)) {
			return
		}
	}
}

// relistPause returns the pause after list number row, from 0, of those that followed each
// other.
func relistPause(row int) time.Duration {
	return min(relist<<min(max(0, row-relists+1), 6), maxPause)
}

// connect opens a connection for a client, or with nil the shared one, makes it
// ready and lists its tools. The connection ends with ctx. A client's is one to the
// spare, if there is one and it serves.
func (srv *Server) connect(ctx context.Context, cl *client) (*session, []json.RawMessage, error) {
	if cl != nil {
		srv.mu.Lock()
		spare := srv.spare.takeLocked()
		srv.mu.Unlock()
		if spare != nil {
			s, tools, err := srv.connectTo(ctx, cl, spare)
			if err == nil || ctx.Err() != nil {
				return s, tools, err
			}
			srv.log.Debug("a process that was started ahead does not serve", "error", err)
		}
	}
	return srv.connectTo(ctx, cl, nil)
}

// connectTo is connect with a process, nil for one that is started now.
func (srv *Server) connectTo(round context.Context, cl *client, spare *child) (*session, []json.RawMessage, error) {
	clock := &deadline{}
	ctx := clock.begin(round, nil, srv.cfg.Timeout, 0)
	defer clock.done()
	if cl != nil {
		cl.enter(clock)
		defer cl.leave(clock)
	}
	c := newConn(&srv.opts, &srv.dropped, &srv.lastID, cl)
	c.secrets = srv.secrets
	c.unbind = context.AfterFunc(round, func() { c.Fail(srv.roundOver()) })
	if err := srv.dial(ctx, c, spare); err != nil {
		c.close()
		return nil, nil, fmt.Errorf("connecting: %w", err)
	}
	s := &session{conn: c, turn: make(chan struct{}, 1), streams: make(map[string]*stream)}
	err := srv.era.negotiate(ctx, c, cl == nil)
	var tools []json.RawMessage
	if err == nil {
		if tools, err = s.first(ctx); err != nil {
			srv.era.Store(&spoken{}) // it may be another server by now
		}
	}
	if err != nil {
		c.close()
		return nil, nil, err
	}
	if cl != nil {
		s.restore(ctx, cl)
	}
	if c.IsMCP() && !c.Stateless() {
		c.began.Store(srv.opts.Now().UnixNano())
	}
	return s, tools, nil
}

// dial opens a connection of the configured type, to the process spare unless that is
// nil.
func (srv *Server) dial(ctx context.Context, c *conn, spare *child) error {
	cfg := srv.cfg
	if srv.opts.dial != nil {
		srv.opts.dial(c)
		return nil
	}
	switch cfg.Type {
	case config.TypeStdio, config.TypeNDJSON:
		child, err := spare, error(nil)
		if child == nil {
			child, err = startChild(cfg, srv.opts.Sandbox, srv.opts.Executable, srv.secrets, &srv.said, srv.log)
		}
		if err == nil {
			c.pid = child.cmd.Process.Pid
			c.OpenStdio(child.stdin, child.stdout, child, cfg.Type == config.TypeNDJSON)
		}
		return err
	}
	if srv.unusable != nil {
		return srv.unusable
	}
	var base http.RoundTripper = srv.pool
	if srv.tokens != nil {
		base = &authorized{srv.pool, srv}
	}
	switch cfg.Type {
	case config.TypeHTTP:
		return c.OpenHTTP(cfg.URL, headersOf(cfg), base)
	case config.TypeSSE:
		return c.OpenSSE(ctx, cfg.URL, headersOf(cfg), base, cfg.Timeout)
	}
	return fmt.Errorf("servers of type %q cannot be connected to", srv.cfg.Type)
}

// headersOf returns the headers that every request to a server has.
func headersOf(cfg config.Server) http.Header {
	h := make(http.Header, len(cfg.Headers))
	for name, value := range cfg.Headers {
		h.Set(name, value)
	}
	return h
}

// newPool makes the HTTP connections of one upstream. It uses no proxy from the
// environment, and no compression that could hide the size of an answer.
func newPool(secure *tls.Config) *keepalive.Transport {
	const dialTimeout = 5 * time.Second
	dialer := &net.Dialer{Timeout: dialTimeout, KeepAlive: 30 * time.Second}
	return keepalive.New(&http.Transport{
		DialContext:            dialer.DialContext,
		TLSClientConfig:        secure,
		TLSHandshakeTimeout:    dialTimeout,
		MaxIdleConns:           512,
		MaxIdleConnsPerHost:    256,
		IdleConnTimeout:        90 * time.Second,
		MaxResponseHeaderBytes: 64 << 10,
		DisableCompression:     true,
		ForceAttemptHTTP2:      true,
	})
}
