// Package crash keeps the stacks of a process that Go ends: for a panic that nothing
// recovers, a fatal error of the runtime, or a signal such as SIGQUIT.
//
// Each process has one file in a directory, which the runtime writes to when it ends the
// process. A file is locked as long as its process lives. What was written to a file
// without a living process is a crash, which the next process reports once:
//
//	found, stop, err := crash.Keep(crash.Dir(state))
//	for _, file := range found {
//		log.Error("toolgate crashed earlier", "file", file)
//	}
//	...
//	defer stop()
//
// A stack has names of functions, and addresses and numbers as arguments. It has no text
// of a call, unless the message of the panic quotes one.
package crash

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/toolgate/toolgate/internal/files"
)

const (
	running  = "running-" // begins the name of a file whose process lives, or has not been looked for
	kept     = "crash-"   // begins the name of a crash that was reported
	maxFiles = 10         // crashes that are kept
)

// Dir returns the directory of the files below a state directory.
func Dir(state string) string { return filepath.Join(state, "crash") }

// Files returns the crashes in dir that were reported, the oldest first.
func Files(dir string) []string {
	files, _ := filepath.Glob(filepath.Join(dir, kept+"*")) // fails only for a bad pattern
	slices.Sort(files)                                      // by time
	return files
}

// Keep has the stacks of this process written to a file in dir, which it makes if it has
// to. It returns the crashes of earlier processes that nobody has reported; the oldest of
// all beyond ten are deleted. stop removes the file at a clean end, and is never nil.
// There is one file for the whole process: Keep must not be called again before stop.
func Keep(dir string) (found []string, stop func(), err error) {
	stop = func() {}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, stop, fmt.Errorf("making the directory of crashes: %w", err)
	}
	lock, err := open(filepath.Join(dir, "lock"))
	if err != nil {
		return nil, stop, err
	}
	defer lock.Close()
	if err := files.Lock(lock); err != nil { // so that nobody takes a file that is about to be locked for a dead one
		return nil, stop, fmt.Errorf("locking the directory of crashes: %w", err)
	}
	found = collect(dir)
	if all := Files(dir); len(all) > maxFiles {
		for _, file := range all[:len(all)-maxFiles] {
			_ = os.Remove(file) // the next process tries again
		}
	}
	stop, err = begin(filepath.Join(dir, fmt.Sprintf("%s%s-%d.txt", running, time.Now().UTC().Format("20060102T150405Z"), os.Getpid())))
	return found, stop, err
}

func open(name string) (*os.File, error) {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening a file for crashes: %w", err)
	}
	return f, nil
}

// collect removes the empty files of dead processes in dir, and renames the others.
func collect(dir string) (found []string) {
	names, _ := filepath.Glob(filepath.Join(dir, running+"*")) // as in Files
	for _, name := range names {
		f, err := open(name)
		if err != nil {
			continue
		}
		info, err := f.Stat()
		err = errors.Join(err, files.TryLock(f))
		f.Close()
		switch renamed := filepath.Join(dir, kept+strings.TrimPrefix(filepath.Base(name), running)); {
		case err != nil: // its process lives
		case info.Size() == 0:
			_ = os.Remove(name) // the next process tries again
		case os.Rename(name, renamed) == nil:
			found = append(found, renamed)
		}
	}
	return found
}

// begin has the runtime write to the file name until stop.
func begin(name string) (stop func(), err error) {
	f, err := open(name)
	if err != nil {
		return func() {}, err
	}
	stop = func() {
		_ = debug.SetCrashOutput(nil, debug.CrashOptions{}) // cannot fail without a file
		f.Close()
		_ = os.Remove(name) // an empty file says nothing: the next process tries again
	}
	if err := errors.Join(files.TryLock(f), debug.SetCrashOutput(f, debug.CrashOptions{})); err != nil {
		stop()
		return func() {}, fmt.Errorf("keeping the stacks of a crash: %w", err)
	}
	return stop, nil
}
