package decisionlog_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"go.uber.org/goleak"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/ship/decisionlog"
	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/internal/testkit/postgres"
)

// All tests of the package, with a server.
func TestOnPostgreSQL(t *testing.T) { postgres.Again(t) }

func TestMain(m *testing.M) {
	if inChild() {
		child()
	}
	goleak.VerifyTestMain(m)
}

// patience bounds what a test waits for.
const patience = 30 * time.Second

// world is one state directory: a store, and a trail that this process writes to.
type world struct {
	t     testing.TB
	dir   string
	db    *store.DB
	trail *audit.Log
	log   logged

	mu      sync.Mutex // protects the fields below
	decided int
	seen    map[string]int // sink and outcome ⇒ how many
}

func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{t: t, dir: t.TempDir(), seen: map[string]int{}}
	w.db = w.open()
	w.trail = w.chain()
	return w
}

func (w *world) open() *store.DB {
	w.t.Helper()
	db, err := postgres.State(w.t.Context(), filepath.Join(w.dir, "state.db"))
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = db.Close() })
	return db
}

// chain begins a chain of the trail. What is in it is vouched for soon.
func (w *world) chain() *audit.Log {
	w.t.Helper()
	l, err := audit.Open(filepath.Join(w.dir, "audit"), audit.Options{Durability: audit.OS, Checkpoint: 5 * time.Millisecond})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = l.Close() })
	return l
}

// decide records n decisions and their outcomes, and gives the ids of the first.
func (w *world) decide(n int) (ids []string) {
	w.t.Helper()
	for range n {
		w.mu.Lock()
		w.decided++
		id := fmt.Sprintf("dec-%06d", w.decided)
		w.mu.Unlock()
		w.record(record(0, id))
		ids = append(ids, id)
	}
	return ids
}

func (w *world) record(r *audit.Record) {
	w.t.Helper()
	r.CallID = r.DecisionID
	if err := w.trail.Write(audit.KindDecision, r); err != nil {
		w.t.Fatal(err)
	}
	end := *r
	end.Input, end.Arguments, end.Outcome = nil, nil, audit.Allowed
	if err := w.trail.Write(audit.KindOutcome, &end); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) options(db *store.DB) decisionlog.Options {
	return decisionlog.Options{
		DB: db, Trail: filepath.Join(w.dir, "audit"), Instances: filepath.Join(w.dir, "instances"), Mask: unmasked,
		Poll: 5 * time.Millisecond, Retry: 10 * time.Millisecond, Observe: w.observe,
		Log: hclog.New(&hclog.LoggerOptions{Output: &w.log, Level: hclog.Trace}),
	}
}

func (w *world) observe(sink string, o decisionlog.Outcome, n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seen[sink+" "+string(o)] += n
}

func (w *world) count(what string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.seen[what]
}

// shipper tells the sinks of c until the test ends.
func (w *world) shipper(c decisionlog.Config) *decisionlog.Shipper {
	w.t.Helper()
	return w.shipperWith(w.options(w.db), c)
}

func (w *world) shipperWith(o decisionlog.Options, c decisionlog.Config) *decisionlog.Shipper {
	w.t.Helper()
	s := decisionlog.Open(o)
	if err := s.Apply(w.t.Context(), c); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { w.end(s) })
	return s
}

// end ends a shipper at once.
func (w *world) end(s *decisionlog.Shipper) {
	ctx, stop := context.WithCancel(context.Background())
	stop()
	s.Close(ctx) // the test may have closed it
}

// caughtUp waits until a sink is behind with nothing.
func (w *world) caughtUp(s *decisionlog.Shipper, sink string) {
	w.t.Helper()
	until(w.t, sink+" has caught up", func() bool {
		lag, err := s.Lag(w.t.Context(), sink)
		return err == nil && lag == 0
	})
}

// trouble is what the only sink of s has not been told.
func (w *world) trouble(s *decisionlog.Shipper) decisionlog.Trouble {
	w.t.Helper()
	all, err := s.Troubles(w.t.Context())
	if err != nil || len(all) != 1 {
		w.t.Fatal(all, err)
	}
	return all[0]
}

func until(t testing.TB, what string, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(patience); time.Now().Before(end); <-tick.C {
		if holds() {
			return
		}
	}
	t.Fatalf("never: %s", what)
}

// logged is what was logged.
type logged struct {
	mu   sync.Mutex // protects text
	text bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// fakeCollector is a collector that keeps the events that it accepts.
type fakeCollector struct {
	*httptest.Server
	t testing.TB

	mu     sync.Mutex             // protects the fields below
	answer func(ids []string) int // status; nil = 200
	chunks [][]string             // ids of those that were taken
	heads  []http.Header          // of all
	tries  int
}

func newFakeCollector(t testing.TB, answer func(ids []string) int) *fakeCollector {
	d := &fakeCollector{t: t, answer: answer}
	d.Server = httptest.NewServer(d)
	t.Cleanup(func() {
		d.CloseClientConnections()
		d.Close()
	})
	return d
}

func (d *fakeCollector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ids := d.read(r)
	d.mu.Lock()
	d.tries++
	d.heads = append(d.heads, r.Header.Clone())
	answer := d.answer
	d.mu.Unlock()
	status := http.StatusOK
	if answer != nil {
		status = answer(ids)
	}
	if status < 300 {
		d.mu.Lock()
		d.chunks = append(d.chunks, ids)
		d.mu.Unlock()
	}
	w.WriteHeader(status)
}

// read unpacks a chunk as OPA's own decoder does.
func (d *fakeCollector) read(r *http.Request) (ids []string) {
	z, err := gzip.NewReader(r.Body)
	if err != nil {
		d.t.Error(err)
		return nil
	}
	text, err := io.ReadAll(z)
	var events []json.RawMessage
	if err == nil {
		err = json.Unmarshal(text, &events)
	}
	if err != nil {
		d.t.Error(err)
	}
	for _, e := range events {
		ids = append(ids, asOPA(d.t, e).DecisionID)
	}
	return ids
}

func (d *fakeCollector) reply(answer func(ids []string) int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.answer = answer
}

// taken are the ids of what was taken, in order.
func (d *fakeCollector) taken() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Concat(d.chunks...)
}

func (d *fakeCollector) tried() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.tries
}

func status(code int) func([]string) int { return func([]string) int { return code } }
