package app

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/front"
	"github.com/toolgate/toolgate/internal/testkit/authority"
	"github.com/toolgate/toolgate/policy/identity"
	"github.com/toolgate/toolgate/registry/config"
)

// pki is an authority and a directory of certificates.
type pki struct {
	*authority.Authority
	dir string
}

func newPKI(t *testing.T) pki {
	t.Helper()
	a, err := authority.New("test")
	if err != nil {
		t.Fatal(err)
	}
	return pki{a, t.TempDir()}
}

// issue writes NAME.crt and NAME.key for the host gate.example.
func (p pki) issue(t *testing.T, name string, valid time.Duration) {
	t.Helper()
	if err := p.Write(filepath.Join(p.dir, name), valid, "gate.example"); err != nil {
		t.Fatal(err)
	}
}

// files names the certificate NAME.
func (p pki) files(name string) *config.TLS {
	path := filepath.Join(p.dir, name)
	return &config.TLS{Cert: path + ".crt", Key: path + ".key"}
}

// client returns how a client verifies, and which protocols it offers.
func (p pki) client(protocols ...string) *tls.Config {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(p.PEM())
	return &tls.Config{RootCAs: pool, ServerName: "gate.example", NextProtos: protocols}
}

// openCertificate reads the certificate of one listener.
func openCertificate(key string, files *config.TLS) (*certificate, error) {
	c := &certificate{key: key, files: *files}
	_, err := c.renew()
	return c, err
}

// over serves h with TLS to at most so many connections of l, as Run does.
func over(l net.Listener, most int, c *certificate, h http.Handler) *front.Server {
	srv := front.New(front.Options{Listener: l, Most: most, TLS: c.current, Handler: h, Dropped: func() {}, Errors: log.New(io.Discard, "", 0), Log: hclog.NewNullLogger()})
	go func() { _ = srv.Serve() }() // ends with srv
	return srv
}

// pipes is a listener whose connections are made by the test.
type pipes chan net.Conn

func (p pipes) Accept() (net.Conn, error) {
	c, ok := <-p
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}
func (p pipes) Close() error   { close(p); return nil }
func (p pipes) Addr() net.Addr { return &net.TCPAddr{} }

var noContent = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
	status := http.StatusNoContent
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		status = http.StatusBadRequest
	}
	w.WriteHeader(status)
})

// Threat H6: the bounds of connections hold with TLS. A handshake has ten seconds from
// its first byte; after it, the connection may wait for its first request as long as
// between two, and head and body have the bounds that they have without TLS.
func TestSecureDeadlines(t *testing.T) {
	type step struct {
		after time.Duration
		text  string // "" = the handshake
	}
	const head, body = "POST / HTTP/1.1\r\nHost: gate.example\r\nContent-Length: 4\r\n\r\n", "four"
	for _, tc := range []struct {
		name   string
		steps  []step
		closed time.Duration // after the last step; 0 = it is answered
	}{
		{"at once", []step{{0, ""}, {0, head}, {0, body}}, 0},
		{"no handshake", nil, 120 * time.Second},
		{"half a handshake", []step{{0, "\x16\x03\x01\x02\x00"}}, 10 * time.Second},
		{"a request after a minute", []step{{0, ""}, {time.Minute, head}, {0, body}}, 0},
		{"no request", []step{{0, ""}}, 120 * time.Second},
		{"half a head", []step{{0, ""}, {time.Minute, "POST / HTTP/1.1\r\n"}}, 10 * time.Second},
		{"no body", []step{{0, ""}, {0, head}}, 30 * time.Second},
		{"half a body", []step{{0, ""}, {0, head}, {29 * time.Second, "fo"}}, 30 * time.Second},
		{"a byte now and then", []step{{0, ""}, {0, head}, {25 * time.Second, "f"}, {25 * time.Second, "o"}}, 10 * time.Second},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			synctest.Test(t, func(t *testing.T) {
				p := newPKI(t)
				p.dir = dir
				p.issue(t, "gate", time.Hour)
				c, err := openCertificate("toolgate.tls", p.files("gate"))
				if err != nil {
					t.Fatal(err)
				}
				l := make(pipes)
				srv := over(l, 10, c, noContent)
				raw, server := net.Pipe()
				l <- server
				var conn net.Conn = raw
				for _, s := range tc.steps {
					time.Sleep(s.after)
					if s.text != "" {
						_, err = io.WriteString(conn, s.text)
					} else {
						secure := tls.Client(raw, p.client())
						conn, err = secure, secure.Handshake()
					}
					if err != nil {
						t.Fatal(err)
					}
				}
				last := time.Now()
				res, err := http.ReadResponse(bufio.NewReader(conn), nil)
				answered := err == nil && res.StatusCode == http.StatusNoContent
				if tc.closed == 0 && !answered {
					t.Errorf("not answered: %v", err)
				}
				if took := time.Since(last); tc.closed > 0 && (answered || took < tc.closed-time.Second || took > tc.closed+time.Second) {
					t.Errorf("after %s: %v, want the connection closed after %s", took, err, tc.closed)
				}
				raw.Close()
				srv.Close()
			})
		})
	}
}

