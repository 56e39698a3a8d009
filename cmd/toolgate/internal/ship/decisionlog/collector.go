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
	"slices"

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

// send posts one chunk.
func (h *collector) send(ctx context.Context, events [][]byte) error {
	var chunk bytes.Buffer
	w := gzip.NewWriter(&chunk)
	_, err := fmt.Fprintf(w, "[%s]", bytes.Join(events, []byte{','}))
	if err = errors.Join(err, w.Close()); err != nil {
		return fmt.Errorf("packing events: %w", err)
	}
	return h.client.Post(ctx, h.url, h.header, chunk.Bytes())
}

// isRefusal reports whether a sink refuses the events themselves and may accept others.
// Only some statuses mean so; faults that can be repaired at the collector, such as a
// token or a path, are tried again.
func isRefusal(err error) bool {
	answer := (*delivery.StatusError)(nil)
	return errors.As(err, &answer) &&
		slices.Contains([]int{http.StatusBadRequest, http.StatusRequestEntityTooLarge, http.StatusUnprocessableEntity}, answer.Status)
}

func (h *collector) close() { h.client.Close() }
