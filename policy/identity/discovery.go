package identity

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"

	"github.com/toolgate/toolgate/internal/guard"
)

// discover asks an issuer where its keys are (RFC 8414 section 3, OpenID Connect Discovery
// 1.0 section 4), at its guard.MetadataPlaces. An answer that names another issuer counts as
// none, byte for byte. An issuer on this machine may have its keys there, over http; those
// of every other one are fetched over https.
func discover(ctx context.Context, client *http.Client, issuer string) (jwks string, err error) {
	u, err := url.Parse(issuer)
	if err != nil {
		return "", errors.New("the issuer is no URL")
	}
	for _, place := range guard.MetadataPlaces(u) {
		var says struct {
			Issuer string `json:"issuer"`
			JWKS   string `json:"jwks_uri"`
		}
		if err = getJSON(ctx, client, place, &says); err != nil {
			continue
		}
		if says.Issuer != issuer {
			err = errors.New("the metadata names another issuer")
			continue
		}
		keys, parsed := url.Parse(says.JWKS)
		switch {
		case parsed != nil || keys.Host == "" || keys.User != nil:
			return "", errors.New("the metadata names no key set")
		case keys.Scheme != "https" && !(keys.Scheme == "http" && guard.Loopback(u.Hostname()) && guard.Loopback(keys.Hostname())):
			return "", errors.New("the metadata names a key set that is not fetched over https")
		}
		return says.JWKS, nil
	}
	return "", err
}

// getJSON reads a document. The client bounds its time and size.
func getJSON(ctx context.Context, client *http.Client, address string, to any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return err
	}
	req.Header.Set("Accept", "application/json")
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("the issuer answered %d", res.StatusCode)
	}
	if err := json.NewDecoder(res.Body).Decode(to); err != nil {
		return errors.New("the metadata cannot be read")
	}
	return nil
}

// errPrivate refuses an address in a private network.
var errPrivate = errors.New("its address is not public (hint: \"private\": true for an issuer in a private network)")

// issuerTransport connects to public addresses alone. An issuer that is configured by
// a loopback address or localhost has its keys on this machine, one with private in a
// private network or behind the proxy of the environment.
func issuerTransport(issuer string, private bool) http.RoundTripper {
	u, err := url.Parse(issuer)
	local := err == nil && guard.Loopback(u.Hostname())
	t := guard.Outward(func(a netip.Addr) bool { return private || local && a.IsLoopback() }, errPrivate)
	if private {
		t.Proxy = http.ProxyFromEnvironment
	}
	return t
}
