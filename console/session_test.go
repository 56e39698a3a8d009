package console_test

import (
	"context"
	"database/sql"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/toolgate/toolgate/console"
	"github.com/toolgate/toolgate/internal/keys"
	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/internal/testkit/postgres"
)

func TestOnPostgreSQL(t *testing.T) { postgres.Again(t) }

// fleet is a state with keys, whose replicas are consoles.
type fleet struct {
	t    *testing.T
	db   *store.DB
	keys *keys.Dir
}

func newFleet(t *testing.T) *fleet {
	t.Helper()
	f := &fleet{t: t}
	var err error
	if f.db, err = postgres.State(t.Context(), filepath.Join(t.TempDir(), "sessions.db")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.db.Close() }) // a test may have closed it
	if f.keys, err = keys.Open(t.TempDir()); err != nil {
		t.Fatal(err)
	}
	return f
}

// replica opens a console in a browser without cookies.
func (f *fleet) replica(change func(*console.Options)) *browser {
	f.t.Helper()
	return newBrowser(newListener(f.t, func(o *console.Options) {
		o.Store, o.Keys = f.db, f.keys
		if change != nil {
			change(o)
		}
	}))
}

// at is the browser b at another replica.
func (b *browser) at(other *browser) *browser {
	return &browser{listener: other.listener, host: b.host, cookies: b.cookies}
}

func (f *fleet) exec(statement string, args ...any) {
	f.t.Helper()
	if err := f.db.Update(f.t.Context(), func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, statement, args...)
		return err
	}); err != nil {
		f.t.Fatal(err)
	}
}

func (f *fleet) count() (n int) {
	f.t.Helper()
	if err := f.db.Read.QueryRowContext(f.t.Context(), "SELECT count(*) FROM console_sessions").Scan(&n); err != nil {
		f.t.Fatal(err)
	}
	return n
}

// A session is good at every replica and after a restart, until one of them ends it.
func TestReplicasShareSessions(t *testing.T) {
	f := newFleet(t)
	one, two := f.replica(nil), f.replica(nil)
	ann := one.signIn("t-ann")
	if !ann.at(two).signedIn() {
		t.Fatal("not signed in at another replica")
	}
	one.listener.Console.Close()
	one = f.replica(nil)
	if !ann.at(one).signedIn() {
		t.Fatal("not signed in after a restart")
	}
	was := ann.cookies["__Host-toolgate"]
	if w := ann.at(two).do("POST", "/console/logout", ann.at(one).form("/console/login")); w.Code != 303 {
		t.Fatalf("signing out: %d %s", w.Code, w.Body)
	}
	if ann.cookies["__Host-toolgate"] = was; ann.at(one).signedIn() {
		t.Error("signed in at a replica after signing out at another")
	}
}

// Whoever reads the store can neither send the cookie nor a form.
func TestStoreHasNoSecretOfASession(t *testing.T) {
	f := newFleet(t)
	ann := f.replica(nil).signIn("t-ann")
	secrets := []string{ann.cookies["__Host-toolgate"], ann.form("/console/login").Get("csrf"), "t-ann"}
	rows, err := store.Select(t.Context(), f.db.Read, func(row *[9]string) (to []any) {
		for i := range row {
			to = append(to, &row[i])
		}
		return to
	}, "SELECT * FROM console_sessions")
	if err != nil || len(rows) != 1 {
		t.Fatalf("%v, %v", rows, err)
	}
	for _, secret := range secrets {
		if secret == "" || strings.Contains(fmt.Sprint(rows), secret) {
			t.Errorf("%q is in %v", secret, rows)
		}
	}
}

// Whoever writes to the store but has no key signs nobody in.
func TestForgedSessions(t *testing.T) {
	f := newFleet(t)
	ann := f.replica(nil).signIn("t-ann")
	f.exec("CREATE TABLE written AS SELECT * FROM console_sessions")
	for name, statement := range map[string]string{
		"another subject":    "UPDATE console_sessions SET subject = 'bob'",
		"another principal":  `UPDATE console_sessions SET principal = '{"subject":"ann","roles":["approver","operator"],"scopes":[]}'`,
		"another credential": "UPDATE console_sessions SET credential = ''",
		"another sid":        "UPDATE console_sessions SET sid = 'x'",
		"a later end":        "UPDATE console_sessions SET until = until + 1",
		"a later credential": "UPDATE console_sessions SET credential_until = credential_until + 1",
		"no MAC":             "UPDATE console_sessions SET mac = ''",
		"no key":             "UPDATE console_sessions SET mac = ':' || mac",
		"another version":    "UPDATE console_sessions SET mac = '2' || mac",
	} {
		t.Run(name, func(t *testing.T) {
			f.exec(statement)
			cookie := ann.cookies["__Host-toolgate"]
			if ann.signedIn() {
				t.Error("signed in")
			}
			f.exec("DELETE FROM console_sessions")
			f.exec("INSERT INTO console_sessions SELECT * FROM written")
			if ann.cookies["__Host-toolgate"] = cookie; !ann.signedIn() {
				t.Error("not signed in with the row that was written")
			}
		})
	}
}

