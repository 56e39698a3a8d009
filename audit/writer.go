package audit

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/toolgate/toolgate/audit/chain"
	"github.com/toolgate/toolgate/internal/wait"
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

// Write records r: that a call is about to be made (KindDecision), how one ended
// (KindOutcome), that an approval ticket is about to change (KindTicket, with
// Record.Change), or another act (KindEvent, with Record.Event). It returns when the record is on disk or, for an outcome and under
// OS, when it is written; with ErrReserve for a decision that the disk has no room for;
// with an error after Options.WriteTimeout at the latest, unless the system holds up the
// one write and flush at a time that a caller makes itself. A
// caller that hangs up cannot keep its call out of the log: no context interrupts
// Write. After an error the call must not be made, the result must be withheld, or the
// ticket must not change.
func (l *Log) Write(kind Kind, r *Record) error {
	select {
	case <-l.closing:
		return errClosed
	default:
	}
	if kind == KindDecision && l.low.Load() && l.Space().Low() {
		return errReserve
	}
	e := l.entries.Get().(*entry)
	e.body, e.durable = appendRecord(e.body[:0], r, kind, l.opts.Now()), kind != KindOutcome && l.opts.Durability == Sync
	if !l.writeAlone(e) {
		if err := l.enqueue(e); err != nil {
			l.w.failures.Add(1)
			return err
		}
	}
	err := <-e.answer
	if cap(e.body) <= 64<<10 { // the writer no longer uses e
		l.entries.Put(e)
	}
	if err != nil {
		l.w.failures.Add(1)
		return fmt.Errorf("writing audit record: %w", err)
	}
	return nil
}

// writeAlone writes e, and flushes it, on the goroutine of its caller, which spares two switches
// between goroutines: they cost more than a write of its own for each record, with one client and
// with 64. It returns false for what the writer's goroutine has to do: checkpoints, new segments,
// looks at the free space, records that come during a write or a flush, and flushes of many callers.
func (l *Log) writeAlone(e *entry) bool {
	if !l.mu.TryLock() {
		return false
	}
	defer l.mu.Unlock()
	const frame = 512 // more than a line adds to a body
	if w := l.w; l.over || e.durable && l.crowd || len(l.queue) > 0 || l.seen >= l.stride || w.file == nil || w.at.Seq+1-w.head >= l.opts.CheckpointEvery || w.size+int64(len(e.body))+frame >= l.opts.SegmentBytes {
		return false
	}
	if l.alone[0] = e; e.durable {
		l.w.commit(nil, l.alone[:])
	} else {
		l.w.commit(l.alone[:], nil)
	}
	l.seen += int64(len(l.w.buf))
	return true
}

// enqueue gives e to the writer's goroutine and waits until it has answered. After an
// error, e still belongs to the writer.
func (l *Log) enqueue(e *entry) error {
	e.timer.Reset(l.opts.WriteTimeout)
	select {
	case l.queue <- e:
	case <-l.done:
		return errClosed
	case <-e.timer.C:
		return errTimeout
	}
	select {
	case err := <-e.answer:
		e.answer <- err // for Write
	case <-e.timer.C:
		return errTimeout
	case <-l.done:
		if len(e.answer) == 0 {
			return errClosed
		}
	}
	e.timer.Stop()
	return nil
}

var (
	errClosed  = fmt.Errorf("writing audit record: %w", ErrClosed)
	errReserve = fmt.Errorf("writing audit record: %w", ErrReserve)
	errTimeout = fmt.Errorf("writing audit record: %w", ErrTimeout)
)

