package program

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"testing"
)

// Gate is a running toolgate serve.
type Gate struct {
	*Process
	// Dir is the directory of its mcp.json.
	Dir string
	// Agents and Admin are the base URLs of its two listeners.
	Agents, Admin string
}

var (
	agentsLine = regexp.MustCompile(`agents connect\s+(http://\S+)/mcp`)
	adminLine  = regexp.MustCompile(`people look\s+(http://\S+)/console/`)
)

// Serve starts toolgate serve in a directory with an mcp.json, on free ports, and
// waits for its listeners but not for its upstreams.
func Serve(t testing.TB, dir string) *Gate {
	t.Helper()
	return serve(t, Toolgate(t), dir)
}

func serve(t testing.TB, binary, dir string) *Gate {
	t.Helper()
	cmd := exec.Command(binary, "serve", "--config", "mcp.json", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0")
	cmd.Dir = dir
	return Attach(t, Launch(t, cmd), dir)
}

// Attach waits for the listeners of a toolgate serve that the test has launched
// itself.
func Attach(t testing.TB, p *Process, dir string) *Gate {
	t.Helper()
	g := &Gate{Process: p, Dir: dir}
	if !g.Await(t, "serve prints its addresses", func() bool {
		a, b := agentsLine.FindStringSubmatch(g.Out.String()), adminLine.FindStringSubmatch(g.Out.String())
		if a == nil || b == nil {
			return false
		}
		g.Agents, g.Admin = a[1], b[1]
		return true
	}) {
		t.Fatalf("serve ended: %v\n%s", g.Err, g.Log)
	}
	return g
}

// ServeReady is Serve, and also waits until toolgate and all upstreams are ready.
func ServeReady(t testing.TB, dir string) *Gate {
	t.Helper()
	return serveReady(t, Toolgate(t), dir)
}

// ServeWatched is ServeReady with the toolgate of Watched. A data race fails the
// test.
func ServeWatched(t testing.TB, dir string) *Gate {
	t.Helper()
	var g *Gate
	t.Cleanup(func() {
		if strings.Contains(g.Log.String(), "DATA RACE") {
			t.Errorf("toolgate has a data race:\n%s", g.Log)
		}
	})
	g = serveReady(t, Watched(t), dir)
	return g
}

func serveReady(t testing.TB, binary, dir string) *Gate {
	t.Helper()
	g := serve(t, binary, dir)
	if !g.Await(t, "every server is ready", func() bool { return g.Status(t).ready() && g.Ready(t) }) {
		t.Fatalf("serve ended: %v\n%s", g.Err, g.Log)
	}
	return g
}

// Ready reports whether /readyz is 200.
func (g *Gate) Ready(t testing.TB) bool {
	t.Helper()
	res := Get(t, g.Admin+"/readyz", "")
	res.Body.Close()
	return res.StatusCode == http.StatusOK
}

// Status is the JSON answer of /readyz.
type Status struct {
	// Ready reports whether toolgate is ready.
	Ready bool
	// Degraded are the parts that are missing.
	Degraded []string
	// Upstreams are the servers.
	Upstreams []struct {
		Name, State, Error string
		Tools              int
		Warnings           []string
	}
}

func (s Status) ready() bool {
	if len(s.Degraded) > 0 {
		return false
	}
	for _, u := range s.Upstreams {
		if u.State != "ready" {
			return false
		}
	}
	return true
}

// Status reads /readyz.
func (g *Gate) Status(t testing.TB) Status {
	t.Helper()
	res := Get(t, g.Admin+"/readyz?verbose", "application/json")
	defer res.Body.Close()
	var s Status
	if err := json.NewDecoder(res.Body).Decode(&s); err != nil {
		t.Fatalf("reading /readyz: %v", err)
	}
	return s
}

// State returns the state of a server, "" if there is none of that name.
func (g *Gate) State(t testing.TB, name string) string {
	t.Helper()
	for _, u := range g.Status(t).Upstreams {
		if u.Name == name {
			return u.State
		}
	}
	return ""
}

// Get makes one GET request, with an Accept header. The test closes the body.
func Get(t testing.TB, url, accept string) *http.Response {
	t.Helper()
	ctx, stop := context.WithTimeout(context.Background(), Timeout)
	t.Cleanup(stop)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept", accept)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

// FreeAddress returns a loopback address that was free a moment ago, for programs
// that cannot report their port. It never returns one twice. The port is below those that
// systems give to connections (from 32768 on Linux), so that no connection takes it meanwhile.
func FreeAddress(t testing.TB) string {
	t.Helper()
	for range 1000 {
		address := fmt.Sprintf("127.0.0.1:%d", 20000+rand.IntN(12000))
		if _, again := freed.LoadOrStore(address, true); again {
			continue
		}
		if l, err := net.Listen("tcp", address); err == nil {
			_ = l.Close()
			return address
		}
	}
	t.Fatal("no port is free between 20000 and 32000")
	return ""
}

// freed has the addresses that FreeAddress has returned.
var freed sync.Map

// LaunchAt starts a program that listens on a given address and waits until it does.
// If another process takes the port first, it tries again. It returns the program
// and its address.
func LaunchAt(t testing.TB, command func(address string) *exec.Cmd) (*Process, string) {
	t.Helper()
	for range 5 {
		address := FreeAddress(t)
		p := Launch(t, command(address))
		if p.Await(t, p.String()+" listens", func() bool { return Listens(address) }) {
			return p, address
		}
	}
	t.Fatal("the program does not start")
	return nil, ""
}

// Listens reports whether a connection to the address is accepted.
func Listens(address string) bool {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return false
	}
	return conn.Close() == nil
}
