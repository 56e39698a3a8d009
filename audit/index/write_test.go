package index_test

import (
	"context"
	"errors"
	"iter"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/audit/index"
	"github.com/toolgate/toolgate/internal/files"
	"github.com/toolgate/toolgate/internal/testkit/postgres"
)

const childVar = "TOOLGATE_TEST_INDEX"

// child writes the index of a directory until it is killed.
func child() {
	o, _, err := options(os.Getenv(childVar))
	if err != nil {
		panic(err)
	}
	index.New(o).Run(context.Background())
}

// A writer that is killed at any time loses no call and has none twice.
func TestKill(t *testing.T) {
	w := newWorld(t)
	l := w.chain(audit.Options{})
	r := rand.New(rand.NewPCG(3, uint64(time.Now().UnixNano())))
	if _, closeDB, err := options(w.dir); err != nil { // the database exists
		t.Fatal(err)
	} else {
		closeDB()
	}
	var waiting []*audit.Record
	for range shortOrSoak(5, 12) {
		for range 700 {
			w.any(r, l)
		}
		w.n++
		d := &audit.Record{DecisionID: "dec_open_" + string(rune('a'+len(waiting))), Time: epoch.Add(time.Duration(w.n) * time.Second), Arguments: []byte(`{"open":true}`)}
		write(t, l, audit.KindDecision, d)
		waiting = append(waiting, d)
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append(os.Environ(), childVar+"="+w.dir)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(r.IntN(150)) * time.Millisecond) // at any time
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	for _, d := range waiting {
		end := *d
		end.Arguments, end.Outcome = nil, audit.Allowed
		write(t, l, audit.KindOutcome, &end)
	}
	x, _ := w.begin()
	w.caughtUp(x)
	var want []string
	for _, c := range merged(t, w.root()) {
		want = append(want, c.DecisionID)
	}
	if diff := cmp.Diff(want, w.found(x, index.Query{Limit: 1000})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := w.found(x, index.Query{Argument: "/open=true", Outcome: "allowed"}); len(got) != len(waiting) { // arguments of decisions before the kills
		t.Errorf("%d of %d calls have arguments and an outcome", len(got), len(waiting))
	}
}

// What a rebuild makes is what following makes.
func TestRebuild(t *testing.T) {
	w := newWorld(t)
	r := rand.New(rand.NewPCG(5, 7))
	x, stop := w.begin()
	l := w.chain(audit.Options{})
	for range shortOrSoak(10, 30) { // more than are merged at once
		for range r.IntN(200) {
			w.any(r, l)
		}
		w.caughtUp(x)
	}
	pages := func(x *index.Index) (all []index.Call) {
		q := index.Query{Limit: 500}
		for {
			page, err := x.Search(t.Context(), q)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, page.Calls...)
			if q.Cursor = page.Next; q.Cursor == "" {
				return all
			}
		}
	}
	followed := pages(x)
	o, closeDB, err := options(w.dir)
	if err != nil {
		t.Fatal(err)
	}
	defer closeDB()
	if _, err := index.New(o).Rebuild(t.Context(), nil); !errors.Is(err, index.ErrWriting) {
		t.Errorf("a rebuild beside a writer: %v", err)
	}
	stop()
	var read strings.Builder
	if n, err := index.New(o).Rebuild(t.Context(), &read); err != nil || n != w.n || read.Len() == 0 {
		t.Fatalf("%d of %d calls, %d bytes, %v", n, w.n, read.Len(), err)
	}
	x, _ = w.begin()
	w.caughtUp(x)
	if diff := cmp.Diff(followed, pages(x)); diff != "" {
		t.Errorf("(-followed +rebuilt):\n%s", diff)
	}
}

