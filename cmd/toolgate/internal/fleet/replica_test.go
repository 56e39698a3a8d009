package fleet_test

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/fleet"
	"github.com/toolgate/toolgate/internal/testkit/authority"
	"github.com/toolgate/toolgate/internal/testkit/program"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// directory is a directory in memory.
type directory struct {
	mu    sync.Mutex // protects the fields below
	texts map[string]string
	away  bool
	asked int
}

var errAway = errors.New("away")

func (d *directory) do(with func()) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.away {
		return errAway
	}
	with()
	return nil
}

func (d *directory) Find(_ context.Context, owner, _ string) (replica, address string, err error) {
	err = d.do(func() { address = d.texts["toolgate:{sessions}:replica:"+owner]; d.asked++ })
	return owner, address, err
}

func (d *directory) Set(_ context.Context, key, text string, _ time.Duration) error {
	return d.do(func() { d.texts[key] = text })
}

func (d *directory) Delete(_ context.Context, key string) error {
	return d.do(func() { delete(d.texts, key) })
}

// setAway says whether all that d is asked fails.
func (d *directory) setAway(away bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.away = away
}

// secret is what replicas share.
const secret = "a secret of thirty-two bytes ..."

// cluster is some replicas with one secret, directory and authority.
type cluster struct {
	t         *testing.T
	directory *directory
	shared    fleet.Directory // in place of directory, if it is set
	authority *authority.Authority
	now       func() time.Time // of its replicas; nil = time.Now
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	a, err := authority.New("replicas")
	if err != nil {
		t.Fatal(err)
	}
	return &cluster{t: t, directory: &directory{texts: map[string]string{}}, authority: a}
}

// secured returns how a replica with a certificate of an authority for names is secured.
func (c *cluster) secured(by *authority.Authority, names ...string) *tls.Config {
	c.t.Helper()
	cert, key, err := by.Issue(time.Hour, names...)
	if err != nil {
		c.t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		c.t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(c.authority.PEM())
	return &tls.Config{Certificates: []tls.Certificate{pair}, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert}
}

// member is one replica. Its door says how often it was asked, and what of.
type member struct {
	*fleet.Router
	agents, replicas *httptest.Server
	served           atomic.Int64
	connected        atomic.Int64 // to its replicas' listener
	passed           sync.Map     // :: result -> true
	hops             atomic.Int64 // requests that it has sent to other replicas
}

// join starts a replica whose door is serve.
func (c *cluster) join(serve http.HandlerFunc) *member {
	return c.joinAs([]byte(secret), c.secured(c.authority, "127.0.0.1"), serve)
}

func (c *cluster) joinAs(secret []byte, secured *tls.Config, serve http.HandlerFunc) *member {
	c.t.Helper()
	m := &member{}
	m.agents, m.replicas = httptest.NewUnstartedServer(nil), httptest.NewUnstartedServer(nil)
	r, err := fleet.New(fleet.Options{
		Secret: secret, Directory: cmp.Or[fleet.Directory](c.shared, c.directory), Address: m.replicas.Listener.Addr().String(), TLS: func() *tls.Config { return secured },
		Admits: func(r *http.Request) bool { return r.Header.Get("Origin") != "http://evil.example" },
		Passed: func(result string) { m.passed.Store(result, true); m.hops.Add(1) }, Now: c.now,
	})
	if err != nil {
		c.t.Fatal(err)
	}
	m.Router = r
	door := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { m.served.Add(1); serve(w, r) })
	m.agents.Config.Handler, m.replicas.Config.Handler = r.Before(door), r.Own(door)
	m.replicas.TLS = secured.Clone()
	m.replicas.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			m.connected.Add(1)
		}
	}
	m.replicas.Config.ErrorLog = quiet
	m.agents.Start()
	m.replicas.StartTLS()
	r.Announce(func() {})
	program.Await(c.t, "the replica is in the directory", func() bool {
		if c.shared != nil {
			_, address, err := c.shared.Find(c.t.Context(), strings.Split(r.SessionID(), ".")[1], "")
			return err == nil && address != ""
		}
		c.directory.mu.Lock()
		defer c.directory.mu.Unlock()
		for _, address := range c.directory.texts {
			if address == m.replicas.Listener.Addr().String() {
				return true
			}
		}
		return c.directory.away
	})
	c.t.Cleanup(func() { m.end() })
	return m
}

