package audit_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/internal/testkit/parts"
)

// disk creates segments that fail on purpose.
type disk struct {
	mu sync.Mutex // protects the fields below
	faults
	writes int // so far
	syncs  int
}

// faults say what fails.
type faults struct {
	writeAt  int // the write that fails, 0 = none
	syncAt   int
	sticky   bool // all later ones fail too
	short    bool // a failing write leaves half of its bytes
	silent   bool // a short write says nothing
	noCut    bool // truncating fails
	noCreate bool // creating a segment fails
	plain    bool // segments are not written ahead in zeros
}

func (d *disk) open(path string) (audit.File, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.noCreate {
		return nil, syscall.ENOSPC
	}
	create := audit.CreateAhead
	if d.plain {
		create = audit.CreateFile
	}
	f, err := create(path)
	return &badFile{File: f, disk: d}, err
}

func (d *disk) set(change func(d *disk)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	change(d)
}

type badFile struct {
	audit.File
	disk *disk
}

func fails(n, at int, sticky bool) bool { return at > 0 && (n == at || sticky && n > at) }

func (f *badFile) Write(p []byte) (int, error) {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	f.disk.writes++
	if !fails(f.disk.writes, f.disk.writeAt, f.disk.sticky) {
		return f.File.Write(p)
	}
	n := 0
	if f.disk.short {
		n, _ = f.File.Write(p[:len(p)/2])
	}
	if f.disk.silent {
		return n, nil
	}
	return n, syscall.ENOSPC
}

func (f *badFile) Sync() error {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	f.disk.syncs++
	if fails(f.disk.syncs, f.disk.syncAt, f.disk.sticky) {
		return syscall.EIO
	}
	return f.File.Sync()
}

func (f *badFile) Truncate(size int64) error {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	if f.disk.noCut {
		return syscall.EIO
	}
	return f.File.Truncate(size)
}

// TestEveryWriteAndFlushFailsOnce runs the same twenty held calls once for each
// write and each flush, with that one failing, and holds the log to its word:
// what was acknowledged is there, what was refused is not, the chain is whole.
func TestEveryWriteAndFlushFailsOnce(t *testing.T) {
	shapes := map[string]faults{
		"write":              {writeAt: 1},
		"short write":        {writeAt: 1, short: true},
		"silent short write": {writeAt: 1, short: true, silent: true},
		"write, no truncate": {writeAt: 1, short: true, noCut: true},
		"sync":               {syncAt: 1},
		"sync, no truncate":  {syncAt: 1, noCut: true},
	}
	step := unlessShort(1, 14)
	for name, shape := range shapes {
		for _, durability := range []audit.Durability{audit.Sync, audit.OS} {
			t.Run(name+"/"+string(durability), func(t *testing.T) {
				t.Parallel()
				for at := 2; at <= 30; at += step { // the first is the open record's
					for _, queued := range []bool{false, true} {
						d := disk{faults: shape}
						d.plain = durability == audit.OS
						d.writeAt, d.syncAt = shape.writeAt*at, shape.syncAt*at
						runCalls(t, &d, durability, at, queued)
					}
				}
			})
		}
	}
}

func runCalls(t *testing.T, d *disk, durability audit.Durability, at int, queued bool) {
	root := t.TempDir()
	l := open(t, root, audit.Options{Durability: durability, OpenFile: d.open, CheckpointEvery: 5, SegmentBytes: 9000})
	if queued {
		l.Queue()
	}
	want := map[string]bool{}
	for i := range 20 {
		r := sample(fmt.Sprint(i))
		want["decision "+r.CallID] = l.Write(audit.KindDecision, r) == nil
		want["outcome "+r.CallID] = l.Write(audit.KindOutcome, r) == nil
		want["ticket "+r.CallID] = l.Write(audit.KindTicket, r) == nil
	}
	closed := l.Close() == nil
	chain := intact(t, root)
	if chain.Closed != closed && !(chain.Closed && d.noCut) { // what cannot be cut stays
		t.Errorf("fault %d: closed = %v, Close said %v", at, chain.Closed, closed)
	}
	got := inChain(t, root)
	for key, acked := range want {
		if got[key] != acked {
			t.Errorf("fault %d: %s: acknowledged %v, in the chain %v", at, key, acked, got[key])
		}
	}
}