// A damaged file, one of another version, and one that was removed are made again.
func TestDamagedFile(t *testing.T) {
	if postgres.Used() {
		return
	}
	for name, damage := range map[string]func(t *testing.T, file string){
		"bytes": func(t *testing.T, file string) {
			data, err := os.ReadFile(file)
			for i := range data[100:] {
				data[100+i] ^= 0x55
			}
			if err = errors.Join(err, os.WriteFile(file, data, 0o600)); err != nil {
				t.Fatal(err)
			}
		},
		"empty": func(t *testing.T, file string) {
			if err := os.Truncate(file, 0); err != nil {
				t.Fatal(err)
			}
		},
		"newer": func(t *testing.T, file string) {
			db := mustOpen(t, file)
			defer db.Close()
			if _, err := db.Write.Exec("INSERT INTO schema_version (version, name) VALUES (99, 'later')"); err != nil {
				t.Fatal(err)
			}
		},
		"a part": func(t *testing.T, file string) {
			db := mustOpen(t, file)
			defer db.Close()
			if _, err := db.Write.Exec("UPDATE call_parts SET data = x'ffffffffffffffffffff'"); err != nil {
				t.Fatal(err)
			}
		},
		"removed": func(t *testing.T, file string) {
			if err := os.Remove(file); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			l := w.chain(audit.Options{})
			for range 20 {
				w.call(l, nil)
			}
			x, stop := w.begin()
			w.caughtUp(x)
			stop()
			damage(t, filepath.Join(w.dir, "index", "calls.db"))
			x, _ = w.begin()
			for range 10 { // which are merged with the others
				w.call(l, nil)
				w.caughtUp(x)
			}
			for deadline := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
				page, err := x.Search(t.Context(), index.Query{Limit: 100})
				if err == nil && len(page.Calls) == 30 {
					return
				}
				if time.Now().After(deadline) {
					t.Fatalf("%d calls, %v; log:\n%s", len(page.Calls), err, &w.log)
				}
			}
		})
	}
}

// Calls leave the index with their records.
func TestArchivedCallsLeave(t *testing.T) {
	w := newWorld(t)
	gone := w.chain(audit.Options{Instance: "gone"})
	w.call(gone, nil)
	if err := gone.Close(); err != nil {
		t.Fatal(err)
	}
	l := w.chain(audit.Options{Instance: "here", SegmentBytes: 2000})
	for range 20 {
		w.call(l, nil)
	}
	x, stop := w.begin()
	w.caughtUp(x)
	if got := w.found(x, index.Query{}); len(got) != 21 {
		t.Fatalf("%d calls", len(got))
	}
	stop()
	if err := os.RemoveAll(filepath.Join(w.root(), "gone")); err != nil {
		t.Fatal(err)
	}
	segments, err := filepath.Glob(filepath.Join(w.root(), "here", "*.jsonl"))
	if err != nil || len(segments) < 5 {
		t.Fatal(segments, err)
	}
	for _, s := range segments[:3] {
		if err := os.Remove(s); err != nil {
			t.Fatal(err)
		}
	}
	x, stop = w.begin()
	w.caughtUp(x)
	var want []string
	for _, c := range merged(t, w.root()) {
		if c.Kind == audit.KindOutcome {
			want = append(want, c.DecisionID)
		}
	}
	var got []string
	for deadline := time.Now().Add(patience); !slices.Equal(got, want) && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		got = w.found(x, index.Query{})
	}
	if !slices.Equal(got, want) || len(want) > 19 {
		t.Errorf("%q, want %q", got, want)
	}
	stop()
	o, closeDB, err := options(w.dir)
	if err != nil {
		t.Fatal(err)
	}
	defer closeDB()
	if o.DB == nil {
		o.DB = mustOpen(t, o.File)
		defer o.DB.Close()
	}
	if err := index.Forget(t.Context(), o.DB, []audit.Earlier{{Instance: "here"}}); err != nil {
		t.Fatal(err)
	}
	var blocks, parts int
	if err := o.DB.Read.QueryRow("SELECT (SELECT count(*) FROM call_blocks), (SELECT count(*) FROM call_parts)").Scan(&blocks, &parts); err != nil || blocks+parts > 0 {
		t.Errorf("%d blocks and %d parts are left, %v", blocks, parts, err)
	}
}

