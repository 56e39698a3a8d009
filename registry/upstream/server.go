package upstream

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/keepalive"
	"github.com/toolgate/toolgate/internal/mcpclient"
	"github.com/toolgate/toolgate/internal/share"
	"github.com/toolgate/toolgate/internal/wait"
	"github.com/toolgate/toolgate/registry/config"
	"github.com/toolgate/toolgate/registry/credential"
)

// State is the state of a server.
type State string

// The states. A failed server is tried again by itself.
const (
	StateStarting State = "starting"
	StateReady    State = "ready"
	StateFailed   State = "failed"
	StateStopped  State = "stopped"
)

// Status is the state of a server at one moment.
type Status struct {
	State State
	Err   error     // why it failed, nil otherwise
	Since time.Time // when the state began
	// Dropped counts the messages of the server that were nobody's: garbage,
	// unknown ids, what nobody was there to hear or took in time.
	Dropped int64
	// Revision is the MCP revision of the shared connection, "" without one.
	Revision string
	// Starts counts how often the server became ready.
	Starts int
	// Sessions counts the connections that belong to one downstream session each.
	Sessions int
}

// settleTime is how long Settled waits for a new server.
const settleTime = time.Second

// Server is one upstream and its supervision: a shared connection that is
// opened again whenever it ends, and one for each downstream session. It is
// safe for concurrent use.
type Server struct {
	cfg      config.Server
	opts     Options
	log      hclog.Logger
	pool     *keepalive.Transport   // nil for stdio
	tokens   credential.Tokens      // that the server is shown; nil = none
	shown    atomic.Pointer[string] // token that the server was shown last, "" = none
	unusable error                  // why credential or TLS settings cannot be used, nil = they can
	secrets  *secrets               // that the server was given
	said     tail                   // on stderr
	dropped  atomic.Int64
	lastID   atomic.Int64 // of a request
	era      revisions
	calls    wait.Drain // those under way

	life  context.Context
	end   context.CancelFunc
	tasks sync.WaitGroup // every goroutine of the server

	mu       sync.Mutex // protects the fields below
	status   Status
	starts   int
	started  context.Context    // ends when the first attempt is over or had StartWait
	settled  context.Context    // ends with started, or after settleTime
	settle   func()             // ends both
	round    context.Context    // ends with the attempt and its connection, or before it with Restart
	endRound context.CancelFunc // ends round
	shared   *session
	patient  bool          // a call may wait for the shared connection
	wake     chan struct{} // closed and replaced when shared or patient change
	listed   *Profile      // the tools that the shared connection listed last
	kept     kept
	stale    bool // lists that clients have may be others when the server is ready again
	missed   bool // a client got the shared list because nothing was connected, and may get another
	profiles profiles
	slots    map[string]*slot
	places   *share.Pool[owner] // of slots
	spare    spare
	clients  map[string]*client
}

// Start begins to run a server and returns at once.
func Start(cfg config.Server, opts Options) *Server {
	life, end := context.WithCancel(context.Background())
	opts = opts.withDefaults()
	opts.Logger = opts.Logger.Named(cfg.Name)
	opts.MaxAnswerBytes = cmp.Or(opts.MaxAnswerBytes, cmp.Or(cfg.MaxMessage, config.DefaultMaxMessage)<<20)
	opts.maxDepth = cmp.Or(cfg.MaxDepth, config.DefaultMaxDepth)
	s := &Server{
		cfg: cfg, opts: opts, log: opts.Logger,
		life: life, end: end, wake: make(chan struct{}), slots: make(map[string]*slot), places: share.New[owner](cfg.MaxSessions), clients: make(map[string]*client),
		kept:     kept{lists: opts.Lists, missed: make(map[string]bool)},
		profiles: profiles{known: make(map[profileKey]*Profile), opening: make(map[profileKey]*slot)},
	}
	s.spare.tasks = &s.tasks
	s.secrets = newSecrets(cfg.Secrets())
	s.shown.Store(new(string))
	if s.tokens, s.unusable = tokensOf(s); s.tokens != nil && s.secrets == nil {
		s.secrets = &secrets{}
		s.secrets.set(nil)
	}
	if s.cfg.StartWait <= 0 {
		s.cfg.StartWait = config.DefaultStartWait
	}
	s.settle, s.endRound = func() {}, func() {}
	s.beginLocked()
	if s.cfg.Timeout <= 0 {
		s.cfg.Timeout = config.DefaultTimeout
	}
	if s.cfg.MaxTimeout <= 0 {
		s.cfg.MaxTimeout = config.DefaultMaxTimeout
	}
	if cfg.Type == "http" || cfg.Type == "sse" {
		secure, err := cfg.TLS.Open()
		s.pool, s.unusable = newPool(secure), errors.Join(s.unusable, err)
	}
	s.era.cfg = &s.cfg
	s.era.Store(&spoken{})
	s.tasks.Go(s.run)
	s.tasks.Go(s.sweep)
	return s
}

