package store

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/toolgate/toolgate/internal/wait"
)

// Topic is what has changed: a channel of LISTEN and NOTIFY, of which each database has its
// own.
type Topic string

// The topics.
const (
	Tickets Topic = "toolgate"
	Tokens  Topic = "toolgate_tokens"
	Stops   Topic = "toolgate_stops"
)

// maxPayload is the longest text that a NOTIFY carries, in bytes.
const maxPayload = 7999

// Notify calls the functions that were given to Listen for the topic, in every process,
// with the ids of what changed when tx is committed: words without spaces. More ids than one
// notification carries are sent as none. With a file, Notify does nothing.
func (db *DB) Notify(ctx context.Context, tx *sql.Tx, about Topic, ids ...string) error {
	if db.beats == nil {
		return nil
	}
	payload := strings.Join(ids, " ")
	if len(payload) > maxPayload {
		payload = ""
	}
	_, err := tx.ExecContext(ctx, "SELECT pg_notify(?, ?)", string(about), payload)
	return err
}

// Shared reports whether the database is on a server, where processes on several machines,
// with a state directory each, may use it.
func (db *DB) Shared() bool { return db.beats != nil }

// Listen calls wake after transactions that Notify about the topic, of any process, until ctx ends; one
// call may stand for several. No ids mean that anything may have changed. It also calls wake
// without ids when it begins to listen, at first and after a lost connection, as something
// may have been missed. While the server cannot be reached, and with a file, it hears
// nothing: who waits has to look for changes as well.
func (db *DB) Listen(ctx context.Context, about Topic, wake func(ids ...string)) {
	if db.beats == nil {
		return
	}
	for {
		_ = db.listen(ctx, about, wake) // tried again
		if !wait.For(ctx, relisten) {
			return
		}
	}
}

// Follow calls read at once, whenever a transaction notifies about the topic, and otherwise at the
// next beat of every, until ctx ends. Calls of read do not overlap.
func (db *DB) Follow(ctx context.Context, about Topic, every time.Duration, read func(context.Context)) {
	woken := make(chan struct{}, 1)
	var listener sync.WaitGroup
	listener.Go(func() { db.Listen(ctx, about, func(...string) { wait.Signal(woken) }) })
	defer listener.Wait()
	for {
		read(ctx)
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait.Beat(every)):
		case <-woken:
		}
	}
}

// listen is Listen on one connection, until it is lost.
func (db *DB) listen(ctx context.Context, about Topic, wake func(ids ...string)) error {
	c, err := db.beats.Conn(ctx)
	if err != nil {
		return err
	}
	defer c.Close() //nolint:errcheck // Raw has closed it
	return c.Raw(func(raw any) error {
		server := raw.(conn).Conn.Conn()
		_, err := server.Exec(ctx, "LISTEN "+string(about))
		for said := new(pgconn.Notification); err == nil; said, err = server.WaitForNotification(ctx) {
			wake(strings.Fields(said.Payload)...)
		}
		return fmt.Errorf("%w: %w", driver.ErrBadConn, err) // it still listens: nobody else may have it
	})
}
