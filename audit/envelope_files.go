package audit

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"time"

	"github.com/toolgate/toolgate/internal/filelock"
)

// latestName is the symbolic link to the newest file.
const latestName = ".latest"

// envelopeName is what our files are called, and the ones that a run goes on in.
var envelopeName = regexp.MustCompile(`^([0-9]{8}T[0-9]{6}\.[0-9]{3}Z-[0-9A-Za-z_-]{1,64}?|deterministic(?:-[0-9]+)?)(?:_[0-9]{6})?\.jsonl$`)

// envelopeFiles are the files of one run. Only one goroutine uses it.
type envelopeFiles struct {
	dir    string
	opts   EnvelopeOptions
	base   string      // name without number and ending
	number int         // of the current or last file, from 1
	path   string      // of the current or last file
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

// open creates the next file, makes it the latest and lets the oldest go.
func (f *envelopeFiles) open() error {
	if f.number == 0 && f.opts.Deterministic {
		f.replace()
	}
	file, name, err := f.create()
	if err != nil {
		return err
	}
	f.file, f.path, f.size = file, filepath.Join(f.dir, name), 0
	f.info, _ = os.Stat(f.path) // without it the file is taken to be there
	if err := f.link(name); err != nil {
		f.opts.OnError("pointing .latest at the envelope log", err)
	}
	f.prune()
	return nil
}

// replace removes the files of the deterministic run before this one. Where that
// still lives, this one is deterministic-2.jsonl, and so on.
func (f *envelopeFiles) replace() {
	files := f.list()
	living := f.living(files)
	for n := 2; living[f.base]; n++ {
		f.base = fmt.Sprintf("deterministic-%d", n)
	}
	for _, name := range files {
		if runOf(name) == f.base {
			f.remove(name)
		}
	}
}

// create creates the file with the next number that is free.
func (f *envelopeFiles) create() (file File, name string, err error) {
	for err = fs.ErrExist; errors.Is(err, fs.ErrExist); {
		f.number++
		name = f.base + ".jsonl"
		if f.number > 1 {
			name = fmt.Sprintf("%s_%06d.jsonl", f.base, f.number)
		}
		file, err = f.opts.OpenFile(filepath.Join(f.dir, name))
	}
	return file, name, err
}

// createLocked creates path and locks it until it is closed, or its process ends.
// A file that another process removed before it was locked is fs.ErrExist.
func createLocked(path string) (File, error) {
	f, err := CreateFile(path)
	if err != nil {
		return nil, err
	}
	file := f.(diskFile).File
	if err := filelock.Lock(file); err != nil {
		return nil, errors.Join(fmt.Errorf("locking %s: %w", path, err), f.Close())
	}
	mine, err := file.Stat()
	if now, gone := os.Stat(path); err != nil || gone != nil || !os.SameFile(mine, now) {
		return nil, errors.Join(fs.ErrExist, f.Close())
	}
	return f, nil
}

// locked reports whether a living process writes to path.
func locked(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	return errors.Is(filelock.TryShare(f), filelock.ErrHeld)
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

// list gives the names of our files, the least recently written first.
func (f *envelopeFiles) list() []string {
	entries, err := os.ReadDir(f.dir)
	if err != nil {
		f.opts.OnError("listing envelope logs", err)
		return nil
	}
	var names []string
	written := map[string]time.Time{}
	for _, entry := range entries {
		if info, err := entry.Info(); err == nil && info.Mode().IsRegular() && envelopeName.MatchString(entry.Name()) {
			names = append(names, entry.Name())
			written[entry.Name()] = info.ModTime()
		}
	}
	slices.SortStableFunc(names, func(a, b string) int { return written[a].Compare(written[b]) })
	return names
}

// runOf gives what the names of the files of one run have in common.
func runOf(name string) string { return envelopeName.FindStringSubmatch(name)[1] }

// living gives the runs whose process still writes: it holds a lock on a file.
func (f *envelopeFiles) living(names []string) map[string]bool {
	runs := map[string]bool{}
	for _, name := range names {
		if locked(filepath.Join(f.dir, name)) {
			runs[runOf(name)] = true
		}
	}
	return runs
}

// prune removes the oldest files, except the current one and those of other runs
// that live.
func (f *envelopeFiles) prune() {
	names := f.list()
	living := f.living(names)
	for _, name := range names[:max(0, len(names)-f.opts.Keep)] {
		if run := runOf(name); !living[run] || run == f.base && name != filepath.Base(f.path) {
			f.remove(name)
		}
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

// gone reports whether the file has been removed or replaced.
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
