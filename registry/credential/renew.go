package credential

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/oauth2"

	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/internal/wait"
	"github.com/toolgate/toolgate/registry/config"
)

const (
	renewLease = 30 * time.Second      // for a renewal; more than it may take
	renewPoll  = 50 * time.Millisecond // between two looks for what another process renews
)

// live is a grant that this process uses. Its Source asks it for tokens.
type live struct {
	g      *Grants
	owner  owner
	id     string
	source *Source

	mu      sync.Mutex // protects the fields below
	server  config.Server
	version int64   // of the row that the fields below are from
	tokens  *tokens // nil = the grant cannot be used
	found   *Credential
	fault   error     // why the grant cannot be used, or not by a new request
	seen    time.Time // when the row was last read; zero = it has to be read again
	handed  string    // the access token that the Source has
}

// liveOf returns the grant that this process uses for an owner.
func (g *Grants) liveOf(server config.Server, o owner, id string) *live {
	g.mu.Lock()
	defer g.mu.Unlock()
	if l, ok := g.live.Get(o); ok && l.id == id {
		return l
	}
	l := &live{g: g, owner: o, id: id, server: server}
	l.source = newSource(Options{Now: g.o.Now}, origin{
		ask: l.ask, look: l.look, want: l.want, again: missing(server, "the server refuses the tokens of the connection"),
	})
	g.live.Add(o, l)
	return l
}

// fresh returns what Find returns as long as what was read counts, nil if it has to be read again.
func (l *live) fresh(server config.Server, now time.Time) *Credential {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.seen.IsZero() || now.Sub(l.seen) >= trusted || l.fault != nil || l.tokens == nil || l.tokens.fits(server) != nil || l.over(now) {
		return nil
	}
	l.server = server
	return l.found
}

// over reports whether the grant is at its end: the token is, and it cannot be renewed. The caller
// must hold l.mu.
func (l *live) over(now time.Time) bool {
	return l.tokens.Refresh == "" && !l.tokens.End.IsZero() && !now.Before(l.tokens.End)
}

// use returns what Find returns for a row.
func (l *live) use(server config.Server, r *row, now time.Time) (*Credential, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.server = server
	if err := l.takeLocked(r, now); err != nil {
		return nil, err
	}
	if err := l.tokens.fits(server); err != nil {
		return nil, missing(server, err.Error())
	}
	if l.over(now) {
		return nil, missing(server, "the connection has expired")
	}
	if l.fault != nil {
		return nil, l.fault
	}
	return l.found, nil
}

// takeLocked takes over what a row says, unless that is older than what is known. The error is a
// *Missing where the grant does not count any longer, and any other where that cannot be known. The
// caller must hold l.mu.
func (l *live) takeLocked(r *row, now time.Time) error {
	switch {
	case r == nil:
		return l.endedLocked(nil)
	case r.State == GrantEnded:
		l.version, l.tokens, l.fault = max(l.version, r.Version), nil, l.endedLocked(r)
		return l.fault
	case r.Version < l.version && l.tokens == nil:
		return l.fault
	case r.Version < l.version:
		return nil
	}
	if r.Version != l.version || l.tokens == nil {
		t, err := l.g.open(r)
		if errors.Is(err, errUnsealed) {
			l.g.o.Log.Error("a connection cannot be used", "server", r.Server, "connection", r.ID, "err", err)
			l.version, l.tokens, l.fault = r.Version, nil, missing(l.server, "the connection cannot be read")
			return l.fault
		} else if err != nil {
			return err
		}
		l.version, l.tokens, l.fault = r.Version, t, nil
		l.found = &Credential{ID: l.id, Type: config.CredentialOAuth, Person: l.owner.Person, Issuer: t.Issuer, Account: t.Account, Scopes: t.Scopes, Until: t.End, Tokens: l.source, Operator: t.Operates}
		if len(r.Wanted) > 0 {
			l.fault = missing(l.server, "the server asks for more rights: "+strings.Join(r.Wanted, " "))
		}
	}
	l.seen = now
	return nil
}

// endedLocked returns the error for a grant that has ended; r is its row, nil = it is gone. The
// caller must hold l.mu.
func (l *live) endedLocked(r *row) *Missing {
	reason := "the connection has ended"
	if r != nil && r.Reason != "" {
		reason += ": " + r.Reason
	}
	return missing(l.server, reason)
}

// drop ends the grant for this process, whatever was read of it before.
func (l *live) drop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.version, l.tokens, l.fault = math.MaxInt64, nil, l.endedLocked(nil)
}

// forget has the row read again.
func (l *live) forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.seen = time.Time{}
}

