package proxy

import (
	"cmp"
	"strings"
	"time"
)

// defaultHold is how long a held call waits when neither policy nor settings nor
// the client's patience says: less than the 60 s after which many clients give up.
const defaultHold = 45 * time.Second

// Patience is how long one kind of client may be kept waiting for a decision.
type Patience struct {
	// Name is what the client calls itself, without its version and without
	// regard to case; "*" at the end stands for any rest, "" for every client.
	Name      string
	Transport string         // of the call, "" = any; see Call
	Hold      *time.Duration // nil = not said
	Longest   *time.Duration // the most, whatever else says; nil = no bound
}

// fits reports whether the patience is that of a caller: client is name/version.
func (c Patience) fits(client, transport string) bool {
	if c.Transport != "" && c.Transport != transport {
		return false
	}
	name, open := strings.CutSuffix(c.Name, "*")
	if len(client) < len(name) || !strings.EqualFold(client[:len(name)], name) {
		return false
	}
	rest := client[len(name):]
	// mcp-remote puts itself behind the name of whom it connects.
	return open || c.Name == "" || rest == "" || rest[0] == '/' || strings.HasPrefix(rest, " (via ")
}

// glance is how long a call is held at least whose client went by way of the
// page: what was decided there must be seen.
const glance = 100 * time.Millisecond

// hold is how long a held call waits for people, 0 for not at all: as its policy
// says, else the settings, else the client's patience, and never longer than the
// client bears.
func (g *Gate) hold(p *passage) time.Duration {
	if g.opts.Waiter == nil {
		return 0
	}
	s := g.settings.Load()
	var of Patience
	for _, c := range s.Clients {
		if c.fits(p.principal.Client, p.in.Transport) {
			of = c
			break
		}
	}
	hold := defaultHold
	if said := cmp.Or(p.decision.Approval.Hold, s.Hold, of.Hold); said != nil {
		hold = *said
	}
	if of.Longest != nil {
		hold = min(hold, *of.Longest)
	}
	if p.detoured {
		hold = max(hold, glance)
	}
	return hold
}
