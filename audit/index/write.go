package index

import (
	"context"
	"database/sql"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/internal/store"
)

const (
	fullBlock  = maxRows / 2 // a block of this size is not merged again
	manyBlocks = 8           // small blocks that are merged
	longCall   = 5 * time.Second
	lostCall   = 24 * time.Hour // then its outcome is not waited for
	maxWaiting = 100_000
	maxSpare   = 64
)

// A writer writes the index of one trail. It belongs to one goroutine; behind may be called by any.
type writer struct {
	*Index
	follower *audit.Follower
	reader   reader
	record   record              // of the line that is read
	terms    []uint64            // of record
	spare    []*waiting          // decisions that have their outcomes, to be used again
	chains   map[string]*place   // by name
	waiting  map[string]*waiting // decisions without an outcome, by ID
	batch    []*entry
	small    []block // the last blocks, which are smaller than fullBlock, the oldest first
	added    int64   // of the last batch
	beaten   time.Time
	calls    int
	minutes  map[Minute]int // calls that the database does not count yet
	progress io.Writer      // of what was read

	saved   atomic.Bool  // everything that was read is in the index, and nothing is being read
	unsaved atomic.Bool  // the batch has entries
	last    atomic.Int64 // a time up to which all records are in the index, as far as is known, nanoseconds since 1970
}

// A place is how far a chain was read.
type place struct {
	until, saved uint64 // the last record that is in the index, and that the database knows of
	again        uint64 // records up to here are read once more for their decisions alone
	first        uint64 // the oldest record that the trail had
}

// waiting is a decision without an outcome.
type waiting struct {
	chain string
	line  []byte
	seq   uint64
	at    time.Time
	shown bool // there is a row of it
}

type block struct{ id, size int64 }

func newWriter(ctx context.Context, x *Index) (*writer, error) {
	w := &writer{Index: x, progress: io.Discard, chains: map[string]*place{}, waiting: map[string]*waiting{}, minutes: map[Minute]int{}}
	type row struct {
		chain               string
		start, until, first uint64
	}
	rows, err := store.Select(ctx, x.db.Read, func(r *row) []any { return []any{&r.chain, &r.start, &r.until, &r.first} },
		"SELECT chain, start, until, first FROM call_chains WHERE owner = ?", x.opts.Owner)
	if err != nil {
		return nil, err
	}
	start := audit.Cursor{}
	for _, r := range rows {
		start[r.chain], w.chains[r.chain] = r.start, &place{until: r.until, saved: r.until, again: r.until, first: r.first}
	}
	w.follower = audit.NewFollower(x.opts.Trail, start)
	w.small, err = store.Select(ctx, x.db.Read, func(b *block) []any { return []any{&b.id, &b.size} },
		"SELECT id, size FROM call_blocks WHERE owner = ? AND size < ? ORDER BY id", x.opts.Owner, fullBlock)
	w.last.Store(x.begun.UnixNano())
	return w, err
}

// behind returns how long ago the index had all records, 0 when it has them now.
func (w *writer) behind(now time.Time) time.Duration {
	if w.saved.Load() && !w.unsaved.Load() && !w.follower.Unread() {
		return 0
	}
	return max(time.Millisecond, now.Sub(time.Unix(0, w.last.Load())))
}

// look indexes what is new in the trail.
func (w *writer) look(ctx context.Context) error {
	now := w.opts.Now()
	w.saved.Store(false)
	for line, err := range w.follower.Next(ctx) {
		if err != nil {
			w.opts.Log.Warn("reading the trail for the index of calls", "error", err)
			continue
		}
		w.add(line)
		if len(w.batch) == fullBlock {
			if err := w.save(ctx); err != nil {
				return err
			}
		}
		_, _ = w.progress.Write(line) // it only shows
	}
	for id, d := range w.waiting {
		if !d.shown && now.Sub(d.at) >= longCall {
			w.showWaiting(d)
		}
		if now.Sub(d.at) >= lostCall || len(w.waiting) > maxWaiting {
			delete(w.waiting, id)
		}
	}
	if err := w.save(ctx); err != nil {
		return err
	}
	w.saved.Store(true)
	if !w.follower.Unread() {
		w.last.Store(now.UnixNano())
	}
	if now.Sub(w.beaten) < beatEvery {
		return nil
	}
	w.beaten = now
	_, err := w.db.Write.ExecContext(ctx, "INSERT INTO call_writers (owner, beat, behind) VALUES (?, ?, ?) ON CONFLICT (owner) DO UPDATE SET beat = excluded.beat, behind = excluded.behind",
		w.opts.Owner, now.UnixNano(), int64(w.behind(now)))
	return err
}

