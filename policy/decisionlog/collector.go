package decisionlog

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

const (
	// sendTimeout bounds one request.
	sendTimeout = 10 * time.Second
	// maxAnswerBytes is how much of an answer is read, its head and its body each.
	maxAnswerBytes = 64 << 10
)

// collector posts chunks as OPA does: a JSON array of events, gzipped.
type collector struct {
	url    string
	header http.Header
	client *http.Client
}

func newCollector(c Config, roots *x509.CertPool) (*collector, error) {
	u, err := url.Parse(c.URL)
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Hostname() == "" {
		return nil, errors.New("the collector has no http or https URL with a host")
	}
	h := &collector{url: c.URL, header: http.Header{}, client: &http.Client{
		Timeout: sendTimeout,
		Transport: &http.Transport{
			Proxy:                  http.ProxyFromEnvironment,
			TLSClientConfig:        &tls.Config{RootCAs: roots},
			ForceAttemptHTTP2:      true,
			MaxIdleConns:           1,
			IdleConnTimeout:        30 * time.Second,
			MaxResponseHeaderBytes: maxAnswerBytes,
		},
		// A redirect would take events and token to where nobody configured.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
	h.header.Set("User-Agent", "toolgate")
	for name, value := range c.Headers {
		h.header.Set(name, value)
	}
	if c.Token != "" {
		h.header.Set("Authorization", "Bearer "+c.Token)
	}
	h.header.Set("Content-Type", "application/json")
	h.header.Set("Content-Encoding", "gzip")
	return h, nil
}

// send posts one chunk. Only an answer of 2xx means that it was taken.
func (h *collector) send(ctx context.Context, events [][]byte) error {
	chunk, err := chunkOf(events)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, h.url, bytes.NewReader(chunk))
	if err != nil {
		return errors.New("its address cannot be used")
	}
	req.Header = h.header.Clone()
	res, err := h.client.Do(req)
	if err != nil {
		return explain(err)
	}
	defer res.Body.Close()
	_, _ = io.CopyN(io.Discard, res.Body, maxAnswerBytes) // read for the connection's sake only
	return verdict(res)
}

func (h *collector) close() { h.client.CloseIdleConnections() }

// chunkOf is a gzipped JSON array.
func chunkOf(events [][]byte) ([]byte, error) {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	parts := [][]byte{{'['}, bytes.Join(events, []byte{','}), {']'}}
	for _, part := range parts {
		if _, err := w.Write(part); err != nil {
			return nil, fmt.Errorf("packing events: %w", err)
		}
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("packing events: %w", err)
	}
	return b.Bytes(), nil
}

// refusal is an answer that takes nothing.
type refusal struct {
	text   string
	events bool          // for what the events are
	after  time.Duration // how long it asked to be left alone
}

func (r refusal) Error() string { return r.text }

// Is makes a refusal of events errRefused.
func (r refusal) Is(target error) bool { return r.events && target == errRefused }

// verdict is what a status means. What the answer says is not repeated: it may
// quote what it was sent. The events are at fault, perhaps, only where the status
// says so; what may be mended at the other end, a token or a path, is tried again.
func verdict(res *http.Response) error {
	status := "it answered with status " + strconv.Itoa(res.StatusCode)
	switch {
	case res.StatusCode >= 200 && res.StatusCode < 300:
		return nil
	case res.StatusCode >= 300 && res.StatusCode < 400:
		return refusal{text: status + ": redirects are not followed"}
	}
	switch res.StatusCode {
	case http.StatusBadRequest, http.StatusRequestEntityTooLarge, http.StatusUnprocessableEntity:
		return refusal{text: status, events: true}
	}
	after, _ := strconv.Atoi(res.Header.Get("Retry-After")) // a date is taken for none
	return refusal{text: status, after: min(time.Duration(max(0, min(after, 3600)))*time.Second, longestWait)}
}

// retryAfter is how long the other side asked to be left alone.
func retryAfter(err error) time.Duration {
	var r refusal
	errors.As(err, &r)
	return r.after
}

// explain says why there was no answer, without an address beyond host and port.
func explain(err error) error {
	var (
		dns   *net.DNSError
		op    *net.OpError
		check *tls.CertificateVerificationError
		quiet net.Error
	)
	switch {
	case errors.As(err, &check):
		return errors.New("its certificate is not trusted")
	case errors.As(err, &quiet) && quiet.Timeout():
		return errors.New("it did not answer within " + sendTimeout.String())
	case errors.As(err, &dns):
		return errors.New("its host name is not known")
	case errors.As(err, &op) && op.Op == "dial":
		return errors.New("no connection: " + op.Err.Error())
	}
	return errors.New("the connection broke off, or the answer was none of the protocol")
}
