package shadow_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/internal/testkit/postgres"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/judgement"
	"github.com/toolgate/toolgate/policy/rejudge/shadow"
)

// bench is a worker over a trail of its own, which a test writes.
type bench struct {
	*shadow.Worker
	t     *testing.T
	db    *store.DB
	trail *audit.Log
	stop  func() // ends the worker and waits for it

	mu   sync.Mutex // protects the fields below
	seen map[shadow.Outcome]int
	now  func() time.Time
}

// All tests of the package, with a server.
func TestOnPostgreSQL(t *testing.T) { postgres.Again(t) }

func newBench(t *testing.T) *bench {
	t.Helper()
	dir := t.TempDir()
	b := &bench{t: t, seen: map[shadow.Outcome]int{}, now: time.Now}
	var err error
	if b.db, err = postgres.State(t.Context(), filepath.Join(dir, "state.db")); err != nil {
		t.Fatal(err)
	}
	root := filepath.Join(dir, "audit")
	if b.trail, err = audit.Open(root, audit.Options{Durability: audit.OS, Checkpoint: time.Millisecond}); err != nil {
		t.Fatal(err)
	}
	b.Worker = shadow.New(shadow.Options{DB: b.db, Trail: root, Poll: time.Millisecond,
		Observe: func(o shadow.Outcome) { b.mu.Lock(); b.seen[o]++; b.mu.Unlock() },
		Now:     func() time.Time { b.mu.Lock(); defer b.mu.Unlock(); return b.now() },
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- b.Run(ctx) }()
	b.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { b.stop(); b.trail.Close(); b.db.Close() })
	return b
}

// record is what a gate leaves of a call of tool that was let pass.
func record(id, tool string) *audit.Record {
	in := &policy.Input{Principal: policy.Principal{Subject: "ann"}, Tool: policy.Tool{Exposed: tool}, Arguments: json.RawMessage(`{}`), Request: policy.Request{Time: time.Now()}}
	r := &audit.Record{DecisionID: id, CallID: id, Principal: audit.Principal{Subject: "ann"}, Exposed: tool, Arguments: in.Arguments,
		Policy: audit.Policy{Effect: "allow", Rule: "A", Revision: "sha256:old"}}
	r.Input = judgement.EncodeInput(in, r)
	return r
}

func (b *bench) write(records ...*audit.Record) {
	b.t.Helper()
	for _, r := range records {
		if err := b.trail.Write(audit.KindOutcome, r); err != nil {
			b.t.Fatal(err)
		}
	}
}

// until waits until ok.
func (b *bench) until(what string, ok func() bool) {
	b.t.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); {
		if time.Now().After(end) {
			b.t.Fatalf("waited in vain for %s: %+v", what, b.Status())
		}
		time.Sleep(time.Millisecond)
	}
}

func (b *bench) counted(o shadow.Outcome) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.seen[o]
}

// judge is a candidate that denies one tool.
type judge struct {
	revision string
	denies   string
	meters   []policy.Meter
	before   func(context.Context) error // what it does before it answers
}

func (j judge) Revision() string                  { return j.revision }
func (j judge) Meters(policy.Tool) []policy.Meter { return j.meters }
func (j judge) Decide(ctx context.Context, in *policy.Input) (policy.Decision, error) {
	if j.before != nil {
		if err := j.before(ctx); err != nil {
			return policy.Decision{Effect: policy.Deny, Rule: judgement.RuleFailed, Revision: j.revision}, err
		}
	}
	if in.Tool.Exposed == j.denies {
		return policy.Decision{Effect: policy.Deny, Rule: "B", Reason: "because", Revision: j.revision}, nil
	}
	return policy.Decision{Effect: policy.Allow, Rule: "A", Revision: j.revision}, nil
}

