package notice

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/toolgate/toolgate/internal/delivery"
	"github.com/toolgate/toolgate/policy/approval"
	"github.com/toolgate/toolgate/signal"
)

const (
	// leaseTime is how long a try hides its row: longer than a try may take and
	// be written down.
	leaseTime = 30 * time.Second
	// newsTime is how long a decision or an outcome is news. What asks for a
	// decision is pointless once its ticket has expired.
	newsTime = 24 * time.Hour
	// deadTime is how long a dead notice is kept for people to see.
	deadTime = 7 * 24 * time.Hour
	// writeTimeout bounds what is written down after a try.
	writeTimeout = 10 * time.Second
)

// backoff is the pause between tries.
var backoff = delivery.Backoff{First: 2 * time.Second, Longest: 5 * time.Minute}

// parcel is a notice that this process tries now.
type parcel struct {
	id, ticket string
	body       []byte
	until      time.Time
	tries      int // this one included
}

// Enqueue leaves a notice of change c, after which the ticket is t, for each
// channel that is about it. It writes in tx, which is the change's own, so the
// notices are there if and only if the change is; its error has to undo the
// change. It is safe for concurrent use.
func (s *Sender) Enqueue(ctx context.Context, tx *sql.Tx, t approval.Ticket, c approval.Change) error {
	event := eventOf(c)
	channels := s.about(t)
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
	until := now.Add(newsTime)
	if event == Requested {
		until = t.Expires
	}
	for _, ch := range channels {
		_, err := tx.ExecContext(ctx, "INSERT INTO notices (id, channel, ticket, body, until, due) VALUES (?, ?, ?, ?, ?, ?)",
			signal.UniqueID("ntc_"), ch.key, t.ID, body, until.UnixNano(), now.UnixNano())
		if err != nil {
			return fmt.Errorf("writing a notice: %w", err)
		}
	}
	for _, ch := range channels {
		ch.wake() // it waits for the end of tx by itself
	}
	return nil
}

// take begins a try of the next notice of a channel, nil when none is due.
// Later notices of a ticket wait for the earlier ones.
func (s *Sender) take(ctx context.Context, channel string) (*parcel, error) {
	now := s.opts.Now()
	p, until := parcel{}, int64(0)
	err := s.opts.DB.Write.QueryRowContext(ctx, `UPDATE notices SET due = ?, tries = tries + 1 WHERE seq = (
  SELECT n.seq FROM notices n WHERE n.channel = ? AND n.dead = 0 AND n.due <= ? AND n.until > ? AND NOT EXISTS (
   SELECT 1 FROM notices e WHERE e.channel = n.channel AND e.ticket = n.ticket AND e.dead = 0 AND e.seq < n.seq)
  ORDER BY n.seq LIMIT 1)
 RETURNING id, ticket, body, until, tries`,
		now.Add(leaseTime).UnixNano(), channel, now.UnixNano(), now.UnixNano()).Scan(&p.id, &p.ticket, &p.body, &until, &p.tries)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("taking a notice: %w", err)
	}
	p.until = time.Unix(0, until)
	return &p, nil
}

// delivered, again and bury end a try. A try that has been taken over, because
// this process slept through it, is no longer this process's to end: then
// nothing changes.
func (s *Sender) delivered(ctx context.Context, p *parcel) error {
	return s.end(ctx, "DELETE FROM notices WHERE id = ? AND tries = ?", p.id, p.tries)
}

func (s *Sender) again(ctx context.Context, p *parcel, wait time.Duration, fault string) error {
	return s.end(ctx, "UPDATE notices SET due = ?, fault = ? WHERE id = ? AND tries = ? AND dead = 0",
		s.opts.Now().Add(wait).UnixNano(), fault, p.id, p.tries)
}

func (s *Sender) bury(ctx context.Context, p *parcel, fault string) error {
	return s.end(ctx, "UPDATE notices SET dead = 1, fault = ?, until = ? WHERE id = ? AND tries = ? AND dead = 0",
		fault, s.opts.Now().UnixNano(), p.id, p.tries)
}

func (s *Sender) end(ctx context.Context, statement string, args ...any) error {
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), writeTimeout)
	defer stop()
	if _, err := s.opts.DB.Write.ExecContext(ctx, statement, args...); err != nil {
		return fmt.Errorf("ending a try: %w", err)
	}
	return nil
}

// sweep gives up what nobody delivered in time, whose channel it ever was, and
// forgets what was given up long ago.
func (s *Sender) sweep(ctx context.Context) (late []parcel, channels []string, err error) {
	now := s.opts.Now()
	var due bool
	err = s.opts.DB.Read.QueryRowContext(ctx, "SELECT EXISTS (SELECT 1 FROM notices WHERE until <= ? AND (dead = 0 AND due <= ? OR until <= ?))",
		now.UnixNano(), now.UnixNano(), now.Add(-deadTime).UnixNano()).Scan(&due)
	if err != nil || !due {
		return nil, nil, err
	}
	rows, err := s.opts.DB.Write.QueryContext(ctx, `UPDATE notices SET dead = 1, fault = CASE fault WHEN '' THEN 'it was never tried' ELSE fault END
 WHERE dead = 0 AND until <= ? AND due <= ? RETURNING id, ticket, tries, channel`, now.UnixNano(), now.UnixNano())
	if err != nil {
		return nil, nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var p parcel
		var channel string
		if err := rows.Scan(&p.id, &p.ticket, &p.tries, &channel); err != nil {
			return nil, nil, err
		}
		late, channels = append(late, p), append(channels, channel)
	}
	if err := errors.Join(rows.Err(), rows.Close()); err != nil {
		return nil, nil, err
	}
	_, err = s.opts.DB.Write.ExecContext(ctx, "DELETE FROM notices WHERE dead = 1 AND until <= ?", now.Add(-deadTime).UnixNano())
	return late, channels, err
}

// Trouble is what one channel could not deliver.
type Trouble struct {
	Channel string // its name, "" when it is configured no more
	Waiting int    // notices that have failed and are tried again
	Dead    int    // notices that were given up, within a week
	Ticket  string // of the latest of them
	Fault   string // of the latest of them
}

// Troubles gives the channels that have not delivered everything.
func (s *Sender) Troubles(ctx context.Context) ([]Trouble, error) {
	// The bare columns are those of the row that max(seq) is of.
	rows, err := s.opts.DB.Read.QueryContext(ctx, `SELECT channel, sum(dead = 0), sum(dead), ticket, fault, max(seq) FROM notices
 WHERE fault <> '' GROUP BY channel ORDER BY channel`)
	if err != nil {
		return nil, fmt.Errorf("reading notices: %w", err)
	}
	defer rows.Close()
	var found []Trouble
	for rows.Next() {
		var t Trouble
		var key string
		var seq int64
		if err := rows.Scan(&key, &t.Waiting, &t.Dead, &t.Ticket, &t.Fault, &seq); err != nil {
			return nil, fmt.Errorf("reading notices: %w", err)
		}
		t.Channel = s.name(key)
		found = append(found, t)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("reading notices: %w", err)
	}
	return found, nil
}
