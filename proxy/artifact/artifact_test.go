package artifact_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/internal/testkit/postgres"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/proxy/artifact"
)

// All tests of the package, with a server.
func TestOnPostgreSQL(t *testing.T) { postgres.Again(t) }

func TestMain(m *testing.M) {
	if dir := os.Getenv(childEnv); dir != "" {
		putForever(dir)
	}
	goleak.VerifyTestMain(m)
}

var (
	ann   = policy.Principal{Subject: "ann", Roles: []string{"researcher"}, Tenant: "acme"}
	bob   = policy.Principal{Subject: "bob", Tenant: "acme"}
	other = policy.Principal{Subject: "ann", Tenant: "globex"}
	noon  = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
)

const day = 24 * time.Hour

// world is one store with a clock that only the test moves.
type world struct {
	*artifact.Store
	t   testing.TB
	db  *store.DB
	dir string // the state directory

	mu  sync.Mutex // protects the fields below
	now time.Time
}

func (w *world) clock() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.now
}

func (w *world) pass(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.now = w.now.Add(d)
}

func openDB(t testing.TB, dir string) *store.DB {
	t.Helper()
	db, err := postgres.State(t.Context(), filepath.Join(dir, "state.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db
}

func newWorld(t testing.TB, opts artifact.Options) *world {
	t.Helper()
	w := &world{t: t, now: noon, dir: t.TempDir()}
	w.db = openDB(t, w.dir)
	w.Store = w.open(w.db, opts)
	return w
}

// open gives another store on the same directory.
func (w *world) open(db *store.DB, opts artifact.Options) *artifact.Store {
	w.t.Helper()
	opts.Now = w.clock
	s, err := artifact.Open(w.t.Context(), filepath.Join(w.dir, "artifacts"), db, opts)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		if err := s.Close(); err != nil {
			w.t.Error(err)
		}
	})
	return s
}

func (w *world) put(who policy.Principal, kind, text string) artifact.Artifact {
	w.t.Helper()
	a, err := w.Put(w.t.Context(), who, kind, []byte(text))
	if err != nil {
		w.t.Fatal(err)
	}
	return a
}

// has checks that who gets text, or nothing when text is "".
func (w *world) has(who policy.Principal, id, text string) {
	w.t.Helper()
	got, err := read(w.t, w.Store, who, id)
	if text == "" {
		if !errors.Is(err, artifact.ErrNotFound) {
			w.t.Errorf("%s of %s gets %q, %v; want ErrNotFound", who.Subject, who.Tenant, got, err)
		}
		return
	}
	if err != nil || got != text {
		w.t.Errorf("%s of %s gets %q, %v; want %q", who.Subject, who.Tenant, got, err, text)
	}
}

func (w *world) sweep() {
	w.t.Helper()
	if err := w.Sweep(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
}

func read(t testing.TB, s *artifact.Store, who policy.Principal, id string) (string, error) {
	a, file, err := s.Get(t.Context(), who, id)
	if err != nil {
		if file != nil || a != (artifact.Artifact{}) {
			t.Errorf("Get gave %v, %v together with %v", a, file, err)
		}
		return "", err
	}
	defer file.Close()
	data, err := io.ReadAll(file)
	if int64(len(data)) != a.Size || a.ID != id {
		t.Errorf("%d bytes for %+v", len(data), a)
	}
	return string(data), err
}

// file is where an artifact lies.
func (w *world) file(id string) string {
	name := strings.TrimPrefix(id, "sha256:")
	return filepath.Join(w.dir, "artifacts", name[:2], name)
}

// parts replaces the bytes that the database of a server has of an artifact; "" = by none.
func (w *world) parts(id, text string) {
	w.t.Helper()
	if !postgres.Used() {
		return
	}
	statement, args := "UPDATE artifact_parts SET bytes = ? WHERE artifact = ?", []any{[]byte(text), id}
	if text == "" {
		statement, args = "DELETE FROM artifact_parts WHERE artifact = ?", []any{id}
	}
	if _, err := w.db.Write.Exec(statement, args...); err != nil {
		w.t.Fatal(err)
	}
}

// files gives the names of all files of the store, without directories.
func (w *world) files() (names []string) {
	w.t.Helper()
	err := filepath.WalkDir(filepath.Join(w.dir, "artifacts"), func(_ string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			names = append(names, d.Name())
		}
		return err
	})
	if err != nil {
		w.t.Fatal(err)
	}
	slices.Sort(names)
	return names
}

