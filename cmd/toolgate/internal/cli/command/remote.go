package command

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

	"github.com/spf13/cobra"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/app"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/report"
	"github.com/toolgate/toolgate/console"
	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/mcpclient"
	"github.com/toolgate/toolgate/internal/wait"
	"github.com/toolgate/toolgate/proxy/wire"
	"github.com/toolgate/toolgate/registry/config"
)

// A Listener says where one of the two listeners of a configuration is.
type Listener func(*config.Config) (address string, secure *config.TLS)

// AgentsListener is where agents call tools.
func AgentsListener(cfg *config.Config) (string, *config.TLS) { return cfg.Listen, cfg.TLS }

// PeopleListener is where people and programs of operators ask.
func PeopleListener(cfg *config.Config) (string, *config.TLS) { return cfg.Admin, cfg.AdminTLS }

// Find returns the URL of the listener of --addr, or else of the one that the configuration
// names, without a slash at its end. The transport makes connections of its own, past proxy
// variables. The answer to a call may take as long as the call, so only connecting is bounded.
func (e *Env) Find(which Listener) (base string, _ *http.Transport, err error) {
	var address string
	var own *config.TLS
	if e.Addr == "" {
		cfg, err := e.Load()
		if err != nil {
			return "", nil, err
		}
		address, own = which(cfg)
		base = app.URL(address, own)
	} else {
		u, err := url.Parse(e.Addr)
		if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" || u.RawQuery != "" || u.Fragment != "" {
			return "", nil, Usage(errors.New("--addr is no http or https address\nhint: --addr http://127.0.0.1:8788"))
		}
		base = strings.TrimSuffix(e.Addr, "/")
	}
	secure, err := e.Trust(address, own)
	return base, &http.Transport{DialContext: (&net.Dialer{Timeout: 5 * time.Second}).DialContext, TLSClientConfig: secure, TLSHandshakeTimeout: 5 * time.Second}, err
}

