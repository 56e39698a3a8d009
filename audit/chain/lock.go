package chain

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/toolgate/toolgate/internal/files"
)

// LockName is a file in the directory of a chain that its process holds locked, from before
// the first record until the last checkpoint is signed.
const LockName = "LOCK"

// Lock creates and locks the lock of the chain in dir.
func Lock(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, LockName), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	if err := files.TryLock(f); err != nil {
		return nil, errors.Join(fmt.Errorf("locking %s: %w", f.Name(), err), f.Close())
	}
	return f, nil
}

// Ended reports whether the process of the chain in dir has ended. closed says that
// its last record is a close record: without a lock, which older versions did not hold, nothing else
// shows that. It fails closed.
func Ended(dir string, closed bool) (bool, error) {
	f, err := os.OpenFile(filepath.Join(dir, LockName), os.O_RDWR, 0)
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