// run is the writer's goroutine; Close waits for it. It commits together
// whatever was queued while the last batch was written.
func (l *Log) run() {
	defer close(l.done)
	tick := time.NewTicker(wait.Beat(l.opts.Checkpoint))
	defer tick.Stop()
	var plain, durable []*entry
	for open, closing := true, l.closing; open || len(l.queue) > 0; {
		select {
		case <-tick.C:
			tick.Reset(wait.Beat(l.opts.Checkpoint))
			l.mu.Lock()
			l.w.tick()
			l.watchSpace()
			l.mu.Unlock()
		case <-closing:
			open, closing = false, nil
		case e := <-l.queue:
			l.mu.Lock()
			runtime.Gosched() // calls that are ready to go on queue their records first: one write takes them all
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
			l.crowd = len(durable) > 1
			l.w.commit(plain, durable)
			if l.seen += int64(len(l.w.buf)); l.seen >= l.stride {
				l.seen = 0
				l.watchSpace()
			}
			l.mu.Unlock()
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.over, l.err = true, l.w.end()
}

// writer owns the files of a chain. Only one goroutine uses it at a time.
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
	lock *os.File // shows that this process lives; nil = not yet

	file   File       // nil: the next batch creates a segment
	id     fileID     // of file, to detect that it was moved or removed
	number int        // of the current or last segment
	size   int64      // acknowledged bytes of file
	synced int64      // bytes of file known to be on disk
	at     chain.Link // last acknowledged record
	head   uint64     // number of the record that HEAD names
	buf    []byte
	// pending holds the acknowledged lines that are not known to be on disk. It is
	// used under Sync only: OS promises no more than the write.
	pending []byte
	notary  Notary // once it has begun; nil = none

	wrote    atomic.Int64  // when the last batch was written, in ns since 1970
	failures atomic.Uint64 // see Log.WriteErrors
}

// end writes the close record, flushes, and closes the segment.
func (w *writer) end() error {
	err := w.mark(&Record{}, KindClose)
	if w.notary != nil {
		w.notary.Close()
	}
	if w.file != nil {
		err = errors.Join(err, w.file.Close())
		w.file = nil
	}
	w.release()
	if err != nil {
		return fmt.Errorf("closing audit log: %w", err)
	}
	return nil
}

// release releases the lock of the chain: nothing is written to its directory from then on.
func (w *writer) release() {
	if w.lock != nil {
		_ = w.lock.Close() // nothing was written to it
	}
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
	if w.opts.Durability == Sync { // lines in a file that was moved would be lost
		w.leaveIfGone()
	}
	if w.file == nil {
		if err := w.openSegment(); err != nil {
			w.refuse("opening segment", err, plain, durable)
			return
		}
	}
	w.buf = w.buf[:0]
	at := w.at
	for _, e := range plain {
		w.buf, at = chain.AppendLine(w.buf, at, w.opts.Instance, e.body)
	}
	plainAt, plainLen := at, len(w.buf)
	for _, e := range durable {
		w.buf, at = chain.AppendLine(w.buf, at, w.opts.Instance, e.body)
	}
	if n, err := w.file.Write(w.buf); err != nil || n < len(w.buf) {
		w.giveUp(true)
		w.refuse("writing", cmp.Or(err, io.ErrShortWrite), plain, durable)
		return
	}
	w.wrote.Store(w.opts.Now().UnixNano())
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
	if w.at.Seq-w.head >= w.opts.CheckpointEvery { // HEAD stays near
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

// leaveIfGone ends the segment when its file was moved or removed: it is no longer
// ours to cut.
func (w *writer) leaveIfGone() {
	if w.file == nil {
		return
	}
	path := chain.Path(w.dir, w.number)
	if id, err := identify(path); err != nil || !id.is(w.id) {
		w.opts.OnError("writing", fmt.Errorf("segment %s was moved or removed", path))
		w.drop()
	}
}

// tick flushes the segment and updates HEAD when records were written since the
// last tick.
func (w *writer) tick() {
	w.leaveIfGone()
	if w.head != w.at.Seq || len(w.pending) > 0 {
		w.tryCheckpoint()
	}
}

func (w *writer) tryCheckpoint() {
	if err := w.checkpoint(); err != nil {
		w.failures.Add(1)
		w.opts.OnError("noting head", err)
	}
}

// checkpoint flushes the segment and writes HEAD. HEAD never names a record
// that is not on disk.
func (w *writer) checkpoint() error {
	if err := w.flush(); err != nil {
		return err
	}
	if err := chain.WriteHead(w.dir, w.at, w.opts.Now()); err != nil {
		return err
	}
	w.head = w.at.Seq
	if w.notary != nil {
		w.notary.Offer(w.ending(), w.opts.Now())
	}
	return nil
}

// flush brings every acknowledged line to the disk.
func (w *writer) flush() error {
	switch {
	case w.file == nil && len(w.pending) == 0:
		return nil
	case w.file == nil:
		if err := w.openSegment(); err != nil {
			return err
		}
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
