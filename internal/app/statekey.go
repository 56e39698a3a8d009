package app

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/toolgate/toolgate/proxy/mcp"
)

// stateKey returns the key of the state directory that signs request states,
// and creates it on first use. Processes that share the directory get the same
// key, however many ask at once.
func stateKey(dir string) ([]byte, error) {
	path := filepath.Join(dir, "request_state.key")
	for {
		key, err := os.ReadFile(path)
		switch {
		case err == nil && len(key) == mcp.StateKeyBytes:
			return key, nil
		case err == nil:
			return nil, fmt.Errorf("reading %s: %d bytes, want %d\nhint: remove it; what clients were given to come back with is refused then", path, len(key), mcp.StateKeyBytes)
		case !errors.Is(err, fs.ErrNotExist):
			return nil, fmt.Errorf("reading the key of request states: %w", err)
		}
		if err := makeKey(dir, path); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, fmt.Errorf("making the key of request states: %w", err)
		}
	}
}

// makeKey writes a new key that only its owner can read. The file appears at
// path whole or not at all, and never replaces another.
func makeKey(dir, path string) (err error) {
	key := make([]byte, mcp.StateKeyBytes)
	_, _ = rand.Read(key)                          // never fails
	f, err := os.CreateTemp(dir, ".request_state") // mode 0600
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(f.Name()) }() // the link keeps it
	_, err = f.Write(key)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Link(f.Name(), path)
}
