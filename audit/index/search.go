package index

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/internal/store"
)

// Bounds of a page.
const (
	MaxLimit     = 1000
	defaultLimit = 50
)

var (
	// ErrQuery reports a query that cannot be answered; the rest of the error says why.
	ErrQuery = errors.New("the query cannot be answered")
	// ErrNotFound reports a call that the index does not have.
	ErrNotFound = errors.New("the index has no such call")
)

// A Query selects calls; a member that is "" or zero selects all.
type Query struct {
	Principal, Person, Server, Tool, Outcome, Rule, Code, ID, Ticket string
	// Argument is POINTER=VALUE: a JSON pointer (RFC 6901), and what is there: a string's text, another
	// scalar as JSON.
	Argument string
	// Text are words, each of which is somewhere in the arguments, whatever its case.
	Text         string
	Since, Until time.Time
	Cursor       string // of an earlier page: what comes after it
	Limit        int    // calls of a page, 1 to MaxLimit; 0 = 50
	// Decidable selects calls with a ticket for which it returns true; nil = all calls.
	Decidable func(ticket string) bool

	changesOf string // a ticket: its changes are selected and no calls
}

// OfArguments reports whether q asks for what is in arguments.
func (q *Query) OfArguments() bool { return q.Argument != "" || q.Text != "" }

// terms returns the terms that every call of q has.
func (q *Query) terms() (terms []uint64) {
	for kind, text := range map[byte]string{
		termPrincipal: q.Principal, termPerson: q.Person, termServer: q.Server, termTool: q.Tool, termOutcome: q.Outcome, termRule: q.Rule,
		termCode: q.Code, termTicket: q.Ticket, termID: q.ID, termLeaf: q.Argument, termChange: q.changesOf,
	} {
		if text != "" {
			terms = append(terms, termHash(kind, text))
		}
	}
	if q.Decidable != nil {
		terms = append(terms, termHash(termTicket, ""))
	}
	eachWord([]byte(q.Text), func(hash uint64) bool { terms = append(terms, hash); return true })
	slices.Sort(terms)
	return slices.Compact(terms)
}

// matches reports whether q selects an entry.
func (q *Query) matches(e *entry, terms []uint64) bool {
	return e.change == (q.changesOf != "") && !e.Time.Before(q.Since) && (q.Until.IsZero() || !e.Time.After(q.Until)) &&
		!slices.ContainsFunc(terms, func(hash uint64) bool { _, found := slices.BinarySearch(e.terms, hash); return !found })
}

// Check returns an ErrQuery when q cannot be answered.
func (q *Query) Check() error {
	pointer, _, ok := strings.Cut(q.Argument, "=")
	switch {
	case q.Argument != "" && (!ok || pointer != "" && pointer[0] != '/'):
		return fmt.Errorf("%w: argument is a JSON pointer, =, and a value", ErrQuery)
	case q.Limit < 0 || q.Limit > MaxLimit:
		return fmt.Errorf("%w: limit is a number from 1 to %d", ErrQuery, MaxLimit)
	}
	_, err := q.after()
	return err
}

// after returns the call after which a page begins, nil for the first page.
func (q *Query) after() (*entry, error) {
	if q.Cursor == "" {
		return nil, nil
	}
	text, err := base64.RawURLEncoding.DecodeString(q.Cursor)
	at, id, ok := strings.Cut(string(text), " ")
	n, failed := strconv.ParseInt(at, 10, 64)
	if err != nil || failed != nil || !ok {
		return nil, fmt.Errorf("%w: cursor is the next of an earlier page", ErrQuery)
	}
	return &entry{Call: Call{Time: time.Unix(0, n).UTC(), ID: id}}, nil
}

// CursorAfter returns the cursor of what comes after a call.
func CursorAfter(c Call) string {
	return base64.RawURLEncoding.EncodeToString([]byte(strconv.FormatInt(c.Time.UnixNano(), 10) + " " + c.ID))
}

// A Page is an answer to a Query, the newest call first.
type Page struct {
	Calls    []Call `json:"calls"`
	Next     string `json:"next,omitempty"` // cursor of the next page; "" = this is the last one
	BehindMS int64  `json:"behind_ms"`      // how long ago the index had all records; 0 = it has them
}

