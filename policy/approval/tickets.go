package approval

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/toolgate/toolgate/internal/keys"
	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/signal"
)

const (
	defaultTTL  = 15 * time.Minute
	defaultLive = 64
	defaultKeep = 30 * 24 * time.Hour
	// pollEvery is how often Wait looks for changes of other processes that it was not
	// woken for, and followEvery how often Follow does, which goes on when nobody waits.
	pollEvery   = 250 * time.Millisecond
	followEvery = time.Second
	// maxWithout bounds the principals remembered to have no tickets.
	maxWithout = 4096
)

// Options are the settings of [Tickets]; the zero value is usable.
type Options struct {
	// Dir holds the locks of the living processes that share the store's file; "" =
	// instances, next to it. A store on a server has leases instead; there Dir holds the locks of
	// the processes of this replica whose LastWord misses no record, by which it finds that a call
	// was not sent. "" = it finds that of none.
	Dir string
	// Keys authenticates the rows of the store, the same for all processes that share it;
	// nil = the directory keys next to the store's file, which protects nothing from those
	// who can write there. A store on a server needs Keys.
	Keys *keys.Dir
	// LastWord returns the last change of a ticket, created at some time, that the audit
	// trail has, of any process; Seq 0 = none. When the store's ticket is older, the ticket
	// becomes unknown, unless the trail shows that nothing was sent. An error refuses the call or the vote. nil =
	// there is no trail.
	LastWord func(ctx context.Context, ticket string, created time.Time) (Word, error)
	// Alarm is called with each reason why the store cannot be relied on. It must not use
	// the Tickets. nil = none.
	Alarm func(reason string)
	// Keep is how long a ticket that has ended is kept beyond its expiry; 0 = 30 days.
	// Then its arguments, votes and history are deleted. An unknown ticket is kept.
	Keep time.Duration
	// TTL is the lifetime of a ticket when the policy does not set one; 0 = 15
	// minutes.
	TTL time.Duration
	// MaxLive is the largest number of calls of one principal that may wait for a
	// decision; 0 = 64.
	MaxLive int
	// RequirePerson counts a vote, and a finding, only where the credentials of the voter and
	// of the requester both name a person. Those who are the same party differ in no case.
	RequirePerson bool
	// Now is the wall clock; nil = time.Now.
	Now func() time.Time
	// Instance names this process among those that share the store. It must be unique;
	// "" = a new name.
	Instance string
	// Changed is called for every change of a ticket in this process, including votes
	// that do not decide it, at the end of the change's transaction tx: in order and one at a
	// time for each ticket, and for several tickets at the same time: its writes to tx are committed with the change or not at all,
	// and its error undoes the change. t is the ticket after the change, without
	// arguments and result. Changed must not use the Tickets, nor the store except
	// through tx. When the commit itself fails, Changed was called for a change that
	// did not happen; the next change may then have the same Seq. nil = none.
	Changed func(ctx context.Context, tx *sql.Tx, t Ticket, c Change) error
	// Standing returns an approver as configured now; known is false when no
	// configured credential names the approver. A vote counts, when it is cast and
	// when the grant is spent, only if its approver may still decide on the ticket
	// and is not the party of another vote. The vote of an unknown approver counts if the credential was one that
	// expires (Principal.Until), or if another living process counted it, which may
	// know the approver. nil = every approver stays as at the vote.
	Standing func(subject, tenant string) (now policy.Principal, known bool)
}

// Tickets keeps the tickets of one store. It is safe for concurrent use, and
// any number of Tickets, in any number of processes, may share the store.
type Tickets struct {
	*sealer
	db        *store.DB
	instances *store.Instances
	opts      Options
	clock     clock

	clockQuery prepared // selectClock outside of transactions: it runs once a second, and for many calls

	without     *lru.Cache[[2]string, string] // :: subject and tenant ⇒ version of the store when Answering found nothing
	changesSeen atomic.Int64                  // the most changes that the store has shown
	restsAt     atomic.Value                  // string: version of the store when it had no live ticket
	compared    chan struct{}                 // closed when the store is compared with the trail
	failed      chan struct{}                 // closed when the comparison has failed once
	compareErr  atomic.Pointer[error]         // of the last comparison that failed
	stop        func()                        // ends keep, and waits for it

	running sync.Map // the ids of tickets granted here and neither finished nor released
	waiters waiters
	poll    time.Duration // pollEvery, but in tests

	mu       sync.Mutex // protects the field below
	instance *store.Instance
}