// A call that lasts is there without an outcome, and once when it has ended; one whose process has
// ended stays without.
func TestCallsWithoutOutcome(t *testing.T) {
	w := newWorld(t)
	l := w.chain(audit.Options{})
	lasting := audit.Record{DecisionID: "dec_lasting", Time: epoch, Arguments: []byte(`{"a":1}`), Principal: audit.Principal{Subject: "a"}}
	write(t, l, audit.KindDecision, &lasting)
	dead := w.chain(audit.Options{})
	write(t, dead, audit.KindDecision, &audit.Record{DecisionID: "dec_dead", Time: epoch.Add(time.Second), Arguments: []byte(`{"a":1}`)})
	if err := dead.Close(); err != nil {
		t.Fatal(err)
	}
	x, _ := w.begin()
	w.caughtUp(x)
	want := []string{"dec_dead ", "dec_lasting "}
	check := func() {
		t.Helper()
		page, err := x.Search(t.Context(), index.Query{Argument: "/a=1"})
		var got []string
		for _, c := range page.Calls {
			got = append(got, c.ID+" "+c.Outcome)
		}
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%v (-want +got):\n%s", err, diff)
		}
	}
	for deadline := time.Now().Add(patience); len(w.found(x, index.Query{})) < 2 && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
	}
	check()
	end := lasting
	end.Arguments, end.Outcome, end.Time = nil, audit.Allowed, epoch.Add(time.Minute)
	write(t, l, audit.KindOutcome, &end)
	for deadline := time.Now().Add(patience); len(w.found(x, index.Query{Outcome: "allowed"})) < 1 && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
	}
	want[1] = "dec_lasting allowed"
	check()
}

// Several processes on one trail: one writes, all search, and another one continues.
func TestOneWriter(t *testing.T) {
	w := newWorld(t)
	l := w.chain(audit.Options{})
	a, stop := w.begin()
	w.call(l, nil)
	w.caughtUp(a)
	b, _ := w.begin()
	for deadline := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		page, err := b.Search(t.Context(), index.Query{})
		if err == nil && len(page.Calls) == 1 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(page, err)
		}
	}
	stop()
	w.call(l, nil)
	for deadline := time.Now().Add(patience); len(w.found(b, index.Query{})) < 2; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("nobody continues")
		}
	}
	if strings.Contains(w.log.String(), "ERROR") {
		t.Error(w.log.String())
	}
}

