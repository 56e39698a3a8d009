package audit

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"time"

	"github.com/toolgate/toolgate/internal/files"
	"github.com/toolgate/toolgate/internal/text"
)

// latestName is the symbolic link to the newest file.
const latestName = ".latest"

// envelopeName matches the names of our files, also of the further files of a run.
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
	failed bool // the last write failed and was reported
}

func newEnvelopeFiles(dir string, opts EnvelopeOptions) *envelopeFiles {
	f := &envelopeFiles{dir: dir, opts: opts, base: opts.Instance}
	if !opts.Deterministic {
		f.base = opts.Now().UTC().Format("20060102T150405.000Z") + "-" + opts.Instance
	}
	return f
}

// open creates the next file, links .latest to it and removes the oldest files.
func (f *envelopeFiles) open() error {
	if f.number == 0 && f.opts.Deterministic {
		f.replace()
	}
	file, name, err := f.create()
	if err != nil {
		return err
	}
	f.file, f.path, f.size = file, filepath.Join(f.dir, name), 0
	f.info, _ = os.Stat(f.path) // without it, gone reports false
	if err := f.link(name); err != nil {
		f.opts.OnError("pointing .latest at the envelope log", err)
	}
	f.prune()
	return nil
}

// replace removes the files of the last deterministic run. While the process of that
// run lives, this run is deterministic-2.jsonl, and so on.
func (f *envelopeFiles) replace() {
	files, living := f.list()
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

// createLocked creates path and locks it until it is closed or its process ends. When
// another process removes the file before it is locked, the error is fs.ErrExist.
func createLocked(path string) (File, error) {
	f, err := CreateFile(path)
	if err != nil {
		return nil, err
	}
	file := f.(*os.File)
	if err := files.Lock(file); err != nil {
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
	return errors.Is(files.TryShare(f), files.ErrHeld)
}

// link points .latest at name. A reader always finds the old or the new file.
func (f *envelopeFiles) link(name string) error {
	temporary := filepath.Join(f.dir, latestName+"-"+rand.Text())
	if err := os.Symlink(name, temporary); err != nil {
		return err
	}
	if err := os.Rename(temporary, filepath.Join(f.dir, latestName)); err != nil {
		return errors.Join(err, os.Remove(temporary))
	}
	return nil
}

// list returns the names of our files, the least recently written first, and the
// runs of living processes, which hold a lock on a file.
func (f *envelopeFiles) list() (names []string, living map[string]bool) {
	entries, err := os.ReadDir(f.dir)
	if err != nil {
		f.opts.OnError("listing envelope logs", err)
	}
	written := map[string]time.Time{}
	living = map[string]bool{}
	for _, entry := range entries {
		name := entry.Name()
		if info, err := entry.Info(); err == nil && info.Mode().IsRegular() && envelopeName.MatchString(name) {
			names = append(names, name)
			written[name] = info.ModTime()
			if locked(filepath.Join(f.dir, name)) {
				living[runOf(name)] = true
			}
		}
	}
	slices.SortStableFunc(names, func(a, b string) int { return written[a].Compare(written[b]) })
	return names, living
}

// runOf returns the common part of the names of a run's files.
func runOf(name string) string { return envelopeName.FindStringSubmatch(name)[1] }

// prune removes the oldest files, except the current one and those of other living
// runs.
func (f *envelopeFiles) prune() {
	names, living := f.list()
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

// write appends whole lines. After an error none of them counts as written, and the
// next write tries a new file. The first of several failures in a row is reported.
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

// leave closes the file; the next write creates another.
func (f *envelopeFiles) leave() {
	if f.file == nil {
		return
	}
	if err := f.file.Close(); err != nil {
		f.opts.OnError("closing an envelope log", err)
	}
	f.file = nil
}

// end flushes and closes the file. dropped events could not be written before.
func (f *envelopeFiles) end(dropped int64) (err error) {
	if dropped > 0 {
		err = errors.New(text.Count(int(dropped), "event") + " could not be written")
	}
	if f.file != nil {
		err = errors.Join(err, f.file.Sync(), f.file.Close())
	}
	if err != nil {
		return fmt.Errorf("closing envelope log: %w", err)
	}
	return nil
}
