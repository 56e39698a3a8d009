// Package ndjson is where clients of the NDJSON action protocol come in: one
// request per line, list_actions and invoke, one response per line. Actions are
// the tools that the principal may see; invoke is a tools/call and takes the
// same road as every other. The door judges nothing: it frames requests, keeps
// them from crowding each other, and puts the road's replies into the
// protocol's words.
//
//	line -> decode -> identify -> dispatch -> reply
package ndjson

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/identity"
	"github.com/toolgate/toolgate/proxy"
	"github.com/toolgate/toolgate/registry"
)

// Gate is what the door needs of the road. Its methods are called from many
// goroutines at a time.
type Gate interface {
	// Call governs one tools/call, or refuses one line that could not be
	// decoded (in.Fault). Exactly one of its results is set.
	Call(ctx context.Context, in *proxy.Call) (*proxy.Reply, *proxy.Failure)
	// List gives the tools that who may see on the route of in, in the order to
	// show. Of in it takes the route and for whom the list is.
	List(ctx context.Context, in *proxy.Call, who policy.Principal) []*registry.Tool
	// Identify says who shows c; a Failure means nobody.
	Identify(ctx context.Context, c identity.Credential) (policy.Principal, *proxy.Failure)
}

// Refuser records what the door itself refuses. code is one of the signal.Code
// constants; the result is never nil.
type Refuser interface {
	Refuse(ctx context.Context, in *proxy.Call, code, reason string) *proxy.Failure
}

var (
	_ Gate    = (*proxy.Gate)(nil)
	_ Refuser = (*proxy.Gate)(nil)
)

// Options are what a Door needs. Gate and Refuser are required, the zero value
// of everything else has a meaning.
type Options struct {
	Gate    Gate
	Refuser Refuser
	// Credential is what the door shows for each request; the zero value is the
	// local user.
	Credential identity.Credential
	// MaxFlights is how many requests of one client run at a time; 0 = 64.
	MaxFlights int
	// Drain is how long Serve waits at the end of its input for requests in
	// flight; 0 = 30 s.
	Drain time.Duration
	// Ended is told the key (proxy.Call.Session) of each client that has gone,
	// once and after its last call; nil = nobody wants to know.
	Ended func(session string)
	// Log is told of faults of our own; nil discards.
	Log hclog.Logger
}

// Door serves clients of the NDJSON action protocol. It is safe for concurrent
// use.
type Door struct{ opts Options }

// New makes a Door. It fails when Gate or Refuser is missing.
func New(opts Options) (*Door, error) {
	if opts.Gate == nil || opts.Refuser == nil {
		return nil, errors.New("making the ndjson door: no gate")
	}
	opts.Credential = cmp.Or(opts.Credential, identity.Credential{Local: true})
	opts.MaxFlights = cmp.Or(opts.MaxFlights, 64)
	opts.Drain = cmp.Or(opts.Drain, 30*time.Second)
	if opts.Ended == nil {
		opts.Ended = func(string) {}
	}
	if opts.Log == nil {
		opts.Log = hclog.NewNullLogger()
	}
	return &Door{opts: opts}, nil
}
