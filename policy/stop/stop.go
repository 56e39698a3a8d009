// Package stop is the emergency stop: people stop the calls of a principal, of a role, of a tool,
// at a server, or all, and resume them. Stops are in the store; every process that shares it
// follows them, enforces each within a second, and confirms that it does:
//
//	stops, err := stop.Open(ctx, stop.Options{DB: db, Instance: id})
//	go stops.Follow(ctx)
//	state, err := stops.Add(ctx, stop.Stop{Kind: stop.Role, Name: "researcher", Reason: "incident 7", By: "ann"})
//	stops.Find(&principal, server, tool) // the stop, for a researcher
//	state.Waiting // processes that did not confirm it within two seconds
//
// A process that cannot read the store enforces the stops that it knows, and [Stops.Unread] says so.
// [Stops] is safe for concurrent use.
package stop

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/signal"
)

// Kind says what a stop is about.
type Kind string

// The kinds.
const (
	Principal Kind = "principal" // Name is a subject or a person, of any tenant
	Role      Kind = "role"
	Tool      Kind = "tool"   // Name is that under which agents call it on /mcp
	Server    Kind = "server" //
	All       Kind = "all"    // without a name
)

// Kinds lists the kinds. It must not be changed.
var Kinds = []Kind{Principal, Role, Tool, Server, All}

// Bounds of what people write, in bytes.
const (
	maxName   = 256
	maxReason = 1000
)

const (
	readEvery  = 400 * time.Millisecond // when nothing wakes Follow
	readWithin = 2 * time.Second        // bounds one reading
	unreadFor  = 3 * time.Second        // see Unread
	confirmIn  = 2 * time.Second        // see Options.Patience
)

var (
	// ErrInvalid is in the chain of Add's error for a stop that cannot be one.
	ErrInvalid = errors.New("invalid stop")
	// ErrNotFound reports a stop that is not in force.
	ErrNotFound = errors.New("no such stop is in force")
)

// A Stop stops requests of agents until it ends.
type Stop struct {
	ID     string    `json:"id"`
	Kind   Kind      `json:"kind"`
	Name   string    `json:"name,omitempty"`
	Reason string    `json:"reason"`
	By     string    `json:"by"` // subject
	At     time.Time `json:"at"`
	Until  time.Time `json:"until,omitzero"` // zero = until somebody resumes
}

// About names what is stopped, as in "role researcher" and "everything".
func (s *Stop) About() string {
	if s.Kind == All {
		return "everything"
	}
	return string(s.Kind) + " " + s.Name
}

// over reports whether s has ended by itself.
func (s *Stop) over(now time.Time) bool { return !s.Until.IsZero() && !now.Before(s.Until) }

// concerns reports whether s stops a request. It fails closed: a stop of a kind that only later
// versions know stops everything.
func (s *Stop) concerns(p *policy.Principal, server, tool string) bool {
	switch s.Kind {
	case Principal:
		return p.Subject == s.Name || p.Person == s.Name
	case Role:
		return p.Has(s.Name)
	case Tool:
		return tool == s.Name
	case Server:
		return server == s.Name
	}
	return true
}

// Check returns an ErrInvalid for a stop that Add refuses.
func (s *Stop) Check() error {
	switch {
	case !slices.Contains(Kinds, s.Kind):
		return fmt.Errorf("%w: kind is principal, role, tool, server or all", ErrInvalid)
	case (s.Kind == All) != (s.Name == ""):
		return fmt.Errorf("%w: every kind but all has a name", ErrInvalid)
	case len(s.Name) > maxName || !utf8.ValidString(s.Name):
		return fmt.Errorf("%w: a name has at most %d bytes of UTF-8", ErrInvalid, maxName)
	case s.Reason == "" || len(s.Reason) > maxReason || !utf8.ValidString(s.Reason):
		return fmt.Errorf("%w: a reason has 1 to %d bytes of UTF-8", ErrInvalid, maxReason)
	}
	return nil
}

// State is a stop, the processes that enforce it, and those that have not confirmed it. A process is
// named as in "process 4711 on web-1". One of a version without stops never confirms.
type State struct {
	Stop
	Confirmed []string `json:"confirmed"`
	Waiting   []string `json:"waiting"`
}

// Options are the parts of Stops. DB is required.
type Options struct {
	DB *store.DB
	// Instance is the ID with which this process holds an instance of DB.
	Instance string
	// Patience is how long Add waits for confirmations; 0 = 2 s.
	Patience time.Duration
	Now      func() time.Time // nil = time.Now
}

