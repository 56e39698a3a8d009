package approval

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/policy"
)

// record is a ticket with what only this package needs.
type record struct {
	Ticket
	instance string // who runs it while it is dispatching
	deadline int64  // Expires in the store's time
	reported bool   // an agent has been told that it expired
}

// load says how much of a ticket is read.
type load struct {
	arguments int // the largest arguments that are read, bytes
	result    bool
}

var whole = load{arguments: 1 << 40, result: true}

// columns are those of scan, in its order. Its two parameters are load's.
const columns = `SELECT id, state, principal, server, tool, exposed, fingerprint, digest,
 length(arguments), CASE WHEN length(arguments) <= ? THEN arguments END, revision, rule, reason, roles, quorum,
 created, expires, deadline, decision_id, trace_id, decided_by, decision_reason, instance,
 CASE WHEN ? THEN result END, note, attached, reported, transport, era, session, made_by, until, execute, each_role,
 (SELECT json_group_array(json(roles)) FROM approval_votes WHERE ticket = approvals.id AND approve = 1) FROM approvals `

// query returns the tickets that tail selects.
func query(ctx context.Context, q store.Querier, l load, tail string, args ...any) ([]record, error) {
	return store.Select(ctx, q, scan, columns+tail, append([]any{l.arguments, l.result}, args...)...)
}

// one reads the ticket with an id, or ErrNotFound.
func one(ctx context.Context, q store.Querier, l load, id string) (record, error) {
	records, err := query(ctx, q, l, "WHERE id = ?", id)
	switch {
	case err != nil:
		return record{}, err
	case len(records) == 0:
		return record{}, ErrNotFound
	}
	return records[0], nil
}

func scan(rows *sql.Rows) (k record, err error) {
	var principal, roles, each, votes string
	var arguments, result []byte
	var created, expires, until int64
	err = rows.Scan(&k.ID, &k.State, &principal, &k.Server, &k.Tool, &k.Exposed, &k.Fingerprint, &k.Digest,
		&k.ArgumentBytes, &arguments, &k.Revision, &k.Rule, &k.Reason, &roles, &k.Quorum,
		&created, &expires, &k.deadline, &k.DecisionID, &k.TraceID, &k.DecidedBy, &k.DecisionReason, &k.instance,
		&result, &k.Note, &k.Attached, &k.reported, &k.Transport, &k.Era, &k.Session, &k.Ticket.Instance, &until, &k.Execute, &each, &votes)
	if err != nil {
		return record{}, err
	}
	k.Arguments, k.Result = arguments, result
	k.Created, k.Expires = wall(created), wall(expires)
	if err := json.Unmarshal([]byte(principal), &k.Principal); err != nil {
		return record{}, fmt.Errorf("reading ticket %s: principal: %w", k.ID, err)
	}
	if until > 0 {
		k.Principal.Until = wall(until)
	}
	if err := json.Unmarshal([]byte(roles), &k.Roles); err != nil {
		return record{}, fmt.Errorf("reading ticket %s: roles: %w", k.ID, err)
	}
	if each != "" {
		if err := json.Unmarshal([]byte(each), &k.Each); err != nil {
			return record{}, fmt.Errorf("reading ticket %s: approvals of each role: %w", k.ID, err)
		}
	}
	var approvers [][]string
	if err := json.Unmarshal([]byte(votes), &approvers); err != nil {
		return record{}, fmt.Errorf("reading ticket %s: roles of approvers: %w", k.ID, err)
	}
	for _, roles := range approvers {
		k.countApproval(roles)
	}
	if arguments != nil && digest(arguments) != k.Digest {
		return record{}, fmt.Errorf("reading ticket %s: the stored arguments are not those that were held", k.ID)
	}
	return k, nil
}

// countApproval counts the vote of somebody with these roles.
func (k *record) countApproval(roles []string) {
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

// details reads the votes and the history of k.
func details(ctx context.Context, q store.Querier, k *record) (err error) {
	k.Votes, err = store.Select(ctx, q, scanBallot,
		"SELECT subject, approve, reason, digest, at FROM approval_votes WHERE ticket = ? ORDER BY at, subject", k.ID)
	if err != nil {
		return err
	}
	events, err := store.Select(ctx, q, scanEvent, changeColumns+"WHERE ticket = ? ORDER BY seq", k.ID)
	for _, e := range events {
		k.History = append(k.History, e.Change)
	}
	return err
}

func scanBallot(rows *sql.Rows) (b Ballot, err error) {
	var at int64
	err = rows.Scan(&b.Subject, &b.Approve, &b.Reason, &b.Digest, &at)
	b.At = wall(at)
	return b, err
}

const changeColumns = `SELECT seq, ticket, at, who, "from", "to", reason, digest FROM approval_history `

// scanEvent reads a row of changeColumns. The ticket of the Event has only an ID.
func scanEvent(rows *sql.Rows) (e Event, err error) {
	var at int64
	c := &e.Change
	err = rows.Scan(&c.Seq, &e.Ticket.ID, &at, &c.Who, &c.From, &c.To, &c.Reason, &c.Digest)
	c.At, e.Seq = wall(at), c.Seq
	return e, err
}

// until is when a principal's credential ends, as the store keeps it.
func until(p policy.Principal) int64 {
	if p.Until.IsZero() {
		return 0
	}
	return p.Until.UnixNano()
}

func wall(nanoseconds int64) time.Time { return time.Unix(0, nanoseconds).UTC() }

// eachText is how the store keeps Ticket.Each.
func eachText(each map[string]int) (string, error) {
	if len(each) == 0 {
		return "", nil
	}
	text, err := json.Marshal(each)
	return string(text), err
}

// digest names bytes as tickets do.
func digest(data []byte) string {
	sum := sha256.Sum256(data)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// binding names everything that a call must share with a ticket to be answered
// by it. Each part carries its length, so that no two lists of parts are one.
func binding(h Held) string {
	parts := []string{h.Principal.Subject, h.Principal.Tenant, h.Server, h.Tool, h.Exposed, h.Fingerprint, h.Digest, h.Revision,
		strconv.Itoa(h.Approval.Quorum)}
	parts = append(parts, h.Approval.Roles...)
	for _, role := range slices.Sorted(maps.Keys(h.Approval.Each)) {
		parts = append(parts, role, strconv.Itoa(h.Approval.Each[role]))
	}
	var text []byte
	for _, p := range parts {
		text = strconv.AppendInt(text, int64(len(p)), 10)
		text = append(append(text, ':'), p...)
	}
	return digest(text)
}
