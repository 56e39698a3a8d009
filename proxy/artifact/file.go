package artifact

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/toolgate/toolgate/internal/filelock"
)

// errVanished: the file was there, and a sweep was faster.
var errVanished = errors.New("the file was swept")

const (
	draftPrefix = ".put-"
	stageTries  = 10
	maxVerified = 1024 // files whose check is remembered
)

// path is where a file lies, from the root: name is a valid name.
func path(name string) string { return name[:2] + "/" + name }

// draft is bytes that have no name yet. It is locked until it is discarded or
// its process ends.
type draft struct {
	name string
	file *os.File
}

// stage writes data to a new draft, durably, and makes the directory that it
// will go to.
func (s *Store) stage(name string, data []byte) (*draft, error) {
	d, err := s.newDraft()
	if err != nil {
		return nil, err
	}
	if _, err = d.file.Write(data); err == nil {
		err = d.file.Sync()
	}
	if err == nil {
		err = s.makeShard(name[:2])
	}
	if err != nil {
		s.discard(d)
		return nil, err
	}
	return d, nil
}

// newDraft makes an empty file and locks it. A sweep that sees the file
// between the two takes it for a dead process's; then there is another try.
func (s *Store) newDraft() (*draft, error) {
	for range stageTries {
		name := draftPrefix + rand.Text()
		file, err := s.root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if err != nil {
			return nil, err
		}
		d := &draft{name: name, file: file}
		err = filelock.TryLock(file)
		if err == nil {
			_, err = s.root.Lstat(name)
		}
		if err == nil {
			return d, nil
		}
		s.discard(d)
		if !errors.Is(err, filelock.ErrHeld) && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	return nil, errors.New("every draft was taken for a dead one")
}

// discard ends a draft; one that was placed has lost its name already.
func (s *Store) discard(d *draft) {
	_ = s.root.Remove(d.name) // what stays is swept
	_ = d.file.Close()
}

func (s *Store) makeShard(name string) error {
	err := s.root.Mkdir(name, 0o700)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err == nil {
		err = s.syncDir(".")
	}
	return err
}

// place gives the draft of p its name, durably, or sees that the file is
// there. The caller is in a write transaction.
func (s *Store) place(p put) error {
	if p.draft != nil {
		if err := s.root.Rename(p.draft.name, path(p.name)); err != nil {
			return err
		}
		return s.syncDir(p.name[:2])
	}
	info, err := s.root.Lstat(path(p.name))
	if errors.Is(err, fs.ErrNotExist) || err == nil && info.Size() != p.size {
		return errVanished
	}
	return err
}

// syncDir makes the names in a directory durable.
func (s *Store) syncDir(name string) error {
	dir, err := s.root.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// intact reports whether the file of that name has its bytes.
func (s *Store) intact(name string, size int64) bool {
	file, err := s.open(name, size)
	if err != nil {
		return false
	}
	_ = file.Close() // it was only read
	return true
}

// open gives the file of that name when it has its size and its hash.
func (s *Store) open(name string, size int64) (*os.File, error) {
	file, err := s.root.Open(path(name))
	if err != nil {
		return nil, err
	}
	if err := s.verify(file, name, size); err != nil {
		_ = file.Close() // err says more
		return nil, err
	}
	return file, nil
}

// verify checks the size and the hash of a file. It reads a file again only when its
// inode, size or time of change is another than when its hash was right.
func (s *Store) verify(file *os.File, name string, size int64) error {
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() || info.Size() != size {
		return fmt.Errorf("%w: %d bytes instead of %d", ErrDamaged, info.Size(), size)
	}
	if was, ok := s.verified.Get(name); ok && os.SameFile(was, info) && was.ModTime().Equal(info.ModTime()) && was.Size() == info.Size() {
		return nil
	}
	hash := sha256.New()
	if _, err := io.Copy(hash, file); err != nil {
		return err
	}
	if hex.EncodeToString(hash.Sum(nil)) != name {
		return fmt.Errorf("%w: it has another hash", ErrDamaged)
	}
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return err
	}
	s.verified.Add(name, info)
	return nil
}
