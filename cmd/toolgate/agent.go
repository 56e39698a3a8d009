package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/mcpclient"
)

// Bounds of what a command reads of one answer: twice the largest message of a server,
// which results "full" repeat, in bytes, and its nesting.
const (
	maxAnswer = 128 << 20
	maxDepth  = 10_000
)

// agent is an MCP client of a running toolgate.
type agent struct {
	*mcpclient.Conn
	address string
}

// agent connects to the agents' listener: --addr, else the configured one. The
// caller closes it, which also ends the processes that upstreams keep for its
// session.
func (e *env) agent(ctx context.Context) (*agent, error) {
	to, err := e.find(agentsListener)
	if err != nil {
		return nil, err
	}
	base := to.base
	if _, host, _ := strings.Cut(base, "://"); !strings.Contains(host, "/") {
		base += "/mcp"
	}
	header := http.Header{}
	if e.token != "" {
		header.Set("Authorization", "Bearer "+e.token)
	}
	a := &agent{mcpclient.New(mcpclient.Options{MaxBytes: maxAnswer, MaxDepth: maxDepth}), base}
	if err := a.OpenHTTP(base, header, refusing{to.client(0).Transport}); err != nil {
		return nil, usage(err)
	}
	info := fmt.Appendf(nil, `{"name":"toolgate-cli","version":%q}`, version)
	if _, err := a.Initialize(ctx, []byte("{}"), info); err != nil {
		a.Close()
		return nil, a.failed(ctx, err)
	}
	return a, nil
}

// request sends one request and returns its result. One that is interrupted is
// cancelled: a call does not end because nobody waits for it.
func (a *agent) request(ctx context.Context, method string, params json.RawMessage) (json.RawMessage, error) {
	call := &mcpclient.Call{ID: a.NextID(), Method: method, Params: params}
	result, fault := a.Do(ctx, call)
	if fault == nil {
		return result, nil
	}
	if ctx.Err() != nil {
		late, stop := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
		defer stop()
		note := fmt.Appendf(nil, `{"requestId":%s,"reason":"interrupted"}`, jsonrpc.Quote(call.ID))
		_ = a.Post(late, jsonrpc.NewNotification("notifications/cancelled", note)) // nobody waits for it any more
	}
	return nil, a.failed(ctx, fault)
}

// failed is the error of a command whose request failed with err.
func (a *agent) failed(ctx context.Context, err error) error {
	var refused *exit
	var fault *mcpclient.Error
	switch {
	case ctx.Err() != nil:
		return errInterrupted
	case errors.As(err, &refused):
		return refused
	case errors.As(err, &fault) && fault.RPC != nil:
		return rpcError(fault.RPC)
	}
	return &exit{code: exitUnreachable, err: fmt.Errorf("no answer from %s: %w\nhint: does --addr name a toolgate? toolgate audit tail says what became of a call", a.address, err)}
}

// refusing turns the refusals of a toolgate into errors of commands. Streams of
// the session may be refused: no command needs them.
type refusing struct{ http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (t refusing) RoundTrip(req *http.Request) (*http.Response, error) {
	res, err := t.RoundTripper.RoundTrip(req)
	switch {
	case err != nil:
		return nil, unreachable(req.Context(), req.URL.String(), err)
	case res.StatusCode < 300 || req.Method != http.MethodPost:
		return res, nil
	}
	defer res.Body.Close()
	if res.StatusCode == http.StatusNotFound && req.Header.Get("Mcp-Session-Id") == "" {
		return nil, usage(fmt.Errorf("there is no road for agents at %s\nhint: --addr names the agents' listener, or on it one server's road: /mcp/SERVER", req.URL))
	}
	return nil, refusal(res)
}