// beginLocked makes the server one that starts. The caller must hold s.mu, but in Start.
func (s *Server) beginLocked() {
	s.settle()
	started, endStart := context.WithTimeout(s.life, s.cfg.StartWait)
	settled, endSettling := context.WithTimeout(started, settleTime)
	s.started, s.settled, s.settle = started, settled, func() { endSettling(); endStart() }
	s.shared, s.patient, s.status = nil, true, Status{State: StateStarting, Since: s.opts.Now()}
	s.spare.dropLocked()
	s.endRound()
	s.round, s.endRound = context.WithCancel(s.life)
}

// Started is closed when the server has answered, failed or had its StartWait, since
// Start or the last Restart.
func (s *Server) Started() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.started.Done()
}

// Settled is closed when the server has answered, failed or had a second, or its
// StartWait where that is shorter, since Start or the last Restart.
func (s *Server) Settled() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.settled.Done()
}

// Status returns the server's state.
func (s *Server) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := s.status
	out.Dropped = s.dropped.Load()
	out.Starts, out.Sessions = s.starts, len(s.slots)
	if s.shared != nil {
		out.Revision = s.shared.conn.Revision()
	}
	return out
}

// Stderr returns the last lines that the processes of the server wrote to stderr, at most 20 of 500
// bytes each, without the secrets that toolgate gave it.
func (s *Server) Stderr() []string {
	s.said.mu.Lock()
	defer s.said.mu.Unlock()
	return slices.Clone(s.said.lines)
}

// Redacted returns how many messages of the server had a secret that toolgate gave
// it, and lost it on their way.
func (s *Server) Redacted() int64 {
	if s.secrets == nil {
		return 0
	}
	return s.secrets.found.Load()
}

// Info returns how the server names itself, as an object, or nil while it is not
// connected or does not say (MCP basic/lifecycle, serverInfo).
func (s *Server) Info() json.RawMessage {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.shared == nil {
		return nil
	}
	return s.shared.conn.self
}

// An Introduction is what a server says of itself to clients and models, without
// the secrets that it was given.
type Introduction struct {
	Info         json.RawMessage // serverInfo, nil when it says none
	Instructions string
}

// Restart ends the connections of the server and what it started, and starts it again
// without a pause. Requests under way fail, those that were sent with an unknown outcome;
// new ones wait. Sessions keep their log levels and subscriptions. The result is that of
// Started.
func (s *Server) Restart() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.life.Err() == nil {
		s.log.Info("server is restarted")
		s.era.Store(&spoken{})
		s.beginLocked()
		s.stale = true
		s.wakeLocked()
		for _, sl := range s.slots {
			if sess := sl.opened(); sess != nil {
				sess.conn.Fail(s.roundOver())
			}
			sl.releaseLocked()
		}
		clear(s.profiles.opening)
	}
	return s.started.Done()
}

// roundOver returns why a round has ended. A request that was not sent may be made again.
func (s *Server) roundOver() *Error {
	if s.life.Err() != nil {
		return errStopping()
	}
	return &Error{Kind: Unavailable, Err: errors.New("the server is being restarted"), Lost: true}
}

// currentRound returns the context of an attempt.
func (s *Server) currentRound() context.Context {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.round
}

// run keeps the shared connection open until the server is closed.
func (s *Server) run() {
	for n := 0; s.life.Err() == nil; n++ {
		began, round := s.opts.Now(), s.currentRound()
		err, lost := s.runShared(round)
		if s.opts.Now().Sub(began) >= stableAfter {
			n = 0
		}
		if lost || round.Err() != nil {
			// Only a call or a person finds this out, so this cannot turn in circles.
			n = -1
			continue
		}
		s.down(round, err, false)
		wait := pause(n)
		s.log.Warn("server is down", "error", err, "restart_in", wait)
		if !s.opts.sleep(round, wait) {
			n = -1
		}
	}
}

