package index_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"go.uber.org/goleak"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/audit/index"
	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/internal/testkit/postgres"
)

// All tests of the package, with a server.
func TestOnPostgreSQL(t *testing.T) { postgres.Again(t) }

func TestMain(m *testing.M) {
	if os.Getenv(childVar) != "" {
		child()
	}
	goleak.VerifyTestMain(m)
}

// patience bounds what a test waits for.
const patience = 30 * time.Second

// shortOrSoak returns few, or many with TOOLGATE_SOAK=1.
func shortOrSoak(few, many int) int {
	if os.Getenv("TOOLGATE_SOAK") != "" {
		return many
	}
	return few
}

// world is one state directory with a trail.
type world struct {
	t   testing.TB
	dir string
	n   int
	log strings.Builder
}

func newWorld(t testing.TB) *world {
	t.Helper()
	return &world{t: t, dir: t.TempDir()}
}

func (w *world) root() string { return filepath.Join(w.dir, "audit") }

// chain begins a chain of the trail. What is in it is vouched for soon.
func (w *world) chain(o audit.Options) *audit.Log {
	w.t.Helper()
	o.Durability, o.Checkpoint = audit.OS, 5*time.Millisecond
	l, err := audit.Open(w.root(), o)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = l.Close() })
	return l
}

// options are those of an index of the world: in a file, or with a server in a database.
func options(dir string) (index.Options, func(), error) {
	o := index.Options{
		Trail: filepath.Join(dir, "audit"), Owner: "trail", File: filepath.Join(dir, "index", "calls.db"), Lock: filepath.Join(dir, "lock"),
		Poll: 5 * time.Millisecond, Now: func() time.Time { return time.Now().Add(shift) },
	}
	if !postgres.Used() {
		return o, func() {}, nil
	}
	db, err := postgres.State(context.Background(), filepath.Join(dir, "state.db"))
	o.DB = db
	return o, func() { _ = db.Close() }, err
}

// begin runs an index until the end of the test, or until stop.
func (w *world) begin(change ...func(*index.Options)) (x *index.Index, stop func()) {
	w.t.Helper()
	o, closeDB, err := options(w.dir)
	if err != nil {
		w.t.Fatal(err)
	}
	o.Log = hclog.New(&hclog.LoggerOptions{Output: &w.log})
	for _, c := range change {
		c(&o)
	}
	x = index.New(o)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		x.Run(ctx)
	}()
	stop = func() {
		cancel()
		<-done
		closeDB()
	}
	w.t.Cleanup(stop)
	return x, stop
}

// caughtUp waits until the index has all records.
func (w *world) caughtUp(x *index.Index) {
	w.t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		page, err := x.Search(w.t.Context(), index.Query{})
		if err == nil && page.BehindMS == 0 {
			return
		}
		if err != nil && !errors.Is(err, index.ErrStarting) || time.Now().After(deadline) {
			w.t.Fatalf("behind by %d ms, %v; log:\n%s", page.BehindMS, err, &w.log)
		}
	}
}

// found are the IDs of all calls of a query, in pages of some calls.
func (w *world) found(x *index.Index, q index.Query) (ids []string) {
	w.t.Helper()
	for {
		page, err := x.Search(w.t.Context(), q)
		if err != nil {
			w.t.Fatal(err)
		}
		for _, c := range page.Calls {
			ids = append(ids, c.ID)
		}
		if q.Cursor = page.Next; q.Cursor == "" {
			return ids
		}
	}
}

func write(t testing.TB, l *audit.Log, kind audit.Kind, r *audit.Record) {
	t.Helper()
	if err := l.Write(kind, r); err != nil {
		t.Fatal(err)
	}
}

