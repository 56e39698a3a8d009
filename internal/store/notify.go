package store

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"

	"github.com/toolgate/toolgate/internal/wait"
)

// Topic is what has changed: a channel of LISTEN and NOTIFY, of which each database has its
// own.
type Topic string

// The topics.
const (
	Tickets Topic = "toolgate"
	Tokens  Topic = "toolgate_tokens"
)

// Notify calls the functions that were given to Listen for the topic, in every process,
// when tx is committed. With a file, Notify does nothing.
func (db *DB) Notify(ctx context.Context, tx *sql.Tx, about Topic) error {
	if db.beats == nil {
		return nil
	}
	_, err := tx.ExecContext(ctx, "NOTIFY "+string(about))
	return err
}

// Shared reports whether the database is on a server, where processes on several machines,
// with a state directory each, may use it.
func (db *DB) Shared() bool { return db.beats != nil }

// Listen calls wake after transactions that Notify about the topic, of any process, until ctx ends; one
// call may stand for several. It also calls wake when it begins to listen, at first and
// after a lost connection, as something may have been missed. While the server cannot be
// reached, and with a file, it hears nothing: who waits has to look for changes as well.
func (db *DB) Listen(ctx context.Context, about Topic, wake func()) {
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

// listen is Listen on one connection, until it is lost.
func (db *DB) listen(ctx context.Context, about Topic, wake func()) error {
	c, err := db.beats.Conn(ctx)
	if err != nil {
		return err
	}
	defer c.Close() //nolint:errcheck // Raw has closed it
	return c.Raw(func(raw any) error {
		server := raw.(conn).Conn.Conn()
		_, err := server.Exec(ctx, "LISTEN "+string(about))
		for err == nil {
			wake()
			_, err = server.WaitForNotification(ctx)
		}
		return fmt.Errorf("%w: %w", driver.ErrBadConn, err) // it still listens: nobody else may have it
	})
}
