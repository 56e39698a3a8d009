package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/toolgate/toolgate/internal/store"
)

// endedTickets fills approvals with tickets that people denied long ago, as fast as
// SQLite writes rows: making them by calls would take a quarter of an hour. Their
// retention has not passed.
const endedTickets = `
WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)
INSERT INTO approvals (id, binding, state, subject, tenant, principal, server, tool, exposed, fingerprint, digest, arguments,
  revision, rule, reason, roles, quorum, created, expires, deadline, decision_id, trace_id, decided_by)
SELECT printf('apr_old%012d', i), printf('old-%d', i), 'denied', printf('agent-%d', i % 10), '', '{}', 'up', 'checked', 'up__checked', 'sha256:0',
  printf('%064x', i), CAST('{"text":"held for a person"}' AS BLOB), 'sha256:0', 'held', 'a person decides', '["approver"]', 1,
  now - 3600000000000, now - 2700000000000, now - 2700000000000, printf('dec_%d', i), printf('trc_%d', i), 'ann'
FROM n, (SELECT CAST(unixepoch('subsec') * 1000000000 AS INTEGER) AS now)`

// addTickets gives a state directory, of which no toolgate runs, ended tickets.
func addTickets(ctx context.Context, state string, count int) error {
	db, err := store.Open(ctx, filepath.Join(state, "state.db"), store.Migrations())
	if err != nil {
		return err
	}
	_, err = db.Write.ExecContext(ctx, endedTickets, count)
	if err = errors.Join(err, db.Close()); err != nil {
		return fmt.Errorf("adding %d tickets: %w", count, err)
	}
	return nil
}