// rows gives what the state file speaks of, in the form of files.
func (w *world) rows() (names []string) {
	w.t.Helper()
	rows, err := w.db.Read.Query("SELECT id FROM artifacts ORDER BY id")
	if err != nil {
		w.t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var id sql.NullString
		if err := rows.Scan(&id); err != nil {
			w.t.Fatal(err)
		}
		names = append(names, strings.TrimPrefix(id.String, "sha256:"))
	}
	if err := rows.Err(); err != nil {
		w.t.Fatal(err)
	}
	return names
}

// agree checks that each row has its file and each file its row.
func (w *world) agree() {
	w.t.Helper()
	if diff := cmp.Diff(w.rows(), w.files()); diff != "" {
		w.t.Errorf("rows and files differ (-row +file):\n%s", diff)
	}
}

func TestPut(t *testing.T) {
	w := newWorld(t, artifact.Options{})
	got := w.put(ann, "image/png", "hello")
	want := artifact.Artifact{ID: "sha256:2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824", Type: "image/png", Size: 5, Created: noon}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if got.ID != artifact.ID([]byte("hello")) {
		t.Errorf("ID gives %s", artifact.ID([]byte("hello")))
	}
	w.pass(time.Hour)
	if diff := cmp.Diff(want, w.put(ann, "text/plain", "hello")); diff != "" {
		t.Errorf("the same bytes again: %s", diff)
	}
	a, file, err := w.Get(t.Context(), ann, got.ID)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if diff := cmp.Diff(want, a); diff != "" {
		t.Error(diff)
	}
	w.has(ann, got.ID, "hello")
	w.agree()
}

func TestNothingIsAnArtifactToo(t *testing.T) {
	w := newWorld(t, artifact.Options{})
	a, file, err := w.Get(t.Context(), ann, w.put(ann, "text/plain", "").ID)
	if err != nil || a.Size != 0 {
		t.Fatalf("%+v, %v", a, err)
	}
	file.Close()
}

func TestPrincipalsLearnNothingOfEachOther(t *testing.T) {
	w := newWorld(t, artifact.Options{})
	w.put(bob, "image/gif", "same")
	w.pass(time.Hour)
	got := w.put(ann, "image/png", "same")
	if got.Type != "image/png" || !got.Created.Equal(noon.Add(time.Hour)) {
		t.Errorf("ann learns what bob put: %+v", got)
	}
	w.pass(7*day - time.Hour) // bob's ends, ann's goes on
	w.has(bob, got.ID, "")
	w.has(ann, got.ID, "same")
}

func TestMediaTypes(t *testing.T) {
	w := newWorld(t, artifact.Options{})
	for given, want := range map[string]string{
		"image/png":                        "image/png",
		"Text/HTML; Charset=utf-8":         "text/html; charset=utf-8",
		"application/ld+json":              "application/ld+json",
		"":                                 artifact.OctetStream,
		"form-data":                        artifact.OctetStream,
		"text":                             artifact.OctetStream,
		"text/":                            artifact.OctetStream,
		"text/plain; charset":              artifact.OctetStream,
		"text/plain\r\nX: y":               artifact.OctetStream,
		"text/plain\n":                     "text/plain",
		"text/" + strings.Repeat("x", 300): artifact.OctetStream,
	} {
		if got := w.put(ann, given, "text "+given).Type; got != want {
			t.Errorf("%q is kept as %q, want %q", given, got, want)
		}
	}
}