// Threat H6: a connection that is served stays also with TLS, when a listener has as many
// as it may.
func TestSecureShares(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		p := newPKI(t)
		p.dir = dir
		p.issue(t, "gate", time.Hour)
		c, err := openCertificate("toolgate.tls", p.files("gate"))
		if err != nil {
			t.Fatal(err)
		}
		l := make(pipes)
		srv := over(l, 1, c, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			time.Sleep(time.Minute)
			w.WriteHeader(http.StatusNoContent)
		}))
		raw, server := net.Pipe()
		l <- server
		served := tls.Client(raw, p.client())
		if _, err := io.WriteString(served, "GET / HTTP/1.1\r\nHost: gate.example\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		late, server := net.Pipe()
		l <- server
		if _, err := late.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("a connection beyond the share: %v", err)
		}
		if res, err := http.ReadResponse(bufio.NewReader(served), nil); err != nil || res.StatusCode != http.StatusNoContent {
			t.Errorf("a connection that was served: %v", err)
		}
		raw.Close()
		srv.Close()
	})
}

// Threat H6: a client that offers HTTP/2 gets HTTP/1.1, so that one connection carries
// one request at a time.
func TestNoHTTP2(t *testing.T) {
	p := newPKI(t)
	p.issue(t, "gate", time.Hour)
	c, err := openCertificate("toolgate.tls", p.files("gate"))
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := over(l, 10, c, noContent)
	defer srv.Close()
	for _, offer := range [][]string{{"h2", "http/1.1"}, {"http/1.1"}, nil} {
		transport := &http.Transport{TLSClientConfig: p.client(offer...), ForceAttemptHTTP2: true}
		res, err := (&http.Client{Transport: transport}).Get("https://" + l.Addr().String())
		if err != nil || res.ProtoMajor != 1 {
			t.Fatalf("%v offered: %v, error %v", offer, res, err)
		}
		_ = res.Body.Close()
		transport.CloseIdleConnections()
	}
	if conn, err := tls.Dial("tcp", l.Addr().String(), p.client("h2")); err == nil {
		conn.Close()
		t.Error("a client that speaks nothing but HTTP/2 was accepted")
	}
	old := p.client()
	old.MinVersion, old.MaxVersion = tls.VersionTLS10, tls.VersionTLS11
	if conn, err := tls.Dial("tcp", l.Addr().String(), old); err == nil {
		conn.Close()
		t.Error("TLS 1.1 was accepted")
	}
}

