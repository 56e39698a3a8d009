package approval

import (
	"database/sql"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/policy"
)

// ballot is what a vote's standing depends on.
type ballot struct {
	subject   string
	roles     []string // at the vote
	countedBy string   // instance
	until     int64    // when the approver's credential ends, 0 = configured
}

// standing gives the approvals of k whose approvers may still decide, with the
// roles that they have now as far as that is known, and names the first approver
// who may not, "" when all may.
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
	var roles []byte
	if err := rows.Scan(&b.subject, &roles, &b.countedBy, &b.until); err != nil {
		return ballot{}, err
	}
	if err := json.Unmarshal(roles, &b.roles); err != nil {
		return ballot{}, fmt.Errorf("reading the roles of a vote: %w", err)
	}
	return b, nil
}

// stands reports whether the vote counts now, see Options.Standing, and gives b
// the roles of now.
func (t *Tickets) stands(k *record, b *ballot) (bool, error) {
	if t.opts.Standing == nil {
		return true, nil
	}
	roles, known := t.opts.Standing(b.subject, k.Principal.Tenant)
	switch {
	case known:
		b.roles = roles
		return policy.Principal{Subject: b.subject, Roles: roles}.Has(k.Roles...), nil
	case b.until != 0:
		return true, nil
	case b.countedBy == t.opts.Instance:
		return false, nil
	}
	return store.InstanceAlive(t.opts.Dir, b.countedBy)
}
