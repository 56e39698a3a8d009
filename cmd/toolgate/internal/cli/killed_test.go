package cli

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/toolgate/toolgate/internal/testkit/postgres"
	"github.com/toolgate/toolgate/internal/testkit/program"
	"github.com/toolgate/toolgate/internal/testkit/recorder"
)

// countingUpstream is an MCP server that counts the calls that it runs, by their texts.
type countingUpstream struct {
	t    testing.TB
	pass *httputil.ReverseProxy
	dir  string // holds the state directories of the replicas

	mu      sync.Mutex // protects the fields below
	runs    map[string]int
	arrives func() (lost bool) // what happens when the next call arrives; nil = nothing
}

var callText = regexp.MustCompile(`call-\d+\.`)

func startCountingUpstream(t testing.TB, dir string) (u *countingUpstream, address string) {
	rec := recorder.HTTP(t, recorder.Config{Tools: []recorder.Tool{{Name: "say"}}})
	to, err := url.Parse(rec.URL)
	if err != nil {
		t.Fatal(err)
	}
	u = &countingUpstream{t: t, dir: dir, runs: map[string]int{}}
	u.pass = &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to) }, FlushInterval: -1, ErrorLog: log.New(io.Discard, "", 0)}
	server := httptest.NewServer(u)
	t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
	return u, server.URL
}

// ServeHTTP counts a call, whose decision must be in the audit trail of a replica.
func (u *countingUpstream) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the replica was killed
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	if text := callText.FindString(string(body)); text != "" {
		if !u.recorded(text) {
			u.t.Errorf("%s came without a record", text)
		}
		u.mu.Lock()
		happens := u.arrives
		u.arrives = nil
		u.mu.Unlock()
		if happens != nil && happens() {
			panic(http.ErrAbortHandler)
		}
		u.mu.Lock()
		u.runs[text]++
		u.mu.Unlock()
	}
	u.pass.ServeHTTP(w, r)
}

// recorded reports whether a trail has the decision of a call.
func (u *countingUpstream) recorded(text string) bool {
	files, err := filepath.Glob(filepath.Join(u.dir, "*", "audit", "*", "*.jsonl"))
	for _, file := range files {
		trail, failed := os.ReadFile(file)
		for line := range bytes.Lines(trail) {
			if bytes.Contains(line, []byte(`"kind":"decision"`)) && bytes.Contains(line, []byte(text)) {
				return true
			}
		}
		if failed != nil {
			err = failed
		}
	}
	if err != nil {
		u.t.Error(err)
	}
	return false
}

func (u *countingUpstream) onArrival(do func() (lost bool)) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.arrives = do
}

// ran returns how often call n ran.
func (u *countingUpstream) ran(n int) int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.runs[fmt.Sprintf("call-%d.", n)]
}

// withUpstream is replicaFiles with an upstream at a URL.
func withUpstream(store, address string) map[string]string {
	files := replicaFiles(store)
	files["mcp.json"] = strings.Replace(files["mcp.json"], `"command": "recorder", "args": ["server.json", "called"]`, fmt.Sprintf(`"type": "http", "url": %q`, address), 1)
	return files
}

// settledSay is say, again for as long as r is overloaded and stop returns false: a connection from before
// the server was killed may fail once.
func (r *replica) settledSay(t *testing.T, n int, stop func() bool) (how, answer string) {
	t.Helper()
	program.Await(t, fmt.Sprintf("call %d is answered", n), func() bool {
		how, answer = r.say(t.Context(), n)
		return how != "STORE_UNAVAILABLE" || stop()
	})
	return how, answer
}

// held makes call n at r, which holds it, and approves it.
func (r *replica) held(t *testing.T, n int) {
	t.Helper()
	if how, answer := r.settledSay(t, n, func() bool { return false }); how != "pending" {
		t.Fatalf("call %d: %s: %s", n, how, answer)
	}
	program.Await(t, "the call is approved", func() bool { return r.approveAll(t.Context()) })
}

// outcome calls n at replicas in turn until one says how the call ended.
func outcome(t *testing.T, n int, at ...*replica) (how string) {
	t.Helper()
	var answer string
	program.Await(t, fmt.Sprintf("call %d ends", n), func() bool {
		for _, r := range at {
			if how, answer = r.say(t.Context(), n); how == "STORE_UNAVAILABLE" {
				return false
			}
			if how != "pending" {
				return true
			}
		}
		return false
	})
	if how != "done" && !strings.Contains(answer, "it is not made again") {
		t.Errorf("call %d: %s", n, answer)
	}
	return how
}

// sayUntil makes call n at r, and waits until something was killed at a step of it.
func sayUntil(t *testing.T, r *replica, n int, step func(kill func()), kill func()) (how, answer string) {
	t.Helper()
	var begun atomic.Bool
	killed := make(chan struct{})
	step(func() { begun.Store(true); kill(); close(killed) })
	how, answer = r.settledSay(t, n, begun.Load)
	select {
	case <-killed:
	case <-time.After(patience):
		t.Fatalf("call %d has not come to the step: %s", n, answer)
	}
	return how, answer
}

