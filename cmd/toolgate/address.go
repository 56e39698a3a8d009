package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/toolgate/toolgate/internal/app"
	"github.com/toolgate/toolgate/registry/config"
)

// address is where a command finds a running toolgate: the URL of --addr, else
// the listener that the configuration names. It has no slash at its end.
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
// patience above 0 the wait for an answer to begin.
func client(patience time.Duration) *http.Client {
	return &http.Client{Transport: &http.Transport{
		DialContext:           (&net.Dialer{Timeout: 5 * time.Second}).DialContext,
		ResponseHeaderTimeout: patience,
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
