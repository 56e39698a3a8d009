package credential

import (
	"errors"
	"net/http"
	"net/netip"
	"net/url"
	"strings"

	"github.com/toolgate/toolgate/internal/guard"
	"github.com/toolgate/toolgate/registry/config"
)

// maxHeader is the longest header of an answer, in bytes.
const maxHeader = 64 << 10

// errReach refuses an address in a private network that a public server names.
var errReach = errors.New("its address is not public, and that of the server is")

// reach sends requests to a server and to what it names. The server itself, and the issuer that is
// configured for it, are reached wherever they are; all others on public addresses alone, unless
// the server itself is in a private network. It follows no redirects.
type reach struct {
	host   string // of the server, with its port
	issuer string // the same of the issuer that is configured, "" = none
	local  bool   // the server is on this machine
	own    *http.Transport
	named  *http.Transport
	others *http.Transport
}

// newReach returns a client for a server of the type oauth. Answers are bounded by those who read
// them.
func newReach(server config.Server) (*http.Client, *reach, error) {
	at, err := url.Parse(server.URL)
	if err != nil {
		return nil, nil, errors.New("the address of the server is no URL")
	}
	secure, err := server.TLS.Open()
	if err != nil {
		return nil, nil, err
	}
	private, anywhere := inside(at.Hostname()), func(netip.Addr) bool { return true }
	r := &reach{host: at.Host, local: guard.Loopback(at.Hostname())}
	r.own, r.named, r.others = guard.Outward(anywhere, nil), guard.Outward(anywhere, nil), guard.Outward(func(netip.Addr) bool { return private }, errReach)
	r.own.TLSClientConfig = secure
	if r.named.TLSClientConfig, err = server.TLS.OpenOthers(); err != nil {
		return nil, nil, err
	}
	r.others.TLSClientConfig = r.named.TLSClientConfig.Clone()
	if issuer, err := url.Parse(server.Credential.Issuer); err == nil {
		r.issuer = issuer.Host
	}
	for _, t := range []*http.Transport{r.own, r.named, r.others} {
		t.DisableKeepAlives, t.MaxResponseHeaderBytes = true, maxHeader
	}
	client := &http.Client{Timeout: fetchTimeout, Transport: r, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	return client, r, nil
}

// RoundTrip implements http.RoundTripper.
func (r *reach) RoundTrip(req *http.Request) (*http.Response, error) {
	if err := r.check(req.URL); err != nil {
		if req.Body != nil {
			req.Body.Close()
		}
		return nil, err
	}
	switch {
	case strings.EqualFold(req.URL.Host, r.host):
		return r.own.RoundTrip(req)
	case strings.EqualFold(req.URL.Host, r.issuer):
		return r.named.RoundTrip(req)
	}
	return r.others.RoundTrip(req)
}

// check refuses an address that secrets must not be sent to, or that is no address of a page.
func (r *reach) check(u *url.URL) error {
	switch {
	case u.Host == "" || u.User != nil || u.Fragment != "" || u.Opaque != "":
		return errors.New("it is no address")
	case u.Scheme != "https" && !(u.Scheme == "http" && r.local && guard.Loopback(u.Hostname())):
		return errors.New("it is not reached over https")
	}
	return nil
}

// checkText is check for an address as others write it.
func (r *reach) checkText(address string) error {
	u, err := url.Parse(address)
	if err != nil || len(address) > maxAddress {
		return errors.New("it is no address")
	}
	return r.check(u)
}

// inside reports whether a host is in a private network for certain: by its address, or by a name
// that no public name server knows (RFC 6761, RFC 6762, RFC 8375).
func inside(host string) bool {
	if a, err := netip.ParseAddr(host); err == nil {
		return !guard.Public(a.Unmap())
	}
	name := strings.ToLower(strings.TrimSuffix(host, "."))
	for _, private := range []string{".localhost", ".local", ".internal", ".home.arpa"} {
		if strings.HasSuffix(name, private) {
			return true
		}
	}
	return !strings.Contains(name, ".")
}
