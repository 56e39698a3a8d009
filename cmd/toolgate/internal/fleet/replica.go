// Package fleet has what several replicas do together: they share the buckets of rate limits, see
// [Limits], and serve the session of an MCP client, and a multi-round call of one without a session, at
// whichever replica its requests arrive, see [Router].
//
// A session is in the memory of one replica, its owner: there are its streams, the questions
// that wait for the client, and its connections to servers. Any other replica passes the
// session's requests on to the owner, as they came:
//
//	client ──► agents' listener ─ Before ──► door           a session of this replica, or none
//	                                │
//	                                └─ mTLS ──► replicas' listener of the owner ─ Own ──► door
//
// The ID of a session names the replica that opened it and is signed with a key that the replicas
// share, so no client can name another replica. It holds no address: a replica keeps its own in a
// directory, for as long as it lives. Only the owner authenticates, judges and records.
// The owner passes no request on again, so there is no second hop. When a call waits for
// answers of its client, its requestState names the owner in the same way, as does the ID of a
// server's task; PassOn passes the next attempt, or the request about the task, on.
//
// A Keeper keeps the sessions of its replica on the server that the replicas share. When an owner
// is gone, the door at which the next request of a session arrives loads its record, checks that
// it is the sender's, and becomes the owner with Keep: of several, exactly one does.
//
// The buckets of limits are on that server too. A replica leases tokens there in small batches and
// spends them without a trip. While the server is away, each replica allows its share of each limit.
package fleet

import (
	"bytes"
	"cmp"
	"context"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/toolgate/toolgate/internal/wait"
	"github.com/toolgate/toolgate/policy/identity"
)

const (
	lease       = 15 * time.Second // of an address in the directory
	renewEvery  = lease / 3
	leaveWithin = time.Second
	dialWithin  = 3 * time.Second // to the end of the TLS handshake
	idleTimeout = time.Minute     // of a connection between two requests; the owner closes it later
	idlePerPeer = 64
	writeWithin = 30 * time.Second // one part of an answer, to a client that reads slowly
	keptFor     = 5 * time.Second  // where a session was found
	mostKept    = 64 << 10
	smallBody   = 64 << 10 // a larger one is sent once, to where the directory says
)

// Directory tells replicas where the others are. Its methods are safe for concurrent use.
type Directory interface {
	// Find returns the replica that has the session with a key, which is owner unless another one took it
	// over, and its address, "" for one that is gone.
	Find(ctx context.Context, owner, session string) (replica, address string, err error)
	// Set sets the value of key for a time.
	Set(ctx context.Context, key, value string, life time.Duration) error
	// Delete removes key.
	Delete(ctx context.Context, key string) error
}

// Options configure a Router; all but Log and Passed are required.
type Options struct {
	// Secret is what the replicas share; session IDs are signed with a key derived from it.
	Secret    []byte
	Directory Directory
	// Address is where the other replicas reach the replicas' listener of this one,
	// host:port. Its certificate names the host.
	Address string
	// TLS returns the certificate of this replica, and in ClientCAs the authorities of all.
	TLS func() *tls.Config
	// Admits checks host and origin of a request, for the owner cannot.
	Admits func(r *http.Request) bool
	// Passed is called for each request that was sent to another replica: answered; gone =
	// there was no connection to it, so that nothing was sent; unknown = the answer did not come
	// or broke off; left = the client has gone, or this replica stops. nil = none.
	Passed func(result string)
	Now    func() time.Time // nil = time.Now
	Log    hclog.Logger     // nil = nothing is logged
}

// Router passes requests on to the replicas that own their sessions, and serves those of
// other replicas. The nil Router is that of a replica without others. It is safe for
// concurrent use.
type Router struct {
	opts      Options
	names     names
	transport *http.Transport
	known     sync.Map // :: ID of a replica -> its last known address
	kept      *lru.Cache[string, place]
	left      atomic.Bool // the directory: Own serves no more requests
	taken     sync.Map    // :: ID of a session of another replica that this one has taken over

	work             wait.Drain      // requests that are being passed on
	calls, streams   context.Context // ended by Close: what is passed on ends, GET requests first
	endCalls, hangUp context.CancelFunc
	announcing       sync.WaitGroup
	leave            context.CancelFunc // nil before Announce
	forgotten        time.Time          // after Leave: no other replica sends requests here any more
}

