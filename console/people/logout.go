package people

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/toolgate/toolgate/console/page"
	"github.com/toolgate/toolgate/internal/store"
)

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
		_ = g.Record(r, Act{Name: ActSignOut, Principal: k.principal, Credential: "provider"}) // the log has the cause
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
