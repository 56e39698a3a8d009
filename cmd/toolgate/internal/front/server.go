// Package front serves HTTP on the addresses of a gate: it bounds the connections of each, and the
// time that a request takes to arrive, and ends without resetting what has connected.
package front

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/toolgate/toolgate/internal/plainhttp"
)

// Options are the settings of a Server. All but TLS and Quick are needed.
type Options struct {
	Listener net.Listener
	Most     int                // connections at once
	TLS      func() *tls.Config // for the next connection; nil = plain HTTP
	Quick    bool               // plain HTTP is served by package plainhttp
	Handler  http.Handler
	Dropped  func()      // called for each connection that is closed for another one; it must not block
	Errors   *log.Logger // gets what net/http says about connections
	Log      hclog.Logger
}

// Server serves HTTP on one address.
type Server struct {
	listener *listener
	secured  net.Listener // listener, with TLS if it has that
	http     server
	ended    chan struct{} // closed when Serve returns
	log      hclog.Logger
}

// server is one of net/http, or of plainhttp.
type server interface {
	Serve(l net.Listener) error
	Shutdown(ctx context.Context) error
	Close() error
}

// New returns a Server that bounds how long a client takes to send a request. Answers have no
// bound, because streams are long.
func New(o Options) *Server {
	s := &Server{listener: newListener(o.Listener, o.Most, o.Dropped), ended: make(chan struct{}), log: o.Log}
	plain := newServer(o.Handler)
	plain.ErrorLog = o.Errors
	s.secured, s.http = s.listener, plain
	if o.TLS != nil {
		s.listener.secure = true
		s.secured = tls.NewListener(s.listener, &tls.Config{
			GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return o.TLS(), nil },
		})
	} else if o.Quick {
		s.http = &plainhttp.Server{HTTP: plain}
	}
	return s
}

// Serve serves until Stop, Shutdown, HangUp or Close, and then returns nil. It may be called once.
func (s *Server) Serve() error {
	defer close(s.ended)
	if err := s.http.Serve(s.secured); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving %s: %w", s.listener.Addr(), err)
	}
	return nil
}

// Stop accepts what has connected so far and no more, and waits for the end of Serve.
func (s *Server) Stop() {
	s.listener.stop()
	<-s.ended
}

// Shutdown waits for the requests under way, until ctx ends, whose error it returns.
func (s *Server) Shutdown(ctx context.Context) error { return s.http.Shutdown(ctx) }

// HangUp ends a server whose requests are answered. Connections that carried no byte
// end at once: http.Server.Shutdown waits five seconds for their first request, and a
// client that dials ahead leaves some. Requests that take longer are cut.
func (s *Server) HangUp() {
	ctx, stop := context.WithTimeout(context.Background(), 5*time.Second)
	defer stop()
	s.listener.closeUnused()
	if err := s.http.Shutdown(ctx); err != nil {
		s.log.Warn("connections were cut: their requests took too long", "address", s.listener.Addr().String(), "error", errors.Join(err, s.http.Close()))
	}
}

// Close closes the listener and all connections.
func (s *Server) Close() error { return s.http.Close() }

// Listen listens on a TCP address, without Multipath TCP, whose sockets the kernel does not filter: see refuseNew.
func Listen(address string) (net.Listener, error) {
	var of net.ListenConfig
	of.SetMultipathTCP(false)
	return of.Listen(context.Background(), "tcp", address)
}

// connectionKey is the key of a request's connection in its context.
type connectionKey struct{}

// newServer returns a server that bounds how long a client takes to send a request.
// Answers have no bound, because streams are long.
func newServer(h http.Handler) *http.Server {
	return &http.Server{
		Handler: serveBounded(h), ReadHeaderTimeout: headTimeout,
		IdleTimeout: idleTimeout, MaxHeaderBytes: 64 << 10,
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			for below, ok := c.(interface{ NetConn() net.Conn }); ok; below, ok = c.(interface{ NetConn() net.Conn }) { // TLS, or plainhttp
				c = below.NetConn()
			}
			return context.WithValue(ctx, connectionKey{}, c)
		},
	}
}

// serveBounded serves requests whose bodies have to arrive in time, whether h reads them,
// or net/http does to keep the connection. A body that says that it has Arrived needs no time.
func serveBounded(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, _ := r.Context().Value(connectionKey{}).(*connection)
		if c != nil {
			defer func() {
				c.answered.Store(1)
				c.serving.Store(false)
			}()
		}
		d, bounded := w.(deadliner)
		sent, known := r.Body.(interface{ Arrived() bool })
		switch {
		case r.Body != nil && r.Body != http.NoBody && bounded && !(known && sent.Arrived()):
			now := time.Now()
			r.Body = &body{ReadCloser: r.Body, to: d, conn: c, end: now.Add(bodyTimeout)}
			_ = d.SetReadDeadline(now.Add(bodyPause)) // fails only for a connection that is closed
		case c != nil:
			c.serving.Store(true)
		}
		h.ServeHTTP(w, r)
	})
}

// A deadliner bounds the time for the rest of a request.
type deadliner interface{ SetReadDeadline(time.Time) error }

// body is the body of a request, which fails when bodyPause passes without a byte, or
// bodyTimeout in all.
type body struct {
	io.ReadCloser
	to   deadliner
	conn *connection // nil = unknown
	end  time.Time
}

// Read implements io.Reader. The deadline ends with the body: net/http reads on, to
// find out that the client has left. It stays after any other error.
func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	switch {
	case err == io.EOF:
		if b.conn != nil {
			b.conn.serving.Store(true)
		}
		_ = b.to.SetReadDeadline(time.Time{}) // fails only for a connection that is closed
	case err == nil && n > 0:
		next := time.Now().Add(bodyPause)
		if b.end.Before(next) {
			next = b.end
		}
		_ = b.to.SetReadDeadline(next)
	}
	return n, err
}