func TestWhatIsDecidedFromNowOn(t *testing.T) {
	b := newBench(t)
	b.write(record("dec_0", "bad")) // before anybody asked
	b.Set(judge{revision: "sha256:new", denies: "bad"})
	b.until("the first", func() bool { // it begins at the end of the trail, a moment after it is set
		b.write(record("dec_1", "good"))
		return b.counted(shadow.Same) > 0
	})
	b.write(record("dec_2", "bad"), &audit.Record{DecisionID: "dec_3", CallID: "c"})
	b.write(record("dec_4", "bad"))
	b.until("what is changed", func() bool { return b.counted(shadow.Changed) == 2 })
	b.stop()
	list, err := shadow.List(t.Context(), b.db, "", time.Time{}, "", 10)
	if err != nil || len(list) != 2 {
		t.Fatalf("got %+v, %v", list, err)
	}
	at := list[1].At
	want := shadow.Disagreement{Candidate: "sha256:new", DecisionID: "dec_2", At: at, Serving: "sha256:old", Principal: "ann", Tool: "bad",
		Difference: judgement.ByEffect, Was: judgement.Verdict{Effect: policy.Allow, Rule: "A"}, Now: judgement.Verdict{Effect: policy.Deny, Rule: "B"}, Reason: "because"}
	if diff := cmp.Diff(want, list[1]); diff != "" || list[0].DecisionID != "dec_4" {
		t.Errorf("latest %s (-want +got):\n%s", list[0].DecisionID, diff)
	}
	if since, err := shadow.List(t.Context(), b.db, "sha256:new", list[0].At, "", 10); err != nil || len(since) != 1 {
		t.Errorf("since the last: %+v, %v", since, err)
	}
	if after, err := shadow.List(t.Context(), b.db, "sha256:new", time.Time{}, "dec_4", 10); err != nil || len(after) != 1 || after[0].DecisionID != "dec_2" {
		t.Errorf("after the latest: %+v, %v", after, err)
	}
	if other, err := shadow.List(t.Context(), b.db, "sha256:other", time.Time{}, "", 10); err != nil || len(other) != 0 {
		t.Errorf("of another: %+v, %v", other, err)
	}
	totals, err := shadow.Totals(t.Context(), b.db)
	if err != nil || len(totals) != 1 || totals[0].Changed != 2 || totals[0].Same != b.counted(shadow.Same) || totals[0].Candidate != "sha256:new" {
		t.Errorf("totals %+v, %v", totals, err)
	}
	if s := b.Status(); s.Changed != 2 || s.Candidate != "sha256:new" || s.Faults != nil {
		t.Errorf("status %+v", s)
	}
}

func TestWhatIsNotAsked(t *testing.T) {
	b := newBench(t)
	b.Set(judge{revision: "sha256:new", meters: []policy.Meter{{Name: "day"}}})
	b.until("what it counts otherwise", func() bool { b.write(record("dec_1", "x")); return b.counted(shadow.Skipped) > 0 })
	b.Set(judge{revision: "sha256:newer"})
	b.until("the newer one", func() bool { b.write(record("dec_2", "x")); return b.counted(shadow.Same) > 0 })
	broken, old := record("dec_3", "x"), record("dec_4", "x")
	broken.Policy.Effect, broken.Policy.Rule = "deny", judgement.RuleFailed
	old.Input = nil
	before := b.counted(shadow.Skipped)
	b.write(broken, old)
	b.until("what cannot be compared", func() bool { return b.counted(shadow.Skipped) == before+2 })
	b.mu.Lock()
	b.now = func() time.Time { return time.Now().Add(2 * time.Minute) }
	b.mu.Unlock()
	b.write(record("dec_5", "x"))
	b.until("what is too old", func() bool { return b.counted(shadow.Skipped) == before+3 })
	if b.counted(shadow.Changed)+b.counted(shadow.Failed) != 0 {
		t.Errorf("counted %v", b.seen)
	}
}

func TestACandidateThatFails(t *testing.T) {
	b := newBench(t)
	b.Set(judge{revision: "sha256:new", before: func(context.Context) error { return errors.New("planted") }})
	b.until("a failure", func() bool { b.write(record("dec_1", "x")); return b.counted(shadow.Failed) > 0 })
	b.stop()
	list, err := shadow.List(t.Context(), b.db, "", time.Time{}, "", 10)
	if err != nil || len(list) != 1 || list[0].Now.Rule != judgement.RuleFailed {
		t.Errorf("got %+v, %v", list, err)
	}
}

