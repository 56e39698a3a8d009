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
	"golang.org/x/sync/singleflight"
	"golang.org/x/time/rate"
)

const (
	maxJWKSBytes  = 1 << 20
	fetchEvery    = 5 * time.Second // an unknown key id makes the verifier fetch: strangers must not steer that
	fetchBurst    = 5
	fetchDeadline = 5 * time.Second
	refreshKeys   = 15 * time.Minute
)

// keySet is the fetched key set of one issuer. It is safe for concurrent use.
type keySet struct {
	config JWT          // as configured, to tell an unchanged entry
	client *http.Client // the same

	asking *http.Client       // asks the issuer where its keys are
	pace   *rate.Limiter      // of what tokens make us fetch
	first  singleflight.Group // of the look for keys that a token waits for

	mu      sync.Mutex         // protects the fields below
	remote  *oidc.RemoteKeySet // nil = where the keys are is not known yet
	address string             // of remote
	ids     []string           // of the keys that were fetched last
	fetched time.Time          // when a key set was fetched last, zero = never
	fault   string             // why the last fetch failed, "" when it did not
}

func newKeySet(j JWT, client *http.Client) *keySet {
	k := &keySet{config: j, client: client, pace: keyPace()}
	if client == nil && j.JWKS == "" {
		client = &http.Client{Timeout: fetchDeadline, Transport: issuerTransport(j.Issuer, j.Private)}
	}
	k.asking = boundedClient(client, rate.NewLimiter(rate.Inf, 0))
	if j.JWKS != "" {
		k.use(j.JWKS)
	}
	return k
}

// use makes an address that of the keys. The keys that k has stay good until it answers.
func (k *keySet) use(address string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.address != address {
		client := boundedClient(k.asking, k.pace)
		client.Transport.(*keyTransport).keys = k
		k.remote, k.address = oidc.NewRemoteKeySet(oidc.ClientContext(context.Background(), client), address), address
	}
}

// fetch looks for the keys anew, at the address that the issuer names now.
func (k *keySet) fetch(ctx context.Context) {
	if k.config.JWKS == "" {
		address, err := discover(ctx, k.asking, k.config.Issuer)
		if err != nil {
			k.note(nil, fmt.Errorf("asking the issuer where its keys are: %w", err))
			return
		}
		k.use(address)
	}
	_, _ = k.current().VerifySignature(ctx, unsigned) // k learns the result from the transport
}

// current returns where the keys are, nil when that is not known.
func (k *keySet) current() *oidc.RemoteKeySet {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.remote
}

// note notes what a fetch returned.
func (k *keySet) note(ids []string, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.fault = ""; err != nil {
		k.fault = err.Error()
		return
	}
	k.ids, k.fetched = ids, time.Now()
}

// keyFault is the context key under which VerifySignature leaves its error: the verifier
// that calls it keeps the text only.
type keyFault struct{}

// VerifySignature implements oidc.KeySet.
func (k *keySet) VerifySignature(ctx context.Context, token string) ([]byte, error) {
	remote := k.current()
	if remote == nil && k.pace.Allow() { // the first token comes before the keys
		_, _, _ = k.first.Do("", func() (any, error) {
			ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), fetchDeadline)
			defer stop()
			k.fetch(ctx)
			return nil, nil
		})
		remote = k.current()
	}
	payload, err := []byte(nil), errUnfetched
	if remote != nil {
		payload, err = remote.VerifySignature(ctx, token)
	}
	if to, ok := ctx.Value(keyFault{}).(*error); ok {
		*to = err
	}
	return payload, err
}

// lacks reports whether the issuer has keys, but none with an id.
func (k *keySet) lacks(id string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return !k.fetched.IsZero() && id != "" && !slices.Contains(k.ids, id)
}

// unsigned has the form of a signed token. No key verifies it, so a key set fetches.
const unsigned = "eyJhbGciOiJFUzI1NiJ9.e30.AA"

// errUnfetched reports that nobody knows where the keys of an issuer are.
var errUnfetched = errors.New("the keys were never fetched")

// status returns when a key set was fetched last, and why the last fetch failed.
func (k *keySet) status() (fetched time.Time, fault string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.fetched, k.fault
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
		fetched, fault := is.keys.status()
		all = append(all, IssuerStatus{name, !fetched.IsZero(), fault})
	}
	slices.SortFunc(all, func(x, y IssuerStatus) int { return cmp.Compare(x.Issuer, y.Issuer) })
	return all
}

// FetchKeys fetches the keys of the issuers that have none, whose last fetch failed, or whose
// keys are older than 15 minutes: a key that its issuer withdrew verifies nothing for longer.
// Keys that cannot be fetched anew stay. It returns when all have answered or failed, or
// when ctx ends.
func (a *Authenticator) FetchKeys(ctx context.Context) {
	var fetches sync.WaitGroup
	for _, is := range a.state.Load().issuers {
		if fetched, fault := is.keys.status(); fault != "" || time.Since(fetched) > refreshKeys {
			fetches.Go(func() { is.keys.fetch(ctx) })
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
	keys *keySet // receives the result of each fetch; nil = the responses are not key sets
}

// RoundTrip implements http.RoundTripper.
func (t *keyTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	if !t.pace.Allow() {
		return nil, errPace
	}
	res, err := t.base.RoundTrip(r)
	if err == nil {
		res.Body = http.MaxBytesReader(nil, res.Body, maxJWKSBytes)
	}
	if t.keys != nil {
		var ids []string
		if err == nil {
			ids, err = readKeyIDs(res)
		}
		t.keys.note(ids, err)
	}
	if err != nil {
		return nil, err
	}
	return res, nil
}
