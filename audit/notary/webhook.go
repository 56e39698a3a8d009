package notary

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
)

// WebhookAnchor is an address that receives each checkpoint as the body of a POST. What
// it keeps, each note in a file of its own, is evidence.
type WebhookAnchor string

// Publish implements Anchor. Redirects are not followed.
func (u WebhookAnchor) Publish(ctx context.Context, _ Checkpoint, signed []byte) error {
	if _, err := post(ctx, string(u), signed); err != nil {
		return fmt.Errorf("posting checkpoint: %w", err)
	}
	return nil
}

// maxReply bounds the response of an anchor, in bytes.
const maxReply = 64 << 10

// post sends body and returns the response, at most maxReply bytes. Redirects are not
// followed, and errors do not name the address, which may hold a secret. The error is a
// statusError when the status is not 2xx.
func post(ctx context.Context, address string, body []byte) ([]byte, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, address, bytes.NewReader(body))
	if err != nil {
		return nil, errors.New("the address cannot be read")
	}
	r.Header.Set("Content-Type", "text/plain; charset=utf-8")
	client := http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	res, err := client.Do(r)
	if err != nil {
		return nil, errors.New("no answer")
	}
	defer res.Body.Close()
	if res.StatusCode/100 != 2 {
		return nil, statusError(res.StatusCode)
	}
	reply, err := io.ReadAll(io.LimitReader(res.Body, maxReply+1))
	if err != nil || len(reply) > maxReply {
		return nil, errors.New("the response breaks off or is too long")
	}
	return reply, nil
}

// statusError is the status code of a response other than 2xx.
type statusError int

// Error implements error.
func (e statusError) Error() string { return fmt.Sprintf("status %d", int(e)) }