func TestOnlyTheOwnerGets(t *testing.T) {
	w := newWorld(t, artifact.Options{})
	id := w.put(ann, "text/plain", "mine").ID
	w.has(ann, id, "mine")
	w.has(policy.Principal{Subject: "ann", Tenant: "acme", Roles: []string{"other"}, Client: "x/1"}, id, "mine")
	for _, who := range []policy.Principal{bob, other, {Subject: "ann"}, {Subject: "ANN", Tenant: "acme"}, {}, {Tenant: "acme"}} {
		w.has(who, id, "")
	}
	w.has(ann, artifact.ID([]byte("nobody put this")), "")
}

func TestNotFoundHasOneText(t *testing.T) {
	w := newWorld(t, artifact.Options{})
	gone, denied := w.put(ann, "", "gone"), w.put(bob, "", "denied")
	w.parts(gone.ID, "")
	if err := os.Remove(w.file(gone.ID)); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{gone.ID, denied.ID, artifact.ID(nil), "x"} {
		if _, _, err := w.Get(t.Context(), ann, id); err == nil || err.Error() != artifact.ErrNotFound.Error() {
			t.Errorf("%s: %v", id, err)
		}
	}
}

func TestPutRefuses(t *testing.T) {
	w := newWorld(t, artifact.Options{})
	if _, err := w.Put(t.Context(), ann, "", make([]byte, artifact.MaxSize+1)); !errors.Is(err, artifact.ErrTooLarge) {
		t.Errorf("64 MiB and a byte: %v", err)
	}
	if _, err := w.Put(t.Context(), policy.Principal{Tenant: "acme"}, "", nil); !errors.Is(err, artifact.ErrNobody) {
		t.Errorf("nobody's: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := w.Put(ctx, ann, "", []byte("x")); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	small := w.open(w.db, artifact.Options{MaxBytes: 8 << 10})
	if _, err := small.Put(t.Context(), ann, "", make([]byte, 8<<10+1)); !errors.Is(err, artifact.ErrTooLarge) {
		t.Errorf("more than the store holds: %v", err)
	}
	if left := w.files(); len(left) != 0 {
		t.Errorf("left %v", left)
	}
}

func TestTheLargestArtifact(t *testing.T) {
	w := newWorld(t, artifact.Options{})
	data := bytes.Repeat([]byte("x"), artifact.MaxSize)
	a, err := w.Put(t.Context(), ann, "", data)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := read(t, w.Store, ann, a.ID); err != nil {
		t.Error(err)
	}
}

func TestExpiry(t *testing.T) {
	w := newWorld(t, artifact.Options{TTL: time.Hour})
	old, renewed := w.put(ann, "a/b", "old").ID, w.put(ann, "", "renewed").ID
	w.pass(30 * time.Minute)
	w.put(ann, "", "renewed")
	w.pass(30*time.Minute - 1)
	w.has(ann, old, "old")
	w.pass(1)
	w.has(ann, old, "")
	w.has(ann, renewed, "renewed")
	if len(w.files()) != 2 {
		t.Error("a Get removed a file")
	}
	w.sweep()
	w.has(ann, renewed, "renewed")
	if diff := cmp.Diff([]string{strings.TrimPrefix(renewed, "sha256:")}, w.files()); diff != "" {
		t.Error(diff)
	}
	w.agree()
	if a := w.put(ann, "c/d", "old"); a.Type != "c/d" || !a.Created.Equal(noon.Add(time.Hour)) {
		t.Errorf("put anew: %+v", a)
	}
	w.has(ann, old, "old")
}

func TestAnExpiredGrantStartsAnew(t *testing.T) {
	w := newWorld(t, artifact.Options{TTL: time.Hour})
	w.put(ann, "a/b", "x")
	w.pass(time.Hour)
	if a := w.put(ann, "c/d", "x"); a.Type != "c/d" || !a.Created.Equal(noon.Add(time.Hour)) {
		t.Errorf("%+v", a)
	}
}

func TestExpiredGrantsAreSwept(t *testing.T) {
	w := newWorld(t, artifact.Options{TTL: time.Hour})
	id := w.put(ann, "", "x").ID
	w.pass(time.Hour)
	if _, err := w.db.Write.Exec("UPDATE artifacts SET granted = granted + 1"); err != nil { // as if bob had it
		t.Fatal(err)
	}
	w.sweep()
	var left int
	if err := w.db.Read.QueryRow("SELECT count(*) FROM artifact_grants WHERE artifact = ?", id).Scan(&left); err != nil || left != 0 {
		t.Errorf("%d grants are left, %v", left, err)
	}
}

func TestTheOldestGoFirst(t *testing.T) {
	const block = 4096
	w := newWorld(t, artifact.Options{MaxBytes: 6 * block})
	ids := map[string]string{}
	for _, c := range []string{"a", "b", "c", "d"} {
		ids[c] = w.put(ann, "", strings.Repeat(c, 2*block-1)).ID
		w.pass(time.Second)
		if c == "c" { // a becomes the youngest but d
			w.put(bob, "", strings.Repeat("a", 2*block-1))
			w.pass(time.Second)
		}
	}
	w.sweep()
	w.has(ann, ids["b"], "")
	for _, c := range []string{"a", "c", "d"} {
		w.has(ann, ids[c], strings.Repeat(c, 2*block-1))
	}
	w.put(ann, "", "one byte takes a block")
	w.pass(time.Second)
	w.sweep()
	if n := len(w.files()); n != 3 { // c goes: 2 + 2 + 1 blocks stay
		t.Errorf("%d files", n)
	}
	w.has(ann, ids["c"], "")
	w.agree()
}

func TestAFileThatWasGivenOutStaysReadable(t *testing.T) {
	w := newWorld(t, artifact.Options{TTL: time.Hour})
	_, file, err := w.Get(t.Context(), ann, w.put(ann, "", "text").ID)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	w.pass(time.Hour)
	w.sweep()
	if got, err := io.ReadAll(file); err != nil || string(got) != "text" {
		t.Errorf("%q, %v", got, err)
	}
}

func TestModes(t *testing.T) {
	w := newWorld(t, artifact.Options{})
	file := w.file(w.put(ann, "", "x").ID)
	top := filepath.Join(w.dir, "artifacts")
	for path, want := range map[string]fs.FileMode{file: 0o600, filepath.Dir(file): 0o700 | fs.ModeDir, top: 0o700 | fs.ModeDir} {
		if info, err := os.Stat(path); err != nil || info.Mode() != want {
			t.Errorf("%s: %v, %v; want %v", path, info.Mode(), err, want)
		}
	}
	if err := os.Chmod(top, 0o755); err != nil {
		t.Fatal(err)
	}
	w.open(w.db, artifact.Options{})
	if info, err := os.Stat(top); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("an open directory stayed open: %v, %v", info.Mode(), err)
	}
}

func TestClose(t *testing.T) {
	w := newWorld(t, artifact.Options{})
	id := w.put(ann, "", "x").ID
	for range 2 {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := w.Put(t.Context(), ann, "", []byte("y")); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("Put: %v", err)
	}
	if _, _, err := w.Get(t.Context(), ann, id); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("Get: %v", err)
	}
}

func TestOpenRefuses(t *testing.T) {
	dir := t.TempDir()
	db := openDB(t, dir)
	write(t, filepath.Join(dir, "file"), "")
	if s, err := artifact.Open(t.Context(), filepath.Join(dir, "file", "x"), db, artifact.Options{}); err == nil {
		s.Close()
		t.Error("opened below a file")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if s, err := artifact.Open(ctx, filepath.Join(dir, "artifacts"), db, artifact.Options{}); !errors.Is(err, context.Canceled) {
		s.Close()
		t.Errorf("opened though cancelled: %v", err)
	}
}