// What a writer that has ended said of itself does not hold for what was recorded after it.
func TestBehindAfterTheWriterHasEnded(t *testing.T) {
	w := newWorld(t)
	l := w.chain(audit.Options{})
	x, stop := w.begin()
	w.caughtUp(x)
	stop()
	w.any(rand.New(rand.NewPCG(1, 1)), l)
	lock, err := os.OpenFile(filepath.Join(w.dir, "lock"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := files.TryLock(lock); err != nil { // the next index cannot write
		t.Fatal(err)
	}
	x, _ = w.begin()
	for deadline := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		page, err := x.Search(t.Context(), index.Query{})
		if errors.Is(err, index.ErrStarting) && time.Now().Before(deadline) {
			continue
		}
		if err != nil || page.BehindMS == 0 {
			t.Errorf("an index without a writer is behind by %d ms (%v)", page.BehindMS, err)
		}
		return
	}
}

// An index is behind until its own trail has a writer, also where another replica has all of its records.
func TestBehindBeforeTheWriterBegins(t *testing.T) {
	if !postgres.Used() {
		return
	}
	w := newWorld(t)
	w.call(w.chain(audit.Options{}), nil)
	x, _ := w.begin()
	w.caughtUp(x)
	lock, err := os.Create(filepath.Join(t.TempDir(), "lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := files.TryLock(lock); err != nil { // the other index cannot write
		t.Fatal(err)
	}
	y, _ := w.begin(func(o *index.Options) { o.Owner, o.Lock = "other", lock.Name() })
	for deadline := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		page, err := y.Search(t.Context(), index.Query{})
		if errors.Is(err, index.ErrStarting) && time.Now().Before(deadline) {
			continue
		}
		if err != nil || page.BehindMS == 0 {
			t.Errorf("an index without a writer, beside one that has all, is behind by %d ms (%v)", page.BehindMS, err)
		}
		return
	}
}

func TestFollow(t *testing.T) {
	w := newWorld(t)
	l := w.chain(audit.Options{})
	now := func() time.Time { return epoch.Add(time.Minute) }
	x, _ := w.begin(func(o *index.Options) { o.Now = now })
	w.call(l, nil)
	for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		page, err := x.Search(t.Context(), index.Query{})
		if err == nil && len(page.Calls) == 1 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	all, denied := x.Follow(ctx, index.Query{}), x.Follow(ctx, index.Query{Outcome: "denied", Text: "go"})
	var want []string
	for i := range 20 {
		id := w.call(l, func(r *audit.Record) {
			if i%2 == 0 {
				r.Outcome = audit.Denied
			}
		})
		want = append(want, id)
	}
	var got []string
	for c, err := range all {
		if err != nil {
			t.Fatal(err)
		}
		if c.Outcome == "" { // it was read between its records, and comes again
			continue
		}
		if got = append(got, c.ID); len(got) == len(want) {
			break
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	got = nil
	for c, err := range denied {
		if err != nil || c.Outcome != "denied" {
			t.Fatal(c, err)
		}
		if got = append(got, c.ID); len(got) == len(want)/2 {
			stop()
		}
	}
	if len(got) != 10 {
		t.Errorf("%q", got)
	}
	for _, err := range x.Follow(t.Context(), index.Query{Argument: "x"}) {
		if !errors.Is(err, index.ErrQuery) {
			t.Error(err)
		}
	}
}

// A reader that does not keep up is dropped, and keeps no call from the others.
func TestSlowReader(t *testing.T) {
	if postgres.Used() && shortOrSoak(0, 1) == 0 {
		return
	}
	w := newWorld(t)
	l := w.chain(audit.Options{})
	x, _ := w.begin(func(o *index.Options) { o.Now = func() time.Time { return epoch.Add(time.Minute) } })
	w.call(l, nil)
	for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		if page, err := x.Search(t.Context(), index.Query{}); err == nil && len(page.Calls) == 1 {
			break
		} else if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	slow := x.Follow(t.Context(), index.Query{})
	next, stop := iter.Pull2(x.Follow(t.Context(), index.Query{}))
	defer stop()
	for range 5 {
		for range 2000 {
			w.call(l, func(r *audit.Record) { r.Outcome = audit.Denied })
		}
		for range 2000 {
			if c, err, ok := next(); !ok || err != nil || c.Outcome != "denied" {
				t.Fatal(c, err, ok)
			}
		}
	}
	n, last := 0, error(nil)
	for _, err := range slow {
		n, last = n+1, err
	}
	if !errors.Is(last, index.ErrSlow) || n >= 10_000 {
		t.Errorf("the slow reader got %d calls, then %v", n, last)
	}
}

// With a server, every replica searches and follows the calls of all, and says how far the worst is
// behind. Each rebuilds its own part.
func TestReplicas(t *testing.T) {
	if !postgres.Used() {
		return
	}
	w := newWorld(t)
	other := &world{t: t, dir: t.TempDir(), n: 100}
	elsewhere := func(o *index.Options) {
		o.Trail, o.Owner, o.Lock = other.root(), "other", filepath.Join(other.dir, "lock")
	}
	mine, theirs := w.chain(audit.Options{Instance: "mine"}), other.chain(audit.Options{Instance: "theirs"})
	a, _ := w.begin()
	b, stop := w.begin(elsewhere)
	want := []string{other.call(theirs, nil), w.call(mine, nil)}
	w.caughtUp(a)
	w.caughtUp(b)
	for _, x := range []*index.Index{a, b} {
		for deadline := time.Now().Add(patience); !slices.Equal(w.found(x, index.Query{}), want); time.Sleep(5 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%q", w.found(x, index.Query{}))
			}
		}
	}
	if whole, err := a.Call(t.Context(), want[0]); err != nil || whole.Missing != 2 || whole.Call.Instance != "theirs" {
		t.Errorf("a call of another replica: %+v, %v", whole, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	coming := a.Follow(ctx, index.Query{})
	id := other.call(theirs, func(r *audit.Record) { r.Time = epoch.Add(10 * time.Hour) })
	for c, err := range coming {
		if err != nil || c.ID != id {
			t.Errorf("followed %s, %v, want %s", c.ID, err, id)
		}
		cancel()
	}
	stop()
	o, closeDB, err := options(w.dir)
	if err != nil {
		t.Fatal(err)
	}
	defer closeDB()
	if _, err := o.DB.Write.Exec("UPDATE call_writers SET behind = ? WHERE owner = 'other'", int64(9*time.Second)); err != nil {
		t.Fatal(err)
	}
	if page, err := a.Search(t.Context(), index.Query{}); err != nil || page.BehindMS < 9000 {
		t.Errorf("behind by %d ms, %v", page.BehindMS, err)
	}
	elsewhere(&o)
	if n, err := index.New(o).Rebuild(t.Context(), nil); err != nil || n != 2 {
		t.Errorf("%d calls, %v", n, err)
	}
	if got := w.found(a, index.Query{}); !slices.Equal(got, append([]string{id}, want...)) {
		t.Errorf("after a rebuild: %q", got)
	}
}
