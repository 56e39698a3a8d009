package audit

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// latestName is the symbolic link to the newest file.
const latestName = ".latest"

// envelopeName is what our files are called, and the ones that a run goes on in.
var envelopeName = regexp.MustCompile(`^([0-9]{8}T[0-9]{6}\.[0-9]{3}Z-[0-9A-Za-z_-]{1,64}|deterministic)(_[0-9]{6})?\.jsonl$`)

// envelopeFiles are the files of one run. Only one goroutine uses it.
type envelopeFiles struct {
	dir    string
	opts   EnvelopeOptions
	base   string // name without number and ending
	number int    // of the current or last file, from 1
	path   string
	file   File        // nil: the next write creates one
	info   os.FileInfo // of file, to see that it is still there
	size   int64
	failed bool // the last write failed, and that has been told
}

func newEnvelopeFiles(dir string, opts EnvelopeOptions) *envelopeFiles {
	f := &envelopeFiles{dir: dir, opts: opts, base: opts.Instance}
	if !opts.Deterministic {
		f.base = opts.Now().UTC().Format("20060102T150405.000Z") + "-" + opts.Instance
	}
	return f
}

// begin creates the first file. A deterministic run takes the place of the one
// before.
func (f *envelopeFiles) begin() error {
	if f.opts.Deterministic {
		for _, old := range f.list() {
			if strings.HasPrefix(old.Name(), f.base) {
				f.remove(old.Name())
			}
		}
	}
	return f.open()
}

// open creates the next file, makes it the latest and lets the oldest go.
func (f *envelopeFiles) open() error {
	f.number++
	name := f.base
	if f.number > 1 {
		name += fmt.Sprintf("_%06d", f.number)
	}
	name += ".jsonl"
	path := filepath.Join(f.dir, name)
	file, err := f.opts.OpenFile(path)
	if err != nil {
		return err
	}
	f.file, f.path, f.size = file, path, 0
	f.info, _ = os.Stat(path) // without it the file is taken to be there
	if err := f.link(name); err != nil {
		f.opts.OnError("pointing .latest at the envelope log", err)
	}
	f.prune(name)
	return nil
}

// link points .latest at name. A reader finds the old or the new one, never
// none.
func (f *envelopeFiles) link(name string) error {
	temporary := filepath.Join(f.dir, latestName+"-"+f.opts.Instance)
	if err := os.Remove(temporary); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Symlink(name, temporary); err != nil {
		return err
	}
	if err := os.Rename(temporary, filepath.Join(f.dir, latestName)); err != nil {
		return errors.Join(err, os.Remove(temporary))
	}
	return nil
}

// list gives our files, the least recently written first: another process may
// still write to one with an old name.
func (f *envelopeFiles) list() []os.FileInfo {
	entries, err := os.ReadDir(f.dir)
	if err != nil {
		f.opts.OnError("listing envelope logs", err)
		return nil
	}
	var files []os.FileInfo
	for _, entry := range entries {
		if info, err := entry.Info(); err == nil && info.Mode().IsRegular() && envelopeName.MatchString(entry.Name()) {
			files = append(files, info)
		}
	}
	slices.SortFunc(files, func(a, b os.FileInfo) int {
		return cmp.Or(a.ModTime().Compare(b.ModTime()), strings.Compare(a.Name(), b.Name()))
	})
	return files
}

// prune removes all but the newest files; current stays in any case.
func (f *envelopeFiles) prune(current string) {
	files := slices.DeleteFunc(f.list(), func(info os.FileInfo) bool { return info.Name() == current })
	for len(files) > f.opts.Keep-1 {
		f.remove(files[0].Name())
		files = files[1:]
	}
}

func (f *envelopeFiles) remove(name string) {
	if err := os.Remove(filepath.Join(f.dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		f.opts.OnError("removing an old envelope log", err)
	}
}

// write appends whole lines. After an error none of them counts as written, and
// the next write tries a new file. Of failures in a row the first is told.
func (f *envelopeFiles) write(lines []byte) error {
	err := f.append(lines)
	if err != nil {
		f.leave()
		if !f.failed {
			f.opts.OnError("writing the envelope log", err)
		}
	}
	f.failed = err != nil
	return err
}

func (f *envelopeFiles) append(lines []byte) error {
	if f.file != nil && (f.gone() || f.size > 0 && f.size+int64(len(lines)) > f.opts.FileBytes) {
		f.leave()
	}
	if f.file == nil {
		if err := f.open(); err != nil {
			return err
		}
	}
	if _, err := f.file.Write(lines); err != nil {
		return errors.Join(err, f.file.Truncate(f.size)) // no half line may stay
	}
	f.size += int64(len(lines))
	return nil
}

// gone reports whether the file has been removed or replaced, as another
// process does with files that are old.
func (f *envelopeFiles) gone() bool {
	if f.info == nil {
		return false
	}
	now, err := os.Stat(f.path)
	return err != nil || !os.SameFile(f.info, now)
}

// leave gives the file up.
func (f *envelopeFiles) leave() {
	if f.file == nil {
		return
	}
	if err := f.file.Close(); err != nil {
		f.opts.OnError("closing an envelope log", err)
	}
	f.file = nil
}

// end flushes and closes the file; left is what could not be written before.
func (f *envelopeFiles) end(left error) error {
	if f.file != nil {
		left = errors.Join(left, f.file.Sync(), f.file.Close())
	}
	if left != nil {
		return fmt.Errorf("closing envelope log: %w", left)
	}
	return nil
}
