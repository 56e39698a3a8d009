package artifact_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/internal/testkit/postgres"
	"github.com/toolgate/toolgate/proxy/artifact"
)

func write(t testing.TB, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestARowWithoutItsFile(t *testing.T) {
	for name, lose := range map[string]func(w *world, id string) error{
		"the file is gone":      func(w *world, id string) error { return os.Remove(w.file(id)) },
		"its directory is gone": func(w *world, id string) error { return os.RemoveAll(filepath.Dir(w.file(id))) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, artifact.Options{})
			id := w.put(ann, "", "text").ID
			w.parts(id, "")
			if err := lose(w, id); err != nil {
				t.Fatal(err)
			}
			w.has(ann, id, "")
			w.put(bob, "", "text")
			w.has(ann, id, "text")
			w.has(bob, id, "text")
		})
	}
}

func TestADamagedFile(t *testing.T) {
	for name, damage := range map[string]string{"another byte": "texT", "cut": "tex", "longer": "text!", "empty": ""} {
		for _, when := range []string{"before the first Get", "after a Get"} {
			t.Run(name+" "+when, func(t *testing.T) {
				w := newWorld(t, artifact.Options{})
				id := w.put(ann, "", "text").ID
				if when == "after a Get" {
					w.has(ann, id, "text")
				}
				write(t, w.file(id), damage)
				w.parts(id, damage+"!!")
				if err := os.Chtimes(w.file(id), time.Time{}, noon); err != nil { // file systems tick slower than tests
					t.Fatal(err)
				}
				if got, err := read(t, w.Store, ann, id); !errors.Is(err, artifact.ErrDamaged) {
					t.Errorf("got %q, %v; want ErrDamaged", got, err)
				}
				w.has(bob, id, "")
				w.put(ann, "", "text")
				w.has(ann, id, "text")
			})
		}
	}
}

