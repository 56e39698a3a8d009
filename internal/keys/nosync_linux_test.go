package keys_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/toolgate/toolgate/internal/keys"
	"github.com/toolgate/toolgate/internal/testkit/nosync"
)

// A key or a count that may be gone after a power failure is an error, and what is
// there already needs no writing.
func TestNoSync(t *testing.T) {
	fail, ok := nosync.Process(t)
	if !ok {
		return
	}
	dir := t.TempDir()
	d := open(t, dir)
	_, err := d.Signer(keys.Checkpoints)
	if err == nil {
		err = d.RaiseCount("trail", 2)
	}
	if err != nil {
		t.Fatal(err)
	}
	fail()
	if _, err := d.Signer(keys.Checkpoints); err != nil {
		t.Errorf("a key that is there: %v", err)
	}
	if err := d.RaiseCount("trail", 2); err != nil {
		t.Errorf("a count that is there: %v", err)
	}
	if _, err := d.Secret(keys.Tickets); err == nil || d.Has(keys.Tickets) {
		t.Errorf("a new key is not durable: %v", err)
	}
	if err := d.RaiseCount("trail", 3); err == nil {
		t.Error("a count is not durable")
	}
	if err := os.Remove(filepath.Join(dir, keys.Checkpoints+"-1.pub")); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Signer(keys.Checkpoints); err == nil {
		t.Error("the public half is not durable")
	}
}
