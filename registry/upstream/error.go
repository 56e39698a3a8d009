package upstream

import (
	"context"

	"github.com/toolgate/toolgate/internal/mcpclient"
)

// Error is why a call has no result, and ErrorKind how it is classified.
type (
	Error     = mcpclient.Error
	ErrorKind = mcpclient.ErrorKind
)

// The kinds, as package mcpclient defines them.
const (
	Failed      = mcpclient.Failed
	Timeout     = mcpclient.Timeout
	Unavailable = mcpclient.Unavailable
	Cancelled   = mcpclient.Cancelled
	TooLarge    = mcpclient.TooLarge
	Quarantined = mcpclient.Quarantined
	Unconnected = mcpclient.Unconnected
)

// failed is the error of a request that the server had.
func failed(err error) *Error { return &Error{Kind: Failed, Sent: true, Err: err} }

// ctxError is the error of a request whose context ended before it was sent.
func ctxError(ctx context.Context) *Error { return mcpclient.ContextError(ctx, false) }
