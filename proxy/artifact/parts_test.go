package artifact_test

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"testing"
	"time"

	"github.com/toolgate/toolgate/internal/testkit/postgres"
	"github.com/toolgate/toolgate/proxy/artifact"
)

// replica gives another store on the database of w, with a directory of its own.
func (w *world) replica(opts artifact.Options) *world {
	w.t.Helper()
	if !postgres.Used() {
		w.t.Skip("replicas share a database on a server")
	}
	r := &world{t: w.t, now: w.clock(), db: openDB(w.t, w.dir), dir: w.t.TempDir()}
	r.Store = r.open(r.db, opts)
	return r
}

// stored counts the parts in the database.
func (w *world) stored() (n int) {
	w.t.Helper()
	if err := w.db.Read.QueryRow("SELECT count(*) FROM artifact_parts").Scan(&n); err != nil {
		w.t.Fatal(err)
	}
	return n
}

// An artifact that one replica has put is given by another: to its owner alone, until its
// grant ends. A sweep of one removes it everywhere.
func TestReplicasGiveEachOthersArtifacts(t *testing.T) {
	opts := artifact.Options{TTL: time.Hour}
	one := newWorld(t, opts)
	two := one.replica(opts)
	id := one.put(ann, "image/png", "text").ID
	two.has(bob, id, "")
	two.has(other, id, "")
	if len(two.files()) != 0 {
		t.Error("bytes came for somebody who was not given them")
	}
	two.has(ann, id, "text")
	if a, file, err := two.Get(t.Context(), ann, id); err != nil || a.Type != "image/png" {
		t.Errorf("%+v, %v", a, err)
	} else {
		file.Close()
	}
	two.put(bob, "", "text")
	one.has(bob, id, "text")
	if n := one.stored(); n != 1 {
		t.Errorf("%d parts of one artifact", n)
	}
	for _, w := range []*world{one, two} {
		w.pass(time.Hour)
		w.has(ann, id, "")
		w.sweep()
		w.agree()
	}
	if n := one.stored(); n != 0 {
		t.Errorf("%d parts are left", n)
	}
}

// Bytes of which the database has others are not given, and the next Put repairs them.
func TestDamagedParts(t *testing.T) {
	one := newWorld(t, artifact.Options{})
	two := one.replica(artifact.Options{})
	id := one.put(ann, "", "text").ID
	for _, damage := range []string{"texT", "tex", "text!"} {
		one.parts(id, damage)
		_ = os.Remove(two.file(id)) // there is none at first
		if got, err := read(t, two.Store, ann, id); !errors.Is(err, artifact.ErrDamaged) {
			t.Errorf("got %q, %v; want ErrDamaged", got, err)
		}
		two.put(ann, "", "text")
		two.has(ann, id, "text")
	}
	one.parts(id, "")
	if err := os.Remove(two.file(id)); err != nil {
		t.Fatal(err)
	}
	two.has(ann, id, "")
	one.put(ann, "", "text") // it has the file
	two.has(ann, id, "text")
}

// The database gets the files that it lacks when a replica starts: those of a state that
// was moved into it.
func TestFilesThatTheDatabaseLacks(t *testing.T) {
	one := newWorld(t, artifact.Options{})
	two := one.replica(artifact.Options{})
	text := string(bytes.Repeat([]byte("long"), 1<<19)) // two parts
	id, gone := one.put(ann, "", text).ID, one.put(ann, "", "gone").ID
	for _, lost := range []string{id, gone} {
		one.parts(lost, "")
	}
	if err := os.Remove(one.file(gone)); err != nil {
		t.Fatal(err)
	}
	two.has(ann, id, "")
	one.open(one.db, artifact.Options{})
	two.has(ann, id, text)
	two.has(ann, gone, "")
	if n := one.stored(); n != 2 {
		t.Errorf("%d parts, want 2", n)
	}
}

// What a process has uploaded that died before it recorded it is swept.
func TestPartsWithoutAnArtifact(t *testing.T) {
	one := newWorld(t, artifact.Options{})
	two := one.replica(artifact.Options{})
	kept := one.put(ann, "", "kept").ID
	if _, err := one.db.Write.Exec("INSERT INTO artifact_parts VALUES (?, 0, ?)", artifact.ID([]byte("lost")), []byte("lost")); err != nil {
		t.Fatal(err)
	}
	two.sweep()
	if n := one.stored(); n != 1 {
		t.Errorf("%d parts, want 1", n)
	}
	two.has(ann, kept, "kept")
}

// 50 MB pass in parts: no replica holds more than a few of them in memory.
func TestLargeArtifactsPassInParts(t *testing.T) {
	one := newWorld(t, artifact.Options{})
	two := one.replica(artifact.Options{})
	data := make([]byte, 50<<20)
	for at := range data {
		data[at] = byte(rand.Uint32())
	}
	defer debug.SetGCPercent(debug.SetGCPercent(10))
	used := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapSys - m.HeapReleased
	}
	debug.FreeOSMemory()
	before := used()
	a, err := one.Put(t.Context(), ann, "", data)
	if err != nil {
		t.Fatal(err)
	}
	_, file, err := two.Get(t.Context(), ann, a.ID)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if grown := int64(used()) - int64(before); grown > 30<<20 {
		t.Errorf("50 MB took %d MiB more memory", grown>>20)
	}
	info, err := os.Stat(filepath.Join(two.dir, "artifacts"))
	if err != nil || info.Mode().Perm() != 0o700 || one.stored() != 50 {
		t.Errorf("%v, %v, %d parts", info, err, one.stored())
	}
}
