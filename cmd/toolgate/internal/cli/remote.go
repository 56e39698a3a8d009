package cli

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/app"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/report"
	"github.com/toolgate/toolgate/console"
	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/mcpclient"
	"github.com/toolgate/toolgate/proxy/wire"
	"github.com/toolgate/toolgate/registry/config"
)

// A listener says where one of the two listeners of a configuration is.
type listener func(*config.Config) (address string, secure *config.TLS)

func agentsListener(cfg *config.Config) (string, *config.TLS) { return cfg.Listen, cfg.TLS }
func peopleListener(cfg *config.Config) (string, *config.TLS) { return cfg.Admin, cfg.AdminTLS }

// find returns the URL of the listener of --addr, or else of the one that the configuration
// names, without a slash at its end. The transport makes connections of its own, past proxy
// variables. The answer to a call may take as long as the call, so only connecting is bounded.
func (e *env) find(which listener) (base string, _ *http.Transport, err error) {
	var address string
	var own *config.TLS
	if e.addr == "" {
		cfg, err := e.load()
		if err != nil {
			return "", nil, err
		}
		address, own = which(cfg)
		base = app.URL(address, own)
	} else {
		u, err := url.Parse(e.addr)
		if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" || u.RawQuery != "" || u.Fragment != "" {
			return "", nil, usage(errors.New("--addr is no http or https address\nhint: --addr http://127.0.0.1:8788"))
		}
		base = strings.TrimSuffix(e.addr, "/")
	}
	secure, err := e.trust(address, own)
	return base, &http.Transport{DialContext: (&net.Dialer{Timeout: 5 * time.Second}).DialContext, TLSClientConfig: secure, TLSHandshakeTimeout: 5 * time.Second}, err
}

// trust returns how certificates are verified: by the authorities of the system and of
// --ca. A listener of the configuration may also show its own certificate, whatever
// name it has. The certificate of --client-cert is shown to a listener that asks.
func (e *env) trust(address string, own *config.TLS) (*tls.Config, error) {
	pool, err := x509.SystemCertPool()
	if err != nil {
		pool = x509.NewCertPool()
	}
	secure := &tls.Config{RootCAs: pool}
	if e.ca != "" {
		text, err := os.ReadFile(e.ca)
		if err != nil || !pool.AppendCertsFromPEM(text) {
			return nil, usage(fmt.Errorf("--ca %s has no certificate in PEM\nhint: check --ca or TOOLGATE_CA", e.ca))
		}
	}
	if e.clientCert != "" {
		pair, err := tls.LoadX509KeyPair(e.clientCert, e.clientCert)
		if err != nil {
			return nil, usage(fmt.Errorf("--client-cert cannot be used: %w\nhint: one PEM file has the certificate and its key", err))
		}
		secure.Certificates = []tls.Certificate{pair}
	}
	if own == nil {
		return secure, nil
	}
	text, _ := os.ReadFile(own.Cert) // without it, an authority has to vouch for the listener
	block, _ := pem.Decode(text)
	if block == nil {
		return secure, nil
	}
	if leaf, err := x509.ParseCertificate(block.Bytes); err == nil {
		pool.AddCert(leaf)
		host, _, _ := net.SplitHostPort(app.Reachable(address))
		switch {
		case leaf.VerifyHostname(host) == nil:
		case len(leaf.DNSNames) > 0:
			secure.ServerName = leaf.DNSNames[0]
		case len(leaf.IPAddresses) > 0:
			secure.ServerName = leaf.IPAddresses[0].String()
		}
	}
	return secure, nil
}

var errInterrupted = errors.New("interrupted")

// errNoToolgate reports that nothing answers at an address.
var errNoToolgate = errors.New("no toolgate answers")

// unreachable is the error of a request that got no answer, because of a cause.
func unreachable(ctx context.Context, base string, cause error) error {
	if ctx.Err() != nil {
		return errInterrupted
	}
	untrusted, failed := (*tls.CertificateVerificationError)(nil), (*net.OpError)(nil)
	switch {
	case errors.As(cause, &untrusted):
		return &exit{code: exitUnreachable, err: fmt.Errorf("the certificate of %s is refused: %w\nhint: name its authority with --ca or TOOLGATE_CA", base, untrusted.Err)}
	case strings.HasPrefix(base, "https:") && !(errors.As(cause, &failed) && failed.Op == "dial"):
		// A listener that wants a certificate closes the connection, and its reason may be lost with it.
		return &exit{code: exitUnreachable, err: fmt.Errorf("%s closed the connection: %w\nhint: a listener with client_ca wants a certificate: --client-cert or TOOLGATE_CLIENT_CERT", base, cause)}
	}
	return &exit{code: exitUnreachable, err: fmt.Errorf("%w at %s\nhint: is toolgate serve running? name it with --addr", errNoToolgate, base)}
}