func TestWhatACrashLeavesIsSwept(t *testing.T) {
	w := newWorld(t, artifact.Options{})
	kept := w.put(ann, "", "kept").ID
	orphan := artifact.ID([]byte("orphan"))
	write(t, w.file(orphan), "orphan")
	top := filepath.Join(w.dir, "artifacts")
	write(t, filepath.Join(top, ".put-DEAD"), "half")
	write(t, filepath.Join(top, ".put-LIVE"), "half")
	write(t, filepath.Join(top, "README"), "not ours")
	write(t, filepath.Join(top, "ab", "ab.notes"), "not ours")
	live, err := os.Open(filepath.Join(top, ".put-LIVE"))
	if err != nil {
		t.Fatal(err)
	}
	defer live.Close()
	if err := unix.Flock(int(live.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	w.open(openDB(t, w.dir), artifact.Options{})
	want := []string{".put-LIVE", strings.TrimPrefix(kept, "sha256:"), "README", "ab.notes"}
	if diff := cmp.Diff(want, w.files()); diff != "" {
		t.Error(diff)
	}
	w.has(ann, orphan, "")
	w.has(ann, kept, "kept")
	if err := live.Close(); err != nil {
		t.Fatal(err)
	}
	w.sweep()
	if diff := cmp.Diff(want[1:], w.files()); diff != "" {
		t.Errorf("after its process died: %s", diff)
	}
}

func TestAPutThatTheStateFileRefuses(t *testing.T) {
	w := newWorld(t, artifact.Options{})
	if _, err := w.db.Write.Exec("ALTER TABLE artifact_grants RENAME COLUMN type TO kind"); err != nil {
		t.Fatal(err)
	}
	if a, err := w.Put(t.Context(), ann, "", []byte("text")); err == nil {
		t.Errorf("put %+v", a)
	}
	if left := w.files(); len(left) != 0 || len(w.rows()) != 0 {
		t.Errorf("left files %v, rows %v", left, w.rows())
	}
	if _, err := w.db.Write.Exec("ALTER TABLE artifact_grants RENAME COLUMN kind TO type"); err != nil {
		t.Fatal(err)
	}
	w.has(ann, w.put(ann, "", "text").ID, "text")
}

// A file that cannot be removed is an error of the sweep, and nobody's.
func TestAFileThatStays(t *testing.T) {
	w := newWorld(t, artifact.Options{TTL: time.Hour})
	stuck, gone := w.put(ann, "", "stuck").ID, w.put(ann, "", "gone").ID
	if err := errors.Join(os.Remove(w.file(stuck)), os.Mkdir(w.file(stuck), 0o700)); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(w.file(stuck), "x"), "")
	w.pass(time.Hour)
	if err := w.Sweep(t.Context()); err == nil || !strings.Contains(err.Error(), strings.TrimPrefix(stuck, "sha256:")) {
		t.Errorf("error %v", err)
	}
	if len(w.rows()) != 0 {
		t.Error("an expired row is left")
	}
	if _, err := os.Stat(w.file(gone)); err == nil {
		t.Error("the other file is left")
	}
	if err := os.Remove(filepath.Join(w.file(stuck), "x")); err != nil {
		t.Fatal(err)
	}
	w.sweep()
	if _, err := os.Stat(w.file(stuck)); err == nil {
		t.Error("what was stuck is never tried again")
	}
}

const (
	childEnv = "TOOLGATE_TEST_ARTIFACTS" // the state directory
	mostEnv  = "TOOLGATE_TEST_MOST"      // MaxBytes
)

// putForever is the process that TestKill kills. It says each id once Put has
// returned it.
func putForever(dir string) {
	ctx := context.Background()
	most, err := strconv.ParseInt(os.Getenv(mostEnv), 10, 64)
	var db *store.DB
	if err == nil {
		db, err = postgres.State(ctx, filepath.Join(dir, "state.db"))
	}
	var s *artifact.Store
	if err == nil {
		s, err = artifact.Open(ctx, filepath.Join(dir, "artifacts"), db, artifact.Options{MaxBytes: most})
	}
	for n := 0; err == nil; n++ {
		var a artifact.Artifact
		a, err = s.Put(ctx, ann, "text/plain", fmt.Appendf(nil, "%d of %d", n, os.Getpid()))
		fmt.Println(a.ID)
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// killed starts a process that puts, kills it after some puts, and gives the
// ids that it said.
func killed(t *testing.T, dir string, most int64, after int) (ids []string) {
	t.Helper()
	ctx, kill := context.WithTimeout(t.Context(), time.Minute)
	defer kill()
	child := exec.CommandContext(ctx, os.Args[0])
	child.Env = append(os.Environ(), childEnv+"="+dir, fmt.Sprintf("%s=%d", mostEnv, most))
	child.Stderr = os.Stderr
	out, err := child.StdoutPipe()
	if err == nil {
		err = child.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	for len(ids) < after && lines.Scan() {
		ids = append(ids, lines.Text())
	}
	kill()
	if err := child.Wait(); err == nil {
		t.Error("the process ended by itself")
	}
	return ids
}

// What Put returned is there after a kill, and no file without its row. A kill
// during a sweep may leave a row without its file, which nobody can get.
func TestKill(t *testing.T) {
	for name, most := range map[string]int64{"while it puts": 1 << 30, "while it puts and sweeps": 8 * 4096} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for round := range 2 {
				ids := killed(t, dir, most, 20+round)
				w := &world{t: t, now: time.Now(), dir: dir}
				w.db = openDB(t, dir)
				w.Store = w.open(w.db, artifact.Options{})
				rows := w.rows()
				for _, file := range w.files() {
					if !slices.Contains(rows, file) {
						t.Errorf("%s has no row", file)
					}
				}
				for _, row := range rows {
					if _, err := read(t, w.Store, ann, "sha256:"+row); err != nil && !errors.Is(err, artifact.ErrNotFound) {
						t.Error(err)
					}
				}
				if most != 1<<30 {
					continue
				}
				w.agree()
				for _, id := range ids {
					if _, err := read(t, w.Store, ann, id); err != nil {
						t.Errorf("%q was put: %v", id, err)
					}
				}
			}
		})
	}
}
