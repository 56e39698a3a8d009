package notice

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/toolgate/toolgate/internal/delivery"
	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/internal/wait"
	"github.com/toolgate/toolgate/policy/approval"
	"github.com/toolgate/toolgate/signal"
)

const (
	// leaseTTL is how long an attempt reserves its row: longer than an attempt and its
	// recording may take.
	leaseTTL = 30 * time.Second
	// newsTTL is how long a notice of a decision or an end is worth delivering. A
	// request for a decision is pointless once its ticket has expired.
	newsTTL = 24 * time.Hour
	// deadTTL is how long a dead notice is kept for people to see.
	deadTTL = 7 * 24 * time.Hour
	// writeTimeout bounds the recording of an attempt.
	writeTimeout = 10 * time.Second
)

// outboxLock is the lock of whoever chooses among notices, so that no two choose one.
const outboxLock = "notices"

// backoff is the pause between attempts.
var backoff = delivery.Backoff{First: 2 * time.Second, Longest: 5 * time.Minute}

// A notice is a row of the outbox, about a ticket or, where ticket is "", a tool.
type notice struct {
	id, channel, ticket string
	body                []byte
	until               time.Time
	tries               int // including this one
}

// Enqueue writes a notice of change c, after which the ticket is t, for each
// channel whose roles may decide t. It writes in the change's own transaction
// tx, so that the notices exist if and only if the change does; its error has
// to undo the change. It is safe for concurrent use.
func (s *Sender) Enqueue(ctx context.Context, tx *sql.Tx, t approval.Ticket, c approval.Change) error {
	event := eventOf(c)
	channels := s.channelsFor(t)
	if event == "" || len(channels) == 0 {
		return nil
	}
	now := s.opts.Now()
	if c.At.IsZero() {
		c.At = now
	}
	body, err := bodyOf(event, t, c, s.opts.Link(t.ID))
	if err != nil {
		return fmt.Errorf("writing a notice: %w", err)
	}
	until := now.Add(newsTTL)
	if event == Requested {
		until = t.Expires
	}
	return insert(ctx, tx, channels, t.ID, body, until, now)
}

// EnqueueDefinition writes a notice that the definition of d has changed, for each
// channel that is not for some roles only. It is safe for concurrent use.
func (s *Sender) EnqueueDefinition(ctx context.Context, d Definition) error {
	var channels []*channel
	for _, ch := range s.currentChannels() {
		if len(ch.roles) == 0 {
			channels = append(channels, ch)
		}
	}
	now := s.opts.Now()
	d.Server, d.Tool, d.Reason = bound(d.Server), bound(d.Tool), bound(d.Reason)
	body, err := json.Marshal(struct {
		Type      Event      `json:"type"`
		Timestamp time.Time  `json:"timestamp"`
		Data      Definition `json:"data"`
	}{Changed, now.UTC(), d})
	if err != nil {
		return fmt.Errorf("writing a notice: %w", err)
	}
	return s.opts.DB.Update(ctx, func(ctx context.Context, tx *sql.Tx) error {
		return insert(ctx, tx, channels, "", body, now.Add(newsTTL), now)
	})
}

// insert writes a notice for each of channels, and wakes them.
func insert(ctx context.Context, tx *sql.Tx, channels []*channel, ticket string, body []byte, until, now time.Time) error {
	for _, ch := range channels {
		_, err := tx.ExecContext(ctx, "INSERT INTO notices (id, channel, ticket, body, until, due) VALUES (?, ?, ?, ?, ?, ?)",
			signal.UniqueID("ntc_"), ch.key, ticket, body, until.UnixNano(), now.UnixNano())
		if err != nil {
			return fmt.Errorf("writing a notice: %w", err)
		}
	}
	for _, ch := range channels {
		wait.Signal(ch.due) // its worker waits for the end of tx
	}
	return nil
}

const claimNotice = `UPDATE notices SET due = ?, tries = tries + 1 WHERE seq = (
  SELECT n.seq FROM notices n WHERE n.channel = ? AND n.dead = 0 AND n.due <= ? AND n.until > ? AND NOT EXISTS (
   SELECT 1 FROM notices e WHERE e.channel = n.channel AND e.ticket = n.ticket AND e.dead = 0 AND e.seq < n.seq)
  ORDER BY n.seq LIMIT 1)
 RETURNING id, ticket, body, until, tries`

