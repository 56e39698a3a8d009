package upstream

import (
	"context"
	"fmt"
	"net/http"
	"slices"

	"github.com/toolgate/toolgate/internal/keepalive"
	"github.com/toolgate/toolgate/registry/credential"
)

// authorized sends each request with the server's token. A request that the server refuses with
// 401, and so does not execute, is sent once more if there is another token by then.
type authorized struct {
	*keepalive.Transport
	source *credential.Source
}

// RoundTrip implements http.RoundTripper.
func (a *authorized) RoundTrip(r *http.Request) (*http.Response, error) {
	token, err := a.source.Token(r.Context())
	if err != nil {
		if r.Body != nil {
			r.Body.Close()
		}
		return nil, err
	}
	res, err := a.Transport.RoundTrip(withToken(r, token))
	if err != nil || res.StatusCode != http.StatusUnauthorized || r.Body != nil && r.GetBody == nil {
		return res, err
	}
	next, ok := a.renew(r.Context(), token)
	if !ok {
		return res, nil
	}
	res.Body.Close()
	again := withToken(r, next)
	if r.GetBody != nil {
		if again.Body, err = r.GetBody(); err != nil {
			return nil, err
		}
	}
	return a.Transport.RoundTrip(again)
}

// Post sends p as keepalive.Transport does.
func (a *authorized) Post(ctx context.Context, p keepalive.Post) (answer []byte, res *http.Response, err error) {
	token, err := a.source.Token(ctx)
	if err != nil {
		return nil, nil, err
	}
	extra := slices.Clip(p.Extra)
	p.Extra, _ = keepalive.AppendHeader(extra, "Authorization", "Bearer "+token) // package credential has seen to it that it is plain
	answer, res, err = a.Transport.Post(ctx, p)
	if err != nil || res == nil || res.StatusCode != http.StatusUnauthorized {
		return answer, res, err
	}
	next, ok := a.renew(ctx, token)
	if !ok {
		return nil, res, nil
	}
	res.Body.Close()
	p.Extra, _ = keepalive.AppendHeader(extra, "Authorization", "Bearer "+next)
	return a.Transport.Post(ctx, p)
}

// renew returns another token than one that was refused, if there is one.
func (a *authorized) renew(ctx context.Context, token string) (next string, ok bool) {
	a.source.Refused(token)
	next, err := a.source.Token(ctx)
	return next, err == nil && next != token
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

// newSource returns the source of tokens of s, whose secrets they become before they are used.
func newSource(s *Server) (*credential.Source, error) {
	if s.secrets == nil {
		s.secrets = &secrets{}
		s.secrets.set(nil)
	}
	var before string // one that the server may still send back
	source, err := credential.New(*s.cfg.Credential, credential.Options{Now: s.opts.Now, Got: func(token string) {
		values := append(s.cfg.Secrets(), token)
		if before != "" {
			values = append(values, before)
		}
		before = token
		s.secrets.set(values)
	}})
	if err != nil {
		return nil, fmt.Errorf("credential: %w", err)
	}
	return source, nil
}