// Trust returns how certificates are verified: by the authorities of the system and of
// --ca. A listener of the configuration may also show its own certificate, whatever
// name it has. The certificate of --client-cert is shown to a listener that asks.
func (e *Env) Trust(address string, own *config.TLS) (*tls.Config, error) {
	pool, err := x509.SystemCertPool()
	if err != nil {
		pool = x509.NewCertPool()
	}
	secure := &tls.Config{RootCAs: pool}
	if e.CA != "" {
		text, err := os.ReadFile(e.CA)
		if err != nil || !pool.AppendCertsFromPEM(text) {
			return nil, Usage(fmt.Errorf("--ca %s has no certificate in PEM\nhint: check --ca or TOOLGATE_CA", e.CA))
		}
	}
	if e.ClientCert != "" {
		pair, err := tls.LoadX509KeyPair(e.ClientCert, e.ClientCert)
		if err != nil {
			return nil, Usage(fmt.Errorf("--client-cert cannot be used: %w\nhint: one PEM file has the certificate and its key", err))
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

// ErrInterrupted reports that a signal ended a request.
var ErrInterrupted = errors.New("interrupted")

// ErrNoToolgate reports that nothing answers at an address.
var ErrNoToolgate = errors.New("no toolgate answers")

// unreachable is the error of a request that got no answer, because of a cause.
func unreachable(ctx context.Context, base string, cause error) error {
	if ctx.Err() != nil {
		return ErrInterrupted
	}
	untrusted, failed := (*tls.CertificateVerificationError)(nil), (*net.OpError)(nil)
	switch {
	case errors.As(cause, &untrusted):
		return &Exit{Code: ExitUnreachable, Err: fmt.Errorf("the certificate of %s is refused: %w\nhint: name its authority with --ca or TOOLGATE_CA", base, untrusted.Err)}
	case strings.HasPrefix(base, "https:") && !(errors.As(cause, &failed) && failed.Op == "dial"):
		// A listener that wants a certificate closes the connection, and its reason may be lost with it.
		return &Exit{Code: ExitUnreachable, Err: fmt.Errorf("%s closed the connection: %w\nhint: a listener with client_ca wants a certificate: --client-cert or TOOLGATE_CLIENT_CERT", base, cause)}
	}
	return &Exit{Code: ExitUnreachable, Err: fmt.Errorf("%w at %s\nhint: is toolgate serve running? name it with --addr", ErrNoToolgate, base)}
}

// Send sends one request to a listener of a running toolgate: that of --addr, or else the
// configured one. It returns the response whatever its status, whose body the caller
// closes, and the URL of the listener.
func (e *Env) Send(ctx context.Context, which Listener, method, path string, in any) (*http.Response, string, error) {
	base, transport, err := e.Find(which)
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
		return nil, "", Usage(fmt.Errorf("address %q cannot be used: %w", base, err))
	}
	req.Header.Set("Accept", "application/json")
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if e.Token != "" {
		req.Header.Set("Authorization", "Bearer "+e.Token)
	}
	transport.ResponseHeaderTimeout = 30 * time.Second
	res, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return nil, "", unreachable(ctx, base, err)
	}
	return res, base, nil
}

// Request is send for a response with a good status. A refusal is an *exit with the code that
// fits its status.
func (e *Env) Request(ctx context.Context, which Listener, method, path string, in any) (*http.Response, error) {
	res, _, err := e.Send(ctx, which, method, path, in)
	if err != nil || res.StatusCode < 300 {
		return res, err
	}
	defer res.Body.Close()
	return nil, refusal(res)
}

// Fetch decodes the answer of a listener into out.
func (e *Env) Fetch(ctx context.Context, which Listener, method, path string, in, out any) error {
	res, err := e.Request(ctx, which, method, path, in)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if err := json.NewDecoder(res.Body).Decode(out); err != nil {
		return fmt.Errorf("reading the answer: %w", err)
	}
	return nil
}

// ReadStatus reads what a running toolgate says of itself at /readyz, ready or not.
func (e *Env) ReadStatus(ctx context.Context, s *console.Status) error {
	res, base, err := e.Send(ctx, PeopleListener, http.MethodGet, "/readyz?verbose", nil)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK && res.StatusCode != http.StatusServiceUnavailable {
		return refusal(res)
	}
	if err := json.NewDecoder(res.Body).Decode(s); err != nil {
		return &Exit{Code: ExitUnreachable, Err: fmt.Errorf("reading the status at %s: %w\nhint: --addr names the admin listener", base, err)}
	}
	return nil
}

// Admin returns the report of what the admin listener has at path: for a document as it
// came, else decoded into v.
func Admin[V any](ctx context.Context, e *Env, path string, v *V, text func(*V, report.Form) string) (*report.Report, error) {
	if e.Structured() {
		document := new(json.RawMessage)
		return report.Document(document), e.Fetch(ctx, PeopleListener, http.MethodGet, path, nil, document)
	}
	return report.Of(v, text), e.Fetch(ctx, PeopleListener, http.MethodGet, path, nil, v)
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
	code := ExitUnexpected
	switch res.StatusCode {
	case http.StatusUnauthorized, http.StatusForbidden:
		code = ExitUnauthorised
	case http.StatusBadRequest, http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusConflict, http.StatusUnprocessableEntity:
		code = ExitUsage
	case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		code = ExitUnreachable
	}
	return &Exit{Code: code, Err: errors.New(message), Word: problem.Code}
}

// Bounds of what a command reads of one answer: twice the largest message of a server,
// which results "full" repeat, in bytes, and its nesting.
const (
	MaxAnswer = 128 << 20
	maxDepth  = 10_000
)

// Agent is an MCP client of a running toolgate.
type Agent struct {
	*mcpclient.Conn
	address string
}

// Agent connects to the agents' listener: --addr, else the configured one. The
// caller closes it, which also ends the processes that upstreams keep for its
// session.
func (e *Env) Agent(ctx context.Context) (*Agent, error) {
	base, transport, err := e.Find(AgentsListener)
	if err != nil {
		return nil, err
	}
	if _, host, _ := strings.Cut(base, "://"); !strings.Contains(host, "/") {
		base += "/mcp"
	}
	header := http.Header{}
	if e.Token != "" {
		header.Set("Authorization", "Bearer "+e.Token)
	}
	a := &Agent{mcpclient.New(mcpclient.Options{MaxBytes: MaxAnswer, MaxDepth: maxDepth}), base}
	if err := a.OpenHTTP(base, header, refusing{transport}); err != nil {
		return nil, Usage(err)
	}
	info := fmt.Appendf(nil, `{"name":"toolgate-cli","version":%q}`, Version)
	if _, err := a.Initialize(ctx, []byte("{}"), info); err != nil {
		a.Close()
		return nil, a.failed(ctx, err)
	}
	return a, nil
}

// Request sends one request and returns its result. One that is interrupted is
// cancelled: a call does not end because nobody waits for it.
func (a *Agent) Request(ctx context.Context, method string, params json.RawMessage) (json.RawMessage, error) {
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
func (a *Agent) failed(ctx context.Context, err error) error {
	var refused *Exit
	var fault *mcpclient.Error
	switch {
	case ctx.Err() != nil:
		return ErrInterrupted
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
			text += HintMark + r.Data.Remedy
		}
		return &Exit{Code: CodeFor(r.Data.Code), Err: errors.New(text), Word: string(r.Data.Code), rpc: fault.RPC}
	}
	return &Exit{Code: ExitUnreachable, Err: fmt.Errorf("no answer from %s: %w\nhint: does --addr name a toolgate? toolgate audit tail says what became of a call", a.address, err)}
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
		return nil, Usage(fmt.Errorf("there is no road for agents at %s\nhint: --addr names the agents' listener, or on it one server's road: /mcp/SERVER", req.URL))
	}
	return nil, refusal(res)
}

