// Package clientfile changes the configuration files of MCP clients, which belong to
// others: one entry is set or removed, and every other byte stays.
//
// A change is planned first. It can be shown, and it is written only while the file is
// what the plan has read. The file as it was stays beside it as a backup, from which
// Undo restores it byte for byte:
//
//	c, err := clientfile.Plan(path, "json", clientfile.Edit{Container: []string{"mcpServers"}, Name: "toolgate", Value: entry})
//	fmt.Print(c.Diff())
//	backup, err := c.Write(time.Now())
//	…
//	last, err := clientfile.Last(path)
//	err = last.Undo(false)
//
// Changes of one file by several processes at once are not ordered: the later one may be
// refused, or replace the earlier one, whose backup stays.
package clientfile

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/rogpeppe/go-internal/diff"

	"github.com/toolgate/toolgate/internal/files"
)

// Errors of Write and Undo.
var (
	ErrChanged  = errors.New("the file has changed since")
	ErrNoBackup = errors.New("toolgate has made no change that can be undone")
)

// MaxBytes is the largest file that is read or changed.
const MaxBytes = 16 << 20

// Change is a planned change of one file.
type Change struct {
	Path   string // of the file; where the given path is a symlink, of its target
	Before []byte // the file; nil = there is none
	After  []byte
	Mode   fs.FileMode // that a new file gets
}

// Plan reads a file and makes edits in it; see Apply.
func Plan(path, format string, edits ...Edit) (*Change, error) {
	c, err := Read(path)
	if err == nil {
		c.After, err = Apply(format, c.Before, edits...)
	}
	if err != nil {
		return nil, fmt.Errorf("planning a change of %s: %w", path, err)
	}
	return c, nil
}

// Read reads a file that need not exist, for a change of any kind: After is Before until
// the caller sets it. A new file gets mode 0600.
func Read(path string) (*Change, error) {
	target, err := follow(path)
	if err != nil {
		return nil, err
	}
	c := &Change{Path: target, Mode: 0o600}
	info, err := os.Stat(target)
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil
	}
	if err == nil {
		c.Before, err = files.Read(target, MaxBytes)
	}
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", target, err)
	}
	c.After, c.Mode = c.Before, info.Mode().Perm()
	return c, nil
}

// follow returns the target of a symlink, and an absolute path.
func follow(path string) (string, error) {
	target, err := filepath.EvalSymlinks(path)
	if errors.Is(err, fs.ErrNotExist) {
		if _, dangling := os.Lstat(path); dangling == nil {
			return "", fmt.Errorf("%s is a link to a file that is not there", path)
		}
		target, err = path, nil
	}
	if err != nil {
		return "", err
	}
	return filepath.Abs(target)
}

// Changed reports whether Write has anything to do.
func (c *Change) Changed() bool { return !bytes.Equal(c.Before, c.After) }

// Diff returns the change as a unified diff, "" for none.
func (c *Change) Diff() string {
	text := string(diff.Diff(c.Path, c.Before, c.Path, c.After))
	_, text, _ = strings.Cut(text, "\n") // the command line that it begins with
	return text
}

// Write makes the change. The former file, or the mark that there was none, is kept
// beside it; backup is its path. The error is ErrChanged when the file is not what was
// read. Mode and, where the process may set it, owner of the file stay.
func (c *Change) Write(now time.Time) (backup string, err error) {
	if !c.Changed() {
		return "", nil
	}
	if err := c.unchanged(); err != nil {
		return "", err
	}
	if err := os.MkdirAll(filepath.Dir(c.Path), 0o700); err != nil {
		return "", fmt.Errorf("making the directory of %s: %w", c.Path, err)
	}
	kind := "created"
	if c.Before != nil {
		kind = "backup"
	}
	backup = fmt.Sprintf("%s.%s-%s.toolgate-%s", c.Path, now.UTC().Format(stampForm), half(c.After), kind)
	if err := files.Create(backup, c.Before, c.Mode); err != nil {
		return "", fmt.Errorf("writing a backup: %w", err)
	}
	if err := c.put(backup); err != nil {
		return "", errors.Join(fmt.Errorf("writing %s: %w", c.Path, err), os.Remove(backup))
	}
	return backup, nil
}

// unchanged reports whether the file is what was read.
func (c *Change) unchanged() error {
	data, err := files.Read(c.Path, MaxBytes)
	missing := errors.Is(err, fs.ErrNotExist)
	switch {
	case err != nil && !missing:
		return err
	case missing != (c.Before == nil), !bytes.Equal(data, c.Before):
		return fmt.Errorf("%s: %w it was read", c.Path, ErrChanged)
	}
	return nil
}

// put writes the file. A file that was there keeps its owner, and the backup gets the same
// owner.
func (c *Change) put(backup string) error {
	if c.Before == nil {
		return files.Create(c.Path, c.After, c.Mode)
	}
	draft := c.Path + ".toolgate-new"
	if err := files.Create(draft, c.After, c.Mode); err != nil {
		return err
	}
	err := keepOwner(c.Path, backup)
	if err == nil {
		err = keepOwner(c.Path, draft)
	}
	if err == nil {
		err = c.unchanged()
	}
	if err == nil {
		err = os.Rename(draft, c.Path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(draft))
	}
	return files.SyncDir(filepath.Dir(c.Path))
}

// The name of a backup: file, time, the first half of the SHA-256 of what was written,
// and whether there was a file before.
var backupForm = regexp.MustCompile(`^\.(\d{8}T\d{6}\.\d{9}Z)-([0-9a-f]{32})\.toolgate-(backup|created)$`)

const stampForm = "20060102T150405.000000000Z"

func half(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:len(sum)/2])
}

// Undoing is a change that can be undone.
type Undoing struct {
	Path   string // of the file
	Backup string // of the file as it was
	Stamp  string // when it was changed; changes that were written together have one stamp

	written string // half of the SHA-256 of what was written
	created bool
}

// Last returns the newest change of a file. The error is ErrNoBackup when there is none.
func Last(path string) (Undoing, error) {
	target, err := follow(path)
	if err != nil {
		return Undoing{}, err
	}
	entries, err := os.ReadDir(filepath.Dir(target))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return Undoing{}, err
	}
	for _, entry := range slices.Backward(entries) { // sorted by name, and so by time
		rest, ok := strings.CutPrefix(entry.Name(), filepath.Base(target))
		form := backupForm.FindStringSubmatch(rest)
		if ok && form != nil {
			return Undoing{
				Path: target, Backup: target + rest,
				Stamp: form[1], written: form[2], created: form[3] == "created",
			}, nil
		}
	}
	return Undoing{}, fmt.Errorf("%s: %w", target, ErrNoBackup)
}

// Check returns ErrChanged when the file is not what toolgate wrote.
func (u Undoing) Check() error {
	data, err := files.Read(u.Path, MaxBytes)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err != nil || half(data) != u.written {
		return fmt.Errorf("%s: %w toolgate wrote it", u.Path, ErrChanged)
	}
	return nil
}

// Undo restores the file as it was before its newest change, byte for byte, and removes
// the backup. Unless force is set, the error is ErrChanged when somebody has changed the
// file since.
func (u Undoing) Undo(force bool) error {
	if err := u.Check(); err != nil && !force {
		return err
	}
	if u.created {
		if err := os.Remove(u.Path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return os.Remove(u.Backup)
	}
	if err := os.Rename(u.Backup, u.Path); err != nil {
		return fmt.Errorf("restoring %s: %w", u.Path, err)
	}
	return files.SyncDir(filepath.Dir(u.Path))
}
