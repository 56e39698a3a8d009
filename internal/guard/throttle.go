package guard

import (
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// RefusedEvery is the time after which an address that showed many wrong credentials may
// show another one.
const RefusedEvery = 6 * time.Second

const (
	refusedBurst = 10
	maxAddresses = 10_000
)

// Throttle bounds how often one address may show a credential that is refused, so that
// nobody guesses tokens. It is safe for concurrent use.
type Throttle struct {
	now func() time.Time

	mu    sync.Mutex // protects the fields below
	tries map[netip.Addr]*rate.Limiter
	rest  *rate.Limiter // shared by the addresses that the table has no room for
}

// NewThrottle returns a Throttle by a clock; nil = time.Now.
func NewThrottle(now func() time.Time) *Throttle {
	if now == nil {
		now = time.Now
	}
	return &Throttle{now: now, tries: make(map[netip.Addr]*rate.Limiter), rest: rate.NewLimiter(rate.Every(RefusedEvery), refusedBurst)}
}

// Allow counts a refused credential from an address, with or without port, and reports
// whether there were not too many. When more addresses try than the table holds, the
// others share one limiter.
func (t *Throttle) Allow(from string) bool {
	address, now := addressOf(from), t.now()
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
		l = rate.NewLimiter(rate.Every(RefusedEvery), refusedBurst)
		t.tries[address] = l
	}
	return l.AllowN(now, 1)
}

// shrinkLocked removes addresses that have not tried for a while.
func (t *Throttle) shrinkLocked(now time.Time) {
	for address, l := range t.tries {
		if l.TokensAt(now) >= refusedBurst {
			delete(t.tries, address)
		}
	}
}

// addressOf returns the address that is counted: an IPv4 address or an IPv6 /64
// network, whose addresses belong to one user. Unreadable addresses count as
// one.
func addressOf(from string) netip.Addr {
	a := readAddress(from)
	if a.Is6() {
		network, _ := a.Prefix(64) // an IPv6 address has one
		return network.Addr()
	}
	return a
}

// readAddress reads an address with or without port, in its shortest form; the zero
// Addr stands for one that cannot be read.
func readAddress(text string) netip.Addr {
	text = strings.TrimSpace(text)
	at, err := netip.ParseAddrPort(text)
	a := at.Addr()
	if err != nil {
		if a, err = netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(text, "["), "]")); err != nil {
			return netip.Addr{}
		}
	}
	return a.Unmap().WithZone("")
}

// Client returns the address of the client of r, without port: the peer's, or the last
// in X-Forwarded-For that is not one of the trusted proxies, when the peer is one. A
// header that cannot be read is not believed.
func Client(r *http.Request, proxies []netip.Prefix) string {
	trusted := func(a netip.Addr) bool {
		return slices.ContainsFunc(proxies, func(p netip.Prefix) bool { return p.Contains(a) })
	}
	client := readAddress(r.RemoteAddr)
	hops := strings.Split(strings.Join(r.Header["X-Forwarded-For"], ","), ",")
	for _, hop := range slices.Backward(hops) {
		next := readAddress(hop)
		if !trusted(client) || !next.IsValid() {
			break
		}
		client = next
	}
	if !client.IsValid() {
		return r.RemoteAddr
	}
	return client.String()
}

// Address returns the address in one with or without port; text that is none as it is.
func Address(text string) string {
	if a := readAddress(text); a.IsValid() {
		return a.String()
	}
	return text
}

// ParseNetwork reads an address, or a network such as 10.0.0.0/8.
func ParseNetwork(text string) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(text); err == nil {
		a = a.Unmap()
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	p, err := netip.ParsePrefix(text)
	return p.Masked(), err
}
