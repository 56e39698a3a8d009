package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/toolgate/toolgate/registry/config"
)

// admin is a client of a running toolgate's admin listener.
type admin struct {
	base, token string
	http        *http.Client
}

// admin finds the admin listener: --addr, else the one that the configuration
// names.
func (e *env) admin() (*admin, error) {
	base, err := e.address(func(cfg *config.Config) string { return cfg.Admin })
	if err != nil {
		return nil, err
	}
	return &admin{base: base, token: e.token, http: client(30 * time.Second)}, nil
}

// call sends one request and decodes the answer into out, if out is not nil. A
// refusal is an *exit with the code that fits its status.
func (a *admin) call(ctx context.Context, method, path string, in, out any) error {
	res, err := a.send(ctx, method, path, in)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if out == nil {
		return nil
	}
	if err := json.NewDecoder(res.Body).Decode(out); err != nil {
		return fmt.Errorf("reading the answer: %w", err)
	}
	return nil
}

// send gives an answer with a good status; the caller closes its body.
func (a *admin) send(ctx context.Context, method, path string, in any) (*http.Response, error) {
	var body io.Reader
	if in != nil {
		text, err := json.Marshal(in)
		if err != nil {
			return nil, fmt.Errorf("writing the request: %w", err)
		}
		body = bytes.NewReader(text)
	}
	req, err := http.NewRequestWithContext(ctx, method, a.base+path, body)
	if err != nil {
		return nil, usage(fmt.Errorf("address %q cannot be used: %w", a.base, err))
	}
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if a.token != "" {
		req.Header.Set("Authorization", "Bearer "+a.token)
	}
	res, err := a.http.Do(req)
	if err != nil {
		return nil, unreachable(ctx, a.base)
	}
	if res.StatusCode < 300 {
		return res, nil
	}
	defer res.Body.Close()
	return nil, refusal(res)
}

// refusal reads problem details (RFC 7807).
func refusal(res *http.Response) error {
	var problem struct{ Title, Detail, Hint string }
	text, _ := io.ReadAll(io.LimitReader(res.Body, 64<<10))
	if json.Unmarshal(text, &problem) != nil || problem.Detail+problem.Title == "" {
		problem.Detail = res.Status
	}
	message := problem.Detail
	if message == "" {
		message = problem.Title
	}
	switch {
	case problem.Hint != "":
		message += "\nhint: " + problem.Hint
	case res.StatusCode == http.StatusUnauthorized:
		message += "\nhint: say who asks with --token or TOOLGATE_TOKEN"
	case res.StatusCode == http.StatusNotFound:
		message += "\nhint: does --addr name the right listener?"
	}
	return &exit{code: codeOfStatus(res.StatusCode), err: errors.New(message)}
}

func codeOfStatus(status int) int {
	switch status {
	case http.StatusUnauthorized, http.StatusForbidden:
		return exitUnauthorised
	case http.StatusBadRequest, http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusConflict, http.StatusUnprocessableEntity:
		return exitUsage
	case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return exitUnreachable
	}
	return exitUnexpected
}

// relay prints an answer as it came, for -o json.
func (e *env) relay(ctx context.Context, a *admin, path string) error {
	var doc json.RawMessage
	if err := a.call(ctx, http.MethodGet, path, nil, &doc); err != nil {
		return err
	}
	return e.json(doc)
}