// Stops are the stops in force.
type Stops struct {
	opts    Options
	present *store.Instances
	now     atomic.Pointer[[]Stop] // in force
	changed atomic.Pointer[func()] // see OnChange
	read    atomic.Int64           // when the store was read last, nanoseconds since 1970

	reading   sync.Mutex      // held while the stops are read and put into force; protects the field below
	confirmed map[string]bool // by ID of a stop: the store has the confirmation of this process
}

// Open reads the stops of opts.DB. It fails closed: without them, no process serves.
func Open(ctx context.Context, opts Options) (*Stops, error) {
	if opts.Now == nil {
		opts.Now = time.Now
	}
	opts.Patience = cmp.Or(opts.Patience, confirmIn)
	s := &Stops{opts: opts, present: opts.DB.Instances("")}
	s.now.Store(new([]Stop))
	if err := s.refresh(ctx); err != nil {
		return nil, fmt.Errorf("reading the stops: %w", err)
	}
	return s, nil
}

// Find returns the first stop that concerns a request of p at a server, by a tool as it is exposed;
// "" = not known, or none. It returns nil when nothing does.
func (s *Stops) Find(p *policy.Principal, server, tool string) *Stop {
	all := *s.now.Load()
	for i := range all {
		if one := &all[i]; one.concerns(p, server, tool) && !one.over(s.opts.Now()) {
			return one
		}
	}
	return nil
}

// OnChange has changed called after other stops are in force, before this process confirms them.
func (s *Stops) OnChange(changed func()) { s.changed.Store(&changed) }

// Unread returns how long the store could not be read, 0 = it can be. What was stopped then is so.
func (s *Stops) Unread() time.Duration {
	if d := s.opts.Now().Sub(time.Unix(0, s.read.Load())); d > unreadFor {
		return d
	}
	return 0
}

// InForce returns the stops that this process enforces, the oldest first.
func (s *Stops) InForce() []Stop {
	now := s.opts.Now()
	return slices.DeleteFunc(slices.Clone(*s.now.Load()), func(one Stop) bool { return one.over(now) })
}

// Follow enforces what other processes stop and resume, at once when a server notifies and
// otherwise within half a second, until ctx ends.
func (s *Stops) Follow(ctx context.Context) {
	s.opts.DB.Follow(ctx, store.Stops, readEvery, func(ctx context.Context) { _ = s.refresh(ctx) }) // tried again; Unread says so
}

// refresh reads the stops, puts them into force and confirms them.
func (s *Stops) refresh(ctx context.Context) error {
	s.reading.Lock()
	defer s.reading.Unlock()
	ctx, stop := context.WithTimeout(ctx, readWithin)
	defer stop()
	began := s.opts.Now()
	all, err := s.fetch(ctx)
	if err != nil {
		return err
	}
	s.read.Store(began.UnixNano())
	all = slices.DeleteFunc(all, func(one Stop) bool { return one.over(began) })
	if !slices.Equal(*s.now.Load(), all) {
		s.now.Store(&all)
		if changed := s.changed.Load(); changed != nil {
			(*changed)()
		}
	}
	s.confirm(ctx, all)
	return nil
}

func (s *Stops) fetch(ctx context.Context) ([]Stop, error) {
	return store.Select(ctx, s.opts.DB.Read, func(one *Stop) []any {
		return []any{&one.ID, &one.Kind, &one.Name, &one.Reason, &one.By, store.Time{To: &one.At}, store.Time{To: &one.Until}}
	}, "SELECT id, kind, name, reason, subject, at, until FROM stops ORDER BY at, id")
}

