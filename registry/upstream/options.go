package upstream

import (
	"cmp"
	"context"
	"encoding/json"
	"math/rand/v2"
	"os"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/toolgate/toolgate/internal/sandbox"
	"github.com/toolgate/toolgate/internal/span"
	"github.com/toolgate/toolgate/registry/credential"
)

// Options say how servers are run. The zero value is valid.
type Options struct {
	// Version is what we tell the server of ourselves; "" means "dev".
	Version string
	// Executable is our own binary, which is what the command "toolgate" means; ""
	// means os.Executable.
	Executable string
	// Sandbox starts stdio servers; nil means one that hides nothing.
	Sandbox *sandbox.Host
	// Logger receives states, restarts and stderr; nil discards.
	Logger hclog.Logger
	// Now is the clock; nil means time.Now.
	Now func() time.Time
	// After is the clock's timer for restarts and relists; nil means time.After.
	After func(time.Duration) <-chan time.Time
	// MaxAnswerBytes bounds one message of the server; 0 means the server's setting.
	MaxAnswerBytes int
	maxDepth       int         // of one message of the server
	dial           func(*conn) // opens a connection in the place of a configured server; nil outside of tests
	// IdleTTL is how long the connection of an idle session is kept; 0 means
	// 10 minutes.
	IdleTTL time.Duration
	// First reports whether nobody has seen a list of the server before. Listed then
	// also receives what the server lists for clients that can do more, so that these
	// definitions belong to the first list: the server is not ready before it has
	// answered such clients too. Nil reports false.
	First func() bool
	// Listed receives what the shared connection lists, each time that it does, before
	// the server counts as ready. It is called from one goroutine at a time. Nil
	// discards.
	Listed func(Listing)
	// Lists are what Kept received last, in an earlier process; nil for nothing.
	Lists json.RawMessage
	// Kept receives Listing.Lists when they change. It is called from one goroutine at a
	// time. Nil discards.
	Kept func(lists json.RawMessage)
	// Relisted is called when the tools that the connection of some session
	// offers may be others than Profile gave before. It should not block. Nil
	// discards.
	Relisted func()
	// ListChanged receives what the shared connection tells of lists that Listed
	// does not show: notifications/resources/list_changed,
	// notifications/prompts/list_changed, and notifications/tools/list_changed
	// where the tools turn out to be the same as before. The first two also come when
	// the server is ready and has other lists than clients got while it was not
	// available. It is called from one goroutine at a time and should not block. Nil
	// discards.
	ListChanged func(method string)
	// Tokens are what the server is shown for whom it is run; nil = what the configuration says. A
	// request that fails for want of a token has the kind Unconnected.
	Tokens credential.Tokens
	// Ended receives each connection that was a session of MCP and is over. Nil discards.
	Ended func(span.Session)
	// Crowded is called for each notification that is dropped because its client is too slow.
	// It must not block. Nil discards.
	Crowded func()
}

// A Listing is what the shared connection of a server listed, and how the server
// introduced itself.
type Listing struct {
	Tools        []json.RawMessage // their definitions
	Own          []Variant         // definitions that only other connections list
	Lists        json.RawMessage   // the other lists, an object: prompts, resources, resourceTemplates; Options.Kept receives them
	Capabilities json.RawMessage   // an object, nil when the server declares none
	Introduction
}

// withDefaults returns o with every field set.
func (o Options) withDefaults() Options {
	if o.Executable == "" {
		o.Executable, _ = os.Executable()
	}
	if o.Sandbox == nil {
		o.Sandbox = sandbox.New(sandbox.Options{Executable: o.Executable})
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.After == nil {
		o.After = time.After
	}
	o.Logger = cmp.Or(o.Logger, hclog.NewNullLogger())
	if o.First == nil {
		o.First = func() bool { return false }
	}
	if o.Listed == nil {
		o.Listed = func(Listing) {}
	}
	if o.Lists == nil {
		o.Lists = nothing
	}
	if o.Kept == nil {
		o.Kept = func(json.RawMessage) {}
	}
	if o.Relisted == nil {
		o.Relisted = func() {}
	}
	if o.Ended == nil {
		o.Ended = func(span.Session) {}
	}
	if o.Crowded == nil {
		o.Crowded = func() {}
	}
	if o.ListChanged == nil {
		o.ListChanged = func(string) {}
	}
	o.Version = cmp.Or(o.Version, "dev")
	o.Executable = cmp.Or(o.Executable, os.Args[0])
	o.IdleTTL = cmp.Or(o.IdleTTL, 10*time.Minute)
	return o
}

// sleep waits for d on the clock of o, and reports false when ctx ends first.
func (o *Options) sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-o.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

const (
	firstPause  = 250 * time.Millisecond // before the first restart, at most
	lastPause   = 30 * time.Second       // before any restart, at most
	stableAfter = time.Minute            // a connection this old was a good one
)

// pause gives the time before restart number n, counted from 0: doubling, and
// between half and all of it, so that servers that fell together do not rise
// together.
func pause(n int) time.Duration {
	most := lastPause
	if n < 8 {
		most = min(firstPause<<n, lastPause)
	}
	return most/2 + rand.N(most/2)
}
