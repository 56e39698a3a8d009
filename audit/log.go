package audit

import (
	"cmp"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/toolgate/toolgate/audit/chain"
	"github.com/toolgate/toolgate/internal/files"
)

// Durability says when a decision counts as recorded.
type Durability string

// The durabilities. In both, an outcome counts as recorded once it is written; it
// reaches the disk with the next decision, and within a second at the latest.
const (
	Sync Durability = "sync" // on disk: written and flushed, in groups
	OS   Durability = "os"   // written: survives the process, but not a power failure
)

// The errors of a Log.
var (
	// ErrClosed is returned for records that arrive after Close.
	ErrClosed = errors.New("audit log is closed")
	// ErrTimeout is returned for a record that was not acknowledged in time. The
	// record may still reach the file; its call must not be made.
	ErrTimeout = errors.New("audit log did not answer in time")
)

// Options are the settings of a Log. The zero Options are valid.
type Options struct {
	Durability      Durability                      // "" = Sync
	Instance        string                          // directory of the chain; "" = a new ULID
	Version         string                          // of the program, for the open record
	SegmentBytes    int64                           // size at which a segment ends; 0 = 64 MiB
	Checkpoint      time.Duration                   // longest age of HEAD; 0 = 1 s
	CheckpointEvery uint64                          // most records between two HEADs; 0 = 10,000
	WriteTimeout    time.Duration                   // longest wait for one record; 0 = 10 s
	Reserve         int64                           // bytes of the disk, at most 5 % of it, that no new call may use; 0 = none
	Now             func() time.Time                // nil = time.Now
	OpenFile        func(path string) (File, error) // creates a new segment; nil = CreateFile, under Sync written ahead in zeros
	OnError         func(doing string, cause error) // receives every failure to write, sign and anchor; nil = none. Must not block
	Notary          Notary                          // attests the end that each HEAD names; nil = none does
}

func (o Options) withDefaults() Options {
	o.Durability = cmp.Or(o.Durability, Sync)
	o.Instance = cmp.Or(o.Instance, newInstance())
	o.SegmentBytes = cmp.Or(o.SegmentBytes, 64<<20)
	o.Checkpoint = cmp.Or(o.Checkpoint, time.Second)
	o.CheckpointEvery = cmp.Or(o.CheckpointEvery, 10_000)
	o.WriteTimeout = cmp.Or(o.WriteTimeout, 10*time.Second)
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.OpenFile == nil {
		o.OpenFile = CreateFile
		if o.Durability == Sync {
			o.OpenFile = createAhead
		}
	}
	if o.OnError == nil {
		o.OnError = func(string, error) {}
	}
	return o
}

// A Notary attests the ends of one chain. A Log calls one method at a time, and Close last.
type Notary interface {
	// Begin attests the first end of the chain in dir. Its error means that the chain does not begin.
	Begin(dir string, end Earlier, now time.Time) error
	// Offer asks for a later end to be attested. It does not wait.
	Offer(end Earlier, now time.Time)
	// Close returns when the last end that was offered is attested, or cannot be.
	Close()
}

func newInstance() string { return ulid.MustNew(ulid.Now(), rand.Reader).String() }

// Log is one open chain. It is safe for concurrent use. It fails closed: when a
// record cannot be written, its method returns an error and the caller must not
// make the call.
type Log struct {
	opts    Options
	queue   chan *entry
	closing chan struct{} // closed by Close
	done    chan struct{} // closed when the writer has ended
	once    sync.Once
	err     error // of closing the chain; valid after done
	entries sync.Pool
	root    string
	low     atomic.Bool // new calls are refused: see Space

	mu     sync.Mutex // protects the fields below
	w      *writer
	over   bool      // the close record is written
	crowd  bool      // the last batch was flushed for several callers: together they need fewer flushes
	alone  [1]*entry // the batch of a caller that writes its own record
	scarce bool
	seen   int64 // bytes since the free space was read
	stride int64 // bytes to write before it is read again
}