// New returns a Router, which passes requests on until Close.
func New(o Options) (*Router, error) {
	o.Log = cmp.Or(o.Log, hclog.NewNullLogger())
	if o.Passed == nil {
		o.Passed = func(string) {}
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	key, err := hkdf.Key(sha256.New, o.Secret, nil, "toolgate session id", sha256.Size)
	if err != nil {
		return nil, fmt.Errorf("deriving key of session ids: %w", err)
	}
	r := &Router{opts: o, names: names{key: key}}
	_, _ = rand.Read(r.names.id[:]) // never fails
	r.names.self = textOf(r.names.id)
	r.kept, _ = lru.New[string, place](mostKept) // an error means a size below 1
	r.transport = &http.Transport{DialTLSContext: r.dial, DisableCompression: true, MaxIdleConnsPerHost: idlePerPeer, IdleConnTimeout: idleTimeout}
	r.calls, r.endCalls = context.WithCancel(context.Background())
	r.streams, r.hangUp = context.WithCancel(r.calls)
	return r, nil
}

// ID returns the ID of this replica, which is another one after each start.
func (r *Router) ID() [8]byte { return r.names.id }

// SessionID returns the ID of a new session of this replica.
func (r *Router) SessionID() string {
	said := rand.Text() + "." + r.names.self
	return said + "." + r.names.mac(said)
}

// keyPrefix is that of the directory's keys.
const keyPrefix = "toolgate:{sessions}:replica:"

// Announce keeps the address of this replica in the directory until Leave. It may be called
// once. It calls returned each time that the directory has it again after its lease ran out, so that
// other replicas may have taken sessions over.
func (r *Router) Announce(returned func()) {
	ctx, leave := context.WithCancel(context.Background())
	r.leave = leave
	r.announcing.Go(func() {
		for failing, last := false, time.Now(); ; {
			err := r.opts.Directory.Set(ctx, keyPrefix+r.names.self, r.opts.Address, lease)
			if err != nil && !failing && ctx.Err() == nil {
				r.opts.Log.Warn("other replicas may not find this one", "error", err)
			}
			if failing = err != nil; !failing {
				if time.Since(last) > lease {
					r.announcing.Go(returned)
				}
				last = time.Now()
			}
			if !wait.For(ctx, wait.Beat(renewEvery)) {
				return
			}
		}
	})
}

// Leave removes this replica from the directory: the others may take its sessions over. It ends
// the streams that are passed on, so that their clients open them at another replica; other requests are
// still passed on.
func (r *Router) Leave() {
	if r == nil {
		return
	}
	r.hangUp()
	if r.leave == nil {
		return
	}
	r.left.Store(true)
	r.leave()
	r.announcing.Wait()
	ctx, stop := context.WithTimeout(context.Background(), leaveWithin)
	defer stop()
	_ = r.opts.Directory.Delete(ctx, keyPrefix+r.names.self) // otherwise it expires
	r.forgotten = time.Now().Add(keptFor + time.Second)
}

// Close ends the streams that are passed on, passes no more requests on, and waits for calls until
// ctx ends, whose error it returns. Calls that are left then are cut.
func (r *Router) Close(ctx context.Context) error {
	if r == nil {
		return nil
	}
	r.hangUp()
	err := r.work.Finish(ctx, r.endCalls)
	r.endCalls()
	r.transport.CloseIdleConnections()
	return err
}

// AwaitForgotten waits, after Leave, until the other replicas have forgotten this one or ctx ends: then the
// listener for them can be closed while no request is on its way there.
func (r *Router) AwaitForgotten(ctx context.Context) error {
	if r != nil {
		wait.For(ctx, time.Until(r.forgotten)) // when ctx ends first, they ask the directory again
	}
	return nil
}

// passedOn is the key, in the context of a request, of the replica to which it was passed on: this
// one, or one that is gone.
type passedOn struct{}

// Own serves the requests that other replicas passed on to this one, with next. Any other
// request is refused: at its address may have been another replica. After Leave all are refused, because
// a replica that still has the address would pass on what this one no longer serves.
func (r *Router) Own(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if q.Header.Get(headerOwner) != r.names.self || r.left.Load() {
			http.Error(w, "the request is not for this replica", http.StatusMisdirectedRequest)
			return
		}
		if from := q.Header.Get(headerClient); from != "" {
			q.RemoteAddr = from
		}
		q.Host, q.TLS = "localhost", nil // the replica that the client reached has checked host and origin
		if der, err := base64.StdEncoding.DecodeString(q.Header.Get(headerCertificate)); err == nil && len(der) > 0 {
			if shown, err := x509.ParseCertificate(der); err == nil { // the replica that the client reached has verified it
				q.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{shown}}
			}
		}
		ctx := context.WithValue(q.Context(), passedOn{}, r.names.self)
		if q.Header.Get(headerProof) != "" {
			ctx = identity.WithSpentProof(ctx)
		}
		for _, name := range []string{"Origin", headerClient, headerOwner, headerCertificate, headerProof} {
			q.Header.Del(name)
		}
		next.ServeHTTP(w, q.WithContext(ctx))
	})
}

