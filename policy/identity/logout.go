package identity

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
)

// logoutAge is how old a logout token may be.
const logoutAge = 10 * time.Minute

// logoutEvent is the member of events that makes a token a logout token.
const logoutEvent = "http://schemas.openid.net/event/backchannel-logout"

// Logout says which sessions the provider ends: those with the name Session, of one of
// Subjects. One of the two may be empty, and then does not count.
type Logout struct {
	ID       string    // of the token, which is good once
	Session  string    // the provider's name of its session
	Subjects []string  // the names that a person of the provider has or had here
	Until    time.Time // how long ID has to be remembered
}

// EndSession returns the address at which a browser ends the session of the provider (OpenID
// Connect RP-Initiated Logout 1.0, section 2), "" when there is none. The provider sends it
// back to an address of ours that is registered there, with state. No ID token is kept to
// show who signs out, so the provider asks the person.
func (p *Provider) EndSession(ctx context.Context, back, state string) (string, error) {
	e, err := p.endpoints(ctx, p.client)
	if err != nil || e.end == "" {
		return "", err
	}
	u, err := privateURL(e.end)
	if err != nil {
		return "", fmt.Errorf("reading the end_session_endpoint of the provider: %w", err)
	}
	q := u.Query()
	q.Set("client_id", p.config.ClientID)
	q.Set("post_logout_redirect_uri", back)
	q.Set("state", state)
	u.RawQuery = q.Encode()
	return u.String(), nil
}

// Logout verifies a logout token (OpenID Connect Back-Channel Logout 1.0, section 2.6). It
// does not look whether the token was used before. It fails closed: while the provider or its
// keys cannot be asked, no token is good. Strangers cannot make it ask often.
func (p *Provider) Logout(ctx context.Context, token string) (Logout, error) {
	f, err := ReadJWT(token)
	if err != nil {
		return Logout{}, err
	}
	if !slices.Contains([]string{"", "jwt", "logout+jwt", "application/logout+jwt"}, strings.ToLower(f.Type)) {
		return Logout{}, refuse(Type, "the token is of another type than logout tokens")
	}
	e, err := p.endpoints(ctx, p.strangers)
	if err != nil {
		return Logout{}, err
	}
	t, err := e.logout.VerifyLogout(ctx, token)
	if err != nil {
		return Logout{}, refuseToken(err, nil, false)
	}
	var says struct {
		Events map[string]map[string]any `json:"events"`
	}
	if err := t.Claims(&says); err != nil || says.Events[logoutEvent] == nil {
		return Logout{}, refuse(Malformed, "the token names no logout")
	}
	switch age := p.people.state.Load().now().Sub(t.IssuedAt); {
	case age < -defaultSkew:
		return Logout{}, refuse(NotYet, "the token is not valid yet")
	case age > logoutAge+defaultSkew: // a token without iat too
		return Logout{}, refuse(Expiry, "the token is too old")
	}
	l := Logout{ID: t.TokenID, Session: t.SessionID, Until: t.IssuedAt.Add(2 * logoutAge)} // clocks of replicas differ
	if t.Subject != "" {
		l.Subjects = []string{t.Subject, p.config.Issuer + "|" + t.Subject}
	}
	return l, nil
}