// look implements origin.
func (l *live) look(ctx context.Context) (issued, error) {
	now := l.g.o.Now()
	l.mu.Lock()
	version, known := l.version, !l.seen.IsZero() && now.Sub(l.seen) < trusted
	l.mu.Unlock()
	var r *row
	var err error
	if !known {
		if r, err = l.g.changed(ctx, l.id, version); err != nil {
			return issued{}, err
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case r != nil:
		err = l.takeLocked(r, now)
	case !known:
		l.seen = now
	}
	if err == nil && l.tokens == nil {
		err = l.fault
	}
	if err != nil {
		return issued{}, err
	}
	return l.handLocked(), nil
}

// changed returns the row of a grant if it has another version, nil if it has not. A grant that is
// gone counts as ended.
func (g *Grants) changed(ctx context.Context, id string, version int64) (*row, error) {
	now, err := store.Select(ctx, g.o.DB.Read, func(v *int64) []any { return []any{v} }, "SELECT version FROM credential_grants WHERE id = ?", id)
	if err != nil {
		return nil, fmt.Errorf("reading a connection: %w", err)
	}
	if len(now) == 1 && now[0] == version {
		return nil, nil
	}
	r, err := g.byID(ctx, id)
	if r == nil && err == nil {
		r = &row{Grant: Grant{ID: id, State: GrantEnded}, Version: math.MaxInt64}
	}
	return r, err
}

// handLocked returns the access token if the Source does not have it yet. The caller must hold l.mu.
func (l *live) handLocked() issued {
	if l.tokens == nil || l.tokens.Access == l.handed {
		return issued{}
	}
	return l.givenLocked()
}

// givenLocked returns the access token for the Source. One that cannot be renewed is not asked for
// before its end.
func (l *live) givenLocked() issued {
	t := l.tokens
	l.handed = t.Access
	if t.Refresh == "" {
		return issued{t.Access, t.End, t.End}
	}
	return issued{t.Access, t.At, t.End}
}

// ask implements origin. A renewal that has begun is completed, whether or not its caller waits.
func (l *live) ask(ctx context.Context) (issued, error) {
	type outcome struct {
		token issued
		err   error
	}
	done := make(chan outcome, 1)
	l.g.renewals.Go(func() {
		within, stop := context.WithTimeout(context.WithoutCancel(ctx), renewLease)
		defer stop()
		token, err := l.renew(within)
		done <- outcome{token, err}
	})
	select {
	case o := <-done:
		return o.token, o.err
	case <-ctx.Done():
		return issued{}, context.Cause(ctx)
	}
}

// renew returns another access token than the Source has: one that another process has put into
// the store, or a new one. One process renews a grant at a time, while the others wait for it.
func (l *live) renew(ctx context.Context) (issued, error) {
	for {
		r, err := l.g.byID(ctx, l.id)
		if err == nil && r != nil {
			r, err = l.g.settle(ctx, r)
		}
		if err != nil {
			return issued{}, err
		}
		l.mu.Lock()
		err = l.takeLocked(r, l.g.o.Now())
		next, t, server := issued{}, l.tokens, l.server
		if err == nil {
			next = l.handLocked()
		}
		l.mu.Unlock()
		switch {
		case err != nil || next.token != "":
			return next, err
		case r.State == renewing:
			if !wait.For(ctx, renewPoll) {
				return issued{}, errors.New("another process renews the connection")
			}
		case t.Refresh == "":
			return issued{}, l.end(ctx, r, "it cannot be renewed")
		default:
			holder, lease := rand.Text(), l.g.o.Now().Add(renewLease)
			mine, err := l.g.change(ctx, r, "state = ?, holder = ?, lease = ?", renewing, holder, store.Time{To: &lease})
			if err != nil {
				return issued{}, err
			}
			if mine {
				r.State, r.Holder, r.Version = renewing, holder, r.Version+1
				return l.refresh(ctx, r, server, *t)
			}
		}
	}
}

// end ends the grant, and returns the error for that.
func (l *live) end(ctx context.Context, r *row, reason string) error {
	if err := l.g.end(ctx, r, reason); err != nil {
		return err
	}
	ended := *r
	ended.Reason = reason
	l.drop()
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.endedLocked(&ended)
}

// refresh uses the refresh token of r, which is in the state renewing and whose lease this process
// holds. Whatever happens to the process meanwhile, the token is used once: see settle.
func (l *live) refresh(ctx context.Context, r *row, server config.Server, t tokens) (issued, error) {
	asking, _, err := newReach(server)
	var got *oauth2.Token
	sent := atomic.Bool{}
	if err == nil {
		traced := httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { sent.Store(true) }})
		got, err = t.ask(traced, asking, server, url.Values{"grant_type": {"refresh_token"}, "refresh_token": {t.Refresh}})
	}
	if err == nil {
		err = t.take(got, l.g.o.Now())
	}
	if err == nil {
		return l.store(ctx, r, &t)
	}
	status, code := codeOf(err)
	switch {
	case t.Client.Registered && unknownClient(err):
		err = errors.Join(l.end(ctx, r, "the authorization server does not know toolgate any longer"), l.g.unregister(ctx, &t.party))
	case code == "invalid_grant":
		err = l.end(ctx, r, "the authorization server has ended it")
	case !sent.Load() || t.Keeps || errorCode(code) != "" || status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable:
		// The refresh token was not used, or counts once more.
		_, back := l.g.change(ctx, r, "state = ?, holder = ''", GrantLive)
		err = errors.Join(err, back)
	default:
		l.g.o.Log.Warn("the renewal of a connection failed, and its refresh token may be used up", "server", r.Server, "connection", r.ID, "err", explain(err))
		err = l.end(ctx, r, reasonInterrupted)
	}
	return issued{}, err
}

