package audit

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
)

// writer owns the files of a chain. Only one goroutine uses it.
//
// What was acknowledged stays in the chain whatever fails afterwards:
//
//   - A write that fails is cut off again, and the segment is ended.
//   - A flush that fails is never repeated on the same file: the kernel may have
//     dropped the pages and would report success. The segment is cut back to
//     what is known to be on disk and ended; acknowledged lines behind that
//     point, which are kept in memory for the purpose, open the next segment
//     unchanged.
//
// The next batch then tries a new segment, so a full disk refuses records for
// as long as it is full and no longer.
type writer struct {
	dir  string
	opts Options

	file   File        // nil: the next batch creates a segment
	info   os.FileInfo // of file, to see that it is still there
	number int         // of the current or last segment
	size   int64       // acknowledged bytes of file
	synced int64       // bytes of file known to be on disk
	at     link        // last acknowledged record
	head   uint64      // number of the record that HEAD names
	buf    []byte
	// pending are the acknowledged lines that are not known to be on disk.
	// They are kept under Sync only: OS promises no more than the write.
	pending []byte
}

func newWriter(dir string, opts Options) *writer {
	return &writer{dir: dir, opts: opts, buf: make([]byte, 0, 64<<10)}
}

// begin writes the open record and HEAD and flushes both.
func (w *writer) begin() error {
	rec := Record{Version: w.opts.Version, PID: os.Getpid()}
	if rec.Version == "" {
		rec.Version = programVersion()
	}
	return w.mark(&rec, KindOpen)
}

// end writes the close record, flushes, and closes the segment.
func (w *writer) end() error {
	err := w.mark(&Record{}, KindClose)
	if w.file != nil {
		err = errors.Join(err, w.file.Close())
		w.file = nil
	}
	if err != nil {
		return fmt.Errorf("closing audit log: %w", err)
	}
	return nil
}

// abort takes back a chain that could not begin, as far as it can.
func (w *writer) abort() {
	w.drop()
	_ = os.Remove(w.dir) // succeeds only when nothing was left in it
}

// mark writes a record of the log's own, through to the disk.
func (w *writer) mark(rec *Record, kind Kind) error {
	e := &entry{body: appendBody(nil, rec, kind, w.opts.Now()), durable: true, answer: make(chan error, 1)}
	w.commit([]*entry{e})
	if err := <-e.answer; err != nil {
		return err
	}
	return w.checkpoint()
}

// commit writes a batch with one write and at most one flush and answers every
// entry. Entries that need no flush go first, so that what a failed flush takes
// back is exactly the end of the file.
func (w *writer) commit(batch []*entry) {
	slices.SortStableFunc(batch, func(a, b *entry) int {
		switch {
		case a.durable == b.durable:
			return 0
		case b.durable:
			return -1
		}
		return 1
	})
	plain := len(batch) // entries that need no flush
	if i := slices.IndexFunc(batch, func(e *entry) bool { return e.durable }); i >= 0 {
		plain = i
	}
	if err := w.ready(); err != nil {
		w.refuse(batch, "opening segment", err)
		return
	}
	w.buf = w.buf[:0]
	at, plainAt, plainLen := w.at, w.at, 0
	for i, e := range batch {
		w.buf, at = appendLine(w.buf, at, w.opts.Instance, e.body)
		if i < plain {
			plainAt, plainLen = at, len(w.buf)
		}
	}
	if err := w.write(w.buf); err != nil {
		w.giveUp(true)
		w.refuse(batch, "writing", err)
		return
	}
	w.size += int64(plainLen)
	w.at = plainAt
	if w.opts.Durability == Sync {
		w.pending = append(w.pending, w.buf[:plainLen]...)
	}
	answer(batch[:plain], nil)
	if plain < len(batch) {
		if err := w.file.Sync(); err != nil {
			w.giveUp(false)
			w.refuse(batch[plain:], "flushing", err)
			return
		}
		w.size += int64(len(w.buf) - plainLen)
		w.at = at
		w.flushed()
		answer(batch[plain:], nil)
	}
	if w.at.seq-w.head >= w.opts.CheckpointEvery { // HEAD stays near
		w.tryCheckpoint()
	}
	if w.file != nil && w.size >= w.opts.SegmentBytes {
		w.rotate()
	}
}