// end stops a replica as app does.
func (m *member) end() {
	m.Leave()
	_ = m.Close(context.Background())
	m.agents.CloseClientConnections()
	m.agents.Close()
	m.replicas.CloseClientConnections()
	m.replicas.Close()
}

// kill ends the listener for replicas without a word to anybody.
func (m *member) kill() {
	m.replicas.Listener.Close()
	m.replicas.CloseClientConnections()
}

// wantPassed waits until m has passed requests on with these results, and no others.
func (m *member) wantPassed(t *testing.T, want ...string) {
	t.Helper()
	program.Await(t, strings.Join(want, " and "), func() bool {
		var got []string
		m.passed.Range(func(result, _ any) bool { got = append(got, result.(string)); return true })
		slices.Sort(got)
		return slices.Equal(got, want)
	})
}

// send sends a request to the agents' listener of m and returns status and body.
func (m *member) send(t *testing.T, method, path, session, body string, headers ...string) (int, string) {
	t.Helper()
	res := m.begin(t, t.Context(), method, path, session, body, headers...)
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(text)
}

func (m *member) begin(t *testing.T, ctx context.Context, method, path, session, body string, headers ...string) *http.Response {
	t.Helper()
	r, err := http.NewRequestWithContext(ctx, method, m.agents.URL+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if session != "" {
		r.Header.Set("Mcp-Session-Id", session)
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	res, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

// quiet drops what servers say about handshakes that tests make fail.
var quiet = log.New(io.Discard, "", 0)

var client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DisableCompression: true}}

// echo answers with what it received.
func echo(name string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("X-Served-By", name)
		w.WriteHeader(http.StatusTeapot)
		host, _, _ := net.SplitHostPort(r.RemoteAddr)
		fmt.Fprintf(w, "%s %s %s from %s with %s %q, forwarded %q origin %q: %s", name, r.Method, r.RequestURI, host,
			r.Header.Get("Authorization"), r.Header.Get("Mcp-Name"), slices.Concat(r.Header.Values("X-Forwarded-For"), r.Header.Values("Toolgate-Replica")), r.Header.Get("Origin"), body)
	}
}

// Every request of a session is served by its owner, as it was sent, whichever replica it
// arrives at; all others are served where they arrive.
func TestOwnerServes(t *testing.T) {
	c := newCluster(t)
	one, two := c.join(echo("one")), c.join(echo("two"))
	id := one.SessionID()
	for _, tt := range []struct{ method, path, session, want string }{
		{"POST", "/mcp", id, "one"},
		{"GET", "/mcp/files", id, "one"},
		{"DELETE", "/mcp", id, "one"},
		{"POST", "/messages?sessionId=" + id, "", "one"},
		{"POST", "/mcp", two.SessionID(), "two"},
		{"POST", "/mcp", "", "two"},
		{"POST", "/v1/jobs", id, "two"},
		{"POST", "/mcpx", id, "two"},
		{"POST", "/messages?sessionId=" + id + "&sessionId=" + id, "", "two"},
	} {
		status, text := two.send(t, tt.method, tt.path, tt.session, "the body", "Authorization", "Bearer secret", "Mcp-Name", "x", "Origin", "http://page.example",
			"X-Forwarded-For", "203.0.113.9", "Forwarded", "for=203.0.113.9", "Toolgate-Replica", "me")
		forwarded, origin := `[]`, `""`
		if tt.want == "two" {
			forwarded, origin = `["203.0.113.9" "me"]`, `"http://page.example"`
		}
		want := fmt.Sprintf(`%s %s %s from 127.0.0.1 with Bearer secret "x", forwarded %s origin %s: the body`, tt.want, tt.method, tt.path, forwarded, origin)
		if status != http.StatusTeapot || text != want {
			t.Errorf("%d %s\nwant %s", status, text, want)
		}
	}
	if one.served.Load() != 4 {
		t.Errorf("one has served %d requests, want 4", one.served.Load())
	}
	if status, text := two.send(t, "POST", "/mcp", id, "", "Origin", "http://evil.example"); !strings.HasPrefix(text, "two") {
		t.Errorf("a request with a foreign origin was passed on: %d %s", status, text)
	}
}