// confirm tells the store which stops this process enforces; what the store does not take is tried
// again. The caller must hold s.reading.
func (s *Stops) confirm(ctx context.Context, all []Stop) {
	confirmed := make(map[string]bool, len(all))
	var fresh []string
	for _, one := range all {
		if confirmed[one.ID] = true; !s.confirmed[one.ID] {
			fresh = append(fresh, one.ID)
		}
	}
	var err error
	if len(fresh) > 0 {
		now := s.opts.Now()
		err = s.opts.DB.UpdateWithin(ctx, readWithin, func(ctx context.Context, tx *sql.Tx) error {
			for _, id := range fresh {
				if _, err := tx.ExecContext(ctx, "INSERT INTO stop_confirmations (stop, replica, at) VALUES (?, ?, ?) ON CONFLICT (stop, replica) DO NOTHING",
					id, s.opts.Instance, store.Time{To: &now}); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err == nil {
		s.confirmed = confirmed
	}
}

// Add stops requests; Kind, Name, Reason, By and Until of one count. It waits until every process
// enforces the stop, at most for Options.Patience, and returns who does. The error is ErrInvalid, or
// that of the store.
func (s *Stops) Add(ctx context.Context, one Stop) (State, error) {
	if err := one.Check(); err != nil {
		return State{}, err
	}
	one.ID, one.At = signal.UniqueID("stp_"), s.opts.Now().UTC()
	err := s.change(ctx, func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, "INSERT INTO stops (id, kind, name, reason, subject, at, until) VALUES (?, ?, ?, ?, ?, ?, ?)",
			one.ID, one.Kind, one.Name, one.Reason, one.By, store.Time{To: &one.At}, store.Time{To: &one.Until})
		return err
	})
	if err != nil {
		return State{}, fmt.Errorf("stopping %s: %w", one.About(), err)
	}
	return s.await(ctx, one)
}

// await is the wait of Add. One that is resumed meanwhile has nobody to wait for.
func (s *Stops) await(ctx context.Context, one Stop) (State, error) {
	for late := time.After(s.opts.Patience); ; {
		all, err := s.List(ctx)
		if err != nil {
			return State{}, err
		}
		state := State{Stop: one, Confirmed: []string{}, Waiting: []string{}}
		if i := slices.IndexFunc(all, func(other State) bool { return other.ID == one.ID }); i >= 0 {
			state = all[i]
		}
		if len(state.Waiting) == 0 {
			return state, nil
		}
		select {
		case <-late:
			return state, nil
		case <-ctx.Done():
			return state, nil
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// Resume ends a stop. The error is ErrNotFound, or that of the store.
func (s *Stops) Resume(ctx context.Context, id string) error {
	err := s.change(ctx, func(ctx context.Context, tx *sql.Tx) error {
		gone, err := tx.ExecContext(ctx, "DELETE FROM stops WHERE id = ?", id)
		if err != nil {
			return err
		}
		if n, err := gone.RowsAffected(); err != nil || n == 0 {
			return errors.Join(err, ErrNotFound)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("resuming: %w", err)
	}
	return nil
}

// change runs do in a transaction, which also deletes the stops that have ended, and reads the stops again.
func (s *Stops) change(ctx context.Context, do func(context.Context, *sql.Tx) error) error {
	err := s.opts.DB.Update(ctx, func(ctx context.Context, tx *sql.Tx) error {
		now := s.opts.Now()
		_, err := tx.ExecContext(ctx, "DELETE FROM stops WHERE until > 0 AND until <= ?", store.Time{To: &now})
		if err == nil {
			err = do(ctx, tx)
		}
		if err == nil {
			_, err = tx.ExecContext(ctx, "DELETE FROM stop_confirmations WHERE stop NOT IN (SELECT id FROM stops)")
		}
		if err != nil {
			return err
		}
		return s.opts.DB.Notify(ctx, tx, store.Stops)
	})
	if err == nil {
		_ = s.refresh(context.WithoutCancel(ctx)) // Follow tries again
	}
	return err
}

// List returns the stops in force as the store has them, the oldest first.
func (s *Stops) List(ctx context.Context) ([]State, error) {
	all, err := s.fetch(ctx)
	if err != nil {
		return nil, fmt.Errorf("reading the stops: %w", err)
	}
	type row struct{ stop, replica string }
	rows, err := store.Select(ctx, s.opts.DB.Read, func(r *row) []any { return []any{&r.stop, &r.replica} }, "SELECT stop, replica FROM stop_confirmations")
	if err != nil {
		return nil, fmt.Errorf("reading who confirmed the stops: %w", err)
	}
	present, err := s.present.Present(ctx)
	if err != nil {
		return nil, err
	}
	states, now := []State{}, s.opts.Now()
	for _, one := range all {
		if one.over(now) {
			continue
		}
		state := State{Stop: one, Confirmed: []string{}, Waiting: []string{}}
		for _, r := range present {
			if slices.Contains(rows, row{one.ID, r.ID}) {
				state.Confirmed = append(state.Confirmed, r.Who)
			} else {
				state.Waiting = append(state.Waiting, r.Who)
			}
		}
		states = append(states, state)
	}
	return states, nil
}