// claimNext leases the next notice of a channel and counts the attempt. It returns
// nil when none is due. Later notices of a ticket wait for earlier ones.
func (s *Sender) claimNext(ctx context.Context, channel string) (*notice, error) {
	now := s.opts.Now()
	n := notice{channel: channel}
	err := s.opts.DB.Update(ctx, func(ctx context.Context, tx *sql.Tx) error {
		if err := s.opts.DB.Lock(ctx, tx, outboxLock); err != nil {
			return err
		}
		return tx.QueryRowContext(ctx, claimNotice, now.Add(leaseTTL).UnixNano(), channel, now.UnixNano(), now.UnixNano()).
			Scan(&n.id, &n.ticket, &n.body, store.Time{To: &n.until}, &n.tries)
	})
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("claiming a notice: %w", err)
	}
	return &n, nil
}

// The ends of an attempt. When the lease has run out because this process slept,
// another attempt owns the row: then they change nothing.
const (
	deleteNotice = "DELETE FROM notices WHERE id = ? AND tries = ?"
	retryNotice  = "UPDATE notices SET due = ?, fault = ? WHERE id = ? AND tries = ? AND dead = 0"
	buryNotice   = "UPDATE notices SET dead = 1, until = ?, fault = ? WHERE id = ? AND tries = ? AND dead = 0"
)

// endAttempt executes a statement that ends an attempt, also when ctx has ended.
func (s *Sender) endAttempt(ctx context.Context, n *notice, statement string, args ...any) error {
	err := s.opts.DB.UpdateWithin(context.WithoutCancel(ctx), writeTimeout, func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, statement, append(args, n.id, n.tries)...)
		return err
	})
	if err != nil {
		return fmt.Errorf("recording an attempt: %w", err)
	}
	return nil
}

// giveUpExpired marks notices that were not delivered in time as dead, on the channels
// of every process, and deletes notices that have been dead for deadTTL.
func (s *Sender) giveUpExpired(ctx context.Context) (late []notice, err error) {
	now := s.opts.Now()
	err = s.opts.DB.Update(ctx, func(ctx context.Context, tx *sql.Tx) error {
		if err := s.opts.DB.Lock(ctx, tx, outboxLock); err != nil {
			return err
		}
		late, err = store.Select(ctx, tx, func(n *notice) []any { return []any{&n.id, &n.channel, &n.ticket, &n.tries} }, `UPDATE notices SET dead = 1, fault = CASE fault WHEN '' THEN 'it was never tried' ELSE fault END
 WHERE dead = 0 AND until <= ? AND due <= ? RETURNING id, channel, ticket, tries`, now.UnixNano(), now.UnixNano())
		if err == nil {
			_, err = tx.ExecContext(ctx, "DELETE FROM notices WHERE dead = 1 AND until <= ?", now.Add(-deadTTL).UnixNano())
		}
		return err
	})
	return late, err
}

// Trouble describes what one channel could not deliver.
type Trouble struct {
	Channel string // its name, "" when it is no longer configured
	Waiting int    // notices that have failed and are tried again
	Dead    int    // notices that were given up within a week
	Ticket  string // of the latest failed notice, "" when it is about a tool
	Fault   string // of the latest failed notice
}

// Troubles returns the channels that have not delivered everything.
func (s *Sender) Troubles(ctx context.Context) ([]Trouble, error) {
	found, err := store.Select(ctx, s.opts.DB.Read, func(t *Trouble) []any { return []any{&t.Channel, &t.Waiting, &t.Dead, &t.Ticket, &t.Fault} }, `SELECT n.channel, c.waiting, c.dead, n.ticket, n.fault FROM notices n
 JOIN (SELECT sum(1 - dead) AS waiting, sum(dead) AS dead, max(seq) AS latest FROM notices WHERE fault <> '' GROUP BY channel) c ON n.seq = c.latest
 ORDER BY n.channel`)
	if err != nil {
		return nil, fmt.Errorf("reading notices: %w", err)
	}
	for i := range found {
		found[i].Channel = s.channelName(found[i].Channel)
	}
	return found, nil
}
