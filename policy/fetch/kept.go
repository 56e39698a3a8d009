package fetch

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// fetched begins the names of copies that nobody has decided upon.
const fetched = ".fetched-"

// Copy is a bundle on this machine.
type Copy struct {
	Path    string    // of the .tar.gz
	Fetched time.Time // when it was fetched
	Kept    bool      // it is the last good copy

	source *Source
	note   note
	fresh  bool // the server said just now that it is the one
}

// note is what is kept beside the last good copy.
type note struct {
	ETag   string `json:"etag"`
	SHA256 string `json:"sha256"` // hex, of the copy that it speaks of
}

// tag is the ETag to ask with; "" asks for the whole.
func (c *Copy) tag() string {
	if c == nil {
		return ""
	}
	return c.note.ETag
}

// Kept gives the last good copy of this URL; the error is fs.ErrNotExist when
// there is none.
func (s *Source) Kept() (*Copy, error) {
	path := s.keptPath()
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("looking for the last good policy: %w", err)
	}
	c := &Copy{Path: path, Fetched: info.ModTime().UTC(), Kept: true, source: s}
	// A note about another copy, or none, costs one download and no more.
	sum, err := sumOf(path)
	if err != nil {
		return nil, fmt.Errorf("reading the last good policy: %w", err)
	}
	var n note
	if data, err := os.ReadFile(notePath(path)); err == nil && json.Unmarshal(data, &n) == nil && n.SHA256 == sum {
		c.note = n
	}
	c.note.SHA256 = sum
	return c, nil
}

// keptPath is where the last good copy lies: another URL has another place, so
// that none is ever taken for it.
func (s *Source) keptPath() string {
	sum := sha256.Sum256([]byte(s.o.URL))
	return filepath.Join(s.o.Dir, hex.EncodeToString(sum[:8])+".tar.gz")
}

func notePath(path string) string { return strings.TrimSuffix(path, ".tar.gz") + ".json" }

func sumOf(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// Keep makes the copy the last good one, whole or not at all.
func (c *Copy) Keep() error {
	if c.Kept {
		return nil
	}
	path := c.source.keptPath()
	text, err := json.Marshal(c.note)
	if err != nil {
		return fmt.Errorf("keeping a policy: %w", err)
	}
	// Between the two renames the note speaks of another copy, and is not
	// believed.
	beside := notePath(c.Path)
	if err := os.WriteFile(beside, text, 0o600); err != nil {
		return fmt.Errorf("keeping a policy: %w", err)
	}
	if err := errors.Join(os.Rename(c.Path, path), os.Rename(beside, notePath(path))); err != nil {
		return fmt.Errorf("keeping a policy: %w", err)
	}
	c.Path, c.Kept = path, true
	return c.source.sweep()
}

// Drop removes a copy that is not wanted; the last good one stays.
func (c *Copy) Drop() error {
	if c.Kept {
		return nil
	}
	if err := os.Remove(c.Path); err != nil {
		return fmt.Errorf("removing a policy that is not wanted: %w", err)
	}
	return nil
}

// sweep removes what processes left that died before they decided.
func (s *Source) sweep() error {
	left, err := filepath.Glob(filepath.Join(s.o.Dir, fetched+"*"))
	if err != nil {
		return fmt.Errorf("sweeping policies: %w", err)
	}
	var errs []error
	for _, path := range left {
		info, err := os.Stat(path)
		if err == nil && time.Since(info.ModTime()) > time.Hour {
			if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}
