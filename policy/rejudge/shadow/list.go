package shadow

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/policy/judgement"
)

// Bounds of what is kept.
const (
	keptDisagreements = 10_000
	keptTotals        = 100
)

// Disagreement is a decision that the candidate would have made otherwise.
type Disagreement struct {
	Candidate  string               `json:"candidate"` // revision
	DecisionID string               `json:"decision_id"`
	At         time.Time            `json:"at"`
	Serving    string               `json:"serving"` // revision of the policy that decided
	Principal  string               `json:"principal"`
	Tool       string               `json:"tool"`
	Difference judgement.Difference `json:"difference"`
	Was        judgement.Verdict    `json:"was"`
	Now        judgement.Verdict    `json:"now"`
	Reason     string               `json:"reason,omitempty"` // of the candidate
}

// Total is how often a candidate was asked by all processes on a state, from the
// first to the last decision, and how it came out.
type Total struct {
	Candidate string    `json:"candidate"`
	First     time.Time `json:"first"`
	Last      time.Time `json:"last"`
	Counts
}

// Counts are the decisions of each outcome.
type Counts struct {
	Same    int `json:"same"`
	Changed int `json:"changed"`
	Failed  int `json:"failed"`
	Skipped int `json:"skipped"`
}

func (c *Counts) count(o Outcome) {
	*map[Outcome]*int{Same: &c.Same, Changed: &c.Changed, Failed: &c.Failed, Skipped: &c.Skipped}[o]++
}

// flush writes what was found since the last one. What cannot be written waits for
// the next.
func (w *Worker) flush(ctx context.Context) {
	w.mu.Lock()
	listed, totals := w.listed, w.totals
	w.listed, w.totals = nil, map[string]Total{}
	w.mu.Unlock()
	if len(totals) == 0 {
		return
	}
	err := w.opts.DB.Update(ctx, func(ctx context.Context, tx *sql.Tx) error { return write(ctx, tx, listed, totals) })
	if err == nil {
		w.fault("keeping disagreements", nil)
		return
	}
	w.mu.Lock()
	all := append(listed, w.listed...)
	w.listed = all[:min(len(all), pending)]
	w.status.Unlisted += len(all) - len(w.listed)
	for revision, t := range totals {
		w.totals[revision] = t.with(w.totals[revision])
	}
	w.mu.Unlock()
	if ctx.Err() == nil {
		w.fault("keeping disagreements", err)
	}
}

// with is t and what was counted after it.
func (t Total) with(later Total) Total {
	if later.First.IsZero() {
		return t
	}
	t.Last = later.Last
	t.Same, t.Changed, t.Failed, t.Skipped = t.Same+later.Same, t.Changed+later.Changed, t.Failed+later.Failed, t.Skipped+later.Skipped
	return t
}

// write writes what was found, and keeps the newest.
func write(ctx context.Context, tx *sql.Tx, listed []Disagreement, totals map[string]Total) error {
	for _, d := range listed {
		if _, err := tx.ExecContext(ctx, `INSERT INTO shadow_disagreements
			(candidate, decision_id, at, serving, principal, tool, difference, was_effect, was_rule, now_effect, now_rule, reason)
			VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING`,
			d.Candidate, d.DecisionID, d.At.UnixNano(), d.Serving, d.Principal, d.Tool, string(d.Difference),
			string(d.Was.Effect), d.Was.Rule, string(d.Now.Effect), d.Now.Rule, d.Reason); err != nil {
			return err
		}
	}
	for _, t := range totals {
		if _, err := tx.ExecContext(ctx, `INSERT INTO shadow_totals AS t (candidate, first, last, same, changed, failed, skipped)
			VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (candidate) DO UPDATE SET last = CASE WHEN excluded.last > t.last THEN excluded.last ELSE t.last END,
			same = t.same + excluded.same, changed = t.changed + excluded.changed, failed = t.failed + excluded.failed, skipped = t.skipped + excluded.skipped`,
			t.Candidate, t.First.UnixNano(), t.Last.UnixNano(), t.Same, t.Changed, t.Failed, t.Skipped); err != nil {
			return err
		}
	}
	_, err := tx.ExecContext(ctx, `DELETE FROM shadow_disagreements WHERE (candidate, decision_id) IN
		(SELECT candidate, decision_id FROM shadow_disagreements ORDER BY at DESC LIMIT ? OFFSET ?)`, keptDisagreements, keptDisagreements)
	if err == nil {
		_, err = tx.ExecContext(ctx, `DELETE FROM shadow_totals WHERE candidate NOT IN
			(SELECT candidate FROM shadow_totals ORDER BY last DESC LIMIT ?)`, keptTotals)
	}
	return err
}

