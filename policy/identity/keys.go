package identity

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/time/rate"
)

const (
	maxJWKSBytes  = 1 << 20
	fetchEvery    = 5 * time.Second // an unknown key id makes the verifier fetch: strangers must not steer that
	fetchBurst    = 5
	fetchDeadline = 5 * time.Second
)

// keySet is the fetched key set of one issuer. It is safe for concurrent use.
type keySet struct {
	*oidc.RemoteKeySet
	client *http.Client // as configured, to tell an unchanged entry

	mu    sync.Mutex // protects the fields below
	ids   []string   // of the keys that were fetched last
	had   bool       // a key set was fetched
	fault string     // why the last fetch failed, "" when it did not
}

func newKeySet(url string, client *http.Client) *keySet {
	k := &keySet{client: client}
	bounded := boundedClient(client, keyPace())
	bounded.Transport = observer{bounded.Transport, k}
	k.RemoteKeySet = oidc.NewRemoteKeySet(oidc.ClientContext(context.Background(), bounded), url)
	return k
}

// keyFault is the context key under which VerifySignature leaves its error: the verifier
// that calls it keeps the text only.
type keyFault struct{}

// VerifySignature implements oidc.KeySet.
func (k *keySet) VerifySignature(ctx context.Context, token string) ([]byte, error) {
	payload, err := k.RemoteKeySet.VerifySignature(ctx, token)
	if to, ok := ctx.Value(keyFault{}).(*error); ok {
		*to = err
	}
	return payload, err
}

// lacks reports whether the issuer has keys, but none with an id.
func (k *keySet) lacks(id string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.had && id != "" && !slices.Contains(k.ids, id)
}

// unsigned has the form of a signed token. No key verifies it, so a key set fetches.
const unsigned = "eyJhbGciOiJFUzI1NiJ9.e30.AA"

// status returns whether a key set was ever fetched, and why the last fetch failed.
func (k *keySet) status() (had bool, fault string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.had, k.fault
}

// observer notes what the fetches of a key set return.
type observer struct {
	base http.RoundTripper
	keys *keySet
}

// RoundTrip implements http.RoundTripper.
func (o observer) RoundTrip(r *http.Request) (*http.Response, error) {
	res, err := o.base.RoundTrip(r)
	if errors.Is(err, errPace) {
		return nil, err // nobody was asked
	}
	var ids []string
	if err == nil {
		ids, err = readKeyIDs(res)
	}
	o.keys.mu.Lock()
	defer o.keys.mu.Unlock()
	if err != nil {
		o.keys.fault = err.Error()
		return nil, err
	}
	o.keys.ids, o.keys.had, o.keys.fault = ids, true, ""
	return res, nil
}

// readKeyIDs reads the key ids of a key set, and leaves its body to be read again.
func readKeyIDs(res *http.Response) (ids []string, err error) {
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the key server answered %d", res.StatusCode)
	}
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return nil, err
	}
	var set struct {
		Keys []struct {
			ID string `json:"kid"`
		} `json:"keys"`
	}
	if json.Unmarshal(body, &set) != nil || len(set.Keys) == 0 {
		return nil, errors.New("the key server sent no key set")
	}
	for _, key := range set.Keys {
		ids = append(ids, key.ID)
	}
	res.Body = io.NopCloser(bytes.NewReader(body))
	return ids, nil
}

// IssuerStatus says whether tokens of an issuer can be verified.
type IssuerStatus struct {
	Issuer string
	Ready  bool   // its keys were fetched
	Fault  string // why they could not be fetched the last time, "" when they could; it names no secret
}

// Issuers returns the status of every configured issuer, by name.
func (a *Authenticator) Issuers() (all []IssuerStatus) {
	for name, is := range a.state.Load().issuers {
		had, fault := is.keys.status()
		all = append(all, IssuerStatus{name, had, fault})
	}
	slices.SortFunc(all, func(x, y IssuerStatus) int { return cmp.Compare(x.Issuer, y.Issuer) })
	return all
}

// FetchKeys fetches the keys of the issuers that have none, or whose last fetch failed.
// It returns when all have answered or failed, or when ctx ends.
func (a *Authenticator) FetchKeys(ctx context.Context) {
	var fetches sync.WaitGroup
	for _, is := range a.state.Load().issuers {
		if had, fault := is.keys.status(); !had || fault != "" {
			fetches.Go(func() { _, _ = is.keys.RemoteKeySet.VerifySignature(ctx, unsigned) })
		}
	}
	fetches.Wait()
}

// boundedClient bounds what a server can do to us: time, size, redirects, and by pace
// how often strangers can make us ask it.
func boundedClient(c *http.Client, pace *rate.Limiter) *http.Client {
	bounded := http.Client{Timeout: fetchDeadline}
	if c != nil {
		bounded = *c
	}
	bounded.Transport = &keyTransport{base: cmp.Or(bounded.Transport, http.DefaultTransport), pace: pace}
	bounded.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &bounded
}

// keyPace is how often an unknown key id may make a verifier fetch.
func keyPace() *rate.Limiter { return rate.NewLimiter(rate.Every(fetchEvery), fetchBurst) }

// errPace reports that the keys were fetched too often of late.
var errPace = errors.New("fetching keys: asked too often")

type keyTransport struct {
	base http.RoundTripper
	pace *rate.Limiter
}

// RoundTrip implements http.RoundTripper.
func (t *keyTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	if !t.pace.Allow() {
		return nil, errPace
	}
	res, err := t.base.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	res.Body = http.MaxBytesReader(nil, res.Body, maxJWKSBytes)
	return res, nil
}
