package people

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/console/page"
	"github.com/toolgate/toolgate/internal/keys"
	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/policy"
)

const (
	sessionCookie  = "__Host-toolgate"
	defaultSession = 8 * time.Hour
	idleSession    = 2 * time.Hour // or the whole session, when that is shorter
	seenEvery      = time.Minute   // how often the use of a session is stored
	maxSessions    = 4096
)

// A session belongs to one browser in which somebody signed in. It does not
// keep the credential; the visitor is identified again at every request.
type session struct {
	id         string           // SHA-256 of the cookie's value
	credential string           // SHA-256 of the token, "" = the provider vouches
	sid        string           // the provider's name of its session, "" = not known
	text       string           // principal as JSON
	principal  policy.Principal // as it was at sign-in
	until      time.Time        // whatever happens
	seen       time.Time        // last use, to the minute
	mac        string
}

// sessionColumns are the columns of a session. The MAC authenticates all but seen.
const sessionColumns = "id, credential, sid, principal, subject, credential_until, until, seen, mac"

// sessionsLock is the name under which sessions begin and end.
const sessionsLock = "console sessions"

// fields are the values of sessionColumns.
func (k *session) fields() []any {
	return []any{&k.id, &k.credential, &k.sid, &k.text, &k.principal.Subject, store.Time{To: &k.principal.Until}, store.Time{To: &k.until},
		store.Time{To: &k.seen}, &k.mac}
}

// seal returns the MAC of k.
func (k *session) seal(key keys.Key) string {
	mac := hmac.New(sha256.New, key.Secret)
	fmt.Fprintf(mac, "toolgate console session 1 %q %q %q %q %q %d %d",
		k.id, k.credential, k.sid, k.text, k.principal.Subject, k.principal.Until.UnixNano(), k.until.UnixNano())
	return key.ID + ":" + hex.EncodeToString(mac.Sum(nil))
}

// sessions are in the store, under the hash of the cookie's value: they outlive a
// restart, and replicas share them. Each row has a MAC, because whoever can write to the
// store must not be able to sign in as somebody. It is safe for concurrent use and fails
// closed: while the store or the keys cannot be read, nobody is signed in.
type sessions struct {
	db         *store.DB
	keys       *keys.Dir
	key        keys.Key // of new MACs
	life, idle time.Duration
	now        func() time.Time
}

func newSessions(o Options) (*sessions, error) {
	if o.Session <= 0 {
		o.Session = defaultSession
	}
	key, err := o.Keys.Secret(keys.Tickets)
	return &sessions{db: o.Store, keys: o.Keys, key: key, life: o.Session, idle: min(o.Session, idleSession), now: o.Now}, err
}

// start begins session k in place of the browser's earlier one, and returns the value of
// its cookie. The session ends with the credential if that ends sooner. start removes the
// sessions that have ended, and the least recently used ones beyond maxSessions.
func (s *sessions) start(ctx context.Context, k session, earlier string) (value string, err error) {
	now := s.now()
	value = rand.Text() + rand.Text()
	k.id, k.until, k.seen = hashOf(value), now.Add(s.life), now
	if end := k.principal.Until; !end.IsZero() && end.Before(k.until) {
		k.until = end
	}
	text, err := json.Marshal(k.principal)
	if err != nil {
		return "", fmt.Errorf("beginning a session: %w", err)
	}
	k.text = string(text)
	k.mac = k.seal(s.key)
	idle := now.Add(-s.idle)
	err = s.db.Update(ctx, func(ctx context.Context, tx *sql.Tx) error {
		if err := s.db.Lock(ctx, tx, sessionsLock); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, "DELETE FROM console_sessions WHERE id = ? OR until <= ? OR seen <= ?",
			hashOf(earlier), store.Time{To: &now}, store.Time{To: &idle}); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, "DELETE FROM console_sessions WHERE id NOT IN (SELECT id FROM console_sessions ORDER BY seen DESC, id LIMIT ?)",
			maxSessions-1); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, "INSERT INTO console_sessions ("+sessionColumns+") VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", k.fields()...)
		return err
	})
	if err != nil {
		return "", fmt.Errorf("beginning a session: %w", err)
	}
	return value, nil
}

// read returns the session with an id. The error is SignedOut when there is none, it is
// over, or something other than toolgate wrote it.
func (s *sessions) read(ctx context.Context, id string) (session, error) {
	found, err := store.Select(ctx, s.db.Read, (*session).fields, "SELECT "+sessionColumns+" FROM console_sessions WHERE id = ?", id)
	if err != nil {
		return session{}, fmt.Errorf("reading a session: %w", err)
	}
	if len(found) == 0 {
		return session{}, SignedOut
	}
	k := found[0]
	err = s.check(&k)
	return k, err
}

// check completes a session that was read; for errors see read.
func (s *sessions) check(k *session) (err error) {
	key, now := s.key, s.now()
	if version, _, _ := strings.Cut(k.mac, ":"); version != key.ID {
		key, err = s.keys.Find(keys.Tickets, version)
	}
	switch {
	case errors.Is(err, keys.ErrUnknown):
		return SignedOut
	case err != nil:
		return fmt.Errorf("reading a session: %w", err)
	case !hmac.Equal([]byte(k.seal(key)), []byte(k.mac)), !now.Before(k.until), now.Sub(k.seen) >= s.idle:
		return SignedOut
	}
	return json.Unmarshal([]byte(k.text), &k.principal)
}

