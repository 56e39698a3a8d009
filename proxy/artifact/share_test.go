package artifact_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/toolgate/toolgate/internal/testkit/postgres"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/proxy/artifact"
)

// Whoever puts, gets and sweeps at the same time: a Get gives the right bytes
// or ErrNotFound, and in the end files and rows agree.
func TestTwoStoresShareADirectory(t *testing.T) {
	w := newWorld(t, artifact.Options{MaxBytes: 3 * 4096})
	stores := []*artifact.Store{w.Store, w.open(openDB(t, w.dir), artifact.Options{MaxBytes: 3 * 4096})}
	rounds := 60
	if testing.Short() {
		rounds = 10
	}
	text := func(i int) string { return strings.Repeat(fmt.Sprint(i%6), 3000) }
	step := func(s *artifact.Store, i int) error {
		a, err := s.Put(t.Context(), ann, "", []byte(text(i)))
		if err != nil {
			return err
		}
		if _, err := s.Put(t.Context(), bob, "", []byte(text(i))); err != nil {
			return err
		}
		got, err := read(t, s, bob, a.ID)
		if err == nil && got != text(i) {
			return fmt.Errorf("got %.20q for %.20q", got, text(i))
		}
		if errors.Is(err, artifact.ErrNotFound) {
			err = nil
		}
		return err
	}
	var all sync.WaitGroup
	for n, s := range stores {
		for g := range 2 {
			all.Go(func() {
				for i := range rounds {
					w.pass(time.Millisecond)
					if err := step(s, i*(g+1)+n); err != nil {
						t.Error(err)
					}
				}
			})
		}
		all.Go(func() {
			for range rounds {
				if err := s.Sweep(t.Context()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	for _, s := range stores { // their own sweepers too are done
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	w.agree()
}

// What another process does while a Put waits for the write lock.
func TestAPutLosesItsFileToASweep(t *testing.T) {
	for name, there := range map[string]bool{"it had seen the file": true, "it has a draft": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, artifact.Options{})
				second := w.open(w.db, artifact.Options{})
				id := artifact.ID([]byte("text"))
				if there {
					w.put(bob, "", "text")
				} else {
					write(t, w.file(id), "damaged")
				}
				w.db.Write.SetMaxOpenConns(1) // so that others wait for it
				tx, err := w.db.Write.BeginTx(t.Context(), nil)
				if err != nil {
					t.Fatal(err)
				}
				done := make(chan error)
				go func() {
					_, err := w.Put(t.Context(), ann, "", []byte("text"))
					done <- err
				}()
				synctest.Wait()                // Put waits for the transaction
				if there || !postgres.Used() { // a sweep that suspects the file would wait as well
					if err := second.Sweep(t.Context()); err != nil { // finds the draft alive
						t.Error(err)
					}
				}
				_, err = tx.Exec("DELETE FROM artifacts WHERE id = ?", id)
				if err = errors.Join(err, os.Remove(w.file(id)), tx.Commit(), <-done); err != nil {
					t.Fatal(err)
				}
				w.has(ann, id, "text")
				w.has(bob, id, "")
				w.agree()
			})
		})
	}
}

func TestAGrantAgainSavesFromASweep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, artifact.Options{TTL: time.Hour})
		id := w.put(ann, "", "text").ID
		w.pass(time.Hour)
		w.db.Write.SetMaxOpenConns(1) // so that others wait for it
		tx, err := w.db.Write.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error)
		go func() { done <- w.Sweep(t.Context()) }()
		synctest.Wait() // it knows its victim and waits for the transaction
		now := w.clock().UnixNano()
		_, err = tx.Exec("UPDATE artifacts SET granted = ? WHERE id = ?", now, id)
		if err == nil {
			_, err = tx.Exec("UPDATE artifact_grants SET granted = ? WHERE artifact = ?", now, id)
		}
		if err = errors.Join(err, tx.Commit(), <-done); err != nil {
			t.Fatal(err)
		}
		w.has(ann, id, "text")
	})
}

// A file that has no row yet when a sweep looks, and has one when it removes.
func TestAFileThatGetsItsRowDuringASweep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, artifact.Options{})
		id := artifact.ID([]byte("text"))
		write(t, w.file(id), "text")
		w.db.Write.SetMaxOpenConns(1) // so that others wait for it
		tx, err := w.db.Write.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error)
		go func() {
			s, err := artifact.Open(t.Context(), filepath.Join(w.dir, "artifacts"), w.db, artifact.Options{Now: w.clock})
			if err == nil {
				err = s.Close()
			}
			done <- err
		}()
		synctest.Wait() // it suspects the file and waits for the transaction
		_, err = tx.Exec("INSERT INTO artifacts VALUES (?, 4, ?)", id, noon.UnixNano())
		if err == nil {
			_, err = tx.Exec("INSERT INTO artifact_grants VALUES (?, 'ann', 'acme', 'a/b', 0, ?)", id, noon.UnixNano())
		}
		if err = errors.Join(err, tx.Commit(), <-done); err != nil {
			t.Fatal(err)
		}
		w.has(ann, id, "text")
	})
}

// A caller that goes away while its Put waits for others leaves no draft.
func TestACallerThatGoesAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, artifact.Options{})
		tx, err := w.db.Write.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() {
			_, err := w.Put(ctx, ann, "", []byte("text"))
			done <- err
		}()
		synctest.Wait()
		cancel()
		if err := errors.Join(tx.Rollback(), <-done); err != nil {
			t.Error(err)
		}
		w.has(ann, artifact.ID([]byte("text")), "text")
		w.agree()
	})
}

func TestTheSweeper(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, artifact.Options{TTL: time.Hour})
		w.put(ann, "", "text")
		w.pass(time.Hour)
		time.Sleep(time.Minute - time.Nanosecond) // of the bubble
		synctest.Wait()
		if len(w.files()) != 1 {
			t.Error("it swept before its time")
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		if n := len(w.files()); n != 0 {
			t.Errorf("%d files after a minute", n)
		}
	})
}

// So that the directory does not grow past its limit in one minute.
func TestTheSweeperComesEarlyWhenMuchIsPut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const most = 16
		w := newWorld(t, artifact.Options{MaxBytes: most * 4096})
		for i := range 2 * most {
			w.put(ann, "", fmt.Sprint(i))
			w.pass(time.Second)
			synctest.Wait()
			if n := len(w.files()); n > most+most/8 {
				t.Fatalf("%d files after %d", n, i)
			}
		}
		w.agree()
	})
}

func BenchmarkPut(b *testing.B) {
	w := newWorld(b, artifact.Options{})
	data := make([]byte, 64<<10)
	n := 0
	for b.Loop() {
		n++
		copy(data, fmt.Sprint(n))
		if _, err := w.Put(b.Context(), ann, "image/png", data); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkPutAgain(b *testing.B) {
	w := newWorld(b, artifact.Options{})
	data := make([]byte, 64<<10)
	for b.Loop() {
		if _, err := w.Put(b.Context(), ann, "image/png", data); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkGet(b *testing.B) {
	w := newWorld(b, artifact.Options{})
	id := w.put(ann, "", strings.Repeat("x", 64<<10)).ID
	for b.Loop() {
		_, file, err := w.Get(b.Context(), policy.Principal{Subject: "ann", Tenant: "acme"}, id)
		if err != nil {
			b.Fatal(err)
		}
		file.Close()
	}
}
