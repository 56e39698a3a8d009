package delivery

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"
)

// maxAnswerBytes bounds the head and the body of an answer, each.
const maxAnswerBytes = 64 << 10

// The errors of a Client that have no cause of their own.
var (
	ErrAddress  = errors.New("its address cannot be used")
	ErrTimeout  = errors.New("it did not answer in time")
	ErrProtocol = errors.New("the connection broke off, or the answer was none of the protocol")
)

// StatusError is an answer with a status other than 2xx.
type StatusError struct {
	Status     int
	RetryAfter time.Duration // pause that the answer asks for, at most an hour; 0 = none
}

// Error returns the status, and nothing from the body of the answer.
func (e *StatusError) Error() string {
	text := "it answered with status " + strconv.Itoa(e.Status)
	if e.Status >= 300 && e.Status < 400 {
		text += ": redirects are not followed"
	}
	return text
}

// Client posts to one destination. It is safe for concurrent use.
type Client struct{ http *http.Client }

// NewClient returns a Client that trusts the certificate authorities in roots; nil =
// the system's. It uses the proxies of the environment.
func NewClient(roots *x509.CertPool) *Client {
	return &Client{&http.Client{
		Transport: &http.Transport{
			Proxy:                  http.ProxyFromEnvironment,
			TLSClientConfig:        &tls.Config{RootCAs: roots},
			ForceAttemptHTTP2:      true,
			MaxIdleConns:           1,
			IdleConnTimeout:        30 * time.Second,
			MaxResponseHeaderBytes: maxAnswerBytes,
		},
		// A redirect would send the body and its credentials to another host.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// Post sends body to url and returns nil only for a response with status 2xx. The
// error is a *StatusError for any other status. Post takes at most Timeout.
func (c *Client) Post(ctx context.Context, url string, header http.Header, body []byte) error {
	ctx, stop := context.WithTimeout(ctx, Timeout)
	defer stop()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return ErrAddress
	}
	req.Header = header.Clone()
	if req.Header == nil {
		req.Header = http.Header{}
	}
	req.Header.Set("Content-Type", "application/json")
	if req.Header.Get("User-Agent") == "" {
		req.Header.Set("User-Agent", "toolgate")
	}
	res, err := c.http.Do(req)
	if err != nil {
		return Explain(ctx, err)
	}
	defer res.Body.Close()
	_, _ = io.CopyN(io.Discard, res.Body, maxAnswerBytes) // read for the connection's sake only
	if res.StatusCode >= 200 && res.StatusCode < 300 {
		return nil
	}
	seconds, _ := strconv.Atoi(res.Header.Get("Retry-After")) // a date counts as none
	return &StatusError{Status: res.StatusCode, RetryAfter: time.Duration(max(0, min(seconds, 3600))) * time.Second}
}

// Close closes the connection that an earlier Post left open.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Explain returns the reason why an attempt under ctx got no answer, in words that
// hold no secret.
func Explain(ctx context.Context, err error) error {
	var (
		dns   *net.DNSError
		op    *net.OpError
		host  x509.HostnameError
		auth  x509.UnknownAuthorityError
		cert  x509.CertificateInvalidError
		check *tls.CertificateVerificationError
		slow  net.Error
	)
	switch {
	case errors.As(err, &host), errors.As(err, &auth), errors.As(err, &cert), errors.As(err, &check):
		return errors.New("its certificate is not trusted")
	case ctx.Err() != nil, errors.As(err, &slow) && slow.Timeout():
		return ErrTimeout
	case errors.As(err, &dns):
		return errors.New("its host name is not known")
	case errors.As(err, &op) && op.Op == "dial":
		return errors.New("no connection: " + op.Err.Error())
	}
	return ErrProtocol
}
