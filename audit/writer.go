package audit

import (
	"cmp"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/toolgate/toolgate/internal/store"
)

// queueLen bounds the records that wait for the writer, and the size of a batch.
const queueLen = 1024

// entry is one record on its way to the writer.
type entry struct {
	body    []byte
	durable bool       // acknowledged after the flush instead of after the write
	answer  chan error // buffered: the writer never waits for the caller
	timer   *time.Timer
}

// newEntry returns an entry whose timer is stopped.
func newEntry() any {
	e := &entry{body: make([]byte, 0, 2048), answer: make(chan error, 1), timer: time.NewTimer(time.Hour)}
	e.timer.Stop()
	return e
}

// Decision records that a call is about to be made. It returns when the record is
// on disk (Sync) or written (OS), or with an error after Options.WriteTimeout. The
// end of ctx does not interrupt it: a caller that hangs up cannot keep its call out
// of the log. After an error the call must not be made.
func (l *Log) Decision(ctx context.Context, r *Record) error {
	return l.put(r, KindDecision, l.opts.Durability == Sync)
}

// Outcome records how a call ended. It returns when the record is written; like
// Decision, the end of ctx does not interrupt it. After an error the result must
// be withheld.
func (l *Log) Outcome(ctx context.Context, r *Record) error {
	return l.put(r, KindOutcome, false)
}

// Ticket records that an approval ticket is about to change (Record.Change). Like
// Decision, it waits for the disk and the end of ctx does not interrupt it. After
// an error the ticket must not change.
func (l *Log) Ticket(ctx context.Context, r *Record) error {
	return l.put(r, KindTicket, l.opts.Durability == Sync)
}

// put queues a record and waits until the writer has acknowledged it. An entry
// returns to the pool only when the writer certainly no longer uses it.
func (l *Log) put(r *Record, kind Kind, durable bool) error {
	select {
	case <-l.closing:
		return fmt.Errorf("writing audit record: %w", ErrClosed)
	default:
	}
	e := l.entries.Get().(*entry)
	e.body, e.durable = appendRecord(e.body[:0], r, kind, l.opts.Now()), durable
	e.timer.Reset(l.opts.WriteTimeout)
	select {
	case l.queue <- e:
	case <-l.done:
		return fmt.Errorf("writing audit record: %w", ErrClosed)
	case <-e.timer.C:
		return fmt.Errorf("writing audit record: %w", ErrTimeout)
	}
	var err error
	select {
	case err = <-e.answer:
	case <-e.timer.C:
		return fmt.Errorf("writing audit record: %w", ErrTimeout)
	case <-l.done:
		select {
		case err = <-e.answer:
		default:
			return fmt.Errorf("writing audit record: %w", ErrClosed)
		}
	}
	e.timer.Stop()
	if cap(e.body) <= 64<<10 {
		l.entries.Put(e)
	}
	if err != nil {
		return fmt.Errorf("writing audit record: %w", err)
	}
	return nil
}

// run is the only goroutine that writes; Close waits for it. It commits together
// whatever was queued while the last batch was written.
func (l *Log) run(w *writer) {
	defer close(l.done)
	tick := time.NewTicker(l.opts.Checkpoint)
	defer tick.Stop()
	var plain, durable []*entry
	for open, closing := true, l.closing; open || len(l.queue) > 0; {
		select {
		case <-tick.C:
			w.tick()
		case <-closing:
			open, closing = false, nil
		case e := <-l.queue:
			plain, durable = plain[:0], durable[:0]
			for more := len(l.queue); ; more-- { // nothing else receives
				if e.durable {
					durable = append(durable, e)
				} else {
					plain = append(plain, e)
				}
				if more == 0 {
					break
				}
				e = <-l.queue
			}
			w.commit(plain, durable)
		}
	}
	l.err = w.end()
}

