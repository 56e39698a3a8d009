package fleet_test

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/toolgate/toolgate/internal/plainhttp"
	"github.com/toolgate/toolgate/policy/identity"
)

// When the owner dies before it has the whole request, the rest does not go to a reader that
// takes the next request for it.
func TestOwnerDiesDuringBody(t *testing.T) {
	c := newCluster(t)
	killed := make(chan struct{})
	var one *member
	one = c.join(func(http.ResponseWriter, *http.Request) { one.kill(); close(killed) })
	two := c.join(echo("two"))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	agents := &plainhttp.Server{HTTP: &http.Server{Handler: two.Before(echo("two")), ReadHeaderTimeout: time.Minute, IdleTimeout: time.Minute}}
	var serving sync.WaitGroup
	serving.Go(func() { _ = agents.Serve(l) })
	defer serving.Wait()
	defer agents.Close()
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "POST /mcp HTTP/1.1\r\nHost: x\r\nMcp-Session-Id: %s\r\nContent-Length: 100000\r\n\r\n%s", one.SessionID(), strings.Repeat("a", 50_000))
	<-killed
	fmt.Fprint(conn, strings.Repeat("b", 50_000)+"POST /mcp HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nnext")
	answers := bufio.NewReader(conn)
	for _, want := range []string{"unknown\n", ": next"} {
		res, err := http.ReadResponse(answers, nil)
		if err != nil {
			t.Fatal(err)
		}
		if text, err := io.ReadAll(res.Body); err != nil || !strings.HasSuffix(string(text), want) {
			t.Fatalf("%d %s, %v", res.StatusCode, text, err)
		}
	}
}

// An answer may begin before the hop has read the end of a large body: it arrives whole.
func TestAnswerBeginsDuringBody(t *testing.T) {
	c := newCluster(t)
	const size = 100_000
	one := c.join(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.CopyN(io.Discard, r.Body, size)
		_ = http.NewResponseController(w).Flush()
		_, _ = io.WriteString(w, "whole")
	})
	two := c.join(echo("two"))
	began, ended := make(chan struct{}), make(chan error, 1)
	agents := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Body = &lateEnd{r.Body, size, began, ended}
		two.Before(echo("two")).ServeHTTP(w, r)
	}))
	defer agents.Close()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, agents.URL+"/mcp", strings.NewReader(strings.Repeat("a", size)))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Mcp-Session-Id", one.SessionID())
	res, err := agents.Client().Do(r) // it keeps its connection; a server that closes one leaves the body alone
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	close(began)
	if err := <-ended; !errors.Is(err, io.EOF) {
		t.Errorf("reading the end of the body: %v", err)
	}
	if text, err := io.ReadAll(res.Body); err != nil || string(text) != "whole" {
		t.Errorf("%q, %v", text, err)
	}
}

// lateEnd is a body whose end is not read before the answer has begun.
type lateEnd struct {
	io.ReadCloser
	left  int // bytes before the end
	began <-chan struct{}
	ended chan<- error // takes the error of its end
}

func (b *lateEnd) Read(p []byte) (int, error) {
	if b.left == 0 {
		<-b.began
		n, err := b.ReadCloser.Read(p)
		b.ended <- err
		return n, err
	}
	n, err := b.ReadCloser.Read(p[:min(len(p), b.left)])
	b.left -= n
	return n, err
}

// Threat: a client writes another's certificate into a header. The owner of a session has the
// certificate that the client showed to the replica which it reached, and no other.
func TestCertificateIsPassedOn(t *testing.T) {
	c := newCluster(t)
	named := func(w http.ResponseWriter, r *http.Request) {
		if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
			fmt.Fprint(w, r.TLS.PeerCertificates[0].Subject.CommonName)
		}
		fmt.Fprint(w, r.Header["Toolgate-Certificate"])
	}
	one, two := c.join(named), c.join(named)
	shown := func(name string) *x509.Certificate {
		secured := c.secured(c.authority, name)
		parsed, err := x509.ParseCertificate(secured.Certificates[0].Certificate[0])
		if err != nil {
			t.Fatal(err)
		}
		return parsed
	}
	mallory := base64.StdEncoding.EncodeToString(shown("mallory").Raw)
	for want, state := range map[string]*tls.ConnectionState{
		"alice[]": {PeerCertificates: []*x509.Certificate{shown("alice")}}, "[]": nil,
	} {
		r, w := httptest.NewRequest(http.MethodPost, "/mcp", strings.NewReader("{}")), httptest.NewRecorder()
		r.Header.Set("Mcp-Session-Id", one.SessionID())
		r.Header.Set("Toolgate-Certificate", mallory)
		r.TLS = state
		two.Before(http.HandlerFunc(named)).ServeHTTP(w, r)
		if w.Body.String() != want {
			t.Errorf("the owner has %q, want %q", w.Body, want)
		}
	}
	if one.served.Load() != 2 {
		t.Errorf("the owner has served %d", one.served.Load())
	}
}

// Threat: a client says that a proof of its own was spent for its request. Only the replica that has
// identified a request and passes it on says so, and another's word is dropped.
func TestSpentProofIsPassedOn(t *testing.T) {
	c := newCluster(t)
	spent := func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, identity.HasSpentProof(r.Context()), r.Header["Toolgate-Proof"])
	}
	one, two := c.join(spent), c.join(spent)
	for want, serve := range map[string]func(w http.ResponseWriter, r *http.Request){
		"false []": two.Before(http.HandlerFunc(spent)).ServeHTTP,
		"true []":  func(w http.ResponseWriter, r *http.Request) { two.PassOn(w, r, []byte("{}"), one.ID()) },
		"false [spent]": func(w http.ResponseWriter, r *http.Request) {
			r.Header.Del("Mcp-Session-Id") // of no other replica
			two.Before(http.HandlerFunc(spent)).ServeHTTP(w, r)
		},
	} {
		r, w := httptest.NewRequest(http.MethodPost, "/mcp", strings.NewReader("{}")), httptest.NewRecorder()
		r.Header.Set("Mcp-Session-Id", one.SessionID())
		r.Header.Set("Toolgate-Proof", "spent")
		serve(w, r)
		if w.Body.String() != want {
			t.Errorf("the door has %q, want %q", w.Body, want)
		}
	}
	if one.served.Load() != 2 {
		t.Errorf("the owner has served %d", one.served.Load())
	}
}
