package upstream_test

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/toolgate/toolgate/internal/testkit/authority"
	"github.com/toolgate/toolgate/internal/testkit/recorder"
	"github.com/toolgate/toolgate/registry/config"
	"github.com/toolgate/toolgate/registry/upstream"
)

// guarded is a server that lets in who has the newest token of its token endpoint.
type guarded struct {
	rec *recorder.Recorder
	url string
	as  string

	mu      sync.Mutex // protects the fields below
	given   int        // tokens
	good    string
	away    bool // the token endpoint is
	passed  int  // requests
	refused int
}

func newGuarded(t *testing.T, cfg recorder.Config) *guarded {
	t.Helper()
	g := &guarded{rec: recorder.HTTP(t, cfg)}
	to, err := url.Parse(g.rec.URL)
	if err != nil {
		t.Fatal(err)
	}
	pass := &httputil.ReverseProxy{FlushInterval: -1, Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to) }}
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		g.mu.Lock()
		ok := g.good != "" && r.Header.Get("Authorization") == "Bearer "+g.good && len(r.Header["Authorization"]) == 1
		if ok {
			g.passed++
		} else {
			g.refused++
		}
		g.mu.Unlock()
		if !ok {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		_ = http.NewResponseController(w).EnableFullDuplex() // a stream may begin before the request is read whole
		pass.ServeHTTP(w, r)
	}))
	t.Cleanup(front.Close)
	t.Cleanup(front.CloseClientConnections)
	as := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		g.mu.Lock()
		defer g.mu.Unlock()
		if g.away {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		g.given++
		g.good = fmt.Sprintf("canary-of-the-server-%d", g.given)
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"access_token": %q, "token_type": "Bearer", "expires_in": 3600}`, g.good)
	}))
	t.Cleanup(as.Close)
	g.url, g.as = front.URL, as.URL
	return g
}

func (g *guarded) server(kind string) config.Server {
	s := config.Server{Name: "guarded", Type: kind, URL: g.url, Timeout: patience}
	s.Credential = &config.Credential{Type: config.CredentialClient, TokenURL: g.as, ClientID: "toolgate", ClientSecret: "canary-secret"}
	return s
}

func (g *guarded) set(change func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	change()
}

// TestTokenOfServer holds that every request has the server's token, that a refused one is
// replaced and its call executed once, and that the server's answers do not show it.
func TestTokenOfServer(t *testing.T) {
	t.Parallel()
	echo := recorder.Tool{Name: "echo", Result: json.RawMessage(`{"content":[{"type":"text","text":"canary-of-the-server-1 canary-of-the-server-2 canary-secret"}]}`)}
	for name, cfg := range map[string]recorder.Config{"session": {Sessions: true}, "stream": {Sessions: true, Stream: true}, "stateless": {}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg.Tools = []recorder.Tool{echo}
			if name == "stateless" {
				cfg.Stateless = &recorder.Stateless{Tools: []recorder.StatelessTool{{Name: "echo", Answers: []json.RawMessage{echo.Result}}}}
			}
			g := newGuarded(t, cfg)
			now := time.Now()
			var mu sync.Mutex
			r := start(t, g.server(config.TypeHTTP), upstream.Options{Now: func() time.Time { mu.Lock(); defer mu.Unlock(); return now }})
			prints := r.ready()
			for i := range 2 {
				answer, e := r.call(prints, "echo", `{}`)
				if e != nil || string(answer) != `{"content":[{"type":"text","text":"[redacted] [redacted] [redacted]"}]}` && i == 1 || strings.Contains(string(answer), "server-1") {
					t.Errorf("%d: %s, %v", i, answer, e)
				}
				mu.Lock()
				now = now.Add(time.Minute)
				mu.Unlock()
				g.set(func() { g.good = "none" }) // it was revoked
			}
			if n := len(g.rec.Calls()); n != 2 {
				t.Errorf("the server has executed %d calls", n)
			}
			g.set(func() { g.away = true })
			_, e := r.call(prints, "echo", `{}`)
			if e == nil || e.Kind != upstream.Unavailable || strings.Contains(e.Error(), "canary") {
				t.Errorf("while no token can be had: %v", e)
			}
			mu.Lock()
			now = now.Add(time.Minute)
			mu.Unlock()
			g.set(func() { g.away = false })
			if _, e := r.call(prints, "echo", `{}`); e != nil {
				t.Errorf("with a token again: %v", e)
			}
			if n := len(g.rec.Calls()); n != 3 {
				t.Errorf("the server has executed %d calls", n)
			}
		})
	}
}

// TestNoTokenNoServer holds that a server is not asked anything without its token, and
// serves when there is one.
func TestNoTokenNoServer(t *testing.T) {
	t.Parallel()
	g := newGuarded(t, recorder.Config{Tools: []recorder.Tool{{Name: "echo"}}})
	g.away = true
	r := start(t, g.server(config.TypeHTTP), upstream.Options{})
	r.await("failed", func() bool { return r.Status().State == upstream.StateFailed })
	if err := r.Status().Err; err == nil || !strings.Contains(err.Error(), "asking for a token: status 503") {
		t.Errorf("it failed with %v", err)
	}
	g.set(func() {
		if g.passed+g.refused > 0 {
			t.Errorf("%d requests have passed, %d were refused", g.passed, g.refused)
		}
		g.away = false
	})
	r.Restart()
	if _, e := r.call(r.ready(), "echo", `{}`); e != nil {
		t.Error(e)
	}
}

// TestUnusableCredential holds that a key that cannot be read stops the server, and is not shown.
func TestUnusableCredential(t *testing.T) {
	t.Parallel()
	g := newGuarded(t, recorder.Config{})
	s := g.server(config.TypeHTTP)
	s.Credential.ClientSecret, s.Credential.PrivateKey = "", "canary-key"
	r := start(t, s, upstream.Options{})
	r.await("failed", func() bool { return r.Status().State == upstream.StateFailed })
	if err := r.Status().Err; err == nil || !strings.Contains(err.Error(), "reading private_key: it is not PEM") || strings.Contains(err.Error(), "canary") {
		t.Errorf("it failed with %v", err)
	}
}

// TestCertificatesOfServers holds that a server is believed by the configured roots alone, and is
// shown the configured certificate.
func TestCertificatesOfServers(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ours, theirs := make(map[string]string), make(map[string]string)
	for name, files := range map[string]map[string]string{"ours": ours, "theirs": theirs} {
		ca, err := authority.New(name)
		if err != nil {
			t.Fatal(err)
		}
		base := filepath.Join(dir, name)
		if err := ca.Write(base, time.Hour, "127.0.0.1"); err != nil {
			t.Fatal(err)
		}
		files["ca"], files["cert"], files["key"] = base+".ca", base+".crt", base+".key"
		if err := os.WriteFile(files["ca"], ca.PEM(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	rec := recorder.HTTP(t, recorder.Config{Tools: []recorder.Tool{{Name: "echo"}}})
	to, err := url.Parse(rec.URL)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.LoadX509KeyPair(ours["cert"], ours["key"])
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	text, err := os.ReadFile(ours["ca"])
	if err != nil || !roots.AppendCertsFromPEM(text) {
		t.Fatal(err)
	}
	front := httptest.NewUnstartedServer(&httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to) }})
	front.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: roots}
	front.Config.ErrorLog = log.New(io.Discard, "", 0)
	front.StartTLS()
	t.Cleanup(front.Close)
	for name, tt := range map[string]struct {
		tls *config.ClientTLS
		bad string // in why it failed; a server that refuses may reset the connection before it says why
	}{
		"roots and certificate":    {&config.ClientTLS{CA: ours["ca"], Cert: ours["cert"], Key: ours["key"]}, ""},
		"no certificate":           {&config.ClientTLS{CA: ours["ca"]}, "initializing: "},
		"a certificate of others":  {&config.ClientTLS{CA: ours["ca"], Cert: theirs["cert"], Key: theirs["key"]}, "initializing: "},
		"roots of others":          {&config.ClientTLS{CA: theirs["ca"], Cert: ours["cert"], Key: ours["key"]}, "certificate"},
		"the system's roots":       {nil, "certificate"},
		"a file that is not there": {&config.ClientTLS{CA: filepath.Join(dir, "none")}, "reading root certificates"},
		"roots that are none":      {&config.ClientTLS{CA: ours["key"]}, "has none in PEM"},
		"a key that is not there":  {&config.ClientTLS{CA: ours["ca"], Cert: ours["cert"], Key: filepath.Join(dir, "none")}, "reading the certificate for the server"},
		"a key of another's":       {&config.ClientTLS{CA: ours["ca"], Cert: ours["cert"], Key: theirs["key"]}, "reading the certificate for the server"},
	} {
		r := start(t, config.Server{Name: "secure", Type: config.TypeHTTP, URL: front.URL, Timeout: patience, TLS: tt.tls}, upstream.Options{})
		if tt.bad == "" {
			if _, e := r.call(r.ready(), "echo", `{}`); e != nil {
				t.Errorf("%s: %v", name, e)
			}
			continue
		}
		r.await(name, func() bool { return r.Status().State == upstream.StateFailed })
		if err := r.Status().Err; !strings.Contains(err.Error(), tt.bad) {
			t.Errorf("%s: failed with %v, want %q", name, err, tt.bad)
		}
	}
}