// inChain gives the records that belong to the chain: of two with one number,
// the later.
func inChain(t *testing.T, root string) map[string]bool {
	bySeq := map[uint64]string{}
	var last uint64
	paths, _ := filepath.Glob(filepath.Join(root, "*", "*.jsonl"))
	for _, p := range paths {
		data, err := os.ReadFile(p)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(data)) {
			if !strings.HasSuffix(line, "\n") {
				continue
			}
			r := parse(t, []byte(line))
			bySeq[r.Seq], last = string(r.Kind)+" "+r.CallID, r.Seq
		}
	}
	got := map[string]bool{}
	for seq, key := range bySeq {
		if seq <= last {
			got[key] = true
		}
	}
	return got
}

func TestAFullDiskRefusesAndRecovers(t *testing.T) {
	for _, durability := range []audit.Durability{audit.Sync, audit.OS} {
		t.Run(string(durability), func(t *testing.T) {
			root := t.TempDir()
			var d disk
			var told []string
			l := open(t, root, audit.Options{Durability: durability, OpenFile: d.open, OnError: func(doing string, _ error) { told = append(told, doing) }})
			step := func(id string, want error) {
				t.Helper()
				if err := l.Write(audit.KindDecision, sample(id)); !errors.Is(err, want) {
					t.Fatalf("%s: got %v, want %v", id, err, want)
				}
			}
			step("before", nil)
			d.set(func(d *disk) { d.writeAt, d.sticky, d.short = d.writes+1, true, true })
			for i := range 10 {
				step(fmt.Sprint("full ", i), syscall.ENOSPC)
			}
			d.set(func(d *disk) { d.noCreate = true })
			step("no file", syscall.ENOSPC)
			d.set(func(d *disk) { d.faults = faults{} })
			step("after", nil)
			l.Close()
			chain := intact(t, root)
			if chain.Records != 4 || chain.Segments != 2 || len(told) < 11 {
				t.Errorf("%d records in %d segments, %d faults told; want 4 in 2, 11", chain.Records, chain.Segments, len(told))
			}
		})
	}
}

func TestADiskThatNeverFlushesAgainRefuses(t *testing.T) {
	root := t.TempDir()
	d := disk{}
	l := open(t, root, audit.Options{OpenFile: d.open})
	d.set(func(d *disk) { d.syncAt, d.sticky, d.noCut = d.syncs+1, true, true })
	for i := range 5 {
		if err := l.Write(audit.KindDecision, sample(fmt.Sprint(i))); !errors.Is(err, syscall.EIO) {
			t.Fatalf("decision %d: %v", i, err)
		}
	}
	d.set(func(d *disk) { d.faults = faults{} })
	if err := l.Write(audit.KindDecision, sample("last")); err != nil {
		t.Fatal(err)
	}
	l.Close()
	chain := intact(t, root)
	if chain.Records != 3 || len(chain.Unfinished) != 1 || chain.Unfinished[0].CallID != "last" {
		t.Errorf("chain = %+v", chain)
	}
}

// heldFile waits in Write, or in Sync, until it is let go.
type heldFile struct {
	audit.File
	sync          bool
	entered, free chan struct{}
}

func (f heldFile) Write(p []byte) (int, error) {
	if !f.sync {
		f.wait()
	}
	return f.File.Write(p)
}

func (f heldFile) Sync() error {
	if f.sync {
		f.wait()
	}
	return f.File.Sync()
}

func (f heldFile) wait() {
	f.entered <- struct{}{}
	<-f.free
}

// A disk that hangs holds the one caller that writes or flushes; the others time out.
func TestAHeldDiskHoldsItsOwnCallerOnly(t *testing.T) {
	for _, durability := range []audit.Durability{audit.OS, audit.Sync} {
		entered, free := make(chan struct{}, 1000), make(chan struct{}, 1)
		free <- struct{}{} // the open record
		l := open(t, t.TempDir(), audit.Options{Durability: durability, WriteTimeout: time.Millisecond, OpenFile: func(path string) (audit.File, error) {
			f, err := audit.CreateFile(path)
			return heldFile{f, durability == audit.Sync, entered, free}, err
		}})
		<-entered
		first := make(chan error, 1)
		go func() { first <- l.Write(audit.KindDecision, sample("x")) }()
		<-entered
		if err := l.Write(audit.KindDecision, sample("y")); !errors.Is(err, audit.ErrTimeout) {
			t.Errorf("%s: the second caller got %v, want a timeout", durability, err)
		}
		select {
		case err := <-first:
			t.Errorf("%s: the first caller came back with %v before the disk did", durability, err)
		default:
		}
		close(free)
		if err := <-first; err != nil {
			t.Errorf("%s: the first caller got %v", durability, err)
		}
	}
}

