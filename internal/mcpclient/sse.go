package mcpclient

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"time"
)

// OpenSSE connects to an HTTP+SSE server. It waits for the address of its
// messages until ctx ends or timeout is over. Header and base are as in
// OpenHTTP.
func (c *Conn) OpenSSE(ctx context.Context, address string, header http.Header, base http.RoundTripper, timeout time.Duration) error {
	if err := c.OpenHTTP(address, header, base); err != nil {
		return err
	}
	w := c.wire.(*httpWire)
	w.shared = true
	ctx, stop := context.WithTimeout(ctx, timeout)
	defer stop()
	defer context.AfterFunc(ctx, func() { c.Fail(&Error{Kind: Timeout, Sent: true, Err: ctx.Err()}) })()
	return w.openShared()
}

// openShared opens the stream of all answers and reads it up to the address of messages.
func (w *httpWire) openShared() error {
	res, err := w.e.Open(w.c.life, Session{}, &Position{})
	if err != nil {
		return err
	}
	if !IsEvents(res) {
		defer res.Body.Close()
		text, _ := io.ReadAll(io.LimitReader(res.Body, maxRefusal)) // the status says enough
		return fmt.Errorf("the server answered with status %d: %s", res.StatusCode, Clip(text))
	}
	events := NewEvents(res.Body, w.c.limits.Bytes, &Position{})
	for {
		event, err := events.Next()
		if err != nil {
			res.Body.Close()
			return fmt.Errorf("waiting for the address of messages: %w", err)
		}
		if event.Kind == "endpoint" {
			target, err := w.e.URL.Parse(string(event.Data))
			if err != nil || target.Scheme != w.e.URL.Scheme || target.Host != w.e.URL.Host {
				res.Body.Close()
				return fmt.Errorf("refusing to leave %s://%s", w.e.URL.Scheme, w.e.URL.Host)
			}
			w.e.URL = target
			break
		}
	}
	if !w.c.Go(func() {
		defer res.Body.Close()
		w.readShared(events)
	}) {
		res.Body.Close()
	}
	return nil
}

// readShared handles the events of the stream to its end, which ends the connection.
func (w *httpWire) readShared(events *Events) {
	for {
		event, err := events.Next()
		switch {
		case err != nil:
			w.c.Fail(failed(fmt.Errorf("the server closed the event stream: %w", err)))
			return
		case event.isMessage():
			_ = w.c.receiveEvent(event, source{any: true}) // a refused message is counted
		}
	}
}