// jobBeat is how often a command asks how far its job has come.
const jobBeat = 300 * time.Millisecond

// RunJob begins a job at a path of the admin listener, shows its progress, and decodes its result into
// result. A command that is interrupted cancels its job.
func (e *Env) RunJob(ctx context.Context, path, query string, in, result any) error {
	var job struct {
		console.Job
		Result json.RawMessage `json:"result"`
	}
	if err := e.Fetch(ctx, PeopleListener, http.MethodPost, path+query, in, &job); err != nil {
		return err
	}
	at := path + "/" + url.PathEscape(job.ID)
	bar := e.Progress(false)
	defer bar.End()
	for job.State == console.JobRunning {
		bar.Update(job.Done, job.All, func() string { return job.Doing })
		err := ErrInterrupted
		if wait.For(ctx, jobBeat) {
			err = e.Fetch(ctx, PeopleListener, http.MethodGet, at, nil, &job)
		}
		if err != nil {
			after, stop := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
			defer stop()
			return errors.Join(err, e.Fetch(after, PeopleListener, http.MethodDelete, at, nil, &job))
		}
	}
	if job.State != console.JobDone {
		return fmt.Errorf("the job at %s has %s: %s", at, job.State, job.Error)
	}
	return json.Unmarshal(job.Result, result)
}

// CodeFor returns the exit code of a refusal.
func CodeFor(code wire.Code) int {
	switch code {
	case wire.PolicyDenied, wire.ApprovalDenied, wire.ApprovalExpired, wire.ToolQuarantined, wire.ConnectionRequired, wire.Stopped, wire.RateLimited, wire.Overloaded:
		return ExitDenied
	case wire.ApprovalPending:
		return ExitApproval
	case wire.Unauthenticated:
		return ExitUnauthorised
	case wire.UpstreamUnavailable, wire.SessionLost, wire.StoreUnavailable:
		return ExitUnreachable
	case wire.ToolFailed, wire.ToolTimeout, wire.OutputInvalid:
		return ExitTool
	case wire.InvalidToolInput, wire.ToolNotFound, wire.NotFound, wire.MethodNotFound, wire.InvalidEnvelope, wire.ParseError, wire.TooLarge, wire.InvalidParams:
		return ExitUsage
	}
	return ExitUnexpected
}

// AtAdmin gives c, and the commands below it, the flag that names the admin listener.
func AtAdmin(e *Env, c *cobra.Command) *cobra.Command {
	c.PersistentFlags().StringVar(&e.Addr, "addr", "", "`URL` of the admin listener (default: as configured)")
	return c
}