// store stores the tokens of a renewal. Where the grant was revoked meanwhile they are revoked too.
func (l *live) store(ctx context.Context, r *row, t *tokens) (issued, error) {
	sealed, err := l.g.seal(ctx, t, r.about()...)
	if err != nil {
		return issued{}, err
	}
	stored, err := l.g.change(ctx, r, "state = ?, holder = '', sealed = ?, scopes = ?, until = ?", GrantLive, sealed, store.JSON{To: &t.Scopes}, store.Time{To: &t.End})
	if err != nil {
		return issued{}, err
	}
	if !stored {
		l.g.revoke(ctx, r, t)
	}
	now, err := l.g.byID(ctx, l.id)
	if err != nil {
		return issued{}, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.takeLocked(now, l.g.o.Now()); err != nil {
		return issued{}, err
	}
	return l.givenLocked(), nil
}

// codeOf returns the status and the error code with which a token endpoint refused, 0 for another
// error.
func codeOf(err error) (status int, code string) {
	if refused, ok := errors.AsType[*oauth2.RetrieveError](err); ok {
		return refused.Response.StatusCode, refused.ErrorCode
	}
	return 0, ""
}

// unknownClient reports that the authorization server does not know the client, or not its secret.
func unknownClient(err error) bool {
	_, code := codeOf(err)
	return code == "invalid_client" || code == "unauthorized_client"
}

// want implements origin. What the server asks for is recorded where it is more than was granted.
func (l *live) want(scopes []string) {
	ctx, stop := context.WithTimeout(context.Background(), fetchTimeout)
	defer stop()
	for {
		r, err := l.g.byID(ctx, l.id)
		if err != nil || r == nil || r.State == GrantEnded {
			return // the next request says what is wrong
		}
		wanted := union(r.Wanted, scopes)
		if len(wanted) == len(r.Wanted) || !slices.ContainsFunc(wanted, func(s string) bool { return !slices.Contains(r.Scopes, s) }) {
			return
		}
		if done, err := l.g.change(ctx, r, "wanted = ?", store.JSON{To: &wanted}); done || err != nil {
			l.forget()
			return
		}
	}
}

// revoke revokes tokens at the authorization server, the refresh token first. It returns false after a
// failure, which is logged.
func (g *Grants) revoke(ctx context.Context, r *row, t *tokens) bool {
	if t.Revocation == "" {
		return true
	}
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), revokeTime)
	defer stop()
	server, ok := g.o.Server(r.Server)
	if !ok || server.Credential == nil {
		server = config.Server{Name: r.Server, URL: t.URL, Credential: &config.Credential{Type: config.CredentialOAuth}}
	}
	asking, _, err := newReach(server)
	for _, one := range [][2]string{{"refresh_token", t.Refresh}, {"access_token", t.Access}} {
		if err == nil && one[1] != "" {
			err = t.revoke(ctx, asking, server, one[0], one[1])
		}
	}
	if err != nil {
		g.o.Log.Warn("tokens of a connection could not be revoked", "server", r.Server, "connection", r.ID, "err", err)
	}
	return err == nil
}

// revoke revokes one token (RFC 7009 section 2.1). One of a kind that the authorization server does
// not revoke ends with the other, or by itself.
func (p *party) revoke(ctx context.Context, asking *http.Client, server config.Server, hint, token string) error {
	form, secret := url.Values{"token": {token}, "token_type_hint": {hint}, "client_id": {p.Client.ID}}, p.secret(server)
	if p.Client.Style != oauth2.AuthStyleInHeader && secret != "" {
		form.Set("client_secret", secret)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.Revocation, strings.NewReader(form.Encode()))
	if err != nil {
		return errors.New("the revocation endpoint is no address")
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	if p.Client.Style == oauth2.AuthStyleInHeader {
		req.SetBasicAuth(url.QueryEscape(p.Client.ID), url.QueryEscape(secret))
	}
	res, err := asking.Do(req)
	if err != nil {
		return plain(err)
	}
	defer res.Body.Close()
	var answer struct {
		Error string `json:"error"`
	}
	_ = json.NewDecoder(io.LimitReader(res.Body, maxAddress)).Decode(&answer) // most have no body
	if res.StatusCode != http.StatusOK && answer.Error != "unsupported_token_type" {
		return fmt.Errorf("the revocation endpoint answered %d", res.StatusCode)
	}
	return nil
}
