package stop_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/internal/testkit/postgres"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/stop"
)

func TestMain(m *testing.M) {
	code := postgres.Run(m)
	if err := goleak.Find(); code == 0 && err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// All tests of the package, with a server.
func TestOnPostgreSQL(t *testing.T) { postgres.Again(t) }

// patience is how long tests wait for confirmations.
const patience = 2 * time.Second

// A node is one process on a state.
type node struct {
	*stop.Stops
	db      *store.DB
	changes atomic.Int64
	end     func()
}

// openNode opens the state in a directory, and follows its stops until the test or end ends.
func openNode(t *testing.T, dir, id string, now func() time.Time) *node {
	t.Helper()
	db, err := postgres.State(t.Context(), filepath.Join(dir, "state.db"))
	if err != nil {
		t.Fatal(err)
	}
	return follow(t, db, id, now)
}

func follow(t *testing.T, db *store.DB, id string, now func() time.Time) *node {
	t.Helper()
	held, err := db.Instances("").Hold(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	n := &node{db: db}
	if n.Stops, err = stop.Open(t.Context(), stop.Options{DB: db, Instance: id, Now: now, Patience: patience}); err != nil {
		t.Fatal(err)
	}
	n.OnChange(func() { n.changes.Add(1) })
	ctx, cancel := context.WithCancel(context.Background())
	var following sync.WaitGroup
	following.Go(func() { n.Follow(ctx) })
	n.end = sync.OnceFunc(func() {
		cancel()
		following.Wait()
		_ = held.Close() // the server may be gone
		_ = db.Close()
	})
	t.Cleanup(n.end)
	return n
}

func (n *node) add(t *testing.T, kind stop.Kind, name string, until time.Time) stop.State {
	t.Helper()
	s, err := n.Add(t.Context(), stop.Stop{Kind: kind, Name: name, Reason: "incident 7", By: "ann", Until: until})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// await waits until a condition holds.
func await(t *testing.T, within time.Duration, what string, holds func() bool) {
	t.Helper()
	for late, look := time.After(within), time.NewTicker(5*time.Millisecond); !holds(); {
		select {
		case <-look.C:
		case <-late:
			t.Fatalf("not within %v: %s", within, what)
		}
	}
}

var agent = policy.Principal{Subject: "agent-7", Person: "ann", Roles: []string{"researcher", "writer"}}

// TestWhatIsStopped is the rule: each kind stops what it names, and nothing else.
func TestWhatIsStopped(t *testing.T) {
	n := openNode(t, t.TempDir(), "ins_1", nil)
	for _, tt := range []struct {
		kind    stop.Kind
		name    string
		stopped bool
	}{
		{stop.Principal, "agent-7", true},
		{stop.Principal, "ann", true}, // whose agent it is
		{stop.Principal, "agent", false},
		{stop.Principal, "researcher", false},
		{stop.Role, "writer", true},
		{stop.Role, "ann", false},
		{stop.Tool, "web__search", true},
		{stop.Tool, "search", false},
		{stop.Tool, "web", false},
		{stop.Server, "web", true},
		{stop.Server, "web__search", false},
		{stop.All, "", true},
	} {
		s := n.add(t, tt.kind, tt.name, time.Time{})
		found := n.Find(&agent, "web", "web__search")
		if (found != nil) != tt.stopped || found != nil && *found != s.Stop {
			t.Errorf("%s %q: stopped by %+v, want %v", tt.kind, tt.name, found, tt.stopped)
		}
		if err := n.Resume(t.Context(), s.ID); err != nil {
			t.Error(err)
		}
		if found = n.Find(&agent, "web", "web__search"); found != nil {
			t.Errorf("%s %q: stopped after it was resumed by %+v", tt.kind, tt.name, found)
		}
	}
	if err := n.Resume(t.Context(), "stp_unknown"); !errors.Is(err, stop.ErrNotFound) {
		t.Errorf("resuming what is not stopped: %v", err)
	}
}

func TestWhatCannotBeStopped(t *testing.T) {
	n := openNode(t, t.TempDir(), "ins_1", nil)
	for _, s := range []stop.Stop{
		{Kind: "team", Name: "a", Reason: "r"},
		{Kind: stop.All, Name: "a", Reason: "r"},
		{Kind: stop.Role, Reason: "r"},
		{Kind: stop.Role, Name: "a"},
		{Kind: stop.Role, Name: strings.Repeat("a", 257), Reason: "r"},
		{Kind: stop.Role, Name: "a", Reason: strings.Repeat("r", 1001)},
		{Kind: stop.Role, Name: "\xff", Reason: "r"},
	} {
		if _, err := n.Add(t.Context(), s); !errors.Is(err, stop.ErrInvalid) {
			t.Errorf("%+v: %v", s, err)
		}
	}
	if all := n.InForce(); len(all) != 0 {
		t.Errorf("in force: %+v", all)
	}
}

// A kind that only a later version knows stops everything: otherwise this version would let pass
// what that one has stopped.
func TestAKindOfALaterVersion(t *testing.T) {
	dir := t.TempDir()
	n := openNode(t, dir, "ins_1", nil)
	if _, err := n.db.Write.ExecContext(t.Context(), "INSERT INTO stops (id, kind, name, reason, subject, at, until) VALUES ('stp_1', 'team', 'x', 'r', 'ann', 1, 0)"); err != nil {
		t.Fatal(err)
	}
	await(t, 20*time.Second, "it is stopped", func() bool { return n.Find(&policy.Principal{Subject: "b"}, "", "") != nil })
}

// Other processes enforce a stop at once, and so do processes that start later. All confirm it.
func TestOtherProcesses(t *testing.T) {
	dir := t.TempDir()
	one, two := openNode(t, dir, "ins_1", nil), openNode(t, dir, "ins_2", nil)
	s := one.add(t, stop.Role, "writer", time.Time{})
	if len(s.Confirmed) != 2 || len(s.Waiting) != 0 || two.Find(&agent, "", "") == nil {
		t.Errorf("not within %v: %+v", patience, s)
	}
	if two.changes.Load() != 1 {
		t.Errorf("the other process was told of %d changes", two.changes.Load())
	}
	two.end()
	again := openNode(t, dir, "ins_3", nil)
	if found := again.Find(&agent, "", ""); found == nil || *found != s.Stop {
		t.Errorf("after a restart: %+v", found)
	}
	if err := again.Resume(t.Context(), s.ID); err != nil {
		t.Fatal(err)
	}
	await(t, 20*time.Second, "the other process resumes", func() bool { return one.Find(&agent, "", "") == nil })
}

// A process that is there and does not confirm, as one of an older version, is named.
func TestWhoHasNotConfirmed(t *testing.T) {
	dir := t.TempDir()
	n := openNode(t, dir, "ins_1", nil)
	silent, err := n.db.Instances("").Hold(t.Context(), "ins_silent")
	if err != nil {
		t.Fatal(err)
	}
	state := n.add(t, stop.All, "", time.Time{})
	if !slices.Equal(state.Confirmed, []string{store.Who()}) || !slices.Equal(state.Waiting, []string{store.Who()}) {
		t.Errorf("%+v", state)
	}
	if err := silent.Close(); err != nil {
		t.Fatal(err)
	}
	if all, err := n.List(t.Context()); err != nil || len(all) != 1 || len(all[0].Waiting) != 0 {
		t.Errorf("once it has ended: %+v, %v", all, err)
	}
}

// A stop with an end ends by itself, whether or not the store can be read.
func TestItEndsByItself(t *testing.T) {
	var passed atomic.Int64
	now := func() time.Time { return time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC).Add(time.Duration(passed.Load())) }
	n := openNode(t, t.TempDir(), "ins_1", now)
	s := n.add(t, stop.All, "", now().Add(time.Hour))
	passed.Store(int64(time.Hour - 1))
	if n.Find(&agent, "", "") == nil || len(n.InForce()) != 1 {
		t.Error("it has ended too early")
	}
	passed.Store(int64(time.Hour))
	if n.Find(&agent, "", "") != nil || len(n.InForce()) != 0 {
		t.Error("it has not ended")
	}
	if all, err := n.List(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("%v, %v", all, err)
	}
	n.add(t, stop.Role, "a", time.Time{})
	var rows int
	if err := n.db.Read.QueryRowContext(t.Context(), "SELECT count(*) FROM stops WHERE id = ?", s.ID).Scan(&rows); err != nil || rows != 0 {
		t.Errorf("the store keeps %d rows of what is over, %v", rows, err)
	}
}

// While the store is away, what was stopped stays so, and the process says that it cannot know more.
func TestTheStoreIsAway(t *testing.T) {
	s := postgres.Started(t)
	address, err := s.Database(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	open := func(id string) *node {
		db, err := store.OpenPostgres(t.Context(), address, store.PostgresMigrations())
		if err != nil {
			t.Fatal(err)
		}
		return follow(t, db, id, nil)
	}
	one, two := open("ins_1"), open("ins_2")
	one.add(t, stop.Role, "writer", time.Time{})
	await(t, 20*time.Second, "the other replica stops", func() bool { return two.Find(&agent, "", "") != nil })
	s.Kill()
	await(t, 20*time.Second, "the replica says so", func() bool { return two.Unread() > 0 })
	if two.Find(&agent, "", "") == nil {
		t.Error("it was forgotten")
	}
	if _, err := one.Add(t.Context(), stop.Stop{Kind: stop.All, Reason: "r"}); err == nil {
		t.Error("stopped in a store that is away")
	}
	if err := s.Restart(); err != nil {
		t.Fatal(err)
	}
	await(t, 20*time.Second, "the store is read again", func() bool { return two.Unread() == 0 })
	if two.Find(&agent, "", "") == nil {
		t.Error("it was forgotten")
	}
}

// Without the stops of its store, no process serves.
func TestStopsThatCannotBeRead(t *testing.T) {
	n := openNode(t, t.TempDir(), "ins_1", nil)
	n.end()
	if _, err := stop.Open(t.Context(), stop.Options{DB: n.db, Instance: "ins_2"}); err == nil {
		t.Error("opened without its store")
	}
}