// New returns the tickets in db, which has the migrations of [store.Migrations]. Until
// Close, other processes see that this one lives. New moves the tickets that dead
// processes were running to unknown; it never runs a call again.
func New(ctx context.Context, db *store.DB, opts Options) (*Tickets, error) {
	if opts.Now == nil {
		opts.Now = time.Now
	}
	opts.TTL = cmp.Or(max(0, opts.TTL), defaultTTL)
	opts.MaxLive = cmp.Or(max(0, opts.MaxLive), defaultLive)
	opts.Keep = cmp.Or(max(0, opts.Keep), defaultKeep)
	if opts.Alarm == nil {
		opts.Alarm = func(string) {}
	}
	opts.Instance = cmp.Or(opts.Instance, signal.UniqueID("ins_"))
	if opts.Keys == nil && db.Path() == "" {
		return nil, errors.New("opening approvals: a store on a server needs keys")
	}
	instances := db.Instances(opts.Dir)
	held, err := instances.Hold(ctx, opts.Instance)
	if err != nil {
		return nil, fmt.Errorf("opening approvals: %w", err)
	}
	t := &Tickets{db: db, instances: instances, opts: opts, instance: held, poll: pollEvery, compared: make(chan struct{}), failed: make(chan struct{})}
	t.without, _ = lru.New[[2]string, string](maxWithout) // an error means a size below 1
	t.clockQuery.Stmt, err = db.Read.PrepareContext(ctx, clockOf(db))
	if err == nil {
		err = t.openSealer(ctx)
	}
	if err == nil {
		_, err = t.refresh(ctx)
	}
	if err == nil {
		_, err = instances.Sweep(ctx)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("opening approvals: %w", err), held.Close())
	}
	keeping, stop := context.WithCancel(context.WithoutCancel(ctx))
	var keeper sync.WaitGroup
	keeper.Go(func() { t.keep(keeping) })
	keeper.Go(func() { db.Listen(keeping, store.Tickets, t.waiters.wake) })
	t.stop = func() { stop(); keeper.Wait() }
	return t, nil
}

// openSealer opens the keys, and the store's name.
func (t *Tickets) openSealer(ctx context.Context) (err error) {
	now, err := t.readClock(ctx, t.clockQuery)
	if err == nil && t.opts.Keys == nil {
		t.opts.Keys, err = keys.Open(filepath.Join(filepath.Dir(t.db.Path()), "keys"))
	}
	if err == nil {
		t.sealer = &sealer{dir: t.opts.Keys, store: now.name, people: t.opts.RequirePerson, old: map[string]keys.Key{}}
		t.key, err = t.dir.Secret(keys.Tickets)
	}
	return err
}

// Store returns the name of the store, which it has from its first use on, whatever becomes of its
// place.
func (t *Tickets) Store() string { return t.sealer.store }

// Close releases the instance lock. Other processes then move tickets that still run
// here to unknown, so callers finish them first. The store stays open.
func (t *Tickets) Close() error {
	t.stop()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.instance == nil {
		return nil
	}
	held := t.instance
	t.instance = nil
	if err := errors.Join(t.clockQuery.Close(), held.Close()); err != nil {
		return fmt.Errorf("closing approvals: %w", err)
	}
	return nil
}

func (t *Tickets) closed() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.instance == nil
}

