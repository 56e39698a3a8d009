package audit

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"sync"
	"time"

	"github.com/oklog/ulid/v2"
)

// Durability says when a decision counts as recorded.
type Durability string

// The durabilities. In both an outcome counts as recorded once it is written;
// it reaches the disk with the next decision, and within a second at the latest.
const (
	Sync Durability = "sync" // on disk: written and flushed, in groups
	OS   Durability = "os"   // written: survives the process, not a power cut
)

// The errors of a Log.
var (
	// ErrClosed is returned for records that arrive after Close.
	ErrClosed = errors.New("audit log is closed")
	// ErrTimeout is returned for a record that was not acknowledged in time. It
	// may still reach the file; the call it speaks of must not be made.
	ErrTimeout = errors.New("audit log did not answer in time")
)

// Options are the settings of a Log. The zero Options are valid.
type Options struct {
	Durability      Durability                      // "" = Sync
	Instance        string                          // directory of the chain; "" = a new ULID
	Version         string                          // of the program, for the open record
	SegmentBytes    int64                           // a segment is ended at this size; 0 = 64 MiB
	Checkpoint      time.Duration                   // longest age of HEAD; 0 = 1 s
	CheckpointEvery uint64                          // most records between two HEADs; 0 = 1000
	WriteTimeout    time.Duration                   // bound of one record; 0 = 10 s
	Now             func() time.Time                // nil = time.Now
	OpenFile        func(path string) (File, error) // creates a new segment; nil = CreateFile
	OnError         func(doing string, cause error) // told of every failure to write; nil = nobody. Must not block
}

func (o Options) withDefaults() Options {
	if o.Durability == "" {
		o.Durability = Sync
	}
	if o.Instance == "" {
		o.Instance = ulid.MustNew(ulid.Now(), rand.Reader).String()
	}
	if o.SegmentBytes <= 0 {
		o.SegmentBytes = 64 << 20
	}
	if o.Checkpoint <= 0 {
		o.Checkpoint = time.Second
	}
	if o.CheckpointEvery == 0 {
		o.CheckpointEvery = 1000
	}
	if o.WriteTimeout <= 0 {
		o.WriteTimeout = 10 * time.Second
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.OpenFile == nil {
		o.OpenFile = CreateFile
	}
	if o.OnError == nil {
		o.OnError = func(string, error) {}
	}
	return o
}

// Log is one open chain. It is safe for concurrent use. It fails closed: a
// record that could not be written is an error, and the caller must not go on.
type Log struct {
	opts    Options
	queue   chan *entry
	closing chan struct{} // closed by Close
	done    chan struct{} // closed when the writer has ended
	once    sync.Once
	err     error // of the end, valid after done
	entries sync.Pool
}

// entry is one record on its way to the writer.
type entry struct {
	body    []byte
	durable bool       // answered after the flush, not after the write
	answer  chan error // buffered, one answer
	timer   *time.Timer
}

// queueLen bounds the records that wait for the writer, and a batch.
const queueLen = 1024

var instanceName = regexp.MustCompile(`^[0-9A-Za-z][0-9A-Za-z_-]{0,63}$`)

// Open begins a new chain in a directory of its own under root, which is
// created when missing. It returns only after the open record and HEAD are on
// disk; a directory that exists already is an error. The caller must Close it.
func Open(root string, opts Options) (*Log, error) {
	opts = opts.withDefaults()
	if opts.Durability != Sync && opts.Durability != OS {
		return nil, fmt.Errorf("opening audit log: unknown durability %q\nhint: use sync or os", opts.Durability)
	}
	if !instanceName.MatchString(opts.Instance) {
		return nil, fmt.Errorf("opening audit log: bad instance name %q", opts.Instance)
	}
	dir := filepath.Join(root, opts.Instance)
	if err := makeDir(root, dir); err != nil {
		return nil, fmt.Errorf("opening audit log: %w", err)
	}
	w := newWriter(dir, opts)
	if err := w.begin(); err != nil {
		w.abort()
		return nil, fmt.Errorf("opening audit log: %w", err)
	}
	l := &Log{opts: opts, queue: make(chan *entry, queueLen), closing: make(chan struct{}), done: make(chan struct{})}
	l.entries.New = newEntry
	go l.run(w)
	return l, nil
}

func makeDir(root, dir string) error {
	if err := os.MkdirAll(root, 0o700); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	return syncDir(root)
}

// Instance gives the name of the chain.
func (l *Log) Instance() string { return l.opts.Instance }

// Decision records that a call is about to be made. It returns when the record
// is on disk (Sync) or written (OS). The end of ctx does not cut it short: a
// caller that hangs up cannot keep its call out of the log; the bound is
// Options.WriteTimeout. After an error the call must not be made.
func (l *Log) Decision(ctx context.Context, r *Record) error {
	return l.put(r, KindDecision, l.opts.Durability == Sync)
}

// Outcome records what a call came to. It returns when the record is written;
// as for Decision, the end of ctx does not cut it short. After an error the
// result must be withheld.
func (l *Log) Outcome(ctx context.Context, r *Record) error {
	return l.put(r, KindOutcome, false)
}

// Ticket records that an approval ticket is about to change (Record.Change). It
// waits for the disk as Decision does, and no more than that is cut short by the
// end of ctx. After an error the ticket must not change.
func (l *Log) Ticket(ctx context.Context, r *Record) error {
	return l.put(r, KindTicket, l.opts.Durability == Sync)
}

// put queues a record and waits for the writer's answer. An entry goes back to
// the pool only when the writer is certainly through with it.
func (l *Log) put(r *Record, kind Kind, durable bool) error {
	select {
	case <-l.closing:
		return fmt.Errorf("writing audit record: %w", ErrClosed)
	default:
	}
	e := l.entries.Get().(*entry)
	e.body = appendBody(e.body[:0], r, kind, l.opts.Now())
	e.durable = durable
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

// newEntry returns an entry whose timer is stopped.
func newEntry() any {
	e := &entry{body: make([]byte, 0, 2048), answer: make(chan error, 1), timer: time.NewTimer(time.Hour)}
	e.timer.Stop()
	return e
}

// Close writes what is queued and the close record, flushes, and ends the
// chain. Later calls return what the first one did.
func (l *Log) Close() error {
	l.once.Do(func() { close(l.closing) })
	<-l.done
	return l.err
}

// run is the one goroutine that writes; Close waits for it.
func (l *Log) run(w *writer) {
	defer close(l.done)
	tick := time.NewTicker(l.opts.Checkpoint)
	defer tick.Stop()
	batch := make([]*entry, 0, queueLen)
	for {
		select {
		case e := <-l.queue:
			batch = l.drain(append(batch[:0], e))
			w.commit(batch)
		case <-tick.C:
			w.tick()
		case <-l.closing:
			for batch = l.drain(batch[:0]); len(batch) > 0; batch = l.drain(batch[:0]) {
				w.commit(batch)
			}
			l.err = w.end()
			return
		}
	}
}

func (l *Log) drain(batch []*entry) []*entry {
	for len(batch) < queueLen {
		select {
		case e := <-l.queue:
			batch = append(batch, e)
		default:
			return batch
		}
	}
	return batch
}

// programVersion is what an open record says when the caller does not.
func programVersion() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		return info.Main.Version
	}
	return "unknown"
}
