package store

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"

	"github.com/toolgate/toolgate/internal/wait"
)

// notifyChannel is the channel of LISTEN and NOTIFY; each database has its own.
const notifyChannel = "toolgate"

// Notify calls the functions that were given to Listen, in every process, when tx is
// committed. With a file, Notify does nothing.
func (db *DB) Notify(ctx context.Context, tx *sql.Tx) error {
	if db.beats == nil {
		return nil
	}
	_, err := tx.ExecContext(ctx, "NOTIFY "+notifyChannel)
	return err
}

// Shared reports whether the database is on a server, where processes on several machines,
// with a state directory each, may use it.
func (db *DB) Shared() bool { return db.beats != nil }

// Listen calls wake after transactions with a Notify, of any process, until ctx ends; one
// call may stand for several. It also calls wake when it begins to listen, at first and
// after a lost connection, as something may have been missed. While the server cannot be
// reached, and with a file, it hears nothing: who waits has to look for changes as well.
func (db *DB) Listen(ctx context.Context, wake func()) {
	if db.beats == nil {
		return
	}
	for {
		_ = db.listen(ctx, wake) // tried again
		if !wait.For(ctx, relisten) {
			return
		}
	}
}

// listen is Listen on one connection, until it is lost.
func (db *DB) listen(ctx context.Context, wake func()) error {
	c, err := db.beats.Conn(ctx)
	if err != nil {
		return err
	}
	defer c.Close() //nolint:errcheck // Raw has closed it
	return c.Raw(func(raw any) error {
		server := raw.(conn).Conn.Conn()
		_, err := server.Exec(ctx, "LISTEN "+notifyChannel)
		for err == nil {
			wake()
			_, err = server.WaitForNotification(ctx)
		}
		return fmt.Errorf("%w: %w", driver.ErrBadConn, err) // it still listens: nobody else may have it
	})
}