// Threat: a client invents an owner. No ID but those that a replica made leads to a look into
// the directory or a connection.
func TestForgedOwner(t *testing.T) {
	c := newCluster(t)
	one, two := c.join(echo("one")), c.join(echo("two"))
	other := c.joinAs([]byte("another secret of 32 bytes ....."), c.secured(c.authority, "127.0.0.1"), echo("other"))
	good, address := one.SessionID(), one.replicas.Listener.Addr().String()
	parts := strings.Split(good, ".")
	own := strings.Split(two.SessionID(), ".")
	for name, id := range map[string]string{
		"another HMAC":            good[:len(good)-1] + map[bool]string{true: "B", false: "A"}[strings.HasSuffix(good, "A")],
		"no HMAC":                 parts[0] + "." + parts[1] + ".",
		"cut":                     good[:len(good)-1],
		"longer":                  good + "A",
		"another random part":     own[0] + "." + parts[1] + "." + parts[2],
		"own session, its owner":  own[0] + "." + parts[1] + "." + own[2],
		"another key":             other.SessionID(),
		"an address inside":       parts[0] + "." + address + "." + parts[2],
		"an address":              address,
		"the HMAC of its parts":   parts[1] + "." + parts[0] + "." + parts[2],
		"dots":                    "..",
		"nothing":                 ".",
		"very long":               strings.Repeat("A", 60_000) + "." + parts[1] + "." + parts[2],
		"two IDs in one":          good + "," + good,
		"another case":            strings.ToLower(parts[0]) + "." + parts[1] + "." + parts[2],
		"the replica in its case": parts[0] + "." + strings.ToLower(parts[1]) + "." + parts[2],
	} {
		if _, text := two.send(t, "POST", "/mcp", id, ""); !strings.HasPrefix(text, "two ") {
			t.Errorf("%s: %s", name, text)
		}
	}
	if _, text := two.send(t, "POST", "/mcp", "", "", "Mcp-Session-Id", good, "Mcp-Session-Id", good); !strings.HasPrefix(text, "two ") {
		t.Errorf("two headers: %s", text)
	}
	if one.connected.Load()+other.connected.Load() != 0 || c.directory.asked != 0 {
		t.Errorf("%d connections, %d looks into the directory", one.connected.Load()+other.connected.Load(), c.directory.asked)
	}
}

// An attempt of a call is passed on with the body that was read, and is the door's when the
// owner is gone.
func TestPassOn(t *testing.T) {
	c := newCluster(t)
	one := c.join(echo("one"))
	var two *member
	two = c.join(func(w http.ResponseWriter, r *http.Request) {
		if body, err := io.ReadAll(r.Body); err != nil || !two.PassOn(w, r, body, one.ID()) {
			fmt.Fprintf(w, "gone: %s", body)
		}
	})
	if _, text := two.send(t, "POST", "/mcp", "", "the body", "Authorization", "Bearer x"); !strings.HasPrefix(text, "one POST /mcp from 127.0.0.1 with Bearer x") || !strings.HasSuffix(text, ": the body") {
		t.Error(text)
	}
	one.kill()
	program.Await(t, "the owner is gone", func() bool {
		_, text := two.send(t, "POST", "/mcp", "", "the body")
		return text == "gone: the body"
	})
}

// A replica that cannot be reached and is in the directory may be there: the client tries again.
func TestPassOnToAReplicaThatIsNotReached(t *testing.T) {
	c := newCluster(t)
	one := c.join(echo("one"))
	var two *member
	two = c.join(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, two.PassOn(w, r, nil, one.ID())) })
	one.Leave()
	key := "toolgate:{sessions}:replica:" + strings.Split(one.SessionID(), ".")[1]
	if err := c.directory.Set(t.Context(), key, "127.0.0.1:none", time.Hour); err != nil {
		t.Fatal(err)
	}
	if status, text := two.send(t, "POST", "/mcp", "", ""); status != http.StatusServiceUnavailable || !strings.Contains(text, "cannot be reached: try again") {
		t.Errorf("%d %s", status, text)
	}
	if err := c.directory.Delete(t.Context(), key); err != nil {
		t.Fatal(err)
	}
	if _, text := two.send(t, "POST", "/mcp", "", ""); text != "false" {
		t.Errorf("when its address has expired: %s", text)
	}
	c.directory.setAway(true)
	if status, text := two.send(t, "POST", "/mcp", "", ""); status != http.StatusServiceUnavailable || !strings.Contains(text, "cannot be looked up: try again") {
		t.Errorf("while the directory is away: %d %s", status, text)
	}
}