// answer sends err to every entry of batch.
func answer(batch []*entry, err error) {
	for _, e := range batch {
		e.answer <- err
	}
}

func (w *writer) refuse(batch []*entry, doing string, cause error) {
	w.opts.OnError(doing, cause)
	answer(batch, fmt.Errorf("%s: %w", doing, cause))
}

func (w *writer) flushed() {
	w.synced = w.size
	w.pending = w.pending[:0]
}

func (w *writer) write(p []byte) error {
	n, err := w.file.Write(p)
	if err == nil && n < len(p) {
		err = io.ErrShortWrite
	}
	return err
}

// ready makes sure that there is a segment to write to, and that it is the file
// of that name: lines in a file that somebody moved away would be lost.
func (w *writer) ready() error {
	if w.file != nil && w.opts.Durability == Sync && w.gone() {
		w.leave()
	}
	if w.file != nil {
		return nil
	}
	path := segmentPath(w.dir, w.number+1)
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

// settle makes a new segment's name durable and carries over what the last one
// could not keep.
func (w *writer) settle(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	w.info = info
	if err := syncDir(w.dir); err != nil {
		return err
	}
	if len(w.pending) == 0 {
		return nil
	}
	if err := w.write(w.pending); err != nil {
		return err
	}
	if err := w.file.Sync(); err != nil {
		return err
	}
	w.size = int64(len(w.pending))
	w.flushed()
	return nil
}

func (w *writer) gone() bool {
	info, err := os.Stat(segmentPath(w.dir, w.number))
	return err != nil || !os.SameFile(info, w.info)
}

// leave ends a segment whose file is no longer ours to cut.
func (w *writer) leave() {
	w.opts.OnError("writing", fmt.Errorf("segment %s was moved or removed", segmentPath(w.dir, w.number)))
	w.drop()
}

// drop closes the segment. What it holds was flushed or is of no account, so
// closing has nothing left to say.
func (w *writer) drop() {
	if w.file != nil {
		_ = w.file.Close()
		w.file = nil
	}
}

// giveUp ends a segment after a failure. trusted says that flushing it still
// means something, which it does not after a failed flush. Every step is a
// best effort: what stays behind was never acknowledged or is repeated in the
// next segment, and the verifier sees which, because the next segment chains to
// the last acknowledged record.
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
	if keep == 0 && os.Remove(segmentPath(w.dir, w.number)) == nil {
		w.number--
	}
}

// rotate ends a full segment.
func (w *writer) rotate() {
	if err := w.flush(); err != nil {
		w.opts.OnError("flushing", err)
		return
	}
	w.drop()
}

// tick flushes and notes what has been written since the last one.
func (w *writer) tick() {
	if w.file != nil && w.gone() {
		w.leave()
	}
	if w.head != w.at.seq || len(w.pending) > 0 {
		w.tryCheckpoint()
	}
}

func (w *writer) tryCheckpoint() {
	if err := w.checkpoint(); err != nil {
		w.opts.OnError("noting head", err)
	}
}

// checkpoint flushes the segment and writes HEAD. HEAD never names a record
// that is not on disk.
func (w *writer) checkpoint() error {
	if err := w.flush(); err != nil {
		return err
	}
	if err := writeHead(w.dir, w.at, w.opts.Now()); err != nil {
		return err
	}
	w.head = w.at.seq
	return nil
}

// flush brings every acknowledged line to the disk.
func (w *writer) flush() error {
	if w.file == nil && len(w.pending) == 0 {
		return nil
	}
	if err := w.ready(); err != nil {
		return err
	}
	if w.synced == w.size {
		return nil
	}
	if err := w.file.Sync(); err != nil {
		w.giveUp(false)
		return err
	}
	w.flushed()
	return nil
}
