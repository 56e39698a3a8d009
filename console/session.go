package console

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"net/http"
	"sync"
	"time"

	"github.com/toolgate/toolgate/policy"
)

const (
	sessionCookie  = "__Host-toolgate"
	defaultSession = 8 * time.Hour
	idleSession    = 2 * time.Hour // or the whole session, when that is shorter
	maxSessions    = 4096
)

// A session belongs to one browser in which somebody signed in. It does not
// keep the credential; the visitor is identified again at every request.
type session struct {
	principal policy.Principal // as it was at sign-in
	again     again
	csrf      string          // field of every form of the session
	until     time.Time       // whatever happens
	ctx       context.Context // ends with the session
	end       context.CancelFunc

	seen time.Time // of the last request; sessions.mu protects it
}

// again identifies a principal again with the current configuration. An error
// ends the session.
type again func(ctx context.Context, p policy.Principal) (policy.Principal, error)

// sessions are kept in memory under the hash of the cookie's value: a restart
// signs everybody out. It is safe for concurrent use.
type sessions struct {
	life, idle time.Duration
	now        func() time.Time
	ctx        context.Context // of all of them

	mu   sync.Mutex // protects the fields below
	open map[[sha256.Size]byte]*session
}

func newSessions(ctx context.Context, life time.Duration, now func() time.Time) *sessions {
	if life <= 0 {
		life = defaultSession
	}
	return &sessions{life: life, idle: min(life, idleSession), now: now, ctx: ctx, open: make(map[[sha256.Size]byte]*session)}
}

// start begins a session of p and returns the value of its cookie. The session
// ends with the credential if that ends sooner.
func (s *sessions) start(p policy.Principal, a again) (id string) {
	now := s.now()
	k := &session{principal: p, again: a, csrf: rand.Text(), until: now.Add(s.life), seen: now}
	if !p.Until.IsZero() && p.Until.Before(k.until) {
		k.until = p.Until
	}
	k.ctx, k.end = context.WithTimeout(s.ctx, k.until.Sub(now))
	id = rand.Text() + rand.Text()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shrinkLocked(now)
	s.open[sha256.Sum256([]byte(id))] = k
	return id
}

// shrinkLocked removes sessions that are over, and the one unseen for longest
// when there is no room for another.
func (s *sessions) shrinkLocked(now time.Time) {
	var oldest [sha256.Size]byte
	for key, k := range s.open {
		if s.over(k, now) {
			s.dropLocked(key)
		} else if was := s.open[oldest]; was == nil || k.seen.Before(was.seen) {
			oldest = key
		}
	}
	if len(s.open) >= maxSessions {
		s.dropLocked(oldest)
	}
}

func (s *sessions) over(k *session, now time.Time) bool {
	return !now.Before(k.until) || now.Sub(k.seen) >= s.idle
}

func (s *sessions) dropLocked(key [sha256.Size]byte) {
	if k := s.open[key]; k != nil {
		k.end()
		delete(s.open, key)
	}
}

// find returns the session of a cookie, nil for none, and counts as use of the
// session.
func (s *sessions) find(id string) *session {
	key := sha256.Sum256([]byte(id))
	s.mu.Lock()
	defer s.mu.Unlock()
	k, now := s.open[key], s.now()
	if k == nil || s.over(k, now) {
		s.dropLocked(key)
		return nil
	}
	k.seen = now
	return k
}

// drop ends the session of a cookie, if one exists.
func (s *sessions) drop(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dropLocked(sha256.Sum256([]byte(id)))
}

// setCookie sets a cookie for this host alone, over private connections.
// SameSite=Lax: a link in a message opens a page, and pages of other sites
// cannot post with the cookie.
func setCookie(w http.ResponseWriter, name, value string) {
	c := &http.Cookie{Name: name, Value: value, Path: "/", Secure: true, HttpOnly: true, SameSite: http.SameSiteLaxMode}
	if value == "" {
		c.MaxAge = -1
	}
	http.SetCookie(w, c)
}

// cookie returns the value of a cookie, "" when the request has none or several
// of that name.
func cookie(r *http.Request, name string) string {
	if found := r.CookiesNamed(name); len(found) == 1 {
		return found[0].Value
	}
	return ""
}

// equalSecrets compares two secrets in constant time. An empty secret equals nothing.
func equalSecrets(a, b string) bool {
	return a != "" && subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1
}
