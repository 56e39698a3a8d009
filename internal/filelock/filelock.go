// Package filelock locks open files against other processes. A lock is advisory,
// belongs to the open file and ends with it, at the latest when the kernel closes
// the files of a dead process, so a lock also shows that its holder lives.
//
//	if err := filelock.TryLock(file); errors.Is(err, filelock.ErrHeld) {
//		return nil // a living process has it
//	}
//
// Unix uses flock, Windows LockFileEx on one byte far behind the content. All
// functions are safe for concurrent use on different files.
package filelock

import (
	"errors"
	"os"
)

// ErrHeld reports a lock that another open file holds.
var ErrHeld = errors.New("the file is locked")

// Lock locks f exclusively and waits until it can.
func Lock(f *os.File) error { return lock(f, true, true) }

// TryLock locks f exclusively, or returns ErrHeld at once.
func TryLock(f *os.File) error { return lock(f, true, false) }

// TryShare locks f together with others that share it, or returns ErrHeld at once.
func TryShare(f *os.File) error { return lock(f, false, false) }