// writer owns the files of a chain. Only one goroutine uses it.
//
// Acknowledged records stay in the chain whatever fails afterwards:
//
//   - A write that fails is cut off again, and the segment ends.
//   - A flush that fails is never repeated on the same file: the kernel may have
//     dropped the pages and would report success. The segment is cut back to the
//     part that is known to be on disk, and ends. The writer keeps acknowledged
//     lines behind that point in memory and begins the next segment with them.
//
// The next batch then tries a new segment, so a full disk refuses records only for
// as long as it is full.
type writer struct {
	dir  string
	opts Options

	file   File        // nil: the next batch creates a segment
	info   os.FileInfo // of file, to detect that it was moved or removed
	number int         // of the current or last segment
	size   int64       // acknowledged bytes of file
	synced int64       // bytes of file known to be on disk
	at     link        // last acknowledged record
	head   uint64      // number of the record that HEAD names
	buf    []byte
	// pending holds the acknowledged lines that are not known to be on disk. It is
	// used under Sync only: OS promises no more than the write.
	pending []byte
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

// mark writes a record of the log's own and HEAD, and flushes both.
func (w *writer) mark(rec *Record, kind Kind) error {
	e := &entry{body: appendRecord(nil, rec, kind, w.opts.Now()), answer: make(chan error, 1)}
	w.commit(nil, []*entry{e})
	if err := <-e.answer; err != nil {
		return err
	}
	return w.checkpoint()
}

// commit writes a batch with one write and at most one flush, and answers every
// entry. Entries that need no flush (plain) come first, so that the lines that a
// failed flush takes back are exactly the end of the file.
func (w *writer) commit(plain, durable []*entry) {
	if err := w.ready(); err != nil {
		w.refuse("opening segment", err, plain, durable)
		return
	}
	w.buf = w.buf[:0]
	at := w.at
	for _, e := range plain {
		w.buf, at = appendLine(w.buf, at, w.opts.Instance, e.body)
	}
	plainAt, plainLen := at, len(w.buf)
	for _, e := range durable {
		w.buf, at = appendLine(w.buf, at, w.opts.Instance, e.body)
	}
	n, err := w.file.Write(w.buf)
	if err == nil && n < len(w.buf) {
		err = io.ErrShortWrite
	}
	if err != nil {
		w.giveUp(true)
		w.refuse("writing", err, plain, durable)
		return
	}
	w.at, w.size = plainAt, w.size+int64(plainLen)
	if w.opts.Durability == Sync {
		w.pending = append(w.pending, w.buf[:plainLen]...)
	}
	for _, e := range plain {
		e.answer <- nil
	}
	if len(durable) > 0 {
		if err := w.file.Sync(); err != nil {
			w.giveUp(false)
			w.refuse("flushing", err, durable)
			return
		}
		w.at, w.size = at, w.size+int64(len(w.buf)-plainLen)
		w.flushed()
		for _, e := range durable {
			e.answer <- nil
		}
	}
	if w.at.seq-w.head >= w.opts.CheckpointEvery { // HEAD stays near
		w.tryCheckpoint()
	}
	if w.file != nil && w.size >= w.opts.SegmentBytes {
		if err := w.flush(); err != nil {
			w.opts.OnError("flushing", err)
			return
		}
		w.drop()
	}
}

// refuse answers every entry of the batches with an error.
func (w *writer) refuse(doing string, cause error, batches ...[]*entry) {
	w.opts.OnError(doing, cause)
	for _, batch := range batches {
		for _, e := range batch {
			e.answer <- fmt.Errorf("%s: %w", doing, cause)
		}
	}
}

// flushed notes that every acknowledged byte of the segment is on disk.
func (w *writer) flushed() {
	w.synced = w.size
	w.pending = w.pending[:0]
}

// ready makes sure that there is a segment to write to. Under Sync it also checks
// that the file still has its name: lines in a file that was moved would be lost.
func (w *writer) ready() error {
	if w.opts.Durability == Sync {
		w.leaveIfGone()
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

// settle makes the name of a new segment durable and writes the acknowledged lines
// that the last segment could not keep.
func (w *writer) settle(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	w.info = info
	if err := store.SyncDir(w.dir); err != nil {
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

// leaveIfGone ends the segment when its file was moved or removed: it is no longer
// ours to cut.
func (w *writer) leaveIfGone() {
	if w.file == nil {
		return
	}
	path := segmentPath(w.dir, w.number)
	if info, err := os.Stat(path); err != nil || !os.SameFile(info, w.info) {
		w.opts.OnError("writing", fmt.Errorf("segment %s was moved or removed", path))
		w.drop()
	}
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
	if keep == 0 && os.Remove(segmentPath(w.dir, w.number)) == nil {
		w.number--
	}
}

// tick flushes the segment and updates HEAD when records were written since the
// last tick.
func (w *writer) tick() {
	w.leaveIfGone()
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

const headName = "HEAD"

// head is the content of a HEAD file: a record that was on disk at the time.
type head struct {
	V    int       `json:"v"`
	Seq  uint64    `json:"seq"`
	Hash string    `json:"hash"`
	Time time.Time `json:"time"`
}

func writeHead(dir string, at link, now time.Time) error {
	data, err := json.Marshal(head{V: formVersion, Seq: at.seq, Hash: hex.EncodeToString(at.hash[:]), Time: now.UTC()})
	if err != nil {
		return err
	}
	tmp := filepath.Join(dir, headName+".tmp")
	if err := writeFile(tmp, append(data, '\n')); err != nil {
		return err
	}
	return os.Rename(tmp, filepath.Join(dir, headName))
}

func writeFile(path string, data []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = dataSync(f)
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return err
}

func readHead(dir string) (head, error) {
	var h head
	data, err := os.ReadFile(filepath.Join(dir, headName))
	if err != nil {
		return h, err
	}
	if err := json.Unmarshal(data, &h); err != nil {
		return h, fmt.Errorf("reading %s: %w", headName, err)
	}
	if h.V != formVersion || len(h.Hash) != 64 {
		return h, fmt.Errorf("reading %s: not the form of version %d", headName, formVersion)
	}
	return h, nil
}

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
	return diskFile{f}, nil
}

// diskFile is an os.File whose Sync leaves out metadata that no reader needs.
type diskFile struct{ *os.File }

// Sync flushes the data of the file.
func (f diskFile) Sync() error { return dataSync(f.File) }
