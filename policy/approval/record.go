package approval

import (
	"context"
	"crypto/sha256"
	"database/sql/driver"
	"encoding/hex"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"

	"github.com/toolgate/toolgate/internal/store"
)

// load says how much of a ticket is read.
type load struct {
	arguments int // the largest arguments that are read, bytes
	result    bool
}

var whole = load{arguments: math.MaxInt32, result: true}

// ticketColumns are the columns that never change after the insert, in the order of
// ticketFields.
const ticketColumns = `id, state, principal, server, tool, exposed, fingerprint, digest, revision, rule, reason,
 roles, quorum, each_role, created, expires, deadline, decision_id, trace_id, transport, era, session, made_by, until, execute, tags, runs_as`

// sealedColumns are the columns that the MAC of a ticket authenticates, in the order of
// sealedFields. Its arguments and its result are authenticated by their digests.
const sealedColumns = ticketColumns + `, binding, subject, tenant, parties, decided_by, decision_reason, instance, note, result_digest, version, unconnected`

func (k *Ticket) sealedFields() []any {
	return append(k.ticketFields(), &k.binding, &k.subject, &k.tenant, store.JSON{To: &k.parties}, &k.DecidedBy, &k.DecisionReason, &k.runner, &k.Note, &k.resultDigest, &k.version, &k.Unconnected)
}

// ticketFields returns the fields of k that ticketColumns store, as arguments of an
// INSERT or destinations of a SELECT.
func (k *Ticket) ticketFields() []any {
	return []any{&k.ID, column{&k.State}, store.JSON{To: &k.Principal}, &k.Server, &k.Tool, &k.Exposed, &k.Fingerprint, &k.Digest, &k.Revision, &k.Rule, &k.Reason,
		store.JSON{To: &k.Roles}, &k.Quorum, store.JSON{To: &k.Each}, store.Time{To: &k.Created}, store.Time{To: &k.Expires}, &k.deadline, &k.DecisionID, &k.TraceID,
		&k.Transport, &k.Era, &k.Session, &k.Instance, store.Time{To: &k.Principal.Until}, &k.Execute,
		store.JSON{To: &k.Tags}, store.JSON{To: &k.RunsAs}}
}

// selectTicket reads the columns of Ticket.fields, in its order. Its two parameters are
// load's.
const selectTicket = `SELECT ` + sealedColumns + `, mac, length(arguments), CASE WHEN length(arguments) <= ? THEN arguments END,
 CASE WHEN ? = 1 THEN result END, attached, reported,
 (SELECT '[' || string_agg(roles, ',') || ']' FROM approval_votes WHERE ticket = approvals.id AND approve = 1) FROM approvals `

// column is the column of a state. One that needs a connection is approved there, and its column
// unconnected says more: indexes and checks of the table name the states.
type column struct{ *State }

// Value implements [driver.Valuer].
func (c column) Value() (driver.Value, error) {
	if *c.State == StateNeedsConnection {
		return string(StateApproved), nil
	}
	return string(*c.State), nil
}

// Scan implements [sql.Scanner].
func (c column) Scan(from any) error {
	*c.State = State(fmt.Sprintf("%s", from))
	return nil
}

func (k *Ticket) fields() []any {
	return append(k.sealedFields(), &k.mac, &k.ArgumentBytes, (*[]byte)(&k.Arguments), (*[]byte)(&k.Result), &k.Attached, &k.reported, store.JSON{To: &k.approvers})
}

// query returns the tickets that tail selects. The rows that toolgate did not write are
// among them, with a doubt.
func (s *sealer) query(ctx context.Context, q store.Querier, l load, tail string, args ...any) ([]Ticket, error) {
	records, err := store.Select(ctx, q, (*Ticket).fields, selectTicket+tail, append([]any{l.arguments, l.result}, args...)...)
	if err != nil {
		return nil, fmt.Errorf("reading tickets: %w", err)
	}
	for i := range records {
		k := &records[i]
		k.people = s.people
		if k.Unconnected != "" {
			k.State = StateNeedsConnection
		}
		k.countApprovals(k.approvers)
		if err := s.judgeRow(k); err != nil {
			return nil, fmt.Errorf("reading ticket %s: %w", k.ID, err)
		}
	}
	return records, nil
}

// one reads the ticket with an id, or ErrNotFound.
func (s *sealer) one(ctx context.Context, q store.Querier, l load, id string) (Ticket, error) {
	records, err := s.query(ctx, q, l, "WHERE id = ?", id)
	switch {
	case err != nil:
		return Ticket{}, err
	case len(records) == 0:
		return Ticket{}, ErrNotFound
	}
	return records[0], nil
}

// countApprovals sets Approvals and Given to the count of votes, each by somebody with
// these roles.
func (k *Ticket) countApprovals(votes [][]string) {
	k.Approvals, k.Given = len(votes), nil
	if len(k.Each) > 0 && len(votes) > 0 {
		k.Given = fillRoles(k.Each, votes)
	}
}

// fillRoles assigns each vote to one role that its voter holds and that each asks for,
// so that as many are filled as can be, and returns how many of each role are. It looks
// for augmenting paths, as in bipartite matching.
func fillRoles(each map[string]int, votes [][]string) map[string]int {
	filled := make(map[string][]int) // the votes of each role, by number
	var assign func(vote int, tried map[string]bool) bool
	assign = func(vote int, tried map[string]bool) bool {
		for _, role := range votes[vote] {
			if each[role] == 0 || tried[role] {
				continue
			}
			tried[role] = true
			if len(filled[role]) < each[role] {
				filled[role] = append(filled[role], vote)
				return true
			}
			for i, other := range filled[role] {
				if assign(other, tried) {
					filled[role][i] = vote
					return true
				}
			}
		}
		return false
	}
	given := make(map[string]int)
	for vote := range votes {
		assign(vote, make(map[string]bool))
	}
	for role, by := range filled {
		given[role] = len(by)
	}
	return given
}

// ballotColumns are the columns of Ballot.fields, in its order.
const ballotColumns = "subject, person, parties, approve, reason, digest, at, roles, counted_by, until"

func (b *Ballot) fields() []any {
	return []any{&b.Subject, &b.Person, store.JSON{To: &b.parties}, &b.Approve, &b.Reason, &b.Digest, store.Time{To: &b.At}, store.JSON{To: &b.roles}, &b.countedBy, store.Time{To: &b.until}}
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
	if p := h.Principal; p.Person != "" || len(p.Actors) > 0 { // on behalf of whom, and through whom
		parts = append(append(parts, "for", p.Person), p.Actors...)
	}
	var text []byte
	for _, p := range parts {
		text = strconv.AppendInt(text, int64(len(p)), 10)
		text = append(append(text, ':'), p...)
	}
	return digest(text)
}
