// Package bridge carries an MCP client that speaks only stdio to an endpoint
// of Streamable HTTP, in both eras of the protocol. It is a transport: it
// judges nothing, keeps nothing, and passes messages on byte for byte.
//
//	client --line--> envelope -> era, headers --POST--> endpoint
//	client <--line-- one Write each <--JSON, event stream-- answers
//	                                <------GET stream------ what the server says by itself
//
// No request is sent twice once the endpoint may have had it. Redirects are
// not followed, proxy variables are not read, certificates are verified, and
// neither token nor session id gets into a log or an answer.
package bridge

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/toolgate/toolgate/internal/guard"
	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/ndjson"
)

// What Serve ends with when nothing ever got through.
var (
	// ErrUnauthorised: every answer was 401 or 403.
	ErrUnauthorised = errors.New("the endpoint refused the token")
	// ErrUnreachable: no answer ever came.
	ErrUnreachable = errors.New("no endpoint answers")
)

// ErrAddress and ErrToken are in the chain of what New refuses.
var (
	ErrAddress = errors.New("no address of an endpoint")
	ErrToken   = errors.New("no bearer token")
)

// Options are what a Bridge needs. URL is required, the zero value of
// everything else has a meaning.
type Options struct {
	// URL is the http or https address of the endpoint; without a path it
	// means /mcp.
	URL string
	// Token is sent as the bearer token; "" sends none.
	Token string
	// Log gets what stdout may not; nil = nobody wants to know.
	Log hclog.Logger
	// Drain is how long Serve waits at the end of its input for requests in
	// flight; 0 = 30 s.
	Drain time.Duration
	// Pause is the first one before a stream that ended is opened again,
	// unless the endpoint asks for another; it doubles up to 30 s. 0 = 1 s.
	Pause time.Duration
}

const (
	// maxFlights is how many requests of one client may be in flight.
	maxFlights = 256
	// maxAnswer bounds one message of the endpoint, in bytes.
	maxAnswer = 16 << 20
	// delivery bounds the sending of a message that has no answer.
	delivery = 30 * time.Second
	// farewell bounds what is sent at the end.
	farewell = 2 * time.Second
)

// Bridge carries clients to one endpoint. It is safe for concurrent use.
type Bridge struct {
	opts      Options
	url       *url.URL
	name      string // the endpoint for people: url without what may be secret
	transport *http.Transport
	log       hclog.Logger
}

// New makes a Bridge. It fails with ErrAddress for a URL that names no
// endpoint, and with ErrToken for a token that no header can carry; neither
// error shows what was refused. Nothing is connected yet.
func New(opts Options) (*Bridge, error) {
	u, err := endpoint(opts.URL)
	if err != nil {
		return nil, fmt.Errorf("making the bridge: %w", err)
	}
	for _, c := range []byte(opts.Token) {
		if c <= ' ' || c > '~' {
			return nil, fmt.Errorf("making the bridge: %w: it has characters that no header can carry", ErrToken)
		}
	}
	if opts.Drain == 0 {
		opts.Drain = 30 * time.Second
	}
	if opts.Pause == 0 {
		opts.Pause = time.Second
	}
	if opts.Log == nil {
		opts.Log = hclog.NewNullLogger()
	}
	b := &Bridge{opts: opts, url: u, name: u.Scheme + "://" + u.Host + u.EscapedPath(), transport: newTransport(), log: opts.Log}
	if opts.Token != "" && u.Scheme == "http" && !guard.Loopback(u.Hostname()) {
		b.log.Warn("the token travels unencrypted", "to", b.name, "hint", "use https")
	}
	return b, nil
}

// endpoint reads the address of an endpoint.
func endpoint(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "":
		return nil, fmt.Errorf("%w: it is no http or https address", ErrAddress)
	case u.User != nil:
		return nil, fmt.Errorf("%w: it holds a password, and only a token can be sent", ErrAddress)
	case u.Fragment != "":
		return nil, fmt.Errorf("%w: it has a fragment", ErrAddress)
	}
	if strings.Trim(u.Path, "/") == "" {
		u.Path, u.RawPath = "/mcp", ""
	}
	return u, nil
}

// newTransport makes connections of its own, past proxy variables. An answer may
// take as long as the call, so only connecting is bounded. Idle connections go
// before common servers close them: a request that meets the closing is lost,
// because it may not be sent twice.
func newTransport() *http.Transport {
	return &http.Transport{
		DialContext:         (&net.Dialer{Timeout: 5 * time.Second}).DialContext,
		TLSHandshakeTimeout: 10 * time.Second,
		IdleConnTimeout:     4 * time.Second,
		MaxIdleConnsPerHost: 16,
		DisableCompression:  true, // an event must not wait in a compressor
	}
}

// Serve carries one client, one JSON-RPC message per line, until in ends or
// ctx is done; then it waits for the requests in flight, at most
// Options.Drain, cancels what is left, and ends the session. A line that is no
// message is answered, and the next one is read. Nothing but protocol is
// written to out, one Write per message.
//
// What the endpoint refuses is answered to the client, and the bridge lives
// on. Serve returns ErrUnauthorised or ErrUnreachable when nothing ever got
// through, why reading or writing failed, or nil. If in is an io.Closer it is
// closed when Serve stops before its end.
func (b *Bridge) Serve(ctx context.Context, in io.Reader, out io.Writer) error {
	t := newTalk(b, out)
	lines := ndjson.NewLines(in, jsonrpc.DefaultLimits().Bytes)
	err := t.loop(ctx, lines)
	lines.Stop(in)
	return errors.Join(err, t.drain())
}
