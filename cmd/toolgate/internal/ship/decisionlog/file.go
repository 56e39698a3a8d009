package decisionlog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/toolgate/toolgate/internal/files"
)

// A file appends events to a file, one line each. It creates the file again when it
// was moved or removed, so that rotation needs no signal.
type file struct {
	path string
	f    *os.File    // nil = not open
	info os.FileInfo // of f
}

var errNotRegular = errors.New("is not a regular file")

// send returns when the events are on disk. When it fails, it removes the part that
// it has written.
func (s *file) send(_ context.Context, events [][]byte) error {
	if info, err := os.Stat(s.path); s.f != nil && (err != nil || !os.SameFile(info, s.info)) {
		s.close() // it was moved or removed
	}
	if s.f == nil {
		if err := s.open(); err != nil {
			return describeFault(err)
		}
	}
	size, err := s.f.Seek(0, io.SeekEnd)
	if err != nil {
		return describeFault(err)
	}
	lines := append(bytes.Join(events, []byte{'\n'}), '\n')
	if _, err = s.f.Write(lines); err == nil {
		err = s.f.Sync()
	}
	if err != nil {
		_ = s.f.Truncate(size) // a torn line that stays is removed when the file is opened
		s.close()
		return describeFault(err)
	}
	return nil
}

func (s *file) close() {
	if s.f != nil {
		_ = s.f.Close() // what it holds was flushed, or is shipped again
		s.f = nil
	}
}

// open opens the file, readable by its owner only when it is new.
func (s *file) open() (err error) {
	// A pipe would hold up the opening: look before.
	if info, err := os.Stat(s.path); err == nil && !info.Mode().IsRegular() {
		return errNotRegular
	}
	if s.f, err = os.OpenFile(s.path, os.O_RDWR|os.O_APPEND|os.O_CREATE, 0o600); err != nil {
		return err
	}
	if s.info, err = s.f.Stat(); err == nil {
		err = errors.Join(s.cutTornLine(), files.SyncDir(filepath.Dir(s.path)))
	}
	if err != nil {
		s.close()
	}
	return err
}

// cutTornLine removes a last line without a line feed: the process died while it wrote
// it, and its event is shipped again.
func (s *file) cutTornLine() error {
	end := s.info.Size()
	at, last := end, -1
	for part := make([]byte, 64<<10); at > 0 && last < 0; {
		part = part[:min(at, int64(len(part)))]
		at -= int64(len(part))
		if _, err := s.f.ReadAt(part, at); err != nil {
			return err
		}
		last = bytes.LastIndexByte(part, '\n')
	}
	if to := at + int64(last) + 1; to != end {
		return s.f.Truncate(to)
	}
	return nil
}

// describeFault returns a fault of the file without its path, which messages show
// anyway.
func describeFault(err error) error {
	var at *fs.PathError
	if errors.As(err, &at) {
		err = at.Err
	}
	return fmt.Errorf("the file cannot be written: %w", err)
}