// Search returns a page of calls. The error is ErrQuery or ErrStarting. With Query.Decidable it looks at
// 10,000 calls at most.
func (x *Index) Search(ctx context.Context, q Query) (page Page, err error) {
	if err := q.Check(); err != nil {
		return page, err
	}
	if q.Decidable != nil {
		x.asking.Lock()
		defer x.asking.Unlock()
	}
	limit := cmp.Or(q.Limit, defaultLimit)
	err = x.use(func(db *store.DB) error {
		behind, err := x.behind(ctx, db)
		if err != nil {
			return err
		}
		page.BehindMS = (behind + time.Millisecond - 1).Milliseconds() // 0 says that nothing is missing
		found, err := search(ctx, db, &q, limit+1)
		if err != nil {
			return err
		}
		if len(found) > limit {
			page.Next, found = CursorAfter(found[limit-1].Call), found[:limit]
		}
		page.Calls = make([]Call, 0, len(found))
		for _, e := range found {
			page.Calls = append(page.Calls, e.Call)
		}
		return nil
	})
	return page, err
}

// Whole is all that is known of a call. Records are as they are in the trail, nil where the trail at hand
// has them no longer or never had them: another replica's trail may.
type Whole struct {
	Call     Call              `json:"call"`
	Decision json.RawMessage   `json:"decision,omitempty"`
	Outcome  json.RawMessage   `json:"outcome,omitempty"`
	Changes  []json.RawMessage `json:"changes"` // of its ticket, the oldest first
	Missing  int               `json:"missing"` // records that the trail at hand does not have
}

// Call returns the call with a decision ID. The error is ErrNotFound or ErrStarting.
func (x *Index) Call(ctx context.Context, id string) (w Whole, err error) {
	var changes []*entry
	err = x.use(func(db *store.DB) error {
		found, err := search(ctx, db, &Query{ID: id}, MaxLimit)
		i := slices.IndexFunc(found, func(e *entry) bool { return e.ID == id })
		if err != nil || i < 0 {
			return cmp.Or(err, ErrNotFound)
		}
		if w.Call = found[i].Call; w.Call.Ticket != "" {
			changes, err = search(ctx, db, &Query{changesOf: w.Call.Ticket}, MaxLimit)
		}
		return err
	})
	read := func(chain string, seq uint64) json.RawMessage {
		if seq == 0 || err != nil {
			return nil
		}
		line, failed := audit.LineAt(x.opts.Trail, chain, seq)
		if errors.Is(failed, audit.ErrGone) {
			w.Missing++
		} else {
			err = failed
		}
		return line
	}
	w.Decision, w.Outcome, w.Changes = read(w.Call.Instance, w.Call.DecisionSeq), read(w.Call.Instance, w.Call.OutcomeSeq), []json.RawMessage{}
	for _, e := range slices.Backward(changes) {
		if line := read(e.Instance, e.OutcomeSeq); line != nil {
			w.Changes = append(w.Changes, line)
		}
	}
	return w, err
}

// A searcher answers one query.
type searcher struct {
	q     *Query
	tx    *sql.Tx
	terms []uint64
	after *entry // nil = from the newest on
	most  int
	found []*entry // the newest first
	asked int      // calls of which Decidable was asked
}

const maxAsked = 10_000

// span is what call_blocks has of a block.
type span struct{ id, size, newest int64 }

// search returns the first calls of q, most at most.
func search(ctx context.Context, db *store.DB, q *Query, most int) ([]*entry, error) {
	after, err := q.after()
	if err != nil {
		return nil, err
	}
	s := searcher{q: q, terms: q.terms(), after: after, most: most}
	until := q.Until
	if after != nil && (until.IsZero() || after.Time.Before(until)) {
		until = after.Time
	}
	if until.IsZero() {
		until = time.Unix(0, 1<<62)
	}
	since := int64(0)
	if !q.Since.IsZero() {
		since = q.Since.UnixNano()
	}
	err = db.View(ctx, func(tx *sql.Tx) error {
		s.tx = tx
		blocks, err := store.Select(ctx, tx, func(b *span) []any { return []any{&b.id, &b.size, &b.newest} },
			"SELECT id, size, newest FROM call_blocks WHERE newest >= ? AND oldest <= ? ORDER BY newest DESC, id", since, until.UnixNano())
		for n := 1; err == nil && len(blocks) > 0 && !s.done(blocks[0].newest); n = min(4*n, 64) {
			n = min(n, len(blocks))
			err = s.look(ctx, blocks[:n])
			blocks = blocks[n:]
		}
		return err
	})
	return s.found, err
}

// done reports whether no block whose newest call is of that time can have a call of the page.
func (s *searcher) done(newest int64) bool {
	return len(s.found) >= s.most && s.found[s.most-1].Time.UnixNano() > newest || s.asked >= maxAsked
}

// A hit is a block with the rows that have all terms and were not looked at yet, ascending.
type hit struct {
	span
	rows []int
}