// The row of one session does not serve another cookie, nor does one that other keys
// authenticate.
func TestForeignSessions(t *testing.T) {
	f := newFleet(t)
	one := f.replica(nil)
	one.signIn("t-ann")
	bob := newBrowser(one.listener).signIn("t-bob")
	f.exec("UPDATE console_sessions SET id = 'x' || id WHERE subject = 'bob'")
	f.exec("UPDATE console_sessions SET id = (SELECT substr(id, 2) FROM console_sessions WHERE subject = 'bob') WHERE subject = 'ann'")
	if bob.signedIn() {
		t.Error("signed in with the row of somebody else")
	}
	other := &fleet{t: t, db: f.db}
	var err error
	if other.keys, err = keys.Open(t.TempDir()); err != nil {
		t.Fatal(err)
	}
	if eve := other.replica(nil).signIn("t-ann"); eve.at(one).signedIn() {
		t.Error("signed in with a row that other keys authenticate")
	}
}

// A rotated key leaves the sessions that the key before it authenticates.
func TestSessionsOutliveARotation(t *testing.T) {
	f := newFleet(t)
	ann := f.replica(nil).signIn("t-ann")
	if _, err := f.keys.Rotate(keys.Tickets); err != nil {
		t.Fatal(err)
	}
	if !ann.at(f.replica(nil)).signedIn() {
		t.Error("signed out")
	}
}

// Use of a session is stored once a minute, and the end of an idle one follows it.
func TestUseOfASessionIsStored(t *testing.T) {
	f := newFleet(t)
	one := f.replica(nil)
	ann := one.signIn("t-ann")
	seen := func() (at time.Time) {
		t.Helper()
		if err := f.db.Read.QueryRowContext(t.Context(), "SELECT seen FROM console_sessions").Scan(store.Time{To: &at}); err != nil {
			t.Fatal(err)
		}
		return at
	}
	began := one.Now()
	for after, want := range map[time.Duration]time.Duration{59 * time.Second: 0, 61 * time.Second: 61 * time.Second} {
		f.exec("UPDATE console_sessions SET seen = ?", began.UnixNano())
		one.passed.Store(int64(after))
		if !ann.signedIn() || seen().Sub(began) != want {
			t.Errorf("used after %s: stored %s", after, seen().Sub(began))
		}
	}
}

func TestSessionsAreBounded(t *testing.T) {
	f := newFleet(t)
	one := f.replica(nil)
	fill := func(n int, seen time.Time) {
		f.exec(`INSERT INTO console_sessions (id, subject, credential, sid, principal, credential_until, until, seen, mac)
			SELECT ? || value, '', '', '', '{}', 0, CAST(? AS BIGINT), CAST(? AS BIGINT) + CAST(value AS BIGINT), '' FROM json_each(?)`,
			fmt.Sprint(seen.Unix()), one.Now().Add(time.Hour).UnixNano(), seen.UnixNano(), numbers(n))
	}
	ann := one.signIn("t-ann")
	one.advance(time.Minute)
	fill(4096, one.Now())
	bob := newBrowser(one.listener).signIn("t-bob")
	if n := f.count(); n != 4096 || ann.signedIn() || !bob.signedIn() {
		t.Errorf("%d sessions; ann is signed in: %v", n, ann.signedIn())
	}
	one.advance(time.Hour)
	if newBrowser(one.listener).signIn("t-ann"); f.count() != 2 {
		t.Errorf("%d sessions after the end of the others", f.count())
	}
}

func numbers(n int) string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprint(i)
	}
	return "[" + strings.Join(all, ",") + "]"
}

// Nobody is signed in while the store fails, and no session ends.
func TestSessionsFailClosed(t *testing.T) {
	f := newFleet(t)
	one := f.replica(nil)
	ann := one.signIn("t-ann")
	f.exec("ALTER TABLE console_sessions RENAME TO away")
	if w := ann.do("GET", "/console/approvals", nil); w.Code != 500 || ann.cookies["__Host-toolgate"] == "" || strings.Contains(w.Body.String(), "console_sessions") {
		t.Errorf("a page: %d %v %s", w.Code, ann.cookies, w.Body)
	}
	bob := newBrowser(one.listener)
	if w := bob.do("POST", "/console/login", bob.form("/console/login", "token", "t-bob")); w.Code != 500 || bob.cookies["__Host-toolgate"] != "" {
		t.Errorf("signing in: %d %v", w.Code, bob.cookies)
	}
	f.exec("ALTER TABLE away RENAME TO console_sessions")
	if !ann.signedIn() {
		t.Error("the session ended")
	}
}
