package notary

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/toolgate/toolgate/internal/files"
)

// DirectoryAnchor is a directory that keeps the last checkpoint of each chain, in files
// <trail>.<instance>.note. Several trails may share it.
type DirectoryAnchor string

// Publish implements Anchor. The directory must exist: one that is not mounted must not
// look like one that is.
func (d DirectoryAnchor) Publish(_ context.Context, c Checkpoint, signed []byte) error {
	if err := files.Replace(filepath.Join(string(d), noteName(c)), signed, 0o600); err != nil {
		return fmt.Errorf("keeping checkpoint: %w", err)
	}
	return nil
}

func noteName(c Checkpoint) string { return c.Trail + "." + c.Instance + ".note" }