// Open begins a new chain in a directory of its own under root, creating root when
// it is missing. It returns once the open record and HEAD are on disk and its notary has
// attested them; a chain directory that already exists is an error, and so is an end that the
// notary does not attest. The caller must Close the Log.
func Open(root string, opts Options) (*Log, error) {
	opts = opts.withDefaults()
	if opts.Durability != Sync && opts.Durability != OS {
		return nil, fmt.Errorf("opening audit log: unknown durability %q\nhint: use sync or os", opts.Durability)
	}
	if !chain.IsName(opts.Instance) {
		return nil, fmt.Errorf("opening audit log: bad instance name %q", opts.Instance)
	}
	dir := filepath.Join(root, opts.Instance)
	err := os.MkdirAll(root, 0o700)
	if err == nil {
		err = os.Mkdir(dir, 0o700)
	}
	if err == nil {
		err = files.SyncDir(root)
	}
	if err != nil {
		return nil, fmt.Errorf("opening audit log: %w", err)
	}
	w := &writer{dir: dir, opts: opts, buf: make([]byte, 0, 64<<10)}
	if err := w.open(root); err != nil {
		w.drop()
		w.release()
		if numbers, failed := chain.Segments(dir); failed == nil && len(numbers) == 0 {
			_ = os.Remove(filepath.Join(dir, chain.LockName))
			_ = os.Remove(dir) // succeeds only when the directory is empty
		}
		return nil, fmt.Errorf("opening audit log: %w", err)
	}
	l := &Log{opts: opts, queue: make(chan *entry, queueLen), closing: make(chan struct{}), done: make(chan struct{}), root: root, w: w}
	l.entries.New = newEntry
	l.watchSpace()
	go l.run()
	return l, nil
}

// open locks the chain, and writes the first record and has it attested.
func (w *writer) open(root string) (err error) {
	if w.lock, err = chain.Lock(w.dir); err != nil {
		return err
	}
	err = chain.Each(root, chain.CutZeros)
	if err != nil {
		w.opts.OnError("cutting zeros off", err) // readers know them
	}
	before, err := endsOf(root)
	if err != nil {
		return err
	}
	if err := w.mark(&Record{Version: w.opts.Version, PID: os.Getpid(), Before: before}, KindOpen); err != nil || w.opts.Notary == nil {
		return err
	}
	if err := w.opts.Notary.Begin(w.dir, w.ending(), w.opts.Now()); err != nil {
		return err
	}
	w.notary = w.opts.Notary
	return nil
}

// ending names the chain as it is now.
func (w *writer) ending() Earlier {
	return Earlier{w.opts.Instance, w.at.Seq, hex.EncodeToString(w.at.Hash[:])}
}

// Instance returns the name of the chain.
func (l *Log) Instance() string { return l.opts.Instance }

// LastWrite returns when the log last wrote records.
func (l *Log) LastWrite() time.Time { return time.Unix(0, l.w.wrote.Load()) }

// WriteErrors returns how many records could not be written in time, and how many times
// HEAD could not. A full disk reserve is no error.
func (l *Log) WriteErrors() uint64 { return l.w.failures.Load() }

// Close writes the queued records and the close record, flushes them, and ends the
// chain. Later calls return the result of the first.
func (l *Log) Close() error {
	l.once.Do(func() { close(l.closing) })
	<-l.done
	return l.err
}

// endsOf returns the last record of each chain under root. It leaves out a record that the open
// record of another chain names.
func endsOf(root string) ([]Earlier, error) {
	var ends []Earlier
	named := map[Earlier]bool{}
	err := chain.Each(root, func(dir string) error {
		line, numbers, err := chain.LastLine(dir)
		if err != nil || line == nil {
			return err
		}
		last, err := Parse(line)
		if err != nil {
			return nil //nolint:nilerr // Verify reports it
		}
		ends = append(ends, Earlier{filepath.Base(dir), last.Seq, last.Hash})
		first, err := chain.FirstLine(dir, numbers[0])
		if err != nil || first == nil {
			return err
		}
		if open, err := Parse(first); err == nil {
			for _, e := range open.Before {
				named[e] = true
			}
		}
		return nil
	})
	return slices.DeleteFunc(ends, func(e Earlier) bool { return named[e] }), err
}
