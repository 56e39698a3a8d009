// Package corpus opens public test data, which is pinned in testdata/corpora.
package corpus

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// sums are the SHA-256 of the archives.
var sums = map[string]string{
	"JSONTestSuite":          "f93f3f583de5ff5a00d1b1063bd750e874f10234e527d61cdd8addef37a9f5e3",
	"JSON-Schema-Test-Suite": "930acf2dd61a787eb44d7c0f73053166b1cbc4d7c2ea9b22a5a2853728152a79",
}

// Open returns the files of a corpus.
func Open(t testing.TB, name string) fs.FS {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(Checkout(t), "testdata", "corpora", name+".zip"))
	if err != nil {
		t.Fatal(err)
	}
	if sum := sha256.Sum256(data); hex.EncodeToString(sum[:]) != sums[name] {
		t.Fatalf("corpus %s has SHA-256 %x, want %s", name, sum, sums[name])
	}
	files, err := zip.NewReader(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// Checkout returns the directory of go.mod, above the directory of the test.
func Checkout(t testing.TB) string {
	t.Helper()
	dir, err := filepath.Abs(".")
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		if dir == filepath.Dir(dir) {
			t.Fatal("no go.mod above this test")
		}
		dir = filepath.Dir(dir)
	}
}
