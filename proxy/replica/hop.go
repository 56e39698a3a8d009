package replica

import (
	"context"
	"io"
	"log"
	"net/http"
	"net/http/httputil"
	"sync"
	"time"
)

// headerClient is the header with the address of the client of a request that is passed on.
// Clients' own is dropped, and only Own reads it.
const headerClient = "X-Forwarded-For"

// passOn sends q to the replica at address and its answer to w. If the replica cannot be
// connected to, q is one for next.
func (r *Router) passOn(w http.ResponseWriter, q *http.Request, address string, next http.Handler) {
	if !r.work.Enter() {
		http.Error(w, "shutting down", http.StatusServiceUnavailable)
		return
	}
	defer r.work.Leave()
	ctx, cancel := context.WithCancel(q.Context())
	defer cancel()
	ending := r.calls
	if q.Method == http.MethodGet {
		ending = r.streams
	}
	defer context.AfterFunc(ending, cancel)()
	body := &lent{body: q.Body}
	defer body.end()
	hop := httputil.ReverseProxy{
		Transport: r.transport, FlushInterval: -1, ErrorLog: quiet,
		Rewrite: func(p *httputil.ProxyRequest) { // which has no Forwarded and X-Forwarded headers left
			p.Out.URL.Scheme, p.Out.URL.Host = "https", address
			p.Out.Header.Set(headerClient, q.RemoteAddr)
			if p.Out.Body != nil {
				p.Out.Body = body
			}
		},
		ErrorHandler: func(bounded http.ResponseWriter, _ *http.Request, err error) {
			if ctx.Err() == nil && unreached(err) {
				next.ServeHTTP(w, q)
				return
			}
			if ctx.Err() == nil {
				r.opts.Log.Warn("the owner of a session did not answer", "address", address, "error", err)
			}
			http.Error(bounded, "the replica that has the session did not answer: whether the request took effect is unknown", http.StatusBadGateway)
		},
	}
	hop.ServeHTTP(bounded{w, http.NewResponseController(w)}, q.WithContext(ctx))
}

// quiet is the log of ReverseProxy: what it says is that a client or a replica has gone.
var quiet = log.New(io.Discard, "", 0)

// lent is the body of a request while it is passed on. The transport closes it when it
// cannot connect, and may read it after an early answer: neither reaches the connection.
type lent struct {
	mu   sync.Mutex // protects the fields below; held while the body is read
	body io.Reader
	over bool
}

// Read implements io.Reader.
func (b *lent) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.over {
		return 0, http.ErrBodyReadAfterClose
	}
	return b.body.Read(p)
}

// Close implements io.Closer.
func (b *lent) Close() error { return nil }

func (b *lent) end() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.over = true
}

// bounded gives each write to a client a bound of its own, so that one that reads nothing
// does not hold its connection for ever.
type bounded struct {
	http.ResponseWriter
	rc *http.ResponseController
}

// Write implements io.Writer.
func (w bounded) Write(p []byte) (int, error) {
	_ = w.rc.SetWriteDeadline(time.Now().Add(writeWithin)) // fails only for a writer without a network
	return w.ResponseWriter.Write(p)
}

// Unwrap is for http.ResponseController.
func (w bounded) Unwrap() http.ResponseWriter { return w.ResponseWriter }
