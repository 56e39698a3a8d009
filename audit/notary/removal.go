package notary

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/audit/chain"
	"github.com/toolgate/toolgate/internal/files"
)

// removals returns the chains whose removal r records, with their last records.
func removals(r *audit.Record) (gone []audit.Earlier) {
	if r.Event == nil || r.Event.Name != audit.EventArchived {
		return nil
	}
	for _, text := range r.Event.Removed {
		var e audit.Earlier
		if n, _ := fmt.Sscanf(text, "chain %s %d %s", &e.Instance, &e.Seq, &e.Hash); n == 3 && chain.IsName(e.Instance) {
			gone = append(gone, e)
		}
	}
	return gone
}

// Archivable returns the chains of which the trail has no record any more: an archive has all.
// Their directories have no more than what shows where they ended.
func (r Report) Archivable() (gone []audit.Earlier) {
	for _, c := range r.Chains {
		if c.Segments == 0 && c.Archived > 0 {
			gone = append(gone, audit.Earlier{Instance: c.Instance, Seq: c.Archived, Hash: c.Head})
		}
	}
	return gone
}

// RemoveChains removes the directories of chains under root and their checkpoints in the
// ledger. An event EventArchived in a chain that stays must have named them in Removed before,
// and its checkpoint must be signed: Verify accepts no missing chain without. A directory that
// still has records stays. A RemoveChains that was interrupted leaves a trail that verifies,
// and can be repeated.
func RemoveChains(root string, ledger Ledger, gone []audit.Earlier) error {
	for _, e := range gone {
		removed, err := removeChain(filepath.Join(root, e.Instance))
		if err == nil && removed && ledger.Dir != "" {
			err = os.Remove(filepath.Join(ledger.Dir, noteName(Checkpoint{Trail: ledger.Trail, Instance: e.Instance})))
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("removing archived chain %s: %w", e.Instance, err)
		}
	}
	return nil
}

// removeChain removes the directory of a chain without records, and reports whether it is
// gone. The starting point goes last, because the directory verifies as long as it is there.
// Readers of the trail skip an empty directory.
func removeChain(dir string) (bool, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	if numbers, failed := chain.Segments(dir); err != nil || failed != nil || len(numbers) > 0 {
		return false, errors.Join(err, failed)
	}
	for _, e := range entries {
		if e.Name() != startName {
			err = errors.Join(err, os.Remove(filepath.Join(dir, e.Name())))
		}
	}
	if err == nil {
		err = files.SyncDir(dir)
	}
	if err == nil {
		err = errors.Join(removeFile(filepath.Join(dir, startName)), os.Remove(dir))
	}
	return err == nil, err
}

// removeFile removes a file that may be missing.
func removeFile(path string) error {
	if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