// A replica that was killed is found to be gone when the next process has its address.
func TestAddressOfAnotherProcess(t *testing.T) {
	c := newCluster(t)
	killed, one, two := c.join(echo("killed")), c.join(echo("one")), c.join(echo("two"))
	id := killed.SessionID()
	key := "toolgate:{sessions}:replica:" + strings.Split(id, ".")[1]
	killed.kill()
	address := strings.TrimPrefix(one.replicas.URL, "https://")
	if err := c.directory.Set(t.Context(), key, address, time.Hour); err != nil {
		t.Fatal(err)
	}
	if status, text := two.send(t, "POST", "/mcp", id, strings.Repeat("a", 100_000)); status != http.StatusServiceUnavailable || !strings.Contains(text, "try again") {
		t.Errorf("%d %s", status, text)
	}
	if err := c.directory.Set(t.Context(), key, address, time.Hour); err != nil {
		t.Fatal(err)
	}
	if _, text := two.send(t, "POST", "/mcp", id, "small"); !strings.HasPrefix(text, "two ") || !strings.HasSuffix(text, ": small") {
		t.Errorf("a body that can be sent again: %s", text)
	}
	if _, gone := two.passed.Load("gone"); !gone {
		t.Error("the metric does not say that the replica is gone")
	}
	if _, text := two.send(t, "POST", "/mcp", id, ""); !strings.HasPrefix(text, "two ") || one.served.Load() != 0 {
		t.Error(text)
	}
}

// Threat: a request is passed on from replica to replica. The replicas' listener passes
// nothing on, and serves what is meant for its replica alone.
func TestNoSecondHop(t *testing.T) {
	c := newCluster(t)
	one := c.join(echo("one"))
	var two *member
	two = c.join(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, two.PassOn(w, r, nil, one.ID())) })
	peer := &http.Transport{TLSClientConfig: c.secured(c.authority, "127.0.0.1"), DisableKeepAlives: true}
	peer.TLSClientConfig.RootCAs = peer.TLSClientConfig.ClientCAs
	self, other := strings.Split(two.SessionID(), ".")[1], strings.Split(one.SessionID(), ".")[1]
	for _, tt := range []struct {
		session, header string
		status          int
		text            string
	}{
		{one.SessionID(), other, http.StatusMisdirectedRequest, "the request is not for this replica\n"},
		{two.SessionID(), "", http.StatusMisdirectedRequest, "the request is not for this replica\n"},
		{one.SessionID(), self, http.StatusOK, "false"},
		{"", self, http.StatusOK, "false"},
	} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, two.replicas.URL+"/mcp", strings.NewReader("x"))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Mcp-Session-Id", tt.session)
		r.Header.Set("Toolgate-Replica", tt.header)
		res, err := peer.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(res.Body)
		if res.Body.Close(); err != nil || res.StatusCode != tt.status || string(text) != tt.text {
			t.Errorf("%+v: %d %s, %v", tt, res.StatusCode, text, err)
		}
	}
	if one.served.Load() != 0 || one.connected.Load() != 0 {
		t.Errorf("%d requests were served, %d connections", one.served.Load(), one.connected.Load())
	}
}

// Threat: the directory names an address that is no replica's. Nothing is sent to whoever
// has no certificate of the authority for that host.
func TestImpostor(t *testing.T) {
	foreign, err := authority.New("foreign")
	if err != nil {
		t.Fatal(err)
	}
	for name, by := range map[string]func(c *cluster) *tls.Config{
		"another authority": func(c *cluster) *tls.Config { return c.secured(foreign, "127.0.0.1") },
		"another host":      func(c *cluster) *tls.Config { return c.secured(c.authority, "127.0.0.2") },
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t)
			one := c.joinAs([]byte(secret), by(c), echo("one"))
			two := c.join(echo("two"))
			if status, text := two.send(t, "POST", "/mcp", one.SessionID(), "x"); status != http.StatusBadGateway || one.served.Load() != 0 {
				t.Errorf("%d %s, %d served", status, text, one.served.Load())
			}
		})
	}
}

