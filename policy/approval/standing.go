package approval

import (
	"database/sql"
	"slices"
	"time"

	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/policy"
)

// ballot holds what a vote's standing depends on.
type ballot struct {
	subject   string
	roles     []string  // at the vote
	countedBy string    // instance
	until     time.Time // when the approver's credential ends, zero = configured
}

// standing returns the approvals of k whose approvers may still decide, with their
// current roles as far as these are known, and the first approver who no longer may,
// "" when all may.
func (t *Tickets) standing(w *writer, k *record) (counted []ballot, gone string, err error) {
	votes, err := w.approvals(k.ID)
	if err != nil {
		return nil, "", err
	}
	for _, b := range votes {
		ok, err := t.stands(k, &b)
		switch {
		case err != nil:
			return nil, "", err
		case ok:
			counted = append(counted, b)
		case gone == "":
			gone = b.subject
		}
	}
	return counted, gone, nil
}

// suffice reports whether votes approve k.
func (k *record) suffice(votes []ballot) bool {
	for role, n := range k.Each {
		for _, b := range votes {
			if slices.Contains(b.roles, role) {
				n--
			}
		}
		if n > 0 {
			return false
		}
	}
	return len(votes) >= k.Quorum
}

// approvals returns the votes for a ticket, oldest first.
func (w *writer) approvals(id string) ([]ballot, error) {
	return store.Select(w.ctx, w.tx, scanApproval,
		"SELECT subject, roles, counted_by, until FROM approval_votes WHERE ticket = ? AND approve = 1 ORDER BY at, subject", id)
}

func scanApproval(rows *sql.Rows) (b ballot, err error) {
	err = rows.Scan(&b.subject, store.JSON{To: &b.roles}, &b.countedBy, store.Time{To: &b.until})
	return b, err
}

// stands reports whether the vote counts now (see Options.Standing), and sets b's
// roles to the current ones.
func (t *Tickets) stands(k *record, b *ballot) (bool, error) {
	if t.opts.Standing == nil {
		return true, nil
	}
	roles, known := t.opts.Standing(b.subject, k.Principal.Tenant)
	switch {
	case known:
		b.roles = roles
		return policy.Principal{Subject: b.subject, Roles: roles}.Has(k.Roles...), nil
	case !b.until.IsZero():
		return true, nil
	case b.countedBy == t.opts.Instance:
		return false, nil
	}
	return store.InstanceAlive(t.opts.Dir, b.countedBy)
}
