package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/mcpclient"
	"github.com/toolgate/toolgate/proxy/wire"
	"github.com/toolgate/toolgate/registry/config"
)

// agent is an MCP client of a running toolgate, as far as the commands need
// one: initialize, then requests.
type agent struct {
	endpoint mcpclient.Endpoint
	session  mcpclient.Session
	http     *http.Client
}

// cliEnvelope makes the requests of the commands: what it makes, a toolgate
// takes in any profile.
var cliEnvelope = wire.Envelope{Profile: wire.ProfileStrict, Deterministic: true}

// answer is what one request came to.
type answer struct {
	Result json.RawMessage `json:"result,omitempty"`
	Error  json.RawMessage `json:"error,omitempty"`
}

const agentRevision = "2025-11-25"

// agent connects to the agents' listener: --addr, else the configured one. The
// caller closes it.
func (e *env) agent(ctx context.Context) (*agent, error) {
	base, err := e.address(func(cfg *config.Config) string { return cfg.Listen })
	if err != nil {
		return nil, err
	}
	if _, host, _ := strings.Cut(base, "://"); !strings.Contains(host, "/") {
		base += "/mcp"
	}
	target, err := url.Parse(base)
	if err != nil {
		return nil, usage(fmt.Errorf("address %q cannot be used: %w", base, err))
	}
	a := &agent{http: client(0)}
	a.endpoint = mcpclient.Endpoint{URL: target, Transport: a.http.Transport, MaxBytes: maxAnswer, Pause: time.Second, Log: hclog.NewNullLogger()}
	if e.token != "" {
		a.endpoint.Header = http.Header{"Authorization": {"Bearer " + e.token}}
	}
	if err := a.begin(ctx); err != nil {
		a.close()
		return nil, err
	}
	return a, nil
}

// begin opens the session.
func (a *agent) begin(ctx context.Context) error {
	params := fmt.Sprintf(`{"protocolVersion":%q,"capabilities":{},"clientInfo":{"name":"toolgate-cli","version":%q}}`, agentRevision, version)
	got, err := a.request(ctx, "initialize", json.RawMessage(params))
	if err != nil {
		return err
	}
	if got.Error != nil {
		return fmt.Errorf("connecting to %s: %w", a.endpoint.URL, rpcError(got.Error))
	}
	a.session.Revision = agentRevision
	return a.notify(ctx, "notifications/initialized", nil)
}

// notify sends what has no answer.
func (a *agent) notify(ctx context.Context, method string, params json.RawMessage) error {
	message, err := wire.CreateNotification(method, params)
	if err != nil {
		return err
	}
	res, err := a.post(ctx, message)
	if err != nil {
		return err
	}
	return res.Body.Close()
}

// close ends the session, and with it the processes that upstreams keep for it.
// A session that cannot be ended idles out.
func (a *agent) close() {
	ctx, stop := context.WithTimeout(context.Background(), 2*time.Second)
	defer stop()
	if a.session.ID != "" {
		a.endpoint.End(ctx, a.session)
	}
	a.http.CloseIdleConnections()
}

// request sends one request and reads its answer. One that is interrupted is
// cancelled: a call does not end because nobody waits for it.
func (a *agent) request(ctx context.Context, method string, params json.RawMessage) (answer, error) {
	message, err := cliEnvelope.CreateRequest(method, params, "cli")
	if err != nil {
		return answer{}, err
	}
	id, _ := jsonrpc.Get(message, "id")
	got, err := a.exchange(ctx, id, message)
	if ctx.Err() != nil && a.session.ID != "" {
		ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
		defer stop()
		note := fmt.Appendf(nil, `{"requestId":%s,"reason":"interrupted"}`, id)
		_ = a.notify(ctx, "notifications/cancelled", note) // nobody waits for it any more
		return answer{}, errInterrupted
	}
	return got, err
}

// exchange sends a request and reads its answer, whether it comes as JSON or as
// an event stream.
func (a *agent) exchange(ctx context.Context, id json.RawMessage, message []byte) (answer, error) {
	res, err := a.post(ctx, message)
	if err != nil {
		return answer{}, err
	}
	defer res.Body.Close()
	if id := mcpclient.SessionID(res); id != "" {
		a.session.ID = id
	}
	var got answer
	var ok bool
	take := func(text []byte) { got, ok = answerTo(id, text) }
	if mcpclient.IsEvents(res) {
		if err := a.endpoint.Follow(ctx, res.Body, a.session, true, take, func() bool { return ok }); err != nil {
			err = fmt.Errorf("the connection ended before the answer\nhint: toolgate audit tail says what became of the call\n%w", err)
			return answer{}, &exit{code: exitUnreachable, err: err}
		}
		return got, nil
	}
	text, err := mcpclient.ReadBody(res, maxAnswer)
	if err != nil {
		return answer{}, fmt.Errorf("reading the answer: %w", err)
	}
	if take(text); !ok {
		return answer{}, fmt.Errorf("reading the answer: %s gave neither result nor error\nhint: does --addr name a toolgate?", a.endpoint.URL)
	}
	return got, nil
}

// maxAnswer bounds what a command reads of one answer, in bytes.
const maxAnswer = 16 << 20

// answerTo returns the answer to request id in text, false for any other text.
func answerTo(id json.RawMessage, text []byte) (answer, bool) {
	m, fault := wire.Envelope{Limits: jsonrpc.Limits{Bytes: maxAnswer}}.Validate(text)
	if fault != nil {
		return answer{}, false
	}
	var pool jsonrpc.Pool[*jsonrpc.Message]
	pool.Put(m.ID, m)
	if m = wire.MatchResponseToRequest(id, &pool); m == nil {
		return answer{}, false
	}
	return answer{Result: m.Result, Error: m.Error}, true
}

// post sends one message and returns a response with a good status; the caller
// closes its body.
func (a *agent) post(ctx context.Context, message []byte) (*http.Response, error) {
	res, err := a.endpoint.Post(ctx, a.endpoint.Headers(a.session), message, nil)
	if err != nil {
		return nil, unreachable(ctx, a.endpoint.URL.String())
	}
	if res.StatusCode >= 300 {
		defer res.Body.Close()
		if a.session.ID == "" && res.StatusCode == http.StatusNotFound {
			return nil, usage(fmt.Errorf("there is no road for agents at %s\nhint: --addr names the agents' listener, or on it one server's road: /mcp/SERVER", a.endpoint.URL))
		}
		return nil, refusal(res)
	}
	return res, nil
}