// The trail is all that a gate and the worker share: however long a candidate
// takes, what is recorded is recorded.
func TestACandidateThatHangsHoldsNobodyUp(t *testing.T) {
	b := newBench(t)
	entered, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	b.Set(judge{revision: "sha256:new", before: func(ctx context.Context) error {
		once.Do(func() { close(entered) })
		select {
		case <-release:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}})
	b.until("it to be asked", func() bool {
		b.write(record("dec_0", "x"))
		select {
		case <-entered:
			return true
		default:
			return false
		}
	})
	for i := range 2000 {
		b.write(record(fmt.Sprint("dec_", i+1), "x"))
	}
	if n := b.counted(shadow.Same); n != 0 {
		t.Fatalf("%d were judged by one that hangs", n)
	}
	close(release)
	b.until("it to catch up", func() bool { return b.counted(shadow.Same) >= 2000 })
}

// It hangs for good, and everything still ends.
func TestAnEndWithACandidateThatHangs(t *testing.T) {
	b := newBench(t)
	entered := make(chan struct{})
	var once sync.Once
	hang := judge{revision: "sha256:new", before: func(ctx context.Context) error {
		once.Do(func() { close(entered) })
		<-ctx.Done()
		return ctx.Err()
	}}
	b.Set(hang)
	b.until("it to be asked", func() bool {
		b.write(record("dec_0", "x"))
		select {
		case <-entered:
			return true
		default:
			return false
		}
	})
	b.Set(nil) // takes it off what it hangs in
	if s := b.Status(); s.Candidate != "" {
		t.Errorf("status %+v", s)
	}
	b.Set(judge{revision: "sha256:newer"})
	b.until("another one", func() bool { b.write(record("dec_1", "x")); return b.counted(shadow.Same) > 0 })
	b.stop()
	if b.counted(shadow.Failed) != 0 {
		t.Error("what was cut short was counted")
	}
}

// A candidate that is slow rests four times as long as it takes.
func TestTheRest(t *testing.T) {
	b := newBench(t)
	var mu sync.Mutex
	var begun []time.Time
	const takes, times = 20 * time.Millisecond, 5
	b.Set(judge{revision: "sha256:new", before: func(ctx context.Context) error {
		mu.Lock()
		begun = append(begun, time.Now())
		mu.Unlock()
		select {
		case <-time.After(takes):
		case <-ctx.Done():
		}
		return nil
	}})
	asked := func() int { mu.Lock(); defer mu.Unlock(); return len(begun) }
	b.until("it to be asked", func() bool { b.write(record("dec_0", "x")); return asked() > 0 })
	for range times {
		b.write(record("dec_1", "x"))
	}
	b.until("it to be asked again", func() bool { return asked() > times })
	if took := begun[times].Sub(begun[0]); took < times*5*takes {
		t.Errorf("%d judgements of %v took %v", times, takes, took)
	}
}

func TestOneThatIsSetAgainStays(t *testing.T) {
	b := newBench(t)
	b.Set(judge{revision: "sha256:new"})
	b.until("it to be asked", func() bool { b.write(record("dec_0", "x")); return b.counted(shadow.Same) > 0 })
	before := b.Status()
	b.Set(judge{revision: "sha256:new"})
	if s := b.Status(); s.Since != before.Since || s.Same == 0 {
		t.Errorf("got %+v after %+v", s, before)
	}
}

// Disagreements wait for a store that cannot take them, and are bounded then and
// in it.
func TestAStoreThatFails(t *testing.T) {
	b := newBench(t)
	exec := func(statement string) {
		t.Helper()
		if _, err := b.db.Write.ExecContext(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	exec("ALTER TABLE shadow_totals RENAME TO elsewhere")
	b.Set(judge{revision: "sha256:new", denies: "bad"})
	b.until("a fault", func() bool { b.write(record("dec_0", "bad")); return b.Status().Faults != nil })
	for i := range 1000 {
		b.write(record(fmt.Sprint("dec_", i+1), "bad"))
	}
	b.until("the rest", func() bool { return b.Status().Unlisted > 0 && b.counted(shadow.Changed) > 1000 })
	during := b.counted(shadow.Changed)
	exec("ALTER TABLE elsewhere RENAME TO shadow_totals")
	b.until("the end of the fault", func() bool { return b.Status().Faults == nil })
	b.stop()
	totals, err := shadow.Totals(t.Context(), b.db)
	if err != nil || len(totals) != 1 || totals[0].Changed != b.counted(shadow.Changed) {
		t.Errorf("totals %+v, %v; %d were changed", totals, err, b.counted(shadow.Changed))
	}
	list, err := shadow.List(t.Context(), b.db, "", time.Time{}, "", 10_000)
	if later := b.counted(shadow.Changed) - during; err != nil || len(list) == 0 || len(list) > 500+later {
		t.Errorf("%d are listed, %d of them after the fault, %v", len(list), later, err)
	}
}

func TestTheNewestAreKept(t *testing.T) {
	b := newBench(t)
	for _, fill := range []string{
		`INSERT INTO shadow_disagreements SELECT 'c', value, value, '', '', '', 'rule', '', '', '', '', '' FROM generate_series`,
		`INSERT INTO shadow_totals SELECT value, 0, value, 0, 0, 0, 0 FROM generate_series WHERE value < 150`,
	} {
		if _, err := b.db.Write.ExecContext(t.Context(), `WITH RECURSIVE generate_series (value) AS (SELECT 0 UNION ALL SELECT value + 1 FROM generate_series WHERE value < 10049) `+fill); err != nil {
			t.Fatal(err)
		}
	}
	b.Set(judge{revision: "sha256:new", denies: "bad"})
	b.until("one", func() bool { b.write(record("dec_0", "bad")); return b.counted(shadow.Changed) > 0 })
	b.stop()
	list, err := shadow.List(t.Context(), b.db, "", time.Time{}, "", 20_000)
	if err != nil || len(list) != 10_000 || list[0].DecisionID != "dec_0" || list[9_999].DecisionID != "51" {
		t.Errorf("%d are kept, %v", len(list), err)
	}
	totals, err := shadow.Totals(t.Context(), b.db)
	if err != nil || len(totals) != 100 || totals[0].Candidate != "sha256:new" || totals[99].Candidate != "51" {
		t.Errorf("%d totals are kept, %v", len(totals), err)
	}
}
