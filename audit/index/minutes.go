package index

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/toolgate/toolgate/internal/store"
)

// countedFor is how long the calls of a minute are counted.
const countedFor = 24*time.Hour + time.Minute

// A Minute counts the calls that began in one minute and have ended, by what the policy said of them.
type Minute struct {
	Begin  time.Time
	Effect string // as Call has it
	Calls  int
}

// Minutes returns the minutes that begin at a time or later, the oldest first, at most those of the last day.
// On a server they are of all replicas. The error is ErrStarting before the index is open.
func (x *Index) Minutes(ctx context.Context, since time.Time) (all []Minute, err error) {
	err = x.use(func(db *store.DB) error {
		var begins []int64
		all, err = store.Select(ctx, db.Read, func(m *Minute) []any {
			begins = append(begins, 0)
			return []any{&begins[len(begins)-1], &m.Effect, &m.Calls}
		}, "SELECT begin, effect, CAST(sum(calls) AS BIGINT) FROM call_minutes WHERE begin >= ? GROUP BY begin, effect ORDER BY begin, effect", since.UnixNano())
		for i := range all {
			all[i].Begin = time.Unix(0, begins[i]).UTC()
		}
		return err
	})
	return all, err
}

// count counts a call that has ended.
func (w *writer) count(c *Call) {
	if c.Outcome != "" && w.opts.Now().Sub(c.Time) < countedFor {
		w.minutes[Minute{Begin: c.Time.UTC().Truncate(time.Minute), Effect: c.Effect}]++
	}
}

// saveMinutes adds the calls that were counted since the last time.
func (w *writer) saveMinutes(ctx context.Context, tx *sql.Tx) error {
	for m, calls := range w.minutes {
		if _, err := tx.ExecContext(ctx, "INSERT INTO call_minutes (owner, begin, effect, calls) VALUES (?, ?, ?, ?) ON CONFLICT (begin, effect, owner) DO UPDATE SET calls = call_minutes.calls + excluded.calls",
			w.opts.Owner, m.Begin.UnixNano(), m.Effect, calls); err != nil {
			return err
		}
	}
	return nil
}

// pruneMinutes removes old minutes, whoever counted them.
func (w *writer) pruneMinutes(ctx context.Context) error {
	_, err := w.db.Write.ExecContext(ctx, "DELETE FROM call_minutes WHERE begin < ?", w.opts.Now().Add(-countedFor).UnixNano())
	if err != nil {
		return fmt.Errorf("removing old counts of calls: %w", err)
	}
	return nil
}
