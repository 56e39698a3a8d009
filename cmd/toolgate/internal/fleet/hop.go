package fleet

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httputil"
	"syscall"
	"time"

	"github.com/toolgate/toolgate/policy/identity"
)

// The headers with the address of the client of a request that is passed on, with the
// replica that it is for, with the client's certificate, DER in base64, and with whether the
// replica that passes it on has spent its proof. Clients' own are dropped, and only Own reads them.
const (
	headerClient      = "X-Forwarded-For"
	headerOwner       = "Toolgate-Replica"
	headerCertificate = "Toolgate-Certificate"
	headerProof       = "Toolgate-Proof"
)

// passOn sends q to the replica that has a session of owner, or to owner itself without one, and
// its answer to w. It returns false, with q as it was, when that replica is gone.
func (r *Router) passOn(w http.ResponseWriter, q *http.Request, owner, session string) (replica string, answered bool) {
	if !r.work.Enter() {
		http.Error(w, "shutting down", http.StatusServiceUnavailable)
		return owner, true
	}
	defer r.work.Leave()
	body := keepBody(q)
	for ask := body == nil; ; ask = true {
		found, address, kept, err := r.find(q.Context(), owner, session, ask)
		replica = found
		switch {
		case err != nil:
			http.Error(w, "the replica that has the session or the call cannot be looked up: try again", http.StatusServiceUnavailable)
			return owner, true
		case replica == r.names.self || address == "": // the session was taken over just now, or its replica is gone
			return replica, false
		case r.send(w, q, body, owner+session, replica, address):
			return replica, true
		case kept:
			continue
		case session != "": // the door looks whether it may take it over
			return replica, false
		}
		break
	}
	if _, address, err := r.opts.Directory.Find(q.Context(), owner, ""); err == nil && address == "" {
		return replica, false
	}
	http.Error(w, "the replica that has the call cannot be reached: try again", http.StatusServiceUnavailable) // only the network may be away
	return replica, true
}

// keepBody returns the body of q, which can then be sent several times, nil for one that is not small.
func keepBody(q *http.Request) []byte {
	if q.ContentLength < 0 || q.ContentLength > smallBody {
		return nil
	}
	body, err := io.ReadAll(q.Body)
	if err != nil { // the next reader gets it again
		q.Body = io.NopCloser(io.MultiReader(bytes.NewReader(body), q.Body))
		return nil
	}
	q.Body = io.NopCloser(bytes.NewReader(body))
	return body
}

// send sends q to a replica at an address, as passOn does, and reports the result to
// Options.Passed. Without a body from keepBody, that of q is not read, and not closed, before there is a
// connection. When the hop fails, the place kept for key is forgotten.
func (r *Router) send(w http.ResponseWriter, q *http.Request, body []byte, key, owner, address string) (answered bool) {
	ctx, cancel := context.WithCancel(q.Context())
	defer cancel()
	ending := r.calls
	if q.Method == http.MethodGet {
		ending = r.streams
	}
	defer context.AfterFunc(ending, cancel)()
	result := "unknown" // as it stays when an answer breaks off, which is a panic
	defer func() {
		if result == "unknown" && ctx.Err() != nil {
			result = "left"
		}
		r.opts.Passed(result)
	}()
	answered, failure := true, ""
	hop := httputil.ReverseProxy{
		Transport: r.transport, FlushInterval: -1, ErrorLog: quiet,
		Rewrite: func(p *httputil.ProxyRequest) { // which has no Forwarded and X-Forwarded headers left
			p.Out.URL.Scheme, p.Out.URL.Host = "https", address
			p.Out.Header.Set(headerClient, q.RemoteAddr)
			p.Out.Header.Set(headerOwner, owner)
			p.Out.Header.Del(headerCertificate)
			p.Out.Header.Del(headerProof)
			if identity.HasSpentProof(q.Context()) {
				p.Out.Header.Set(headerProof, "spent")
			}
			if q.TLS != nil && len(q.TLS.PeerCertificates) > 0 {
				p.Out.Header.Set(headerCertificate, base64.StdEncoding.EncodeToString(q.TLS.PeerCertificates[0].Raw))
			}
			if len(body) > 0 {
				p.Out.Body = io.NopCloser(bytes.NewReader(body))
			}
		},
		ModifyResponse: func(res *http.Response) error {
			switch res.StatusCode {
			case http.StatusMisdirectedRequest:
				return errOther
			case http.StatusNotFound, http.StatusServiceUnavailable: // the session may have ended, or have another owner
				r.kept.Remove(key)
			}
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, q *http.Request, err error) {
			r.kept.Remove(key)
			failure, answered = r.fail(w, q, body != nil, owner, address, err)
		},
	}
	rc := http.NewResponseController(w)
	_ = rc.EnableFullDuplex() // else an answer that begins while the body is read closes the body, and the hop breaks off
	hop.ServeHTTP(bounded{w, rc}, q.WithContext(ctx))
	result = cmp.Or(failure, "answered")
	return answered
}

// fail answers a request that got no answer of the replica at address, unless that replica is gone and
// q can be sent to another: nothing was sent, or again says that its body was kept. It returns the result
// for Options.Passed.
func (r *Router) fail(w http.ResponseWriter, q *http.Request, again bool, owner, address string, err error) (result string, answered bool) {
	other := errors.Is(err, errOther)
	if other || errors.Is(err, syscall.ECONNREFUSED) { // its process has ended; it comes back when it has not
		_ = r.opts.Directory.Delete(q.Context(), keyPrefix+owner)
	}
	switch left := q.Context().Err() != nil; {
	case (unreached(err) || other && again) && !left:
		return "gone", false
	case other && !left:
		http.Error(w, "the replica that has the session or the call is gone: try again", http.StatusServiceUnavailable)
		return "gone", true
	case !left:
		r.opts.Log.Warn("the owner of a session or a call did not answer", "address", address, "error", err)
	}
	http.Error(w, "the replica that has the session or the call did not answer: whether the request took effect is unknown", http.StatusBadGateway)
	return "unknown", true
}

// errOther reports that another process has the address of a replica now.
var errOther = errors.New("another replica is at its address")

// quiet is the log of ReverseProxy: what it says is that a client or a replica has gone.
var quiet = log.New(io.Discard, "", 0)

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
