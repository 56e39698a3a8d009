package audit

import (
	"cmp"
	"io"
	"os"

	"github.com/toolgate/toolgate/audit/chain"
	"github.com/toolgate/toolgate/internal/files"
)

// File is a segment being written. Write appends at the end; Sync returns when
// what was written is on disk; Truncate cuts to a size in bytes and moves the
// end there. A Log calls one method at a time.
type File interface {
	io.WriteCloser
	Sync() error
	Truncate(size int64) error
}

// CreateFile creates the segment path, which must not exist, readable by its
// owner only.
func CreateFile(path string) (File, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	return f, nil
}

// openSegment creates the next segment.
func (w *writer) openSegment() error {
	path := chain.Path(w.dir, w.number+1)
	f, err := w.opts.OpenFile(path)
	if err != nil {
		return err
	}
	w.number++
	w.file, w.size, w.synced = f, 0, 0
	if err := w.settle(path); err != nil {
		w.giveUp(false)
		return err
	}
	return nil
}

// settle makes the name of a new segment durable and writes the acknowledged lines
// that the last segment could not keep.
func (w *writer) settle(path string) error {
	id, err := identify(path)
	if err != nil {
		return err
	}
	w.id = id
	if err := files.SyncDir(w.dir); err != nil {
		return err
	}
	if len(w.pending) == 0 {
		return nil
	}
	if n, err := w.file.Write(w.pending); err != nil || n < len(w.pending) {
		return cmp.Or(err, io.ErrShortWrite)
	}
	if err := w.file.Sync(); err != nil {
		return err
	}
	w.size = int64(len(w.pending))
	w.flushed()
	return nil
}

// drop closes the segment. Its lines were flushed or do not count, so an error of
// closing is ignored.
func (w *writer) drop() {
	if w.file != nil {
		_ = w.file.Close()
		w.file = nil
	}
}

// giveUp ends a segment after a failure. trusted says that a flush can still be
// believed, which is not so after one that failed. Every step is a best effort:
// lines that stay behind were never acknowledged, or the next segment repeats them,
// and a verifier can tell them apart because the next segment chains to the last
// acknowledged record.
func (w *writer) giveUp(trusted bool) {
	keep := w.size
	_ = w.file.Truncate(keep)
	switch {
	case trusted && w.file.Sync() == nil:
		w.flushed()
	case w.opts.Durability == Sync:
		keep = w.synced
		_ = w.file.Truncate(keep)
	}
	w.drop()
	if keep == 0 && os.Remove(chain.Path(w.dir, w.number)) == nil {
		w.number--
	}
}
