package console

import (
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

const (
	signInEvery  = 6 * time.Second // one try, after the first ones
	signInBurst  = 10
	maxAddresses = 10_000
)

// throttle bounds how often one address may try to sign in, so that nobody
// guesses tokens here. It is safe for concurrent use.
type throttle struct {
	now func() time.Time

	mu    sync.Mutex // protects the fields below
	tries map[netip.Addr]*rate.Limiter
	rest  *rate.Limiter // of all addresses for which there is no room
}

func newThrottle(now func() time.Time) *throttle {
	return &throttle{now: now, tries: make(map[netip.Addr]*rate.Limiter), rest: rate.NewLimiter(rate.Every(signInEvery), signInBurst)}
}

// allow counts an attempt. When more addresses try than the table holds, the
// others share one limiter: guessing stays slow, at the expense of signing in.
func (t *throttle) allow(r *http.Request) bool {
	address, now := addressOf(r), t.now()
	t.mu.Lock()
	defer t.mu.Unlock()
	l := t.tries[address]
	if l == nil && len(t.tries) >= maxAddresses {
		t.shrinkLocked(now)
	}
	switch {
	case l != nil:
	case len(t.tries) >= maxAddresses:
		l = t.rest
	default:
		l = rate.NewLimiter(rate.Every(signInEvery), signInBurst)
		t.tries[address] = l
	}
	return l.AllowN(now, 1)
}

// shrinkLocked removes addresses that have not tried for a while.
func (t *throttle) shrinkLocked(now time.Time) {
	for address, l := range t.tries {
		if l.TokensAt(now) >= signInBurst {
			delete(t.tries, address)
		}
	}
}

// addressOf returns the address that is counted: an IPv4 address or an IPv6 /64
// network, whose addresses belong to one user. Unreadable addresses count as
// one.
func addressOf(r *http.Request) netip.Addr {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return netip.Addr{}
	}
	a, err := netip.ParseAddr(host)
	if err != nil {
		return netip.Addr{}
	}
	if a = a.Unmap().WithZone(""); a.Is4() {
		return a
	}
	network, _ := a.Prefix(64) // an IPv6 address has one
	return network.Addr()
}
