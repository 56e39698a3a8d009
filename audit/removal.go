package audit

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/toolgate/toolgate/internal/files"
)

// lockName is a file in the directory of a chain that its process holds locked, from before
// the first record until the last checkpoint is signed.
const lockName = "LOCK"

// hold creates and locks the lock of the chain in dir.
func hold(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, lockName), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	if err := files.TryLock(f); err != nil {
		return nil, errors.Join(fmt.Errorf("locking %s: %w", f.Name(), err), f.Close())
	}
	return f, nil
}

// ended reports whether the process of the chain in dir has ended. It fails closed: without a
// lock, which older versions did not hold, only a close record shows that.
func ended(dir string, closed bool) (bool, error) {
	f, err := os.OpenFile(filepath.Join(dir, lockName), os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return closed, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	if err = files.TryShare(f); errors.Is(err, files.ErrHeld) {
		return false, nil
	}
	return err == nil, err
}

// String returns e as it is in Event.Removed.
func (e Earlier) String() string { return fmt.Sprintf("chain %s %d %s", e.Instance, e.Seq, e.Hash) }

// removals returns the chains whose removal r records, with their last records.
func removals(r *Record) (gone []Earlier) {
	if r.Event == nil || r.Event.Name != EventArchived {
		return nil
	}
	for _, text := range r.Event.Removed {
		var e Earlier
		if n, _ := fmt.Sscanf(text, "chain %s %d %s", &e.Instance, &e.Seq, &e.Hash); n == 3 && instanceName.MatchString(e.Instance) {
			gone = append(gone, e)
		}
	}
	return gone
}

// Archivable returns the chains of which the trail has no record any more: an archive has all.
// Their directories have no more than what shows where they ended.
func (r Report) Archivable() (gone []Earlier) {
	for _, c := range r.Chains {
		if c.Segments == 0 && c.Archived > 0 {
			gone = append(gone, Earlier{c.Instance, c.Archived, c.Head})
		}
	}
	return gone
}

// RemoveChains removes the directories of chains under root and their checkpoints in the
// ledger. An event EventArchived in a chain that stays must have named them in Removed before,
// and its checkpoint must be signed: Verify accepts no missing chain without. A directory that
// still has records stays. A RemoveChains that was interrupted leaves a trail that verifies,
// and can be repeated.
func RemoveChains(root string, ledger Ledger, gone []Earlier) error {
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
	if numbers, failed := segments(dir); err != nil || failed != nil || len(numbers) > 0 {
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

// Holds reports whether the trail under root still has a record, and with it all later ones of
// its chain: archiving removes the oldest first.
func Holds(root, instance string, seq uint64) bool {
	dir := filepath.Join(root, instance)
	numbers, err := segments(dir)
	if err != nil || len(numbers) == 0 {
		return false
	}
	line, err := firstLine(dir, numbers[0])
	first := LineNumber(line)
	return err == nil && first > 0 && first <= seq
}