func TestARemovedSegmentIsReplaced(t *testing.T) {
	root := t.TempDir()
	l := open(t, root, audit.Options{Instance: "one"})
	first := filepath.Join(root, "one", "000001.jsonl")
	if err := l.Write(audit.KindDecision, sample("a")); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(first, first+".moved"); err != nil {
		t.Fatal(err)
	}
	if err := l.Write(audit.KindDecision, sample("b")); err != nil {
		t.Fatal(err)
	}
	l.Close()
	if second, err := os.ReadFile(filepath.Join(root, "one", "000002.jsonl")); err != nil || !strings.Contains(string(second), `"call_id":"b"`) {
		t.Errorf("the record after the removal is not in a new segment: %v", err)
	}
	if rep := verify(t, root); rep.OK() {
		t.Error("a missing segment is not reported")
	}
	if err := os.Rename(first+".moved", first); err != nil {
		t.Fatal(err)
	}
	if chain := intact(t, root); chain.Records != 4 {
		t.Errorf("%d records, want 4", chain.Records)
	}
}

// tmpfs mounts a small file system.
func tmpfs(t *testing.T, size string) string {
	t.Helper()
	root := t.TempDir()
	if err := syscall.Mount("tmpfs", root, "tmpfs", 0, "size="+size); err != nil {
		parts.Missing(t, "mounting a tmpfs: %v", err)
	}
	t.Cleanup(func() { syscall.Unmount(root, 0) })
	return root
}

// Below the reserve decisions are refused, and all other records are written. The reserve
// is at most 5 % of the disk, and a decision is recorded as soon as there is room.
func TestReserve(t *testing.T) {
	root := tmpfs(t, "2m")
	said := make(chan string, 10)
	l := open(t, filepath.Join(root, "audit"), audit.Options{Checkpoint: time.Millisecond, Reserve: 64 << 20, OnError: func(doing string, cause error) { said <- doing }})
	if s := l.Space(); s.Reserve != 2<<20/20 || s.Low() || s.Scarce() || s.Err != nil {
		t.Fatalf("the space is %+v", s)
	}
	if err := l.Write(audit.KindDecision, sample("a")); err != nil {
		t.Fatal(err)
	}
	ballast := filepath.Join(root, "ballast")
	leave := func(n int64) {
		t.Helper()
		if err := os.WriteFile(ballast, make([]byte, l.Space().Free-n), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	leave(150 << 10)
	if s := l.Space(); !s.Scarce() || s.Low() {
		t.Errorf("the space is %+v", s)
	}
	if got := <-said; got != "keeping the disk reserve" {
		t.Errorf("the log says %q", got)
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	leave(90 << 10)
	var err error
	for deadline := time.Now().Add(20 * time.Second); err == nil && time.Now().Before(deadline); {
		err = l.Write(audit.KindDecision, sample("b"))
	}
	if !errors.Is(err, audit.ErrReserve) {
		t.Fatalf("a decision below the reserve: %v", err)
	}
	for _, kind := range []audit.Kind{audit.KindOutcome, audit.KindTicket, audit.KindEvent} {
		if err := l.Write(kind, &audit.Record{Change: &audit.Change{}, Event: &audit.Event{Name: "x"}}); err != nil {
			t.Errorf("a record of kind %s below the reserve: %v", kind, err)
		}
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	if err := l.Write(audit.KindDecision, sample("c")); err != nil {
		t.Errorf("a decision when there is room: %v", err)
	}
	l.Close()
	intact(t, filepath.Join(root, "audit"))
}

func TestFullTmpfs(t *testing.T) {
	root := tmpfs(t, "64k")
	dir := filepath.Join(root, "audit")
	l := open(t, dir, audit.Options{Instance: "one"})
	acked, refused := 0, 0
	for i := range 100 {
		switch err := l.Write(audit.KindDecision, sample(fmt.Sprint(i))); {
		case err == nil:
			acked++
		case errors.Is(err, syscall.ENOSPC):
			refused++
		default:
			t.Fatal(err)
		}
	}
	if acked < 10 || refused < 10 {
		t.Fatalf("%d acknowledged, %d refused: the disk did not fill up", acked, refused)
	}
	if err := syscall.Mount("", root, "", syscall.MS_REMOUNT, "size=1m"); err != nil {
		t.Fatal(err)
	}
	if err := l.Write(audit.KindDecision, sample("after")); err != nil {
		t.Fatalf("space is back: %v", err)
	}
	l.Close()
	if chain := intact(t, dir); chain.Records != acked+3 {
		t.Errorf("%d records, want %d", chain.Records, acked+3)
	}
}
