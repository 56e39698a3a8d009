// Package filled gives tests a state with many old tickets, and shows which statements scan
// its tables.
//
//	statements := filled.Record(db)
//	… use db …
//	for _, scan := range statements.Scans(t) { t.Error(scan) }
package filled

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/toolgate/toolgate/internal/store"
)

// Tables are those that grow with the calls of an installation.
var Tables = []string{"approvals", "approval_votes", "approval_history", "notices", "usage"}

// fillTimeout bounds the filling of a state.
const fillTimeout = time.Hour

const numbers = "WITH RECURSIVE n (i) AS (SELECT CAST(? AS BIGINT) UNION ALL SELECT i + 1 FROM n WHERE i < ?) "

// Tickets adds copies of an ended ticket, with the numbers from first to last, each with a binding and a digest of its own,
// with copies of its votes and history and with a notice that was not delivered; a tenth have another requester.
func Tickets(ctx context.Context, db *store.DB, id string, first, last int) error {
	return fill(ctx, db, first, last, id, numbers+`INSERT INTO approvals (id, binding, state, subject, tenant, principal, server, tool, exposed, fingerprint, digest, arguments,
 revision, rule, reason, roles, quorum, created, expires, deadline, decision_id, trace_id, decided_by)
SELECT 'apr_old' || i, 'old-' || i, state, CASE WHEN i % 10 = 0 THEN 'other-' || i % 1000 ELSE subject END, tenant, principal, server, tool, exposed, fingerprint, 'sha256:' || i, arguments,
 revision, rule, reason, roles, quorum, created, expires, deadline, decision_id, trace_id, decided_by FROM n, approvals WHERE id = ?`,
		numbers+`INSERT INTO approval_votes (ticket, subject, approve, reason, digest, at) SELECT 'apr_old' || i, subject, approve, reason, digest, at FROM n, approval_votes WHERE ticket = ?`,
		numbers+`INSERT INTO approval_history (seq, ticket, at, who, "from", "to", reason, digest)
SELECT -8 * i - row_number() OVER (PARTITION BY i ORDER BY seq), 'apr_old' || i, at, who, "from", "to", reason, digest FROM n, approval_history WHERE ticket = ?`,
		numbers+`INSERT INTO notices (id, channel, ticket, body, until, due, dead)
SELECT 'ntc_old' || i, 'channel', 'apr_old' || i, arguments, expires + 604800000000000, created, 1 FROM n, approvals WHERE id = ?`)
}

// Usage adds count slices to each that a principal has used, of the time before; a tenth are those of
// other principals.
func Usage(ctx context.Context, db *store.DB, subject string, count int) error {
	return fill(ctx, db, 1, count, subject, numbers+`INSERT INTO usage (subject, tenant, tool, meter, per, ends, ticket, calls, sum, until)
SELECT CASE WHEN i % 10 = 0 THEN 'other-' || i % 1000 ELSE subject END, tenant, tool, meter, per, ends - 1000000000 * CAST(i AS BIGINT), 'apr_old' || i, calls, sum, until FROM n, usage WHERE subject = ?`)
}

// fill runs statements that add rows for what a name selects.
func fill(ctx context.Context, db *store.DB, first, last int, name string, statements ...string) error {
	if db.Shared() { // SQLite plans without statistics
		statements = append(append([]string{"SET LOCAL statement_timeout = 0"}, statements...), "ANALYZE")
	}
	return db.UpdateWithin(ctx, fillTimeout, func(ctx context.Context, tx *sql.Tx) error {
		for _, statement := range statements {
			if _, err := tx.ExecContext(ctx, statement, []any{first, last, name}[:strings.Count(statement, "?")]...); err != nil {
				return fmt.Errorf("adding rows from %d to %d: %w", first, last, err)
			}
		}
		return nil
	})
}

// Statements are those that a database ran, each with the arguments of its last run.
type Statements struct {
	db *store.DB

	mu   sync.Mutex // protects the fields below
	runs map[string][]driver.NamedValue
	all  int
}

// Record records the statements of db from now on. Nobody else may use db yet.
func Record(db *store.DB) *Statements {
	s := &Statements{db: db, runs: map[string][]driver.NamedValue{}}
	for _, pool := range []**sql.DB{&db.Write, &db.Read} {
		recorded := sql.OpenDB(connector{*pool, s})
		recorded.SetMaxOpenConns((*pool).Stats().MaxOpenConnections)
		*pool = recorded
	}
	return s
}