// use stores that k is in use.
func (s *sessions) use(ctx context.Context, k session) error {
	now := s.now()
	if now.Sub(k.seen) < seenEvery {
		return nil
	}
	_, err := s.db.Exec(ctx, "UPDATE console_sessions SET seen = ? WHERE id = ?", store.Time{To: &now}, k.id)
	return err
}

// drop ends the session with an id, if one exists.
func (s *sessions) drop(ctx context.Context, id string) error {
	_, err := s.db.Exec(ctx, "DELETE FROM console_sessions WHERE id = ?", id)
	return err
}

// hashOf returns the id of the session whose cookie has a value.
func hashOf(value string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(value))) }

// FormSecret returns the field csrf of the forms of a session. Whoever reads the store
// cannot compute it.
func FormSecret(cookie string) string {
	mac := hmac.New(sha256.New, []byte(cookie))
	mac.Write([]byte("toolgate console form"))
	return hex.EncodeToString(mac.Sum(nil))
}

// SetCookie sets a cookie for this host alone, over private connections.
// SameSite=Lax: a link in a message opens a page, and pages of other sites
// cannot post with the cookie.
func SetCookie(w http.ResponseWriter, name, value string) {
	c := &http.Cookie{Name: name, Value: value, Path: "/", Secure: true, HttpOnly: true, SameSite: http.SameSiteLaxMode}
	if value == "" {
		c.MaxAge = -1
	}
	http.SetCookie(w, c)
}

// Cookie returns the value of a cookie, "" when the request has none or several
// of that name.
func Cookie(r *http.Request, name string) string {
	if found := r.CookiesNamed(name); len(found) == 1 {
		return found[0].Value
	}
	return ""
}

// EqualSecrets compares two secrets in constant time. An empty secret equals nothing.
func EqualSecrets(a, b string) bool {
	return a != "" && subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1
}

// A Logout says which sessions the provider ends: those with its name Session, of one of
// Subjects. One of the two may be empty, and then does not count.
type Logout struct {
	ID       string    // of the token, which is good once
	Session  string    // the provider's name of its session
	Subjects []string  // the names that a person of the provider has or had here
	Until    time.Time // how long ID has to be remembered
}

// providerLogout ends the sessions that a logout token of the provider names (OpenID Connect
// Back-Channel Logout 1.0, section 2.5), at every replica. Whoever sends it needs no
// credential but the token. Sessions end, or the answer is 400.
func (g *Guard) providerLogout(w http.ResponseWriter, r *http.Request) error {
	if g.o.Logout == nil {
		return noProvider
	}
	var l Logout
	var ended []session
	err := page.ReadForm(w, r)
	if err == nil {
		l, err = g.o.Logout(r.Context(), r.PostForm.Get("logout_token"))
	}
	if err == nil {
		ended, err = g.sessions.end(r.Context(), l)
	}
	if err != nil {
		g.Log.Warn("refusing a logout of the provider", "error", err)
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusBadRequest)
		_, _ = w.Write([]byte(`{"error":"invalid_request"}` + "\n")) // a reader that went away needs no answer
		return nil
	}
	for _, k := range ended {
		_ = g.Record(r, Act{Name: audit.EventSignOut, Principal: k.principal, Credential: "provider"}) // the log has the cause
	}
	return nil
}

// end ends the sessions that l names, and returns those that were valid. If l has a session and
// a person, it also ends the person's sessions whose name is not known. The error says so if l
// was used before.
func (s *sessions) end(ctx context.Context, l Logout) ([]session, error) {
	if l.ID == "" || l.Session == "" && len(l.Subjects) == 0 {
		return nil, errors.New("ending sessions: the logout names none")
	}
	where, args := "credential = ''", []any{}
	if len(l.Subjects) > 0 {
		where, args = where+" AND subject IN (SELECT value FROM json_each(?))", append(args, store.JSON{To: &l.Subjects})
	}
	if l.Session != "" {
		where, args = where+" AND (sid = ? OR sid = '' AND ? = 1)", append(args, l.Session, len(l.Subjects) > 0)
	}
	now := s.now()
	var found []session
	err := s.db.Update(ctx, func(ctx context.Context, tx *sql.Tx) error {
		if err := s.db.Lock(ctx, tx, sessionsLock); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, "DELETE FROM console_logouts WHERE until <= ?", store.Time{To: &now}); err != nil {
			return err
		}
		done, err := tx.ExecContext(ctx, "INSERT INTO console_logouts (jti, until) VALUES (?, ?) ON CONFLICT (jti) DO NOTHING", hashOf(l.ID), store.Time{To: &l.Until})
		if err != nil {
			return err
		}
		if n, err := done.RowsAffected(); err != nil || n == 0 {
			return errors.Join(err, errors.New("the token was used before"))
		}
		if found, err = store.Select(ctx, tx, (*session).fields, "SELECT "+sessionColumns+" FROM console_sessions WHERE "+where, args...); err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, "DELETE FROM console_sessions WHERE "+where, args...)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("ending sessions: %w", err)
	}
	var ended []session
	for _, k := range found {
		if s.check(&k) == nil {
			ended = append(ended, k)
		}
	}
	return ended, nil
}
