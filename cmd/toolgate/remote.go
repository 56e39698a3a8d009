package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/toolgate/toolgate/internal/app"
	"github.com/toolgate/toolgate/registry/config"
)

// address returns the URL of a running toolgate, without a slash at its end: that
// of --addr, or else of the listener that the configuration names.
func (e *env) address(listener func(*config.Config) string) (string, error) {
	if e.addr == "" {
		cfg, err := e.load()
		if err != nil {
			return "", err
		}
		return "http://" + app.Reachable(listener(cfg)), nil
	}
	u, err := url.Parse(e.addr)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" || u.RawQuery != "" || u.Fragment != "" {
		return "", usage(errors.New("--addr is no http or https address\nhint: --addr http://127.0.0.1:8788"))
	}
	return strings.TrimSuffix(e.addr, "/"), nil
}

// client makes connections of its own, past proxy variables. The answer to a
// call may take as long as the call, so only connecting is bounded, and with
// headerTimeout above 0 the wait for an answer to begin.
func client(headerTimeout time.Duration) *http.Client {
	return &http.Client{Transport: &http.Transport{
		DialContext:           (&net.Dialer{Timeout: 5 * time.Second}).DialContext,
		ResponseHeaderTimeout: headerTimeout,
	}}
}

var errInterrupted = errors.New("interrupted")

// unreachable is the error of a request that got no answer.
func unreachable(ctx context.Context, base string) error {
	if ctx.Err() != nil {
		return errInterrupted
	}
	return &exit{code: exitUnreachable, err: fmt.Errorf("no toolgate answers at %s\nhint: is toolgate serve running? name it with --addr", base)}
}

// askAdmin sends one request to the admin listener of a running toolgate: --addr,
// or else the configured one. It returns a response with a good status, whose body
// the caller closes; a refusal is an *exit with the code that fits its status.
func (e *env) askAdmin(ctx context.Context, method, path string, in any) (*http.Response, error) {
	base, err := e.address(func(cfg *config.Config) string { return cfg.Admin })
	if err != nil {
		return nil, err
	}
	var body bytes.Buffer
	if in != nil {
		if err := json.NewEncoder(&body).Encode(in); err != nil {
			return nil, fmt.Errorf("writing the request: %w", err)
		}
	}
	req, err := http.NewRequestWithContext(ctx, method, base+path, &body)
	if err != nil {
		return nil, usage(fmt.Errorf("address %q cannot be used: %w", base, err))
	}
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if e.token != "" {
		req.Header.Set("Authorization", "Bearer "+e.token)
	}
	res, err := client(30 * time.Second).Do(req)
	if err != nil {
		return nil, unreachable(ctx, base)
	}
	if res.StatusCode < 300 {
		return res, nil
	}
	defer res.Body.Close()
	return nil, refusal(res)
}

// callAdmin decodes the answer of the admin listener into out.
func (e *env) callAdmin(ctx context.Context, method, path string, in, out any) error {
	res, err := e.askAdmin(ctx, method, path, in)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if err := json.NewDecoder(res.Body).Decode(out); err != nil {
		return fmt.Errorf("reading the answer: %w", err)
	}
	return nil
}

// printAdmin prints what the admin listener has at path: with -o json as it came,
// else decoded into v and as the report of a name.
func (e *env) printAdmin(ctx context.Context, path, report string, v any) error {
	if e.output == "json" {
		v = new(json.RawMessage)
	}
	if err := e.callAdmin(ctx, http.MethodGet, path, nil, v); err != nil {
		return err
	}
	return e.print(report, v)
}

// refusal reads problem details (RFC 7807).
func refusal(res *http.Response) error {
	var problem struct{ Title, Detail, Hint string }
	text, _ := io.ReadAll(io.LimitReader(res.Body, 64<<10)) // the status says enough
	if json.Unmarshal(text, &problem) != nil {
		problem.Detail = ""
	}
	message := cmp.Or(problem.Detail, problem.Title, res.Status)
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
