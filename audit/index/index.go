// Package index derives a search index of calls from the trail. It is no evidence: the records
// of the trail are, and whoever needs proof reads those.
//
// # Blocks
//
// One writer for each trail follows it and puts calls, ordered by time, into blocks of 4,096 at most. A
// block has the calls as lists show them, and its postings: pairs of the 40-bit hash of a term and the
// number of the call that has it. A term is one thing that can be asked for, such as the principal
// alice or the word "invoice" in the arguments. Postings are ordered and split by their first bits, so that a
// search reads a few kilobytes of each block for a term, and calls only for what it shows. New calls are small blocks,
// which are merged when there are many. Rows and postings of a block are a few values in a
// database: that costs a call some microseconds, where a row and the terms of an SQL index cost over
// twenty.
//
//	x := index.New(index.Options{Trail: dir, Owner: name, File: file, Lock: lock})
//	go x.Run(ctx)
//	page, err := x.Search(ctx, index.Query{Principal: "agent-7", Limit: 50})
//
// # Exactness
//
// A batch of calls and the place up to which the trail was read are one transaction. After a kill, the next
// writer continues from that place. A call that has not ended after some seconds is a row
// without an outcome; with its outcome it gets a second row, and lists show the one that knows more.
//
// # Engines
//
// The index is in a file of its own, or in the database that replicas share, where each writes what its own trail
// has and all search everything, the calls of each minute of the last day among it. A damaged file, or one of another version, is removed and
// filled again.
package index

import (
	"cmp"
	"context"
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/internal/files"
	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/internal/wait"
)

//go:embed sqlite/*.sql
var embedded embed.FS

// Migrations are those of the file. PostgreSQL has the same tables with those of the state.
func Migrations() fs.FS { return store.Folder(embedded, "sqlite") }

var (
	// ErrStarting reports an index that is not open yet, or that is damaged and made again.
	ErrStarting = errors.New("the index of calls is being made")
	// ErrWriting reports that another process writes the index.
	ErrWriting = errors.New("another process writes the index of calls")
)

const (
	tryEvery   = time.Second
	pruneEvery = time.Hour
	beatEvery  = 5 * time.Second
	living     = 30 * time.Second // since the last beat of a writer
)

// Options configure an Index. Poll, Now and Log are not required.
type Options struct {
	Trail string    // directory of the trail
	Owner string    // name of the trail, which no other has
	DB    *store.DB // database of a server that has the index; nil = it is in File
	File  string
	Lock  string // file whose lock the writer of this trail holds

	Poll time.Duration    // between two looks at the trail; 0 = 500 ms: it vouches for records once a second
	Now  func() time.Time // nil = time.Now
	Log  hclog.Logger     // nil = nothing is logged
}

// An Index is the index of calls. It is safe for concurrent use.
type Index struct {
	opts  Options
	begun time.Time

	mu sync.RWMutex // protects db; searches hold it to read
	db *store.DB    // nil = not open

	writer  atomic.Pointer[writer] // nil = this process does not write
	damaged atomic.Bool            // a search has found damage
	asking  sync.Mutex             // held by a search that asks who may decide: it uses two connections
	feed    feed
}

// New returns an Index, which Run opens and keeps up to date.
func New(o Options) *Index {
	o.Log, o.Poll = cmp.Or(o.Log, hclog.NewNullLogger()), cmp.Or(o.Poll, 500*time.Millisecond)
	if o.Now == nil {
		o.Now = time.Now
	}
	return &Index{opts: o, begun: o.Now()}
}

// Run opens the index and, whenever no other process does, writes it, until ctx ends. Whatever fails is
// logged and tried again.
func (x *Index) Run(ctx context.Context) {
	defer x.drop()
	last := ""
	for more := true; more; more = wait.For(ctx, tryEvery) {
		err := x.writeLocked(ctx, x.work)
		if errors.Is(err, ErrWriting) {
			err = x.open(ctx, false)
		}
		if err != nil && ctx.Err() == nil && err.Error() != last {
			x.opts.Log.Error("indexing calls", "error", err)
		}
		last = fmt.Sprint(err)
	}
}

// Rebuild empties the index of what this trail has in it, fills it again, and returns the number of
// calls. What was read is written to progress; nil = nobody is shown. The error is ErrWriting while another
// process writes the index.
func (x *Index) Rebuild(ctx context.Context, progress io.Writer) (calls int, err error) {
	defer x.drop()
	err = x.writeLocked(ctx, func(ctx context.Context) error {
		if err := errors.Join(x.empty(ctx), x.open(ctx, true)); err != nil {
			return err
		}
		w, err := newWriter(ctx, x)
		if err != nil {
			return err
		}
		if progress != nil {
			w.progress = progress
		}
		err = w.look(ctx)
		calls = w.calls
		return errors.Join(err, ctx.Err())
	})
	return calls, err
}

