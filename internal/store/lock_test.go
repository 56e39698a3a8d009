package store_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/internal/testkit/postgres"
)

// Who waits too long for a lock of another transaction learns that the store is busy, and what
// waited sees what the other wrote.
func TestEnginesExclude(t *testing.T) {
	for _, e := range engines {
		t.Run(e.name, func(t *testing.T) {
			address := e.address(t)
			db, other := mustOpen(t, address, e.migrations), mustOpen(t, address, e.migrations)
			late := make(chan int, 1)
			err := db.Update(t.Context(), func(ctx context.Context, tx *sql.Tx) error {
				if err := db.Lock(ctx, tx, "clock"); err != nil {
					return err
				}
				nothing := func(ctx context.Context, tx *sql.Tx) error { return other.Lock(ctx, tx, "clock") }
				if err := db.UpdateWithin(ctx, time.Millisecond, nothing); !errors.Is(err, store.ErrBusy) {
					t.Errorf("in this process: %v", err)
				}
				if address != db.Path() { // SQLite waits in C, where no context ends it
					if err := other.UpdateWithin(ctx, 50*time.Millisecond, nothing); !errors.Is(err, store.ErrBusy) {
						t.Errorf("in another: %v", err)
					}
					if err := other.Update(ctx, func(ctx context.Context, tx *sql.Tx) error {
						held, err := other.TryLock(ctx, tx, "clock")
						free, failed := other.TryLock(ctx, tx, "another name")
						if held || !free {
							t.Errorf("not waiting: it holds the name: %v, and another: %v", held, free)
						}
						return errors.Join(err, failed)
					}); err != nil {
						t.Error(err)
					}
				}
				go func() {
					seen := -1
					if err := other.Update(context.Background(), func(ctx context.Context, tx *sql.Tx) error {
						err := other.Lock(ctx, tx, "clock")
						return errors.Join(err, tx.QueryRowContext(ctx, "SELECT seen FROM approval_clock").Scan(&seen))
					}); err != nil {
						t.Error(err)
					}
					late <- seen
				}()
				_, err := tx.ExecContext(ctx, "UPDATE approval_clock SET seen = 7")
				return err
			})
			if seen := <-late; err != nil || seen != 7 {
				t.Errorf("the transaction that waited saw %d; %v", seen, err)
			}
		})
	}
}

const writerVar, written100 = "TOOLGATE_TEST_WRITER", 100

// writeNumbers is a process that adds numbers.
func writeNumbers(address string) {
	db, err := openAt(context.Background(), address, numbers(os.Getenv(writerVar+"_NUMBER")))
	for range written100 {
		if err == nil {
			err = db.Update(context.Background(), func(ctx context.Context, tx *sql.Tx) error {
				err := db.Lock(ctx, tx, "numbers")
				if err == nil {
					_, err = tx.ExecContext(ctx, "INSERT INTO numbers (who) VALUES (?)", strconv.Itoa(os.Getpid()))
				}
				if err == nil {
					_, err = tx.ExecContext(ctx, "UPDATE numbers SET who = who WHERE seq = (SELECT max(seq) FROM numbers)")
				}
				return err
			})
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// No number that is given under a lock appears behind one that was read, while two processes
// write.
func TestEnginesNumberInOrder(t *testing.T) {
	for _, e := range engines {
		t.Run(e.name, func(t *testing.T) {
			address := e.address(t)
			db := mustOpen(t, address, numbers(e.number))
			ended := make(chan error, 2)
			for range 2 {
				writer := exec.CommandContext(t.Context(), os.Args[0])
				writer.Env = append(os.Environ(), writerVar+"="+address, writerVar+"_NUMBER="+e.number)
				go func() {
					out, err := writer.CombinedOutput()
					if err != nil {
						err = fmt.Errorf("%w\n%s", err, out)
					}
					ended <- err
				}()
			}
			last, read := 0, 0
			follow := func() {
				news, err := store.Select(t.Context(), db.Read, func(n *int) []any { return []any{n} }, "SELECT seq FROM numbers WHERE seq > ? ORDER BY seq", last)
				if err != nil {
					t.Fatal(err)
				}
				if read += len(news); len(news) > 0 {
					last = news[len(news)-1]
				}
			}
			for writers := 2; writers > 0; {
				select {
				case err := <-ended:
					if writers--; err != nil {
						t.Fatal(err)
					}
				default:
					follow()
				}
			}
			follow()
			if read != 2*written100 {
				t.Errorf("a follower read %d numbers of %d", read, 2*written100)
			}
		})
	}
}

// A transaction whose process does nothing more is undone by the server, and its locks are
// free.
func TestAFrozenTransactionEnds(t *testing.T) {
	address := postgres.Database(t) + "&idle_in_transaction_session_timeout=200"
	db, other := mustOpen(t, address, store.PostgresMigrations()), mustOpen(t, address, store.PostgresMigrations())
	set := func(db *store.DB, seen int, then func()) error {
		return db.Update(t.Context(), func(ctx context.Context, tx *sql.Tx) error {
			err := db.Lock(ctx, tx, "clock")
			if err == nil {
				_, err = tx.ExecContext(ctx, "UPDATE approval_clock SET seen = ?", seen)
			}
			then()
			return err
		})
	}
	err := set(db, 7, func() {
		if err := set(other, 8, func() {}); err != nil {
			t.Errorf("another change: %v", err)
		}
	})
	if err == nil {
		t.Error("the frozen change was made")
	}
	var seen int
	if err := db.Read.QueryRow("SELECT seen FROM approval_clock").Scan(&seen); err != nil || seen != 8 {
		t.Errorf("seen %d, %v; want 8", seen, err)
	}
}

// A moment is settled when every transaction that had written before it has ended.
func TestEnginesSettle(t *testing.T) {
	for _, e := range engines {
		t.Run(e.name, func(t *testing.T) {
			address := e.address(t)
			db, other := mustOpen(t, address, e.migrations), mustOpen(t, address, e.migrations)
			var m store.Moment
			settled := func() bool {
				t.Helper()
				settled, err := other.Settled(t.Context(), other.Read, m)
				if err != nil {
					t.Fatal(err)
				}
				return settled
			}
			err := db.Update(t.Context(), func(ctx context.Context, tx *sql.Tx) error {
				_, err := tx.ExecContext(ctx, "UPDATE approval_clock SET seen = 1")
				if err == nil {
					m, err = other.Now(ctx)
				}
				if db.Shared() && settled() {
					t.Error("settled, while a change is under way")
				}
				return err
			})
			if err != nil || !settled() {
				t.Errorf("not settled when the change was made: %v", err)
			}
		})
	}
}
