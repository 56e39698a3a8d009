package approval

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/toolgate/toolgate/internal/store"
)

// load says how much of a ticket is read.
type load struct {
	arguments int // the largest arguments that are read, bytes
	result    bool
}

var whole = load{arguments: 1 << 40, result: true}

// ticketColumns are the columns that never change after the insert, in the order of
// ticketFields.
const ticketColumns = `id, state, principal, server, tool, exposed, fingerprint, digest, revision, rule, reason,
 roles, quorum, each_role, created, expires, deadline, decision_id, trace_id, transport, era, session, made_by, until, execute`

// ticketFields returns the fields of k that ticketColumns store, as arguments of an
// INSERT or destinations of a SELECT.
func (k *Ticket) ticketFields() []any {
	return []any{&k.ID, &k.State, store.JSON{To: &k.Principal}, &k.Server, &k.Tool, &k.Exposed, &k.Fingerprint, &k.Digest, &k.Revision, &k.Rule, &k.Reason,
		store.JSON{To: &k.Roles}, &k.Quorum, store.JSON{To: &k.Each}, store.Time{To: &k.Created}, store.Time{To: &k.Expires}, &k.deadline, &k.DecisionID, &k.TraceID,
		&k.Transport, &k.Era, &k.Session, &k.Instance, store.Time{To: &k.Principal.Until}, &k.Execute}
}

// selectTicket reads the columns of Ticket.fields, in its order. Its two parameters are
// load's.
const selectTicket = `SELECT ` + ticketColumns + `, length(arguments), CASE WHEN length(arguments) <= ? THEN arguments END,
 decided_by, decision_reason, instance, CASE WHEN ? THEN result END, note, attached, reported,
 (SELECT json_group_array(json(roles)) FROM approval_votes WHERE ticket = approvals.id AND approve = 1) FROM approvals `

func (k *Ticket) fields() []any {
	return append(k.ticketFields(), &k.ArgumentBytes, (*[]byte)(&k.Arguments), &k.DecidedBy, &k.DecisionReason, &k.runner,
		(*[]byte)(&k.Result), &k.Note, &k.Attached, &k.reported, store.JSON{To: &k.approvers})
}

// query returns the tickets that tail selects.
func query(ctx context.Context, q store.Querier, l load, tail string, args ...any) ([]Ticket, error) {
	records, err := store.Select(ctx, q, (*Ticket).fields, selectTicket+tail, append([]any{l.arguments, l.result}, args...)...)
	if err != nil {
		return nil, fmt.Errorf("reading tickets: %w", err)
	}
	for i := range records {
		k := &records[i]
		for _, roles := range k.approvers {
			k.countApproval(roles)
		}
		if k.Arguments != nil && digest(k.Arguments) != k.Digest {
			return nil, fmt.Errorf("reading ticket %s: the stored arguments are not those that were held", k.ID)
		}
	}
	return records, nil
}

// one reads the ticket with an id, or ErrNotFound.
func one(ctx context.Context, q store.Querier, l load, id string) (Ticket, error) {
	records, err := query(ctx, q, l, "WHERE id = ?", id)
	switch {
	case err != nil:
		return Ticket{}, err
	case len(records) == 0:
		return Ticket{}, ErrNotFound
	}
	return records[0], nil
}

// countApproval counts the vote of somebody with these roles.
func (k *Ticket) countApproval(roles []string) {
	k.Approvals++
	for role := range k.Each {
		if slices.Contains(roles, role) {
			if k.Given == nil {
				k.Given = make(map[string]int)
			}
			k.Given[role]++
		}
	}
}

// ballots returns the votes for a ticket, oldest first.
func ballots(ctx context.Context, q store.Querier, id string) ([]Ballot, error) {
	return store.Select(ctx, q, (*Ballot).fields,
		"SELECT subject, approve, reason, digest, at, roles, counted_by, until FROM approval_votes WHERE ticket = ? ORDER BY at, subject", id)
}

func (b *Ballot) fields() []any {
	return []any{&b.Subject, &b.Approve, &b.Reason, &b.Digest, store.Time{To: &b.At}, store.JSON{To: &b.roles}, &b.countedBy, store.Time{To: &b.until}}
}

const changeColumns = `SELECT seq, seq, ticket, at, who, "from", "to", reason, digest FROM approval_history `

// fields are the columns of changeColumns. The ticket of the Event has only an ID.
func (e *Event) fields() []any {
	c := &e.Change
	return []any{&e.Seq, &c.Seq, &e.Ticket.ID, store.Time{To: &c.At}, &c.Who, &c.From, &c.To, &c.Reason, &c.Digest}
}

// digest returns the name of bytes in tickets, "sha256:<hex>".
func digest(data []byte) string {
	sum := sha256.Sum256(data)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// binding returns a digest of everything that a call must share with a ticket to be
// answered by it. Each part carries its length, so that different lists of parts
// never look the same.
func binding(h Held) string {
	parts := []string{h.Principal.Subject, h.Principal.Tenant, h.Server, h.Tool, h.Exposed, h.Fingerprint, h.Digest, h.Revision,
		strconv.Itoa(h.Quorum)}
	parts = append(parts, h.Roles...)
	for _, role := range slices.Sorted(maps.Keys(h.Each)) {
		parts = append(parts, role, strconv.Itoa(h.Each[role]))
	}
	var text []byte
	for _, p := range parts {
		text = strconv.AppendInt(text, int64(len(p)), 10)
		text = append(append(text, ':'), p...)
	}
	return digest(text)
}
