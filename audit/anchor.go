package audit

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/toolgate/toolgate/internal/wholefile"
)

// DirectoryAnchor is a directory that keeps the last checkpoint of each chain, in files
// <trail>.<instance>.note. Several trails may share it.
type DirectoryAnchor string

// Publish implements Anchor. The directory must exist: one that is not mounted must not
// look like one that is.
func (d DirectoryAnchor) Publish(_ context.Context, c Checkpoint, signed []byte) error {
	if err := wholefile.Replace(filepath.Join(string(d), noteName(c)), signed, 0o600); err != nil {
		return fmt.Errorf("keeping checkpoint: %w", err)
	}
	return nil
}

// WebhookAnchor is an address that receives each checkpoint as the body of a POST. What
// it keeps, each note in a file of its own, is evidence.
type WebhookAnchor string

// Publish implements Anchor. Redirects are not followed.
func (u WebhookAnchor) Publish(ctx context.Context, _ Checkpoint, signed []byte) error {
	if _, err := post(ctx, string(u), "text/plain; charset=utf-8", signed, maxStamp); err != nil {
		return fmt.Errorf("posting checkpoint: %w", err)
	}
	return nil
}

func noteName(c Checkpoint) string { return c.Trail + "." + c.Instance + ".note" }
