package approval

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"database/sql/driver"
	"encoding/hex"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"sync"

	"github.com/toolgate/toolgate/internal/keys"
	"github.com/toolgate/toolgate/internal/store"
)

// sealer computes and checks the MACs of the rows of one store. A MAC binds what a row
// says to the store, the kind of row and its identity, so that a row is good only where
// toolgate wrote it. It does not show that a row is the newest one: see doubtful.
type sealer struct {
	dir   *keys.Dir
	store string   // the store's name
	key   keys.Key // of new MACs

	people bool // of its tickets: see Options.RequirePerson

	mu  sync.Mutex          // protects the field below
	old map[string]keys.Key // by ID, as they were needed
}

// seal returns the MAC of a row: names are those of its columns, fields their values as
// arguments of a statement.
func (s *sealer) seal(kind string, names []string, fields []any) (string, error) {
	sum, err := s.compute(s.key, kind, names, fields)
	return s.key.ID + ":" + sum, err
}

// check returns why a row's MAC is not the one of what the row says, "" when it is.
func (s *sealer) check(mac, kind string, names []string, fields []any) (string, error) {
	id, stated, _ := strings.Cut(mac, ":")
	key, err := s.find(id)
	if errors.Is(err, keys.ErrUnknown) {
		return "no key of this toolgate authenticates it", nil
	}
	if err != nil {
		return "", err
	}
	sum, err := s.compute(key, kind, names, fields)
	if err != nil || hmac.Equal([]byte(sum), []byte(stated)) {
		return "", err
	}
	return "something other than toolgate wrote it", nil
}

// find returns the key with an ID. Another process may have rotated keys.
func (s *sealer) find(id string) (keys.Key, error) {
	if id == s.key.ID {
		return s.key, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if key, ok := s.old[id]; ok {
		return key, nil
	}
	key, err := s.dir.Find(keys.Tickets, id)
	if err == nil {
		s.old[id] = key
	}
	return key, err
}

// compute authenticates the columns that are not zero, so that a column that a later
// version adds leaves older rows valid.
func (s *sealer) compute(key keys.Key, kind string, names []string, fields []any) (string, error) {
	text := appendPart(make([]byte, 0, 2048), "toolgate row 1")
	text = appendPart(appendPart(text, s.store), kind)
	for i, name := range names {
		value, err := plain(fields[i])
		if err != nil {
			return "", fmt.Errorf("authenticating a %s: %w", kind, err)
		}
		if value != "" && value != "0" {
			text = appendPart(appendPart(text, name), value)
		}
	}
	mac := hmac.New(sha256.New, key.Secret)
	mac.Write(text)
	return hex.EncodeToString(mac.Sum(nil)), nil
}

// appendPart appends a text and its length, so that different lists of parts never look
// the same.
func appendPart(to []byte, part string) []byte {
	return append(append(strconv.AppendInt(to, int64(len(part)), 10), ':'), part...)
}

// plain returns the text of a column's value.
func plain(field any) (string, error) {
	if v, ok := field.(driver.Valuer); ok {
		value, err := v.Value()
		if text, ok := value.(string); ok {
			return text, err
		}
		return fmt.Sprint(value), err
	}
	switch v := reflect.Indirect(reflect.ValueOf(field)); v.Kind() {
	case reflect.String:
		return v.String(), nil
	case reflect.Int, reflect.Int64:
		return strconv.FormatInt(v.Int(), 10), nil
	case reflect.Bool:
		if v.Bool() {
			return "1", nil
		}
		return "", nil
	}
	return "", fmt.Errorf("a column of type %T", field)
}

// columnNames splits a list of columns.
func columnNames(list string) []string {
	return strings.FieldsFunc(list, func(r rune) bool { return strings.ContainsRune(", \n", r) })
}

var (
	sealedNames = columnNames(sealedColumns)
	ballotNames = append([]string{"ticket"}, columnNames(ballotColumns)...)
)

// judgeRow sets k.doubt when the row is not one that toolgate wrote. A live ticket then
// reads as unknown: it may have run. Its result is not one to rely on.
func (s *sealer) judgeRow(k *Ticket) (err error) {
	k.stored = k.State
	k.doubt, err = s.check(k.mac, "ticket", sealedNames, k.sealedFields())
	switch {
	case err != nil:
		return err
	case k.doubt != "":
	case k.Arguments != nil && digest(k.Arguments) != k.Digest:
		k.doubt, k.Arguments = "the stored arguments are not those that were held", nil
	case k.Result != nil && digest(k.Result) != k.resultDigest:
		k.doubt = "the stored result is not the one of the call"
	}
	if k.doubt != "" {
		k.withhold()
	}
	return nil
}

// withhold makes k show what may be said of a row that is in doubt.
func (k *Ticket) withhold() {
	k.Result, k.Note = nil, "the store cannot be relied on for this ticket: "+k.doubt
	if k.live() {
		k.State = StateUnknown
	}
}

// live reports whether the ticket waits, is approved or runs.
func (k *Ticket) live() bool {
	return k.waits() || k.State == StateDispatching
}

// waits reports whether the ticket waits for people or for its call.
func (k *Ticket) waits() bool { return k.State == StateProposed || k.granted() }

// granted reports whether the call of the ticket is approved and not yet made.
func (k *Ticket) granted() bool { return k.State == StateApproved || k.State == StateNeedsConnection }

// sealTicket stores the MAC of k, whose fields are those of its row.
func (w *writer) sealTicket(k *Ticket) (err error) {
	if k.mac, err = w.seal("ticket", sealedNames, k.sealedFields()); err != nil {
		return err
	}
	return w.one("UPDATE approvals SET version = ?, mac = ? WHERE id = ?", k.version, k.mac, k.ID)
}

// ballots returns the votes for a ticket, oldest first, and why one of them cannot be
// relied on, "" when all can.
func (s *sealer) ballots(ctx context.Context, q store.Querier, id string) (votes []Ballot, doubt string, err error) {
	votes, err = store.Select(ctx, q, func(b *Ballot) []any { return append(b.fields(), &b.mac) },
		"SELECT "+ballotColumns+", mac FROM approval_votes WHERE ticket = ? ORDER BY at, subject", id)
	for i := range votes {
		b := &votes[i]
		why, fault := s.check(b.mac, "vote", ballotNames, append([]any{&id}, b.fields()...))
		if fault != nil {
			return nil, "", fault
		}
		if why != "" && doubt == "" {
			doubt = fmt.Sprintf("the vote of %s: %s", b.Subject, why)
		}
	}
	return votes, doubt, err
}
