package upstream

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"github.com/toolgate/toolgate/internal/keepalive"
	"github.com/toolgate/toolgate/registry/config"
	"github.com/toolgate/toolgate/registry/credential"
)

// authorized sends each request with a token of the server. A request that the server refuses for
// its token, and so does not execute, is sent once more if there is another token by then.
type authorized struct {
	*keepalive.Transport
	server *Server
}

// RoundTrip implements http.RoundTripper.
func (a *authorized) RoundTrip(r *http.Request) (*http.Response, error) {
	token, err := a.token(r.Context())
	if err != nil {
		if r.Body != nil {
			r.Body.Close()
		}
		return nil, err
	}
	res, err := a.Transport.RoundTrip(withToken(r, token))
	if err != nil || !refusesToken(res) {
		return res, err
	}
	next, err := a.another(r.Context(), token, res)
	if err != nil || next == "" || r.Body != nil && r.GetBody == nil {
		return a.refused(res, err)
	}
	res.Body.Close()
	again := withToken(r, next)
	if r.GetBody != nil {
		if again.Body, err = r.GetBody(); err != nil {
			return nil, err
		}
	}
	if res, err = a.Transport.RoundTrip(again); err == nil && refusesToken(res) {
		return a.refused(res, nil)
	}
	return res, err
}

// Post sends p as keepalive.Transport does.
func (a *authorized) Post(ctx context.Context, p keepalive.Post) (answer []byte, res *http.Response, err error) {
	token, err := a.token(ctx)
	if err != nil {
		return nil, nil, err
	}
	extra := slices.Clip(p.Extra)
	p.Extra, _ = keepalive.AppendHeader(extra, "Authorization", "Bearer "+token) // package credential has seen to it that it is plain
	answer, res, err = a.Transport.Post(ctx, p)
	if err != nil || !refusesToken(res) {
		return answer, res, err
	}
	next, err := a.another(ctx, token, res)
	if err != nil || next == "" {
		res, err = a.refused(res, err)
		return nil, res, err
	}
	res.Body.Close()
	p.Extra, _ = keepalive.AppendHeader(extra, "Authorization", "Bearer "+next)
	if answer, res, err = a.Transport.Post(ctx, p); err == nil && refusesToken(res) {
		res, err = a.refused(res, nil)
	}
	return answer, res, err
}

// token returns the token of now, which is one of the server's secrets before it is used.
func (a *authorized) token(ctx context.Context) (string, error) {
	token, err := a.server.tokens.Token(ctx)
	if err == nil {
		a.server.learn(token)
	}
	return token, err
}

// another returns another token than one that was refused, "" when there is none.
func (a *authorized) another(ctx context.Context, token string, res *http.Response) (next string, err error) {
	a.server.tokens.Refused(token, res.Header.Values("WWW-Authenticate"))
	next, err = a.token(ctx)
	if next == token {
		next = ""
	}
	return next, err
}

// refused returns the answer to a request whose token was refused: for toolgate's own, the server's;
// for a person's, that he has to act.
func (a *authorized) refused(res *http.Response, err error) (*http.Response, error) {
	if a.server.opts.Tokens == nil {
		return res, nil
	}
	res.Body.Close()
	if _, ok := errors.AsType[*credential.Missing](err); !ok {
		reason := "the server refuses the person's credential"
		if res.StatusCode == http.StatusForbidden {
			reason = "the server asks for more rights than the person's credential has"
		}
		err = &credential.Missing{Server: a.server.cfg.Name, Reason: reason, Connects: a.server.cfg.Credential.Type == config.CredentialOAuth}
	}
	return nil, err
}

// refusesToken reports whether an answer says that the token of its request does not do (RFC 6750
// section 3.1): another one may.
func refusesToken(res *http.Response) bool {
	if res == nil {
		return false
	}
	return res.StatusCode == http.StatusUnauthorized ||
		res.StatusCode == http.StatusForbidden && credential.InsufficientScope(res.Header.Values("WWW-Authenticate"))
}

// withToken returns r with a token.
func withToken(r *http.Request, token string) *http.Request {
	own := r.WithContext(r.Context())
	if own.Header = r.Header.Clone(); own.Header == nil {
		own.Header = http.Header{}
	}
	own.Header["Authorization"] = []string{"Bearer " + token}
	return own
}

// tokensOf returns what s shows its server, nil for nothing.
func tokensOf(s *Server) (credential.Tokens, error) {
	switch {
	case s.opts.Tokens != nil:
		return s.opts.Tokens, nil
	case s.cfg.Credential == nil:
		return nil, nil
	}
	source, err := credential.New(s.cfg, credential.Options{Now: s.opts.Now})
	if err != nil {
		return nil, fmt.Errorf("credential: %w", err)
	}
	return source, nil
}

// learn makes a token one of the secrets of s, beside the one before, which the server may still send
// back.
func (s *Server) learn(token string) {
	if *s.shown.Load() == token {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	last := *s.shown.Load()
	if last == token {
		return
	}
	values := append(s.cfg.Secrets(), token)
	if last != "" {
		values = append(values, last)
	}
	s.secrets.set(values)
	s.shown.Store(&token)
}

// needsPerson returns e as the error of a request for which a person has to act, where that is why
// it failed: no server has executed the request.
func needsPerson(e *Error) *Error {
	if missing, ok := errors.AsType[*credential.Missing](e); ok {
		return &Error{Kind: Unconnected, Err: missing}
	}
	return e
}