// look adds the calls of some blocks. What it reads of all of them is one statement: on a server, each
// takes its time.
func (s *searcher) look(ctx context.Context, blocks []span) error {
	var ids []int64
	for _, b := range blocks {
		for _, hash := range s.terms {
			ids = append(ids, b.id*maxParts+int64(partOf(hash, int(b.size))))
		}
	}
	postings, err := s.parts(ctx, ids)
	if err != nil {
		return err
	}
	var hits []*hit
	for _, b := range blocks {
		rows, err := s.rows(b, postings)
		if err != nil {
			return err
		}
		hits = append(hits, &hit{b, rows})
	}
	for len(hits) > 0 {
		ids = ids[:0]
		for _, h := range hits {
			for _, row := range h.rows[max(0, len(h.rows)-s.most):] {
				ids = append(ids, h.part(row))
			}
		}
		slices.Sort(ids)
		ids = slices.Compact(ids)
		rows, err := s.parts(ctx, ids)
		if err == nil && len(rows) < len(ids) {
			err = errDamaged
		}
		if err != nil {
			return err
		}
		for _, h := range hits {
			if s.done(h.newest) {
				h.rows = nil
			} else if err := s.add(h, rows); err != nil {
				return err
			}
		}
		hits = slices.DeleteFunc(hits, func(h *hit) bool { return len(h.rows) == 0 })
	}
	return nil
}

// part returns the ID of the part that has a row.
func (h *hit) part(row int) int64 { return h.id*maxParts + rowPart + int64(row/rowsPerPart) }

// parts reads parts, by ID.
func (s *searcher) parts(ctx context.Context, ids []int64) (map[int64][]byte, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	list, _ := json.Marshal(ids) // numbers can be written
	parts, err := store.Select(ctx, s.tx, func(p *part) []any { return []any{&p.id, &p.data} },
		"SELECT id, data FROM call_parts WHERE id IN (SELECT CAST(value AS BIGINT) FROM json_each(?))", string(list))
	all := make(map[int64][]byte, len(parts))
	for _, p := range parts {
		all[p.id] = p.data
	}
	return all, err
}

// rows returns the rows of a block that have all terms, ascending.
func (s *searcher) rows(b span, postings map[int64][]byte) (rows []int, err error) {
	if len(s.terms) == 0 {
		for row := range int(b.size) {
			rows = append(rows, row)
		}
		return rows, nil
	}
	for i, hash := range s.terms {
		var those []int
		err = eachPosting(postings[b.id*maxParts+int64(partOf(hash, int(b.size)))], func(h uint64, row int) bool {
			if h == hash {
				those = append(those, row)
			}
			return h <= hash
		})
		if i > 0 {
			those = slices.DeleteFunc(those, func(row int) bool { _, both := slices.BinarySearch(rows, row); return !both })
		}
		if rows = those; err != nil || len(rows) == 0 {
			return nil, err
		}
	}
	return rows, nil
}

// add adds those of the last rows of h that belong to the page, as far as it has their parts.
func (s *searcher) add(h *hit, parts map[int64][]byte) error {
	var entries []*entry
	id, here := int64(0), 0
	for len(h.rows) > 0 && here < s.most {
		row := h.rows[len(h.rows)-1]
		if n := h.part(row); n != id {
			data, ok := parts[n]
			if !ok {
				return nil
			}
			var err error
			if entries, err = decodeRows(data); err != nil {
				return err
			}
			id = n
		}
		if h.rows = h.rows[:len(h.rows)-1]; row%rowsPerPart >= len(entries) {
			return errDamaged
		}
		if e := entries[row%rowsPerPart]; s.wants(e) {
			s.keep(e)
			here++
		}
	}
	if here >= s.most { // the others are older
		h.rows = nil
	}
	return nil
}

// keep puts an entry among those found.
func (s *searcher) keep(e *entry) {
	i, _ := slices.BinarySearchFunc(s.found, e, newer)
	switch {
	case i < len(s.found) && sameCall(s.found[i], e):
		s.found[i] = e // which knows as much or more
	case i == 0 || !sameCall(s.found[i-1], e):
		s.found = slices.Insert(s.found, i, e)
	}
}

// wants reports whether an entry that has all terms belongs to the page or to a later one.
func (s *searcher) wants(e *entry) bool {
	if !s.q.matches(e, nil) || s.after != nil && newer(s.after, e) >= 0 {
		return false
	}
	if s.q.Decidable == nil {
		return true
	}
	s.asked++
	return s.q.Decidable(e.Ticket)
}