// send sends one request to a listener of a running toolgate: that of --addr, or else the
// configured one. It returns the response whatever its status, whose body the caller
// closes, and the URL of the listener.
func (e *env) send(ctx context.Context, which listener, method, path string, in any) (*http.Response, string, error) {
	base, transport, err := e.find(which)
	if err != nil {
		return nil, "", err
	}
	var body bytes.Buffer
	if in != nil {
		if err := json.NewEncoder(&body).Encode(in); err != nil {
			return nil, "", fmt.Errorf("writing the request: %w", err)
		}
	}
	req, err := http.NewRequestWithContext(ctx, method, base+path, &body)
	if err != nil {
		return nil, "", usage(fmt.Errorf("address %q cannot be used: %w", base, err))
	}
	req.Header.Set("Accept", "application/json")
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if e.token != "" {
		req.Header.Set("Authorization", "Bearer "+e.token)
	}
	transport.ResponseHeaderTimeout = 30 * time.Second
	res, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return nil, "", unreachable(ctx, base, err)
	}
	return res, base, nil
}

// request is send for a response with a good status. A refusal is an *exit with the code that
// fits its status.
func (e *env) request(ctx context.Context, which listener, method, path string, in any) (*http.Response, error) {
	res, _, err := e.send(ctx, which, method, path, in)
	if err != nil || res.StatusCode < 300 {
		return res, err
	}
	defer res.Body.Close()
	return nil, refusal(res)
}

// fetch decodes the answer of a listener into out.
func (e *env) fetch(ctx context.Context, which listener, method, path string, in, out any) error {
	res, err := e.request(ctx, which, method, path, in)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if err := json.NewDecoder(res.Body).Decode(out); err != nil {
		return fmt.Errorf("reading the answer: %w", err)
	}
	return nil
}

// readStatus reads what a running toolgate says of itself at /readyz, ready or not.
func (e *env) readStatus(ctx context.Context, s *console.Status) error {
	res, base, err := e.send(ctx, peopleListener, http.MethodGet, "/readyz?verbose", nil)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK && res.StatusCode != http.StatusServiceUnavailable {
		return refusal(res)
	}
	if err := json.NewDecoder(res.Body).Decode(s); err != nil {
		return &exit{code: exitUnreachable, err: fmt.Errorf("reading the status at %s: %w\nhint: --addr names the admin listener", base, err)}
	}
	return nil
}

// admin returns the report of what the admin listener has at path: for a document as it
// came, else decoded into v.
func admin[V any](ctx context.Context, e *env, path string, v *V, text func(*V, report.Form) string) (*report.Report, error) {
	if e.Structured() {
		document := new(json.RawMessage)
		return report.Document(document), e.fetch(ctx, peopleListener, http.MethodGet, path, nil, document)
	}
	return report.Of(v, text), e.fetch(ctx, peopleListener, http.MethodGet, path, nil, v)
}

// refusal reads problem details (RFC 7807).
func refusal(res *http.Response) error {
	var problem struct{ Title, Detail, Hint, Code string }
	text, _ := io.ReadAll(io.LimitReader(res.Body, 64<<10)) // the status says enough
	if json.Unmarshal(text, &problem) != nil {
		problem.Detail, problem.Code = "", ""
	}
	message := cmp.Or(problem.Detail, problem.Title, res.Status)
	switch {
	case problem.Hint != "":
		message += "\nhint: " + problem.Hint
	case bytes.Contains(text, []byte("HTTP request to an HTTPS server")): // net/http's words
		message += "\nhint: the listener speaks TLS: write https://"
	case res.StatusCode == http.StatusUnauthorized:
		message += "\nhint: say who asks with --token or TOOLGATE_TOKEN"
	case res.StatusCode == http.StatusNotFound:
		message += "\nhint: does --addr name the right listener?"
	}
	code := exitUnexpected
	switch res.StatusCode {
	case http.StatusUnauthorized, http.StatusForbidden:
		code = exitUnauthorised
	case http.StatusBadRequest, http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusConflict, http.StatusUnprocessableEntity:
		code = exitUsage
	case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		code = exitUnreachable
	}
	return &exit{code: code, err: errors.New(message), word: problem.Code}
}

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
	base, transport, err := e.find(agentsListener)
	if err != nil {
		return nil, err
	}
	if _, host, _ := strings.Cut(base, "://"); !strings.Contains(host, "/") {
		base += "/mcp"
	}
	header := http.Header{}
	if e.token != "" {
		header.Set("Authorization", "Bearer "+e.token)
	}
	a := &agent{mcpclient.New(mcpclient.Options{MaxBytes: maxAnswer, MaxDepth: maxDepth}), base}
	if err := a.OpenHTTP(base, header, refusing{transport}); err != nil {
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
		var r struct {
			Code    int
			Message string
			Data    struct {
				Code   wire.Code
				Remedy string
			}
		}
		if err := json.Unmarshal(fault.RPC, &r); err != nil {
			return fmt.Errorf("reading the error: %w", err)
		}
		said, _, _ := strings.Cut(r.Message, wire.HintMark) // the remedy has a line of its own
		text := fmt.Sprintf("%s (%s, %d)", said, cmp.Or(r.Data.Code, "no code"), r.Code)
		if r.Data.Remedy != "" {
			text += hintMark + r.Data.Remedy
		}
		return &exit{code: codeFor(r.Data.Code), err: errors.New(text), word: string(r.Data.Code), rpc: fault.RPC}
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
