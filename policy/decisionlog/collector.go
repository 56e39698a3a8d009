package decisionlog

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/url"

	"github.com/toolgate/toolgate/internal/delivery"
)

// collector posts chunks as OPA does: a JSON array of events, gzipped.
type collector struct {
	url    string
	header http.Header
	client *delivery.Client
}

func newCollector(c Config, roots *x509.CertPool) (*collector, error) {
	u, err := url.Parse(c.URL)
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Hostname() == "" {
		return nil, errors.New("the collector has no http or https URL with a host")
	}
	h := &collector{url: c.URL, header: http.Header{}, client: delivery.NewClient(roots)}
	for name, value := range c.Headers {
		h.header.Set(name, value)
	}
	if c.Token != "" {
		h.header.Set("Authorization", "Bearer "+c.Token)
	}
	h.header.Set("Content-Encoding", "gzip")
	return h, nil
}

// send posts one chunk. Only some statuses mean that the events may be at fault;
// faults that can be repaired at the collector, such as a token or a path, are tried
// again.
func (h *collector) send(ctx context.Context, events [][]byte) error {
	chunk, err := chunkOf(events)
	if err != nil {
		return err
	}
	err = h.client.Post(ctx, h.url, h.header, chunk)
	if answer := (*delivery.StatusError)(nil); errors.As(err, &answer) {
		switch answer.Status {
		case http.StatusBadRequest, http.StatusRequestEntityTooLarge, http.StatusUnprocessableEntity:
			return refusedError{err}
		}
	}
	return err
}

// refusedError is an answer that refuses the events themselves.
type refusedError struct{ error }

// Is makes it errRefused.
func (refusedError) Is(target error) bool { return target == errRefused }

func (h *collector) close() { h.client.Close() }

// chunkOf returns a gzipped JSON array.
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
