package files

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