// Count returns the number of statements since the last Count.
func (s *Statements) Count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.all
	s.all = 0
	return n
}

func (s *Statements) add(query string, args []driver.NamedValue) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.runs[query] = args
	s.all++
}

// explained are the statements that have a plan.
var explained = regexp.MustCompile(`(?i)^\s*(SELECT|INSERT|UPDATE|DELETE|WITH)\b`)

// Scans explains the recorded statements, and returns those that read a whole table of
// Tables, each with its plan.
func (s *Statements) Scans(t testing.TB) (scans []string) {
	t.Helper()
	s.mu.Lock()
	runs := maps.Clone(s.runs)
	s.mu.Unlock()
	explain, scan := "EXPLAIN QUERY PLAN ", `(?m)^SCAN (%s)\b`
	if s.db.Shared() {
		explain, scan = "EXPLAIN ", `Seq Scan on (%s)\b`
	}
	scanning := regexp.MustCompile(fmt.Sprintf(scan, strings.Join(Tables, "|")))
	for _, query := range slices.Sorted(maps.Keys(runs)) {
		if !explained.MatchString(query) {
			continue
		}
		var args []any
		for _, a := range runs[query] {
			args = append(args, a.Value)
		}
		plan, err := s.plan(t.Context(), explain+query, args)
		if err != nil {
			t.Fatalf("explaining %s: %v", query, err)
		}
		if scanning.MatchString(plan) {
			scans = append(scans, query+"\n"+plan)
		}
	}
	return scans
}

func (s *Statements) plan(ctx context.Context, query string, args []any) (string, error) {
	lines, err := store.Select(ctx, s.db.Write, func(line *string) []any {
		if s.db.Shared() {
			return []any{line}
		}
		return []any{new(int), new(int), new(int), line}
	}, query, args...)
	return strings.Join(lines, "\n"), err
}

// connector makes the connections of a pool record what they run.
type connector struct {
	pool *sql.DB
	s    *Statements
}

func (c connector) Driver() driver.Driver { return c.pool.Driver() }

// Close implements io.Closer.
func (c connector) Close() error { return c.pool.Close() }

func (c connector) Connect(ctx context.Context) (driver.Conn, error) {
	lent, err := c.pool.Conn(ctx)
	if err != nil {
		return nil, err
	}
	made := conn{lent: lent, s: c.s}
	err = lent.Raw(func(raw any) error {
		made.inner = raw.(inner) // until Close, nobody else has it
		return nil
	})
	return made, err
}

// inner is what a conn embeds; its other methods assert theirs.
type inner interface {
	driver.Conn
	driver.ExecerContext
	driver.QueryerContext
}

type conn struct {
	inner
	lent *sql.Conn
	s    *Statements
}

func (c conn) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	return c.inner.(driver.ConnBeginTx).BeginTx(ctx, opts)
}

func (c conn) Close() error { return c.lent.Close() }

func (c conn) CheckNamedValue(arg *driver.NamedValue) (err error) {
	if checker, ok := c.inner.(driver.NamedValueChecker); ok {
		return checker.CheckNamedValue(arg)
	}
	arg.Value, err = driver.DefaultParameterConverter.ConvertValue(arg.Value)
	return err
}

func (c conn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	c.s.add(query, args)
	return c.inner.ExecContext(ctx, query, args)
}

func (c conn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	c.s.add(query, args)
	return c.inner.QueryContext(ctx, query, args)
}

func (c conn) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	made, err := c.inner.(driver.ConnPrepareContext).PrepareContext(ctx, query)
	return stmt{made, c, query}, err
}

// stmt is a prepared statement of a conn.
type stmt struct {
	driver.Stmt
	conn  conn
	query string
}

func (s stmt) QueryContext(ctx context.Context, args []driver.NamedValue) (driver.Rows, error) {
	prepared, ok := s.Stmt.(driver.StmtQueryContext)
	if !ok {
		return nil, errors.New("the driver has no StmtQueryContext")
	}
	s.conn.s.add(s.query, args)
	return prepared.QueryContext(ctx, args)
}
