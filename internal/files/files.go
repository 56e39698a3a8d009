// Package files reads, writes and locks files that other processes use at the same time.
//
// [Read] reads a file that others may have written, whole and with a bound. [Create] and [Replace]
// write a file that appears whole or not at all: a reader finds the former file, none, or the new
// one, also after a power failure. Data is written and flushed under another name in the same
// directory, then gets its name, and the directory is flushed. The other name begins with a dot; a
// crash may leave it behind, and nothing reads it.
//
//	err := files.Replace("HEAD", data, 0o600)
//
// [Lock], [TryLock] and [TryShare] lock an open file against other processes. A lock is advisory,
// belongs to the open file and ends with it, at the latest when the kernel closes the files of a dead
// process, so a lock also shows that its holder lives. Unix uses flock, Windows LockFileEx on one byte
// far behind the content.
//
//	if err := files.TryLock(file); errors.Is(err, files.ErrHeld) {
//		return nil // a living process has it
//	}
//
// All functions are safe for concurrent use, also by several processes. Lock, TryLock and TryShare must
// not be called at the same time for one file.
package files

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
)

// probeBytes is what Probe writes: as much as several records take.
const probeBytes = 16 << 10

// Replace writes a file in the place of an older one. Its mode is exactly mode.
func Replace(path string, data []byte, mode fs.FileMode) error {
	return write(path, data, mode, os.Rename)
}

// Create writes a file that does not exist yet. The error is fs.ErrExist when it does:
// of several callers one creates the file.
func Create(path string, data []byte, mode fs.FileMode) error {
	if _, err := os.Lstat(path); err == nil {
		return fs.ErrExist
	}
	return write(path, data, mode, os.Link)
}

// Probe finds out whether files can be written in dir, and leaves none.
func Probe(dir string) error {
	name, err := draft(dir, make([]byte, probeBytes), 0o600)
	if name == "" {
		return err
	}
	return errors.Join(err, os.Remove(name))
}

// SyncDir makes the names of the files in dir durable. Windows does so by itself and
// cannot flush a directory.
func SyncDir(dir string) error {
	if runtime.GOOS == "windows" {
		return nil
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// write writes a draft, and lets place give it its name.
func write(path string, data []byte, mode fs.FileMode, place func(from, to string) error) error {
	dir := filepath.Dir(path)
	name, err := draft(dir, data, mode)
	if name != "" {
		defer func() { _ = os.Remove(name) }() // after a rename there is none
	}
	if err == nil {
		err = place(name, path)
	}
	if err != nil {
		return err
	}
	return SyncDir(dir)
}

// draft writes and flushes a file under a name of its own, "" for none.
func draft(dir string, data []byte, mode fs.FileMode) (name string, err error) {
	f, err := os.CreateTemp(dir, ".new-*")
	if err != nil {
		return "", err
	}
	_, err = f.Write(data)
	return f.Name(), errors.Join(err, f.Chmod(mode), f.Sync(), f.Close())
}
