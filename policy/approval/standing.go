package approval

import (
	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/policy"
)

// ballot is what a vote's standing depends on.
type ballot struct {
	subject   string
	countedBy string // instance
	until     int64  // when the approver's credential ends, 0 = configured
}

// standing counts the approvals of k whose approvers may still decide, and
// names the first approver who may not, "" when all may.
func (t *Tickets) standing(w *writer, k *record) (yes int, gone string, err error) {
	votes, err := w.approvals(k.ID)
	if err != nil {
		return 0, "", err
	}
	for _, b := range votes {
		ok, err := t.stands(k, b)
		switch {
		case err != nil:
			return 0, "", err
		case ok:
			yes++
		case gone == "":
			gone = b.subject
		}
	}
	return yes, gone, nil
}

func (w *writer) approvals(id string) (votes []ballot, err error) {
	rows, err := w.tx.QueryContext(w.ctx,
		"SELECT subject, counted_by, until FROM approval_votes WHERE ticket = ? AND approve = 1 ORDER BY at, subject", id)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var b ballot
		if err := rows.Scan(&b.subject, &b.countedBy, &b.until); err != nil {
			return nil, err
		}
		votes = append(votes, b)
	}
	return votes, rows.Err()
}

// stands reports whether the vote counts now, see Options.Standing.
func (t *Tickets) stands(k *record, b ballot) (bool, error) {
	if t.opts.Standing == nil {
		return true, nil
	}
	roles, known := t.opts.Standing(b.subject, k.Principal.Tenant)
	switch {
	case known:
		return policy.Principal{Subject: b.subject, Roles: roles}.Has(k.Roles...), nil
	case b.until != 0:
		return true, nil
	case b.countedBy == t.opts.Instance:
		return false, nil
	}
	return store.InstanceAlive(t.opts.Dir, b.countedBy)
}