// call records a call with arguments that ended: decision and outcome, or only an outcome when it was refused.
func (w *world) call(l *audit.Log, change func(*audit.Record)) string {
	w.t.Helper()
	w.n++
	r := &audit.Record{
		DecisionID: fmt.Sprintf("dec_%06d", w.n), CallID: fmt.Sprintf("sig_%d", w.n), TraceID: fmt.Sprintf("trc_%d", w.n/2), RequestID: "17",
		Time: epoch.Add(time.Duration(w.n) * time.Second), Principal: audit.Principal{Subject: "agent-7", Person: "ann", Roles: []string{"researcher", "creator"}},
		Server: "standard", Tool: "search", Exposed: "standard__search", Arguments: []byte(`{"query":"Go proxies"}`),
		Policy: audit.Policy{Effect: "allow", Rule: "role"}, Outcome: audit.Allowed, Stage: "close", DurationMS: 12.345,
	}
	if change != nil {
		change(r)
	}
	if r.Outcome == audit.Allowed || r.Outcome == audit.Failed {
		decision := *r
		decision.Outcome, decision.Stage, decision.Code, decision.DurationMS = "", "", "", 0
		write(w.t, l, audit.KindDecision, &decision)
		r.Arguments, r.Time = nil, r.Time.Add(time.Millisecond)
	}
	write(w.t, l, audit.KindOutcome, r)
	return r.DecisionID
}

// epoch is the time of the first call. For an index, it is ten hours ago.
var (
	epoch = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	shift = time.Until(epoch.Add(10 * time.Hour))
)

// any records a call of random members.
func (w *world) any(r *rand.Rand, l *audit.Log) {
	pick := func(texts ...string) string { return texts[r.IntN(len(texts))] }
	w.call(l, func(rec *audit.Record) {
		rec.Principal.Subject, rec.Principal.Person = pick("a", "b", "ä \"c\""), pick("", "ann", "bob")
		rec.Server = pick("files", "web")
		rec.Exposed = rec.Server + "__" + pick("read", "write")
		if r.IntN(5) == 0 { // it took long, or another clock counts
			rec.Time = epoch.Add(time.Duration(r.IntN(w.n)) * time.Second)
		}
		rec.Policy.Rule, rec.Outcome, rec.Code = pick("r1", "r2", ""), audit.Outcome(pick("allowed", "denied", "held", "failed")), pick("", "X", "Y")
		rec.Ticket, rec.ParentID = pick("", "", "apr_1", "apr_2"), pick("", "trc_0")
		if r.IntN(5) == 0 {
			rec.Tags = map[string]string{"arguments": "{}", "x": `","arguments":{"n":1}`}
		}
		rec.Arguments = []byte(fmt.Sprintf(`{"n":%d,"s":%q,"deep":[{"a/b":%s},"%s"]}`, r.IntN(4), pick("Hello World", "hello", "Grüße, WELT", `a "quoted" \ text`),
			pick("true", "null", "1.50", `"ß"`), pick("one two", "two three")))
	})
}

// merged is what the trail has about calls, by decision ID and the newest first.
func merged(t *testing.T, root string) (calls []*audit.Record) {
	t.Helper()
	byID := map[string]*audit.Record{}
	for r, err := range audit.Read(t.Context(), root, time.Time{}) {
		if err != nil {
			t.Fatal(err)
		}
		switch before := byID[r.DecisionID]; {
		case r.Kind != audit.KindDecision && r.Kind != audit.KindOutcome:
		case before != nil:
			r.Arguments, r.Time = before.Arguments, before.Time
			*before = *r
		default:
			byID[r.DecisionID] = r
			calls = append(calls, r)
		}
	}
	slices.SortFunc(calls, func(a, b *audit.Record) int {
		if n := b.Time.Compare(a.Time); n != 0 {
			return n
		}
		return strings.Compare(b.DecisionID, a.DecisionID)
	})
	return calls
}

// mustOpen opens the database of the index, for a test that damages it.
func mustOpen(t *testing.T, file string) *store.DB {
	t.Helper()
	db, err := store.OpenDerived(t.Context(), file, index.Migrations())
	if err != nil {
		t.Fatal(err)
	}
	return db
}
