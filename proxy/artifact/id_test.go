package artifact_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/toolgate/toolgate/proxy/artifact"
)

var oddIDs = []string{
	"", "sha256:", "sha256:ab", "sha256:../../state.db", "../state.db", "/etc/passwd", "sha256:/etc/passwd",
	"sha256:" + strings.Repeat("../", 21) + "x", "sha256:" + strings.Repeat("A", 64), "SHA256:" + strings.Repeat("a", 64),
	strings.Repeat("a", 64), "sha256:" + strings.Repeat("a", 65), "sha256:" + strings.Repeat("a", 63) + "\x00",
	"sha256:" + strings.Repeat("a", 64) + "\n", "sha256:" + strings.Repeat("g", 64), "sha512:" + strings.Repeat("a", 64),
	"sha256:" + strings.Repeat("a", 60) + "%2e%", "sha256:sha256:" + strings.Repeat("a", 57), "sha256:..", "sha256:" + strings.Repeat(".", 64),
}

func TestIDsThatAreNone(t *testing.T) {
	w := newWorld(t, artifact.Options{})
	write(t, filepath.Join(w.dir, "secret"), "secret")
	for _, id := range append(oddIDs, "sha256:../secret", "../secret") {
		if artifact.ValidID(id) {
			t.Errorf("%q is valid", id)
		}
		w.has(ann, id, "")
	}
}

// Not even a forged row makes a path of something that is no id.
func TestAForgedRow(t *testing.T) {
	w := newWorld(t, artifact.Options{})
	id := "sha256:" + "../" + strings.Repeat("./", 28) + "state"
	if len(id) != len(artifact.ID(nil)) {
		t.Fatalf("%d bytes", len(id))
	}
	write(t, filepath.Join(w.dir, "state"), "secret")
	for _, statement := range []string{
		"INSERT INTO artifacts VALUES (?, 6, 9e18)", "INSERT INTO artifact_grants VALUES (?, 'ann', 'acme', 'a/b', 0, 9e18)",
	} {
		if _, err := w.db.Write.Exec(statement, id); err != nil {
			t.Fatal(err)
		}
	}
	w.has(ann, id, "")
}

// A link that leads out of the directory is no artifact, whatever it leads to.
func TestALinkOutOfTheDirectory(t *testing.T) {
	w := newWorld(t, artifact.Options{})
	a := w.put(ann, "", "text")
	outside := filepath.Join(w.dir, "outside")
	if err := os.Rename(w.file(a.ID), outside); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, w.file(a.ID)); err != nil {
		t.Fatal(err)
	}
	if got, err := read(t, w.Store, ann, a.ID); err == nil {
		t.Errorf("got %q", got)
	}
}

var idForm = regexp.MustCompile(`\Asha256:[0-9a-f]{64}\z`)

func FuzzID(f *testing.F) {
	for _, id := range oddIDs {
		f.Add(id)
	}
	f.Add(artifact.ID([]byte("text")))
	f.Fuzz(func(t *testing.T, text string) {
		if got, want := artifact.ValidID(text), idForm.MatchString(text); got != want {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
		if id := artifact.ID([]byte(text)); !artifact.ValidID(id) {
			t.Errorf("ID makes %q", id)
		}
	})
}
