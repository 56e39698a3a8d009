package fleet_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/toolgate/toolgate/internal/plainhttp"
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
