package upstream

import (
	"encoding/json"
	"math/rand/v2"
	"os"
	"time"

	"github.com/hashicorp/go-hclog"
)

// Options say how servers are run. The zero value is valid.
type Options struct {
	// Version is what we tell the server of ourselves; "" means "dev".
	Version string
	// Executable is our own binary, which supervises stdio servers and is what
	// the command "toolgate" means; "" means os.Executable.
	Executable string
	// Logger receives states, restarts and stderr; nil discards.
	Logger hclog.Logger
	// Now is the clock; nil means time.Now.
	Now func() time.Time
	// After is the clock's timer for restarts and relists; nil means time.After.
	After func(time.Duration) <-chan time.Time
	// MaxAnswerBytes bounds one message of the server; 0 means 4 MiB.
	MaxAnswerBytes int
	// IdleTTL is how long the connection of an idle session is kept; 0 means
	// 10 minutes.
	IdleTTL time.Duration
	// Listed receives the tool definitions whenever the shared connection has
	// listed them, before the server counts as ready. It is called from one
	// goroutine at a time. Nil discards.
	Listed func(definitions []json.RawMessage)
	// Relisted is called when the tools that the connection of some session
	// offers may be others than Profile gave before. It should not block. Nil
	// discards.
	Relisted func()
	// ListChanged receives what the shared connection tells of lists that Listed
	// does not show: notifications/resources/list_changed,
	// notifications/prompts/list_changed, and notifications/tools/list_changed
	// where the tools turn out to be the same as before. It is called from one
	// goroutine at a time and should not block. Nil discards.
	ListChanged func(method string)
}

func (o *Options) version() string {
	if o.Version == "" {
		return "dev"
	}
	return o.Version
}

func (o *Options) executable() string {
	if o.Executable != "" {
		return o.Executable
	}
	path, err := os.Executable()
	if err != nil {
		return os.Args[0]
	}
	return path
}

func (o *Options) logger() hclog.Logger {
	if o.Logger == nil {
		return hclog.NewNullLogger()
	}
	return o.Logger
}

func (o *Options) now() time.Time {
	if o.Now == nil {
		return time.Now()
	}
	return o.Now()
}

func (o *Options) after(d time.Duration) <-chan time.Time {
	if o.After == nil {
		return time.After(d)
	}
	return o.After(d)
}

func (o *Options) maxAnswer() int {
	if o.MaxAnswerBytes == 0 {
		return maxAnswer
	}
	return o.MaxAnswerBytes
}

func (o *Options) idleTTL() time.Duration {
	if o.IdleTTL == 0 {
		return 10 * time.Minute
	}
	return o.IdleTTL
}

func (o *Options) listed(definitions []json.RawMessage) {
	if o.Listed != nil {
		o.Listed(definitions)
	}
}

func (o *Options) relisted() {
	if o.Relisted != nil {
		o.Relisted()
	}
}

func (o *Options) listChanged(method string) {
	if o.ListChanged != nil {
		o.ListChanged(method)
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