// writeLocked calls do while this process holds the lock of the writer. The error is ErrWriting while
// another one does.
func (x *Index) writeLocked(ctx context.Context, do func(context.Context) error) error {
	if err := os.MkdirAll(filepath.Dir(x.opts.Lock), 0o700); err != nil {
		return err
	}
	lock, err := os.OpenFile(x.opts.Lock, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := files.TryLock(lock); errors.Is(err, files.ErrHeld) {
		return ErrWriting
	} else if err != nil {
		return err
	}
	return do(ctx)
}

// work writes until ctx ends or something fails.
func (x *Index) work(ctx context.Context) (err error) {
	if err = x.open(ctx, true); err != nil {
		return err
	}
	defer func() {
		x.writer.Store(nil)
		if isDamage(err) {
			err = errors.Join(fmt.Errorf("the index is made again: %w", err), x.empty(ctx))
		}
	}()
	x.damaged.Store(false)
	w, err := newWriter(ctx, x)
	if err != nil {
		return err
	}
	x.writer.Store(w)
	pruned := time.Time{}
	for more := true; more; more = wait.For(ctx, x.opts.Poll) {
		if !x.db.InPlace() {
			return errors.New("the file of the index was removed")
		}
		if x.damaged.Load() {
			return errDamaged
		}
		if now := x.opts.Now(); now.Sub(pruned) >= pruneEvery {
			pruned = now
			if err := errors.Join(w.prune(ctx), w.pruneMinutes(ctx)); err != nil {
				return err
			}
		}
		if err := w.look(ctx); err != nil {
			return err
		}
	}
	return nil
}

// empty removes what the index has of this trail.
func (x *Index) empty(ctx context.Context) error {
	if x.opts.DB != nil {
		return forgetOwner(ctx, x.opts.DB, x.opts.Owner)
	}
	x.drop()
	return store.RemoveDerived(x.opts.File)
}

func isDamage(err error) bool { return store.Damaged(err) || errors.Is(err, errDamaged) }

// open opens the database, unless it is open. The holder of the lock makes a damaged file again.
func (x *Index) open(ctx context.Context, holder bool) error {
	if x.opts.DB != nil {
		x.set(x.opts.DB)
		return nil
	}
	if x.db != nil && x.db.InPlace() { // only this goroutine writes it
		return nil
	}
	x.drop()
	db, err := store.OpenDerived(ctx, x.opts.File, Migrations())
	if store.Damaged(err) && holder {
		x.opts.Log.Warn("the index of calls is made again", "error", err)
		if err = store.RemoveDerived(x.opts.File); err == nil {
			db, err = store.OpenDerived(ctx, x.opts.File, Migrations())
		}
	}
	if err == nil {
		x.set(db)
	}
	return err
}

func (x *Index) set(db *store.DB) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.db = db
}

// drop closes the file, when no search uses it.
func (x *Index) drop() {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.db != nil && x.opts.DB == nil {
		_ = x.db.Close() // what it has can be made again
	}
	x.db = nil
}

// use calls do with the database. The error is ErrStarting before it is open.
func (x *Index) use(do func(*store.DB) error) error {
	x.mu.RLock()
	defer x.mu.RUnlock()
	if x.db == nil {
		return ErrStarting
	}
	err := do(x.db)
	if isDamage(err) {
		x.damaged.Store(true)
		return fmt.Errorf("%w: %w", ErrStarting, err)
	}
	return err
}

// behind returns how far the index is behind the trail: 0 when it has all records. On a server this is the
// worst of all living replicas.
func (x *Index) behind(ctx context.Context, db *store.DB) (time.Duration, error) {
	type row struct {
		owner        string
		beat, behind int64
	}
	now := x.opts.Now()
	rows, err := store.Select(ctx, db.Read, func(r *row) []any { return []any{&r.owner, &r.beat, &r.behind} },
		"SELECT owner, beat, behind FROM call_writers WHERE beat >= ?", now.Add(-living).UnixNano())
	worst := max(now.Sub(x.begun), time.Nanosecond) // until somebody writes this trail
	isOwn := func(r row) bool { return r.owner == x.opts.Owner }
	if w := x.writer.Load(); w != nil {
		worst, rows = w.behind(now), slices.DeleteFunc(rows, isOwn)
	} else if slices.ContainsFunc(rows, isOwn) {
		worst = 0
	}
	for _, r := range rows {
		beat := time.Unix(0, r.beat)
		late := now.Sub(beat)
		if isOwn(r) && beat.Before(x.begun) { // whoever wrote it may have ended, and the trail gone on
			worst = max(worst, time.Duration(r.behind)+late)
		} else {
			worst = max(worst, time.Duration(r.behind), late-2*beatEvery)
		}
	}
	return worst, err
}

// Forget removes the calls of chains that were removed from a trail from the index in a database, whoever
// wrote them.
func Forget(ctx context.Context, db *store.DB, gone []audit.Earlier) error {
	removed := map[string]bool{}
	for _, e := range gone {
		removed[e.Instance] = true
	}
	if err := prune(ctx, db, "", func(e *entry) bool { return removed[e.Instance] }); err != nil {
		return fmt.Errorf("forgetting archived calls: %w", err)
	}
	return nil
}