// runShared opens the shared connection and waits for its end, or that of its round. It
// returns the reason, and whether that was only a lost session.
func (s *Server) runShared(round context.Context) (err error, lost bool) {
	sess, tools, err := s.connect(round, nil)
	if err != nil {
		return err, false
	}
	defer sess.conn.close()
	s.recordList(sess)
	s.mu.Lock()
	clear(s.profiles.known)
	s.mu.Unlock()
	var own []Variant
	if s.Isolated() && s.opts.First() {
		for _, capabilities := range capable { // one after the other
			more, err := s.listFor(round, sess, json.RawMessage(capabilities))
			if err != nil {
				return err, mcpclient.AsError(err).Lost
			}
			own = append(own, more...)
		}
	}
	introduced := Listing{Capabilities: sess.conn.offer, Introduction: sess.conn.said}
	listed := func(tools []json.RawMessage, own []Variant) {
		introduced.Tools, introduced.Own = tools, own
		s.opts.Listed(introduced)
	}
	listed(tools, own)
	late := s.up(round, sess)
	sess.conn.Go(func() { s.keepLists(sess, late) })
	if sess.conn.Stateless() {
		sess.conn.Go(func() { sess.followLists(s.relistOwn) })
	}
	s.reopenSubscribed()
	sess.watch(s, func(tools []json.RawMessage, changed, announced bool) {
		if listed(tools, nil); announced && !changed {
			sess.conn.listChanged(&jsonrpc.Message{Method: methodTools})
		}
	})
	cause := mcpclient.AsError(context.Cause(sess.conn.Life()))
	s.down(round, cause.Err, cause.Lost)
	return cause.Err, cause.Lost
}

// up publishes the shared connection. Clients that may have other tools on connections of
// their own than they were listed without it are notified. It reports whether clients may
// have got other lists without the server.
func (s *Server) up(round context.Context, sess *session) (late bool) {
	s.mu.Lock()
	if round.Err() != nil {
		s.mu.Unlock()
		return false
	}
	late = s.stale || s.status.State == StateStarting && s.started.Err() != nil
	missed := s.missed
	s.shared, s.patient, s.missed, s.stale = sess, false, false, false
	s.status = Status{State: StateReady, Since: s.opts.Now()}
	s.starts++
	s.wakeLocked()
	s.settle()
	s.mu.Unlock()
	s.log.Info("server is ready")
	if missed {
		s.opts.Relisted()
	}
	return late
}

// down withdraws the shared connection, unless another round has begun.
func (s *Server) down(round context.Context, err error, patient bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if round.Err() != nil {
		return
	}
	s.shared, s.patient, s.stale = nil, patient, !patient
	s.spare.dropLocked()
	if s.status.State != StateFailed {
		s.status = Status{State: StateFailed, Since: s.opts.Now()}
	}
	s.status.Err = err
	s.wakeLocked()
	s.settle()
}

// wakeLocked wakes those that wait for the shared connection.
func (s *Server) wakeLocked() {
	close(s.wake)
	s.wake = make(chan struct{})
}

// sweep closes the connections of sessions that have been idle for IdleTTL, and ends a
// spare that nobody has taken for as long.
func (s *Server) sweep() {
	ttl := s.opts.IdleTTL
	for wait.For(s.life, max(min(ttl/2, time.Minute), time.Millisecond)) {
		before := s.opts.Now().Add(-ttl)
		s.mu.Lock()
		for _, sl := range s.slots {
			if sl.last.Before(before) && sl.State() == share.Idle {
				sl.releaseLocked()
			}
		}
		if s.spare.since.Before(before) {
			s.spare.dropLocked()
		}
		s.mu.Unlock()
	}
}

// EndSession closes the connection of a downstream session. Calls that are
// under way on it fail.
func (s *Server) EndSession(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.clients[key]; c != nil {
		c.end()
		delete(s.clients, key)
	}
	if sl := s.slots[key]; sl != nil && s.life.Err() == nil {
		sl.releaseLocked()
	}
}

// errStopping is the error of a call to a server that is being stopped.
func errStopping() *Error {
	return &Error{Kind: Unavailable, Err: errors.New("the server is being stopped")}
}

// Close refuses new calls, waits for those under way until ctx ends, and stops
// the server and everything that it started. It returns when nothing is left.
func (s *Server) Close(ctx context.Context) {
	done, _ := s.calls.Close()
	select {
	case <-done:
	case <-ctx.Done():
	}
	s.mu.Lock()
	s.end()
	s.spare.dropLocked()
	slots := s.slots
	s.slots = nil
	for _, sl := range slots {
		sl.releaseLocked()
	}
	s.mu.Unlock()
	s.tasks.Wait()
	if s.pool != nil {
		s.pool.CloseIdleConnections()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shared, s.status = nil, Status{State: StateStopped, Since: s.opts.Now()}
}
