package rest

import (
	"context"
	"os"

	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/identity"
	"github.com/toolgate/toolgate/proxy"
	"github.com/toolgate/toolgate/proxy/artifact"
	"github.com/toolgate/toolgate/proxy/bus"
	"github.com/toolgate/toolgate/registry"
	"github.com/toolgate/toolgate/signal"
)

// Gate is what the door needs of the road. Its methods are called from many
// goroutines at a time.
type Gate interface {
	// Call governs one tools/call, or refuses one message that could not be
	// read (in.Fault). Exactly one of its results is set.
	Call(ctx context.Context, in *proxy.Call) (*proxy.Reply, *proxy.Failure)
	// List gives the tools that who may see on the route of in, in the order to
	// show. Of in it takes the route and for whom the list is.
	List(ctx context.Context, in *proxy.Call, who policy.Principal) []*registry.Tool
	// Identify says who shows c; a Failure means nobody.
	Identify(ctx context.Context, c identity.Credential) (policy.Principal, *proxy.Failure)
}

// Refuser records what a door itself refuses. code is one of the signal.Code
// constants; the result is never nil.
type Refuser interface {
	Refuse(ctx context.Context, in *proxy.Call, code, reason string) *proxy.Failure
}

// Artifacts gives the bytes that calls left behind. Get returns
// artifact.ErrNotFound for an id that is unknown, has expired or was not
// granted to who, all alike; the caller closes the file.
type Artifacts interface {
	Get(ctx context.Context, who policy.Principal, id string) (artifact.Artifact, *os.File, error)
}

// Bus carries signals to those that they belong to. Publish never blocks.
type Bus interface {
	Publish(owner policy.Principal, s signal.Signal)
	Subscribe(who policy.Principal) (*bus.Subscription, error)
}

var (
	_ Gate      = (*proxy.Gate)(nil)
	_ Refuser   = (*proxy.Gate)(nil)
	_ Artifacts = (*artifact.Store)(nil)
	_ Bus       = (*bus.Bus)(nil)
)