// add indexes one line.
func (w *writer) add(line []byte) {
	chain := w.follower.Chain()
	p := w.chains[chain]
	if p == nil {
		p = new(place)
		w.chains[chain] = p
	}
	rec := &w.record
	*rec = record{}
	if !w.reader.read(line, rec, false) || rec.seq == 0 || rec.Time.IsZero() {
		return // audit verify reports it
	}
	rec.Instance = chain
	if rec.seq <= p.again { // what the database has already
		if rec.kind == audit.KindOutcome {
			delete(w.waiting, rec.ID)
		}
		if rec.kind != audit.KindDecision {
			return
		}
	} else {
		p.until, p.again = rec.seq, 0
		w.last.Store(max(w.last.Load(), rec.Time.UnixNano()))
	}
	switch rec.kind {
	case audit.KindDecision:
		w.waiting[rec.ID] = w.decided(rec, line)
	case audit.KindOutcome:
		w.addOutcome(rec)
	case audit.KindTicket:
		rec.OutcomeSeq = rec.seq
		w.push(&entry{Call: rec.Call, change: true, terms: []uint64{termHash(termChange, rec.Ticket)}})
	case audit.KindClose:
		for id, d := range w.waiting { // nobody is left to write their outcomes
			if d.chain == chain {
				w.showWaiting(d)
				delete(w.waiting, id)
			}
		}
	}
}

// decided returns the decision rec, with a copy of its line.
func (w *writer) decided(rec *record, line []byte) *waiting {
	d := new(waiting)
	if n := len(w.spare); n > 0 {
		d, w.spare = w.spare[n-1], w.spare[:n-1]
	}
	*d = waiting{chain: rec.Instance, line: append(d.line[:0], line...), seq: rec.seq, at: rec.Time}
	return d
}

// addOutcome indexes a call that has ended.
func (w *writer) addOutcome(rec *record) {
	rec.OutcomeSeq = rec.seq
	d := w.waiting[rec.ID]
	if d != nil {
		delete(w.waiting, rec.ID)
		rec.Time, rec.DecisionSeq = d.at, d.seq
		if rec.arguments == nil {
			rec.arguments = argumentsOf(d.line)
		}
	}
	w.pushCall(rec)
	if d != nil && len(w.spare) < maxSpare && cap(d.line) <= 16<<10 {
		w.spare = append(w.spare, d)
	}
}

// showWaiting indexes a call without an outcome.
func (w *writer) showWaiting(d *waiting) {
	var rec record
	if d.shown || !w.reader.read(d.line, &rec, true) {
		return
	}
	d.shown, rec.Instance, rec.DecisionSeq = true, d.chain, rec.seq
	rec.Stage = ""
	w.pushCall(&rec)
}

func (w *writer) pushCall(rec *record) {
	w.terms = rec.terms(w.terms[:0])
	w.push(&entry{Call: rec.Call, terms: slices.Clone(w.terms)})
	w.count(&rec.Call)
}

func (w *writer) push(e *entry) {
	w.batch = append(w.batch, e)
	w.calls++
	w.unsaved.Store(true)
}