// Before passes requests on to the owners of their sessions, and leaves all others to next:
// also those to sessions whose owner is gone, which next takes over or does not know. Before of a nil
// Router returns next.
func (r *Router) Before(next http.Handler) http.Handler {
	if r == nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		session := sessionOf(q)
		owner, ok := r.names.owner(session)
		if _, taken := r.taken.Load(session); taken || !ok || owner == r.names.self || !r.opts.Admits(q) {
			next.ServeHTTP(w, q)
			return
		}
		if owner, answered := r.passOn(w, q, owner, r.names.sessionKey(session)); !answered {
			next.ServeHTTP(w, q.WithContext(context.WithValue(q.Context(), passedOn{}, owner)))
		}
	})
}

// PassOn passes q, whose sender was identified and whose body was read, on to the replica with the ID owner, and reports
// whether it is answered: not when that replica is gone, nor when q was passed on to this one. While
// the replica is in the directory and cannot be reached, the answer is 503.
func (r *Router) PassOn(w http.ResponseWriter, q *http.Request, body []byte, owner [8]byte) bool {
	if to := q.Context().Value(passedOn{}); to == r.names.self || to == textOf(owner) {
		return false
	}
	again := q.WithContext(identity.WithSpentProof(q.Context()))
	again.Body, again.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	_, answered := r.passOn(w, again, textOf(owner), "")
	return answered
}

// sessionOf returns the ID of the session that a request shows, "" for none. A request that
// shows several belongs to none.
func sessionOf(q *http.Request) string {
	var ids []string
	switch {
	case q.URL.Path == "/mcp" || strings.HasPrefix(q.URL.Path, "/mcp/"):
		ids = q.Header["Mcp-Session-Id"]
	case q.URL.Path == "/messages": // of HTTP+SSE
		ids = q.URL.Query()["sessionId"]
	}
	if len(ids) != 1 {
		return ""
	}
	return ids[0]
}

// A place is where a session was found.
type place struct {
	replica, address string
	until            time.Time
}

// find returns the replica that has a session of owner, and its address, "" when it is gone; kept
// = both were found some seconds ago. With ask, they never are. While the directory is away, the replica
// is owner, where it was last known.
func (r *Router) find(ctx context.Context, owner, session string, ask bool) (replica, address string, kept bool, err error) {
	now := r.opts.Now()
	if p, ok := r.kept.Get(owner + session); ok && !ask && now.Before(p.until) {
		return p.replica, p.address, true, nil
	}
	replica, address, err = r.opts.Directory.Find(ctx, owner, session)
	switch last, ok := r.known.Load(owner); {
	case err == nil && address != "":
		r.known.Store(replica, address)
		r.kept.Add(owner+session, place{replica, address, now.Add(keptFor)})
	case err == nil:
		r.known.Delete(replica)
	case ok:
		return owner, last.(string), false, nil
	}
	return replica, address, false, err
}

// dial connects to a replica, whose certificate must be of the common authorities and name
// the host of address.
func (r *Router) dial(ctx context.Context, network, address string) (net.Conn, error) {
	own := r.opts.TLS()
	d := tls.Dialer{
		NetDialer: &net.Dialer{Timeout: dialWithin},
		Config:    &tls.Config{Certificates: own.Certificates, RootCAs: own.ClientCAs, MinVersion: tls.VersionTLS13},
	}
	return d.DialContext(ctx, network, address)
}

// unreached reports whether err says that a replica could not be connected to, so that
// nothing was sent to it.
func unreached(err error) bool {
	var dial *net.OpError
	return errors.As(err, &dial) && dial.Op == "dial"
}