// The files of a certificate are read again; those that cannot be used change nothing
// and are reported until they can be.
func TestRenewal(t *testing.T) {
	p := newPKI(t)
	p.issue(t, "gate", 100*24*time.Hour)
	p.issue(t, "other", 10*24*time.Hour)
	c, err := openCertificate("toolgate.tls", p.files("gate"))
	if err != nil {
		t.Fatal(err)
	}
	install := func(cert, key string) {
		t.Helper()
		for to, from := range map[string]string{"gate.crt": cert, "gate.key": key} {
			text, err := os.ReadFile(filepath.Join(p.dir, from))
			if err == nil {
				err = os.WriteFile(filepath.Join(p.dir, to), text, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := os.WriteFile(filepath.Join(p.dir, "garbage"), []byte("no PEM"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		cert, key string
		changed   bool
		warns     []string
	}{
		{"gate.crt", "gate.key", false, nil},
		{"other.crt", "garbage", false, []string{"the files cannot be used, the certificate read before stays"}},
		{"garbage", "other.key", false, []string{"the files cannot be used, the certificate read before stays"}},
		{"other.crt", "other.key", true, []string{"the certificate expires at"}},
	} {
		install(step.cert, step.key)
		before := c.current()
		changed, err := c.renew()
		if changed != step.changed || changed == (c.current() == before) {
			t.Errorf("%s: changed %v, error %v", step.cert, changed, err)
		}
		var warned []string
		for _, f := range c.findings(time.Now()) {
			warned = append(warned, f.Message)
		}
		if len(warned) != len(step.warns) || len(warned) == 1 && !strings.HasPrefix(warned[0], step.warns[0]) {
			t.Errorf("%s: warnings %q, want %q", step.cert, warned, step.warns)
		}
	}
}

// A certificate is warned of 14 days before its end, at its end, and before it begins.
func TestExpiry(t *testing.T) {
	p := newPKI(t)
	p.issue(t, "gate", 100*24*time.Hour)
	c, err := openCertificate("toolgate.admin_tls", p.files("gate"))
	if err != nil {
		t.Fatal(err)
	}
	leaf := c.current().Certificates[0].Leaf
	for _, tc := range []struct {
		now  time.Time
		want string
	}{
		{leaf.NotAfter.Add(-expiresSoon), ""},
		{leaf.NotAfter.Add(-expiresSoon + time.Second), "the certificate expires at"},
		{leaf.NotAfter, "the certificate expired at"},
		{leaf.NotAfter.Add(time.Hour), "the certificate expired at"},
	} {
		found := c.findings(tc.now)
		if (len(found) > 0) != (tc.want != "") || len(found) > 0 && (!strings.HasPrefix(found[0].Message, tc.want) || found[0].Where != "toolgate.admin_tls") {
			t.Errorf("at %s: %v, want %q", tc.now, found, tc.want)
		}
	}
}

// With client_ca a client without a certificate of that authority is refused before it
// sends a request, and does not resume a session after its authority was removed.
func TestClientCertificates(t *testing.T) {
	p, other := newPKI(t), newPKI(t)
	p.issue(t, "gate", time.Hour)
	p.issue(t, "agent", time.Hour)
	p.issue(t, "late", -time.Minute)
	other.issue(t, "agent", time.Hour)
	files := p.files("gate")
	files.ClientCA = filepath.Join(p.dir, "clients.pem")
	trust := func(text []byte) {
		t.Helper()
		if err := os.WriteFile(files.ClientCA, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	trust(p.PEM())
	c, err := openCertificate("toolgate.tls", files)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := over(l, 10, c, noContent)
	defer srv.Close()
	cache := tls.NewLRUClientSessionCache(8)
	ask := func(of *pki, name string) error {
		secure := p.client()
		secure.ClientSessionCache = cache
		if of != nil {
			f := of.files(name)
			pair, err := tls.LoadX509KeyPair(f.Cert, f.Key)
			if err != nil {
				t.Fatal(err)
			}
			secure.Certificates = []tls.Certificate{pair}
		}
		transport := &http.Transport{TLSClientConfig: secure}
		defer transport.CloseIdleConnections()
		ask, err := http.NewRequestWithContext(context.Background(), http.MethodGet, "https://"+l.Addr().String(), nil)
		if err != nil {
			t.Fatal(err)
		}
		res, err := (&http.Client{Transport: transport}).Do(ask)
		if err == nil {
			_ = res.Body.Close()
		}
		return err
	}
	for range 2 {
		if err := ask(&p, "agent"); err != nil {
			t.Errorf("a client of the authority: %v", err)
		}
	}
	if ask(nil, "") == nil || ask(&other, "agent") == nil || ask(&p, "late") == nil {
		t.Error("a client without a certificate, of another authority, or with an expired one was served")
	}
	trust(other.PEM())
	if changed, err := c.renew(); !changed || err != nil {
		t.Errorf("changed %v, error %v", changed, err)
	}
	if ask(&p, "agent") == nil {
		t.Error("a client whose authority was removed was served")
	}
	trust([]byte("no PEM"))
	if changed, err := c.renew(); changed || err == nil {
		t.Error("authorities that cannot be read were taken over")
	}
}

// Over TLS a person signs in by any name that is allowed; without it, beyond loopback, the
// page asks for no token.
func TestSignInOverTLS(t *testing.T) {
	p := newPKI(t)
	p.issue(t, "gate", time.Hour)
	for _, secure := range []bool{true, false} {
		settings := ""
		if secure {
			f := p.files("gate")
			settings = fmt.Sprintf(`, "admin_tls": {"cert": %q, "key": %q}`, f.Cert, f.Key)
		}
		dir := t.TempDir()
		write(t, filepath.Join(dir, "mcp.json"), `{"mcpServers": {}, "toolgate": {"listen": "127.0.0.1:0", "admin": "127.0.0.1:0", "allowed_hosts": ["gate.example"]`+settings+`}}`)
		l := running(t, dir)
		transport := &http.Transport{TLSClientConfig: p.client()}
		defer transport.CloseIdleConnections()
		ask, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+l.People.Addr().String()+"/console/login", nil)
		if err != nil {
			t.Fatal(err)
		}
		if ask.Host = "gate.example"; secure {
			ask.URL.Scheme = "https"
		}
		res, err := (&http.Client{Transport: transport}).Do(ask)
		if err != nil {
			t.Fatal(err)
		}
		page, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		cookies := res.Cookies()
		if form := strings.Contains(string(page), `name="token"`); form != secure || (len(cookies) > 0) != secure || secure && (!cookies[0].Secure || !strings.HasPrefix(cookies[0].Name, "__Host-")) {
			t.Errorf("TLS %v: form %v, cookies %v", secure, form, cookies)
		}
	}
}

// A listener that other machines reach over plain HTTP is named in words.
func TestPlainListeners(t *testing.T) {
	for _, tc := range []struct {
		cfg  config.Config
		want string
	}{
		{config.Config{Listen: "127.0.0.1:1", Admin: "localhost:2"}, ""},
		{config.Config{Listen: "0.0.0.0:1", Admin: "localhost:2"}, "toolgate.listen"},
		{config.Config{Listen: ":1", Admin: "gate.example:2"}, "toolgate.listen toolgate.admin"},
		{config.Config{Listen: ":1", Admin: ":2", TLS: &config.TLS{}}, "toolgate.admin"},
		{config.Config{Listen: ":1", Admin: ":2", TLS: &config.TLS{}, AdminTLS: &config.TLS{}}, ""},
	} {
		var got []string
		for _, f := range plainListeners(&tc.cfg) {
			got = append(got, f.Where)
		}
		if strings.Join(got, " ") != tc.want {
			t.Errorf("%s, %s: %q, want %q", tc.cfg.Listen, tc.cfg.Admin, got, tc.want)
		}
	}
}

// running runs the App of a directory for as long as the test.
func running(t *testing.T, dir string) *Listeners {
	t.Helper()
	a, cfg := opened(t, dir)
	l, err := Listen(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx, l, Reload{}) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return l
}

// A person who comes to the listener of agents with a browser gets a page that leads to the console.
// Programs get what they got before.
func TestPeopleAtTheAgentsListener(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "mcp.json"), `{"mcpServers": {}, "toolgate": {"listen": "127.0.0.1:0", "admin": "127.0.0.1:0", "console": {"url": "https://gate.example:8788"}}}`)
	base := "http://" + running(t, dir).Agents.Addr().String()
	const browser = "text/html,application/xhtml+xml,*/*;q=0.8"
	for _, tc := range []struct {
		path, host, accept, bearer string
		want                       int
		kind                       string
	}{
		{"/", "", browser, "", 200, "text/html"},
		{"/", "", "*/*", "", 200, "text/plain"},
		{"/nothing", "", browser, "", 404, "text/html"},
		{"/nothing", "", "application/json", "", 404, "application/problem+json"},
		{"/mcp", "", browser, "", 404, "text/html"},
		{"/mcp", "", "text/event-stream", "", 405, "application/problem+json"},
		{"/v1/jobs", "", browser, "", 404, "text/html"},
		{"/v1/jobs", "", browser, "secret", 405, "application/problem+json"},
		{"/v1/openapi.json", "", browser, "", 200, "application/json"},
		{"/console/style.css", "", "text/css,*/*;q=0.1", "", 200, "text/css"},
		{"/", "evil.example", browser, "", 403, "application/problem+json"},
	} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, base+tc.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Host = tc.host
		r.Header.Set("Accept", tc.accept)
		if tc.bearer != "" {
			r.Header.Set("Authorization", "Bearer "+tc.bearer)
		}
		res, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(res.Body)
		res.Body.Close()
		if kind, _, _ := strings.Cut(res.Header.Get("Content-Type"), ";"); err != nil || res.StatusCode != tc.want || kind != tc.kind {
			t.Errorf("%s of %q, which accepts %s: %d %s, want %d %s", tc.path, tc.host, tc.accept, res.StatusCode, kind, tc.want, tc.kind)
		}
		if tc.kind == "text/html" && !strings.Contains(string(body), `href="https://gate.example:8788/console/"`) {
			t.Errorf("%s does not lead to the console:\n%s", tc.path, body)
		}
	}
}

// Threat B4: both listeners answer to the names that the configuration lists, and to no
// others.
func TestAllowedHosts(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "mcp.json"), `{"mcpServers": {}, "toolgate": {"listen": "127.0.0.1:0", "admin": "127.0.0.1:0",
		"allowed_hosts": ["toolgate.default.svc", "gate.example:8443"], "allowed_origins": ["https://app.example"]}}`)
	l := running(t, dir)
	agents, people := "http://"+l.Agents.Addr().String()+"/v1/openapi.json", "http://"+l.People.Addr().String()+"/livez"
	metadata := "http://" + l.Agents.Addr().String() + identity.MetadataPath // there is none without an issuer
	for _, tc := range []struct {
		url, host, origin string
		want              int
	}{
		{agents, "toolgate.default.svc", "", 200},
		{agents, "toolgate.default.svc:8787", "", 200},
		{agents, "gate.example:8443", "", 200},
		{agents, "gate.example", "", 403},
		{agents, "evil.example", "", 403},
		{agents, "toolgate.default.svc", "https://app.example", 200},
		{agents, "toolgate.default.svc", "https://evil.example", 403},
		{metadata, "toolgate.default.svc", "", 404},
		{metadata, "toolgate.default.svc", "https://evil.example", 404}, // pages of every origin may read it
		{metadata, "evil.example", "", 403},
		{people, "toolgate.default.svc", "", 200},
		{people, "gate.example:8443", "", 200},
		{people, "gate.example", "", 403},
		{people, "evil.example", "", 403},
		{people, "toolgate.default.svc", "https://app.example", 403},
	} {
		ask, err := http.NewRequestWithContext(t.Context(), http.MethodGet, tc.url, nil)
		if err != nil {
			t.Fatal(err)
		}
		if ask.Host = tc.host; tc.origin != "" {
			ask.Header.Set("Origin", tc.origin)
		}
		res, err := http.DefaultClient.Do(ask)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		if res.StatusCode != tc.want {
			t.Errorf("%s, Host %s, Origin %q: %d, want %d", tc.url, tc.host, tc.origin, res.StatusCode, tc.want)
		}
	}
}
