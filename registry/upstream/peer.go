package upstream

import (
	"context"
	"encoding/json"

	"github.com/toolgate/toolgate/internal/share"
	"github.com/toolgate/toolgate/internal/text"
)

// A Peer is the client on whose behalf a server is called. It receives what the
// server asks and reports on its own account. Its methods may be called
// concurrently while the session lives.
type Peer interface {
	// Ask puts a round of questions to the client and waits for its answers, one
	// for each question and in their order. It returns when all are answered or
	// ctx ends; what was not answered then has an Error.
	Ask(ctx context.Context, round []Question) []Answer
	// Tell passes a notification on. It should not block for long: the server waits up to
	// two seconds, and then the oldest notifications are dropped.
	Tell(method string, params json.RawMessage)
}

// Question is one request of a server to its client. Servers of the revisions
// before 2026-07-28 ask one at a time; later ones ask a round of them in place
// of a result (MCP 2026-07-28, multi round-trip requests).
type Question struct {
	Key    string // of the member of inputRequests, "" before 2026-07-28
	Method string
	Params json.RawMessage // as sent but for a progress token, nil for none
	// Progress takes the params of what the client reports meanwhile, without a
	// token; nil = the server did not ask for it.
	Progress func(params json.RawMessage)
	// Anew says that nothing has been sent for the request in whose course it is
	// asked: when the answer comes and the request is no longer there, a door may
	// take it from its start. Questions of servers never say so.
	Anew bool
}

// Answer is what a client said to a Question: exactly one field is set.
type Answer struct {
	Result json.RawMessage
	Error  json.RawMessage // an error object of JSON-RPC
}

// Downstream says for whom a request is made. The zero value is nobody: the
// shared connection, on which nothing is asked or reported.
type Downstream struct {
	Session string // keys the connection, "" = the shared one
	// Subject and Tenant name the principal, whose share of the connections it is.
	Subject, Tenant string
	// Issuer is that of the principal's token, "" = a token of the configuration.
	Issuer string
	// Token is the principal's own bearer token of Issuer. No server receives it: a credential of
	// the type exchange shows it to the token endpoint. "" = none.
	Token text.Secret
	// Credential is the ID of the principal's credential with which the request was judged: with
	// another one it is not made. "" = with any of the principal's own.
	Credential string
	// Capabilities is what the client can do, an object; the server of a
	// connection that is the session's own is told it. Nil = nothing.
	Capabilities json.RawMessage
	// ClientInfo is what the client says of itself, an object; a server with client_info "client"
	// sees it. Nil = toolgate's own.
	ClientInfo json.RawMessage
	// Revision is the MCP revision that the client speaks, "" outside MCP. A server that
	// speaks both kinds is opened in that of the client.
	Revision string
	// Level is the least severe log message that the client wants to hear of,
	// "" = it has not said.
	Level string
	// Bytes is where the bytes of the answer are counted; nil = they are not.
	Bytes *share.Claim
	// Peer hears what comes in the course of the request, Home what belongs to
	// no request of the session. Nil = nobody.
	Peer, Home Peer
}
