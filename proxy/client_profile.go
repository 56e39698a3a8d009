package proxy

import (
	"cmp"
	"strings"
	"time"
)

// defaultHold is how long a held call waits when neither policy, settings nor
// client profile says: less than the 60 s after which many clients give up.
const defaultHold = 45 * time.Second

// ClientProfile says how long one kind of client waits for a decision.
type ClientProfile struct {
	// Name is what the client calls itself, without its version and without
	// regard to case; a trailing "*" matches any rest, "" every client.
	Name      string
	Transport string         // of the call, "" = any; see Call
	Hold      *time.Duration // nil = the default
	Longest   *time.Duration // upper bound, whatever else says; nil = none
}

// matches reports whether the profile is that of a caller; client is name/version.
func (p ClientProfile) matches(client, transport string) bool {
	if p.Transport != "" && p.Transport != transport {
		return false
	}
	name, prefix := strings.CutSuffix(p.Name, "*")
	if len(client) < len(name) || !strings.EqualFold(client[:len(name)], name) {
		return false
	}
	rest := client[len(name):]
	// mcp-remote appends itself to the name of the client that it connects.
	return prefix || p.Name == "" || rest == "" || rest[0] == '/' || strings.HasPrefix(rest, " (via ")
}

// minHoldAfterPage is the least hold for a client that comes back from the
// approval page: a decision made there must be seen.
const minHoldAfterPage = 100 * time.Millisecond

// holdTime is how long a held call waits for people, 0 for not at all: the
// policy's hold takes precedence over the settings', then the client profile's;
// never longer than the client tolerates.
func (t *toolCall) holdTime() time.Duration {
	if t.gate.opts.Waiter == nil {
		return 0
	}
	s := t.gate.settings.Load()
	var profile ClientProfile
	for _, p := range s.Clients {
		if p.matches(t.principal.Client, t.in.Transport) {
			profile = p
			break
		}
	}
	hold := defaultHold
	if said := cmp.Or(t.decision.Approval.Hold, s.Hold, profile.Hold); said != nil {
		hold = *said
	}
	if profile.Longest != nil {
		hold = min(hold, *profile.Longest)
	}
	if t.hold.visited {
		hold = max(hold, minHoldAfterPage)
	}
	return hold
}