// save writes the batch and how far the trail was read, in one transaction.
func (w *writer) save(ctx context.Context) error {
	start := map[string]uint64{} // of chains with waiting decisions
	for _, d := range w.waiting {
		if before, ok := start[d.chain]; !ok || d.seq <= before {
			start[d.chain] = d.seq - 1
		}
	}
	var made *block
	err := w.db.Update(ctx, func(ctx context.Context, tx *sql.Tx) (err error) {
		made = nil
		for chain, p := range w.chains {
			if p.until == p.saved {
				continue
			}
			from, ok := start[chain]
			if !ok {
				from = p.until
			}
			if _, err = tx.ExecContext(ctx, "INSERT INTO call_chains (chain, owner, start, until, first) VALUES (?, ?, ?, ?, ?) ON CONFLICT (chain) DO UPDATE SET start = excluded.start, until = excluded.until",
				chain, w.opts.Owner, int64(from), int64(p.until), int64(p.first)); err != nil {
				return err
			}
		}
		if len(w.batch) > 0 {
			w.added = max(w.added+1, w.opts.Now().UnixMilli())
			for _, e := range w.batch {
				e.added = w.added
			}
			if made, err = insert(ctx, tx, w.opts.Owner, w.batch); err == nil {
				err = w.saveMinutes(ctx, tx)
			}
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("writing the index of calls: %w", err)
	}
	for _, p := range w.chains {
		p.saved = p.until
	}
	w.batch = w.batch[:0]
	clear(w.minutes)
	w.unsaved.Store(false)
	if made == nil || made.size >= fullBlock {
		return nil
	}
	w.small = append(w.small, *made)
	return w.merge(ctx)
}

// insert writes entries as one block.
func insert(ctx context.Context, tx *sql.Tx, owner string, entries []*entry) (*block, error) {
	slices.SortFunc(entries, func(a, b *entry) int { return newer(b, a) })
	b, added := block{size: int64(len(entries))}, int64(0)
	for _, e := range entries {
		added = max(added, e.added)
	}
	err := tx.QueryRowContext(ctx, "INSERT INTO call_blocks (owner, size, oldest, newest, added) VALUES (?, ?, ?, ?, ?) RETURNING id",
		owner, b.size, entries[0].Time.UnixNano(), entries[len(entries)-1].Time.UnixNano(), added).Scan(&b.id)
	if err != nil {
		return nil, err
	}
	parts := encode(b.id, entries)
	args := make([]any, 0, 2*len(parts))
	for _, p := range parts {
		args = append(args, p.id, p.data)
	}
	_, err = tx.ExecContext(ctx, "INSERT INTO call_parts (id, data) VALUES (?, ?)"+strings.Repeat(", (?, ?)", len(parts)-1), args...)
	return &b, err
}

// merge merges the small blocks when they make a full one, or the last of them when they are many.
func (w *writer) merge(ctx context.Context) error {
	total, n := int64(0), 0
	for _, b := range slices.Backward(w.small) {
		if total+b.size > maxRows {
			break
		}
		total += b.size
		n++
	}
	if total < fullBlock {
		if len(w.small) < manyBlocks {
			return nil
		}
		total, n = 0, 0
		for _, b := range slices.Backward(w.small) {
			if n >= manyBlocks && b.size > total {
				break
			}
			total += b.size
			n++
		}
	}
	rest := len(w.small) - n
	made, err := rewrite(ctx, w.db, w.opts.Owner, w.small[rest:], func(*entry) bool { return false })
	if err != nil {
		return fmt.Errorf("merging blocks of calls: %w", err)
	}
	w.small = w.small[:rest]
	if made != nil && made.size < fullBlock {
		w.small = append(w.small, *made)
	}
	return nil
}

// rewrite makes one block of several, which are maxRows at most, without the entries that are gone
// and the rows of calls of which it has better ones. It returns nil when nothing is left.
func rewrite(ctx context.Context, db *store.DB, owner string, blocks []block, gone func(*entry) bool) (made *block, err error) {
	err = db.Update(ctx, func(ctx context.Context, tx *sql.Tx) error {
		made = nil
		var all []*entry
		for _, b := range blocks {
			entries, err := load(ctx, tx, b.id)
			if err != nil {
				return err
			}
			all = append(all, entries...)
		}
		slices.SortFunc(all, newer)
		all = slices.CompactFunc(all, sameCall)
		if all = slices.DeleteFunc(all, gone); len(all) > 0 {
			var err error
			if made, err = insert(ctx, tx, owner, all); err != nil {
				return err
			}
		}
		return remove(ctx, tx, blocks)
	})
	return made, err
}

// load returns the entries of a block.
func load(ctx context.Context, q store.Querier, id int64) ([]*entry, error) {
	return loadFrom(ctx, q, id, 0)
}

// loadFrom returns the entries of the parts of a block from a number on.
func loadFrom(ctx context.Context, q store.Querier, id, number int64) ([]*entry, error) {
	parts, err := store.Select(ctx, q, func(p *part) []any { return []any{&p.id, &p.data} },
		"SELECT id, data FROM call_parts WHERE id >= ? AND id < ? ORDER BY id", id*maxParts+number, (id+1)*maxParts)
	if err != nil {
		return nil, err
	}
	return decode(parts)
}

func remove(ctx context.Context, tx *sql.Tx, blocks []block) error {
	for _, b := range blocks {
		if _, err := tx.ExecContext(ctx, "DELETE FROM call_parts WHERE id >= ? AND id < ?", b.id*maxParts, (b.id+1)*maxParts); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, "DELETE FROM call_blocks WHERE id = ?", b.id); err != nil {
			return err
		}
	}
	return nil
}

// prune removes the calls whose records the trail no longer has.
func (w *writer) prune(ctx context.Context) error {
	begins, err := audit.Begins(w.opts.Trail)
	if err != nil {
		return err
	}
	changed, closed := map[string]uint64{}, map[string]bool{}
	for chain, p := range w.chains {
		begin, there := begins[chain]
		if closed[chain] = !there; !there {
			begin = math.MaxInt64
		}
		if begin > max(p.first, 1) {
			changed[chain] = begin
		}
	}
	if len(changed) == 0 {
		return nil
	}
	if err := prune(ctx, w.db, w.opts.Owner, func(e *entry) bool { return max(e.OutcomeSeq, e.DecisionSeq) < changed[e.Instance] }); err != nil {
		return fmt.Errorf("removing archived calls from the index: %w", err)
	}
	err = w.db.Update(ctx, func(ctx context.Context, tx *sql.Tx) error {
		for chain, begin := range changed {
			statement, args := "UPDATE call_chains SET first = ? WHERE chain = ?", []any{int64(begin), chain}
			if closed[chain] {
				statement, args = "DELETE FROM call_chains WHERE chain = ?", args[1:]
			}
			if _, err := tx.ExecContext(ctx, statement, args...); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	for chain, begin := range changed {
		if w.chains[chain].first = begin; closed[chain] {
			delete(w.chains, chain)
		}
	}
	w.small, err = store.Select(ctx, w.db.Read, func(b *block) []any { return []any{&b.id, &b.size} },
		"SELECT id, size FROM call_blocks WHERE owner = ? AND size < ? ORDER BY id", w.opts.Owner, fullBlock)
	return err
}

// prune removes the entries of an owner that are gone; "" = of all owners.
func prune(ctx context.Context, db *store.DB, owner string, gone func(*entry) bool) error {
	type row struct {
		block
		owner string
	}
	blocks, err := store.Select(ctx, db.Read, func(r *row) []any { return []any{&r.id, &r.size, &r.owner} },
		"SELECT id, size, owner FROM call_blocks WHERE ? IN ('', owner) ORDER BY id", owner)
	for _, b := range blocks {
		if err != nil {
			break
		}
		var entries []*entry
		if entries, err = loadFrom(ctx, db.Read, b.id, rowPart); err == nil && slices.ContainsFunc(entries, gone) {
			_, err = rewrite(ctx, db, b.owner, []block{b.block}, gone)
		}
	}
	return err
}

// forgetOwner removes all that the index has of a trail.
func forgetOwner(ctx context.Context, db *store.DB, owner string) error {
	return db.Update(ctx, func(ctx context.Context, tx *sql.Tx) error {
		blocks, err := store.Select(ctx, tx, func(b *block) []any { return []any{&b.id} }, "SELECT id FROM call_blocks WHERE owner = ?", owner)
		if err == nil {
			err = remove(ctx, tx, blocks)
		}
		if err != nil {
			return err
		}
		for _, statement := range []string{
			"DELETE FROM call_chains WHERE owner = ?", "DELETE FROM call_writers WHERE owner = ?", "DELETE FROM call_minutes WHERE owner = ?",
		} {
			if _, err := tx.ExecContext(ctx, statement, owner); err != nil {
				return err
			}
		}
		return nil
	})
}
