package websearch

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/toolgate/toolgate/internal/delivery"
	"github.com/toolgate/toolgate/internal/wait"
	"github.com/toolgate/toolgate/tools/search"
	"github.com/toolgate/toolgate/tools/service"
)

const (
	maxAnswer    = 2 << 20 // bytes of one answer, decompressed
	maxRedirects = 3
	longestPause = time.Second // before the second attempt
)

// one reads one page of results.
func (e *Engine) one(ctx context.Context, q query) ([]search.Result, error) {
	if e.serial {
		select {
		case e.turn <- struct{}{}:
			defer func() { <-e.turn }()
		case <-ctx.Done():
			return nil, e.failed("did not answer in time")
		}
	}
	body, err := e.send(ctx, e.ask(q))
	if err != nil {
		return nil, err
	}
	hits, err := e.read(body, q)
	if f, ok := errors.AsType[*service.Failure](err); ok {
		return nil, e.failed(f.Text)
	}
	if err != nil {
		return nil, e.failed("sent an answer that cannot be read")
	}
	return hits, nil
}

// send makes the request, a GET a second time where the first attempt had no answer or
// a gateway's 502, 503 or 504. A POST may have been carried out and is never repeated.
func (e *Engine) send(ctx context.Context, r request) ([]byte, error) {
	body, err := e.exchange(ctx, r)
	f, ok := errors.AsType[*service.Failure](err)
	if !ok || !f.Again || r.body != nil || !wait.For(ctx, rand.N(longestPause)) {
		return body, err
	}
	return e.exchange(ctx, r)
}

func (e *Engine) exchange(ctx context.Context, r request) ([]byte, error) {
	req, err := e.build(ctx, r)
	if err != nil {
		return nil, e.failed("cannot be asked: its address or key is malformed")
	}
	res, err := e.client.Do(req)
	switch {
	case errors.Is(err, service.ErrRedirect):
		return nil, e.failed(service.ErrRedirect.Error())
	case err != nil:
		f := e.failed("does not answer: " + delivery.Explain(ctx, err).Error())
		f.Again = true
		return nil, f
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return nil, e.refusal(res)
	}
	body, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer+1))
	switch {
	case err != nil:
		return nil, e.failed("sent half an answer: " + delivery.Explain(ctx, err).Error())
	case len(body) > maxAnswer:
		return nil, e.failed(fmt.Sprintf("sent an answer of more than %d bytes", maxAnswer))
	}
	return body, nil
}

func (e *Engine) build(ctx context.Context, r request) (*http.Request, error) {
	method, body := http.MethodGet, io.Reader(nil)
	if r.body != nil {
		text, err := json.Marshal(r.body)
		if err != nil {
			return nil, err
		}
		method, body = http.MethodPost, bytes.NewReader(text)
	}
	address := e.opts.BaseURL + r.path
	if r.query != nil {
		address += "?" + r.query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, method, address, body)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", e.agent())
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	for name, value := range r.header {
		req.Header.Set(name, value)
	}
	return req, nil
}

// agent is the User-Agent, with the contact that Wikimedia's policy asks for.
func (e *Engine) agent() string {
	agent := "toolgate/" + cmp.Or(e.opts.Version, "dev")
	if e.opts.Contact != "" {
		agent += " (" + e.opts.Contact + ")"
	}
	return agent
}

// refusal explains an answer without results. Its body is not read.
func (e *Engine) refusal(res *http.Response) *service.Failure {
	switch status := res.StatusCode; {
	case service.RefusesKey(status):
		f := e.failed(fmt.Sprintf("refuses toolgate (status %d)", status))
		f.Hint = "check api_key, and what its plan allows; SearXNG needs json in search.formats"
		return f
	case status == http.StatusTooManyRequests:
		return e.failed("limits requests" + service.ComeBack(res.Header, e.opts.Now()))
	case status == http.StatusBadGateway || status == http.StatusServiceUnavailable || status == http.StatusGatewayTimeout:
		f := e.failed(fmt.Sprintf("is out of order (status %d)", status) + service.ComeBack(res.Header, e.opts.Now()))
		f.Again = res.Header.Get("Retry-After") == ""
		return f
	case status >= 500:
		return e.failed(fmt.Sprintf("is out of order (status %d)", status))
	default:
		f := e.failed(fmt.Sprintf("does not accept the search (status %d)", status))
		f.Hint = "check api_key: Brave answers 422 to a key that it does not know"
		return f
	}
}

func (e *Engine) failed(what string) *service.Failure {
	return &service.Failure{Text: "the search service " + e.opts.Provider + " " + what}
}