// due selects the tickets that over returns, and those under way. Each half has an index;
// PostgreSQL would scan the table for an OR of the two.
const due = `WHERE seq IN (SELECT seq FROM approvals WHERE state = 'dispatching' UNION ALL
 SELECT seq FROM (SELECT seq FROM approvals WHERE state IN ('proposed', 'approved') AND deadline <= ? ORDER BY deadline LIMIT ?) first) ORDER BY deadline`

// over returns the tickets that are over at now: those that are due, at most one more than a
// transaction may move, and those that are dispatching and that nobody runs. errUnsure
// reports that this could not be determined for one.
func (t *Tickets) over(ctx context.Context, q store.Querier, now int64) (over []Ticket, err error) {
	found, err := t.query(ctx, q, load{}, due, now, movesAtOnce+1)
	if err != nil {
		return nil, err
	}
	type answer struct {
		over  bool
		fault error
	}
	ofRunner := map[string]answer{} // each process is asked for once
	for _, k := range found {
		a, known := ofRunner[k.runner]
		if !known || k.State != StateDispatching || k.runner == t.opts.Instance {
			a.over, a.fault = t.isOver(ctx, &k, now)
			ofRunner[k.runner] = a
		}
		if a.over {
			over = append(over, k)
		}
		err = cmp.Or(err, a.fault)
	}
	return over, err
}

// isOver reports whether time or the end of its process has ended k: because its process is
// dead, or because it is this process and could not store the outcome. Only a process that
// has certainly ended counts as dead; errUnsure reports that this could not be determined.
func (t *Tickets) isOver(ctx context.Context, k *Ticket, now int64) (bool, error) {
	switch {
	case k.stored == StateProposed || k.stored == StateApproved || k.stored == StateNeedsConnection:
		return k.deadline <= now, nil
	case k.State != StateDispatching:
		return k.stored == StateDispatching, nil // in doubt
	case k.runner == t.opts.Instance:
		_, runs := t.running.Load(k.ID)
		return !runs, nil
	}
	alive, err := t.instances.Alive(ctx, k.runner)
	if err != nil {
		return false, fmt.Errorf("%w: %w", errUnsure, err)
	}
	return !alive, nil
}

// settle moves a ticket that is over.
func (t *Tickets) settle(w *writer, k *Ticket) error {
	switch {
	case k.doubt != "":
		return t.distrust(w, k)
	case k.State == StateProposed:
		return w.move(k, change{to: StateExpired, reason: "nobody decided in time"})
	case k.State == StateApproved:
		return w.move(k, change{to: StateExpired, reason: "the approved call did not come in time"})
	case k.State == StateNeedsConnection:
		return w.move(k, change{to: StateExpired, reason: "the requester did not connect in time"})
	}
	why := "the process that ran it died before the outcome was stored"
	if k.runner == t.opts.Instance {
		why = "its outcome could not be stored"
	} else {
		unsent, err := t.unsent(w.ctx, k)
		if err == nil && unsent {
			return w.move(k, change{to: StateApproved, reason: "its process ended before anything was sent"})
		}
	}
	return w.move(k, change{to: StateUnknown, reason: why, note: why})
}

// unsent reports whether it is certain that nothing was sent for k, whose process is dead: the
// trail ends with the change that spent the grant, or with its return, and a call is sent only
// after the record of its decision is on disk.
//
// With a server, more is needed. The trail must be that of the process, which it is when it has
// the change: no other process has recorded the same number. The kernel must have released the
// process's lock in [Options.Dir]: a lease that ran out does not prove that the process ended,
// and a frozen one would send the call later. And the return of a grant must be in the store,
// because after one that only the trail has another replica may have spent the grant. Another
// replica than that of the process proves nothing, and its ticket is unknown.
func (t *Tickets) unsent(ctx context.Context, k *Ticket) (bool, error) {
	word, err := t.lastWord(ctx, k)
	if err != nil || !word.Unsent {
		return false, err
	}
	if t.db.Shared() {
		ended, err := t.instances.Ended(k.runner)
		return ended && word.Seq == k.version && word.State == StateDispatching, err
	}
	return word.Seq == k.version || word.Seq > k.version && word.State == StateApproved, nil
}
