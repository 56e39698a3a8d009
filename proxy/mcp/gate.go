package mcp

import (
	"context"
	"encoding/json"

	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/identity"
	"github.com/toolgate/toolgate/proxy"
	"github.com/toolgate/toolgate/registry"
)

// Gate is the road, as far as the doors need it. Its methods are called from
// many goroutines at a time.
type Gate interface {
	// Call governs one tools/call, or refuses one message that could not be
	// decoded (in.Fault). Exactly one of its results is set.
	Call(ctx context.Context, in *proxy.Call) (*proxy.Reply, *proxy.Failure)
	// List gives the tools that who may see on the route of in, in the order to
	// show. Of in it takes the route and for whom the list is.
	List(ctx context.Context, in *proxy.Call, who policy.Principal) []*registry.Tool
	// Identify says who shows c; a Failure means nobody.
	Identify(ctx context.Context, c identity.Credential) (policy.Principal, *proxy.Failure)
}

// Finder is implemented by a Gate that can find one tool without listing all.
type Finder interface {
	// Find gives the tool that who sees under name on the route of in, nil for
	// none.
	Find(ctx context.Context, in *proxy.Call, who policy.Principal, name string) *registry.Tool
}

// Relayer is the road of requests that call no tool. Both methods serve the
// route of one server alone and refuse any other.
type Relayer interface {
	// Relay governs one request for a resource, a prompt or a completion.
	// Exactly one of its results is set.
	Relay(ctx context.Context, in *proxy.Call) (*proxy.Reply, *proxy.Failure)
	// Enumerate gives one page of a list as who may see it.
	Enumerate(ctx context.Context, in *proxy.Call, who policy.Principal) (json.RawMessage, *proxy.Failure)
}

// Notifier is the road of notifications from clients to servers.
type Notifier interface {
	// Notify governs one notification and passes it on; a Failure says why it did
	// not. It waits for no server.
	Notify(ctx context.Context, in *proxy.Call) *proxy.Failure
}

// Refuser records what a door itself refuses. code is one of the signal.Code
// constants; the result is never nil.
type Refuser interface {
	Refuse(ctx context.Context, in *proxy.Call, code, reason string) *proxy.Failure
}

var (
	_ Finder  = (*proxy.Gate)(nil)
	_ Gate    = (*proxy.Gate)(nil)
	_ Relayer = (*proxy.Gate)(nil)
	_ Refuser = (*proxy.Gate)(nil)
)