// A session whose owner has left or died is one that the door does not know: it says so in
// its own words, after it has read the whole request. While the directory is away, owners are found where they were.
func TestOwnerIsGone(t *testing.T) {
	c := newCluster(t)
	one, two := c.join(echo("one")), c.join(echo("two"))
	id := one.SessionID()
	serves := func(want string) {
		t.Helper()
		if _, text := two.send(t, "POST", "/mcp", id, "body"); !strings.HasPrefix(text, want) || !strings.HasSuffix(text, ": body") && want != "the replica" {
			t.Errorf("%s, want %s", text, want)
		}
	}
	c.directory.setAway(true)
	serves("the replica")
	c.directory.setAway(false)
	serves("one")
	c.directory.setAway(true)
	serves("one")
	one.kill()
	program.Await(t, "the owner is gone", func() bool {
		_, text := two.send(t, "POST", "/mcp", id, "body")
		return strings.HasPrefix(text, "two")
	})
	serves("two")
	c.directory.setAway(false)
	serves("two")
	one.Leave()
	serves("two")
	if len(c.directory.texts) != 1 {
		t.Errorf("the directory has %v", c.directory.texts)
	}
	two.passed.Delete("unknown") // of a request that was on its way while kill closed the connection
	two.wantPassed(t, "answered", "gone")
}

// An answer that breaks off is not made up for: nobody knows whether the request took effect.
func TestOwnerDiesDuringRequest(t *testing.T) {
	c := newCluster(t)
	var one *member
	one = c.join(func(http.ResponseWriter, *http.Request) { one.kill() })
	two := c.join(echo("two"))
	status, text := two.send(t, "POST", "/mcp", one.SessionID(), "x")
	if status != http.StatusBadGateway || !strings.Contains(text, "whether the request took effect is unknown") || two.served.Load() != 0 {
		t.Errorf("%d %s, %d served", status, text, two.served.Load())
	}
	two.wantPassed(t, "unknown")
}

// Events arrive when they are sent, and either side's end is the other's.
func TestStream(t *testing.T) {
	c := newCluster(t)
	next, ended := map[string]chan string{"GET": make(chan string), "POST": make(chan string)}, make(chan struct{}, 1)
	one := c.join(func(w http.ResponseWriter, r *http.Request) {
		defer func() { ended <- struct{}{} }()
		w.Header().Set("Content-Type", "text/event-stream")
		rc := http.NewResponseController(w)
		for {
			_ = rc.Flush()
			select {
			case text := <-next[r.Method]:
				if text == "" {
					return
				}
				fmt.Fprintf(w, "data: %s\n\n", text)
			case <-r.Context().Done():
				panic(http.ErrAbortHandler) // an end of the answer may be faster than that of the connection
			}
		}
	})
	two := c.join(echo("two"))
	open := func(ctx context.Context, method string) *bufio.Scanner {
		res := two.begin(t, ctx, method, "/mcp", one.SessionID(), "")
		t.Cleanup(func() { res.Body.Close() })
		lines := bufio.NewScanner(res.Body)
		for _, text := range []string{"first", "second"} {
			next[method] <- text
			if !lines.Scan() || lines.Text() != "data: "+text || !lines.Scan() {
				t.Fatalf("%q, %v", lines.Text(), lines.Err())
			}
		}
		return lines
	}
	ctx, leave := context.WithCancel(t.Context())
	open(ctx, "GET")
	leave()
	<-ended // the client has left
	two.wantPassed(t, "left")

	lines := open(t.Context(), "POST")
	next["POST"] <- ""
	<-ended
	if lines.Scan() || lines.Err() != nil {
		t.Errorf("after the end: %q, %v", lines.Text(), lines.Err())
	}
	lines = open(t.Context(), "GET")
	call := open(t.Context(), "POST")
	closing, stop := context.WithCancel(t.Context())
	closed := make(chan error)
	go func() { closed <- two.Close(closing) }()
	<-ended
	if lines.Scan() { // its end may be an error, or not
		t.Errorf("a stream outlives the replica that passes it on: %q", lines.Text())
	}
	next["POST"] <- "of the call"
	if !call.Scan() {
		t.Errorf("a call ended with the streams: %v", call.Err())
	}
	if status, _ := two.send(t, "POST", "/mcp", one.SessionID(), ""); status != http.StatusServiceUnavailable {
		t.Errorf("a new request: status %d", status)
	}
	stop()
	if err := <-closed; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	<-ended
}