// A replica, and then the database server, is killed at each step of a call that was
// approved. The call runs at most once, and never without its record. Afterwards every
// replica says the same: the result, or that nobody knows whether the call took effect.
func TestKilledInACall(t *testing.T) {
	t.Parallel()
	server := postgres.Started(t)
	database, err := server.Database(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	relay := server.Relay(t, database)
	dir := t.TempDir()
	up, address := startCountingUpstream(t, dir)
	write(t, dir, withUpstream(relay.URL, address))
	write(t, dir, map[string]string{"direct.json": withUpstream(database, address)["mcp.json"]})
	one, two := startReplica(t, dir, "one"), startReplica(t, dir, "two", "--config", "direct.json")
	steps := []struct {
		name string
		at   func(kill func())
		ran  int
		how  string
	}{
		{"before the grant is spent", func(kill func()) { relay.Interrupt("dispatching", false, kill) }, 1, "done"},
		{"after the grant is spent", func(kill func()) { relay.Interrupt("dispatching", true, kill) }, 0, "TOOL_FAILED"},
		{"after the record", func(kill func()) { up.onArrival(func() bool { kill(); return true }) }, 0, "TOOL_FAILED"},
		{"after the call was forwarded", func(kill func()) { up.onArrival(func() bool { kill(); return false }) }, 1, "TOOL_FAILED"},
		{"before the outcome is stored", func(kill func()) { relay.Interrupt("done", false, kill) }, 1, "TOOL_FAILED"},
		{"after the outcome is stored", func(kill func()) { relay.Interrupt("done", true, kill) }, 1, "done"},
	}
	for n, step := range steps {
		two.held(t, n)
		how, answer := sayUntil(t, one, n, step.at, func() { one.signal(syscall.SIGKILL); <-one.done })
		if how != "nothing" {
			t.Errorf("%s: the replica that was killed answers %s", step.name, answer)
		}
		postgres.Forget(t, database, one.cmd.Process.Pid)
		how = outcome(t, n, two)
		one = startReplica(t, dir, "one")
		if again := outcome(t, n, one); how != step.how || again != how || up.ran(n) != step.ran {
			t.Errorf("replica killed %s: %s and %s, want %s; ran %d times, want %d", step.name, how, again, step.how, up.ran(n), step.ran)
		}
	}
	for i, step := range steps {
		n := len(steps) + i
		two.held(t, n)
		first, _ := sayUntil(t, one, n, step.at, server.Kill)
		if err := server.Restart(); err != nil {
			t.Fatal(err)
		}
		for _, r := range []*replica{one, two} {
			ready(t, r.admin)
		}
		if spent := i > 2; spent && first != "done" || !spent && first == "done" {
			t.Errorf("server killed %s: the call is answered %s", step.name, first)
		}
		how := outcome(t, n, two, one)
		if again := outcome(t, n, one); how != step.how || again != how || up.ran(n) != step.ran {
			t.Errorf("server killed %s: %s and %s, want %s; ran %d times, want %d", step.name, how, again, step.how, up.ran(n), step.ran)
		}
	}
}

// A replica is killed in a call that was approved, and starts again before its lease has run
// out. Its trail shows whether the call was sent: if not, the call runs with the same grant.
func TestKilledAndStartedAgain(t *testing.T) {
	t.Parallel()
	server := postgres.Started(t)
	database, err := server.Database(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	relay := server.Relay(t, database)
	dir := t.TempDir()
	up, address := startCountingUpstream(t, dir)
	write(t, dir, withUpstream(relay.URL, address))
	one := startReplica(t, dir, "one")
	for n, step := range []struct {
		name string
		at   func(kill func())
		ran  int
		how  string
	}{
		{"after the grant is spent", func(kill func()) { relay.Interrupt("dispatching", true, kill) }, 1, "done"},
		{"after the record", func(kill func()) { up.onArrival(func() bool { kill(); return true }) }, 0, "TOOL_FAILED"},
		{"after the call was forwarded", func(kill func()) { up.onArrival(func() bool { kill(); return false }) }, 1, "TOOL_FAILED"},
	} {
		one.held(t, n)
		sayUntil(t, one, n, step.at, func() { one.signal(syscall.SIGKILL); <-one.done })
		one = startReplica(t, dir, "one")
		if how := outcome(t, n, one); how != step.how || up.ran(n) != step.ran {
			t.Errorf("killed %s: %s, want %s; ran %d times, want %d", step.name, how, step.how, up.ran(n), step.ran)
		}
	}
}

// Every approved call is resumed at three replicas at once, and runs once. The long form
// has 1,000 calls.
func TestRacesOfReplicas(t *testing.T) {
	t.Parallel()
	calls := 60
	if os.Getenv("TOOLGATE_SOAK") != "" {
		calls = 1000
	}
	dir := t.TempDir()
	up, address := startCountingUpstream(t, dir)
	write(t, dir, withUpstream(postgres.Database(t), address))
	var replicas []*replica
	for _, state := range []string{"one", "two", "three"} {
		replicas = append(replicas, startReplica(t, dir, state))
	}
	ctx, stop := context.WithTimeout(t.Context(), 10*time.Minute)
	defer stop()
	each := func(do func(n int)) {
		numbers := make(chan int)
		var workers sync.WaitGroup
		for range 4 {
			workers.Go(func() {
				for n := range numbers {
					do(n)
				}
			})
		}
		for n := range calls {
			numbers <- n
		}
		close(numbers)
		workers.Wait()
	}
	each(func(n int) {
		if how, answer := replicas[n%len(replicas)].say(ctx, n); how != "pending" {
			t.Errorf("call %d: %s: %s", n, how, answer)
		}
	})
	for range 1 + calls/100 {
		replicas[0].approveAll(ctx)
	}
	each(func(n int) {
		ended := make([]string, len(replicas))
		var race sync.WaitGroup
		for i, r := range replicas {
			race.Go(func() { ended[i], _ = r.say(ctx, n) })
		}
		race.Wait()
		if !slices.Contains(ended, "done") {
			t.Errorf("call %d ended as %v", n, ended)
		}
	})
	for n := range calls {
		if ran := up.ran(n); ran != 1 {
			t.Errorf("call %d ran %d times", n, ran)
		}
	}
}