// Totals returns the totals of each candidate of a state, the latest first.
func Totals(ctx context.Context, db *store.DB) ([]Total, error) {
	all, err := store.Select(ctx, db.Read, (*Total).fields,
		`SELECT candidate, first, last, same, changed, failed, skipped FROM shadow_totals ORDER BY last DESC, candidate`)
	if err != nil {
		return nil, fmt.Errorf("reading the totals of candidates: %w", err)
	}
	return all, nil
}

func (t *Total) fields() []any {
	return []any{&t.Candidate, store.Time{To: &t.First}, store.Time{To: &t.Last}, &t.Same, &t.Changed, &t.Failed, &t.Skipped}
}

// List returns at most most disagreements of candidate ("" = of all) since then, the latest first. after is
// the ID of a decision: the list begins behind the disagreement of candidate on that decision; "" = with the latest.
func List(ctx context.Context, db *store.DB, candidate string, since time.Time, after string, most int) ([]Disagreement, error) {
	from := int64(0)
	if !since.IsZero() {
		from = since.UnixNano()
	}
	all, err := store.Select(ctx, db.Read, (*Disagreement).fields, `SELECT candidate, decision_id, at, serving, principal, tool, difference, was_effect, was_rule, now_effect, now_rule, reason
		FROM shadow_disagreements WHERE at >= ? AND (? = '' OR candidate = ?)
		AND (? = '' OR (at, decision_id) < (SELECT at, decision_id FROM shadow_disagreements WHERE candidate = ? AND decision_id = ?))
		ORDER BY at DESC, decision_id DESC LIMIT ?`, from, candidate, candidate, after, candidate, after, most)
	if err != nil {
		return nil, fmt.Errorf("reading disagreements: %w", err)
	}
	return all, nil
}

// Report is what is known of shadow policies.
type Report struct {
	Candidates    []Total        `json:"candidates"`    // the latest first
	Disagreements []Disagreement `json:"disagreements"` // of Asked, the latest first
	Asked         *Total         `json:"-"`             // one of Candidates; nil = there is none
}

// ErrNoCandidate reports a revision that no candidate has.
var ErrNoCandidate = errors.New("no policy with this revision was asked")

// ReportOf returns what is known, with disagreements as in List, of the candidate whose revision begins so,
// with or without "sha256:"; "" = the latest. The error is ErrNoCandidate or of the store.
func ReportOf(ctx context.Context, db *store.DB, revision string, since time.Time, after string, most int) (r Report, err error) {
	all, err := Totals(ctx, db)
	r.Candidates, r.Disagreements = append([]Total{}, all...), []Disagreement{}
	i := slices.IndexFunc(all, func(t Total) bool {
		return strings.HasPrefix(t.Candidate, revision) || strings.HasPrefix(t.Candidate, "sha256:"+revision)
	})
	switch {
	case i >= 0:
		r.Asked = &r.Candidates[i]
		var listed []Disagreement
		listed, err = List(ctx, db, r.Asked.Candidate, since, after, most)
		r.Disagreements = append(r.Disagreements, listed...)
	case err == nil && revision != "":
		err = ErrNoCandidate
	}
	return r, err
}

func (d *Disagreement) fields() []any {
	return []any{&d.Candidate, &d.DecisionID, store.Time{To: &d.At}, &d.Serving, &d.Principal, &d.Tool, &d.Difference, &d.Was.Effect, &d.Was.Rule, &d.Now.Effect, &d.Now.Rule, &d.Reason}
}
