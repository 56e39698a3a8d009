package peers_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/toolgate/toolgate/internal/testkit/program"
	"github.com/toolgate/toolgate/internal/testkit/recorder"
)

// answer is what came of a call that a goroutine made.
type answer struct {
	text []byte
	err  error
}

// begun numbers the calls that begin makes: they are under way together.
var begun atomic.Int64

// begin makes a call in the background.
func begin(t testing.TB, d *httpDoor, tool, args string) <-chan answer {
	t.Helper()
	done := make(chan answer, 1)
	ctx, stop := context.WithTimeout(context.Background(), patience)
	t.Cleanup(stop)
	copied, id := *d, fmt.Sprint(1000+begun.Add(1))
	go func() {
		text, err := copied.try(ctx, callMessage(id, tool, args))
		done <- answer{text, err}
	}()
	return done
}

// want gives the answer of a call that was begun.
func (a answer) want(t testing.TB) []byte {
	t.Helper()
	if a.err != nil {
		t.Fatal(a.err)
	}
	return a.text
}

// TestUpstreamKilled: an upstream that is killed in mid-call fails that call
// and nothing else, and comes back by itself.
func TestUpstreamKilled(t *testing.T) {
	for _, isolation := range []string{"shared", "session"} {
		t.Run(isolation, func(t *testing.T) {
			t.Parallel()
			dying := recorder.Stdio(t, recorder.Config{Tools: []recorder.Tool{{Name: "hang", Does: recorder.Hang}, {Name: "echo"}}})
			other := recorder.Stdio(t, recorder.Config{Tools: []recorder.Tool{{Name: "late", Does: recorder.Late, Delay: time.Second}}})
			how := map[string]any{"isolation": isolation}
			g := serveReady(t, configure(t, setup{servers: []server{stdioOf("dying", dying, how), stdioOf("other", other, how)}}))
			d := openHTTP(t, g.Agents+"/mcp", agentToken)
			first, late := begin(t, d, "dying__hang", `{}`), begin(t, d, "other__late", `{}`)
			program.Await(t, "both calls are under way", func() bool { return len(dying.Calls()) == 1 && len(other.Calls()) == 1 })
			starts := len(dying.Starts())
			for _, pid := range dying.Starts() {
				if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
					t.Fatal(err)
				}
			}
			wantToolFailed(t, (<-first).want(t))
			if result, failure := parts((<-late).want(t)); result == nil {
				t.Errorf("the call to the other server: %s", failure)
			}
			comesBack(t, d, "dying__echo", `{"again":1}`)
			if len(dying.Starts()) <= starts {
				t.Errorf("it was started %d times, before the kill %d", len(dying.Starts()), starts)
			}
		})
	}
}

// TestRealUpstreamKilled is the same with a server that nobody here wrote.
func TestRealUpstreamKilled(t *testing.T) {
	t.Parallel()
	everything := npmServer(t, "server-everything")
	other := recorder.Stdio(t, recorder.Config{Tools: []recorder.Tool{{Name: "echo"}}})
	g := serveReady(t, configure(t, setup{servers: []server{
		{"everything", map[string]any{"command": needs(t, "node"), "args": []string{everything, "stdio"}}, nil},
		stdioOf("other", other, nil),
	}}))
	d := openHTTP(t, g.Agents+"/mcp", agentToken)
	mustCall(t, d, "everything__get-sum", `{"a":2,"b":3}`) // its session has a process of its own from here on
	long := begin(t, d, "everything__"+longRunning, `{"duration":60,"steps":3}`)
	program.Await(t, "the trail has the decision on the long call", func() bool {
		out, _ := command(t, g.Dir, "audit", "tail", "-n", "10")
		return strings.Contains(out, longRunning)
	})
	killed := 0
	for _, i := range descendants(t, g.Cmd.Process.Pid) {
		if what := commandOf(i); strings.Contains(what, "server-everything") && !strings.Contains(what, "__child") {
			killed++
			if err := syscall.Kill(i.pid, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
		}
	}
	if killed != 2 {
		t.Errorf("killed %d processes, want the shared one and the session's", killed)
	}
	wantToolFailed(t, (<-long).want(t))
	mustCall(t, d, "other__echo", `{}`)
	comesBack(t, d, "everything__get-sum", `{"a":2,"b":3}`)
}

// wantToolFailed wants what the gateway dialect says of a call whose server
// went away.
func wantToolFailed(t testing.TB, answer []byte) {
	t.Helper()
	_, failure := parts(answer)
	if failure == nil {
		t.Fatalf("got %s, want an error", answer)
	}
	if r := readRefusal(t, failure); r.Code != -32000 || r.Data.Code != "TOOL_FAILED" {
		t.Errorf("got %s, want TOOL_FAILED with -32000", failure)
	}
}

// comesBack calls until the server serves again. Until then calls say so.
func comesBack(t testing.TB, d door, tool, args string) {
	t.Helper()
	program.Await(t, "the server comes back", func() bool {
		result, failure := call(t, d, tool, args)
		if failure != nil {
			if r := readRefusal(t, failure); r.Data.Code != "UPSTREAM_UNAVAILABLE" {
				t.Fatalf("while it is away: %s", failure)
			}
		}
		return result != nil
	})
}

// TestBadNeighbours: a server that hangs at start and one that crashes keep
// nobody from the third.
func TestBadNeighbours(t *testing.T) {
	t.Parallel()
	hanging := recorder.Stdio(t, recorder.Config{HangAtStart: true})
	crashing := recorder.Stdio(t, recorder.Config{CrashAtStart: true})
	good := recorder.Stdio(t, recorder.Config{Tools: []recorder.Tool{{Name: "echo"}}})
	patient := map[string]any{"timeout": patience.String()}
	began := time.Now()
	g := serve(t, configure(t, setup{servers: []server{
		stdioOf("hanging", hanging, patient), stdioOf("crashing", crashing, patient), stdioOf("good", good, patient),
	}}))
	d := openHTTP(t, g.Agents+"/mcp", agentToken)
	awaitTools(t, d, 1)
	mustCall(t, d, "good__echo", `{}`)
	t.Logf("the third server served %v after the command was given", time.Since(began).Round(time.Millisecond))
	if state := g.State(t, "hanging"); state != "starting" {
		t.Errorf("the hanging server is %s: the third was served after it had been given up", state)
	}
	program.Await(t, "readyz is 200", func() bool { return g.Ready(t) })
	if state := g.State(t, "hanging"); state != "starting" {
		t.Errorf("the hanging server is %s: readiness waited for it", state)
	}
	program.Await(t, "the crashing server is tried again", func() bool { return len(crashing.Starts()) >= 3 })
	if state := g.State(t, "crashing"); state != "failed" {
		t.Errorf("the crashing server is %s", state)
	}
	mustCall(t, d, "good__echo", `{}`)
}

// clinging are servers that do not go by themselves: one ignores TERM and the
// end of its stdin and has started a process in a session of its own, another
// is from npm.
func clinging(t testing.TB) (*recorder.Recorder, string) {
	t.Helper()
	rec := recorder.Stdio(t, recorder.Config{
		IgnoreTERM: true, Grandchild: true,
		Tools: []recorder.Tool{{Name: "late", Does: recorder.Late, Delay: time.Second}, {Name: "hang", Does: recorder.Hang}},
	})
	return rec, configure(t, setup{servers: []server{
		stdioOf("clinging", rec, nil),
		{"memory", map[string]any{
			"command": needs(t, "node"), "args": []string{npmServer(t, "server-memory")},
			"env": map[string]string{"MEMORY_FILE_PATH": filepath.Join(t.TempDir(), "memory.jsonl")},
		}, nil},
	}})
}

// household gives every process below pid, and what the recorder left behind,
// once want processes of the recorder and of memory run.
func household(t testing.TB, rec *recorder.Recorder, pid, want int) []identity {
	t.Helper()
	var all []identity
	program.Await(t, "every process runs", func() bool {
		all = descendants(t, pid)
		memory := 0
		for _, i := range all {
			if what := commandOf(i); strings.Contains(what, "server-memory") && !strings.Contains(what, "__child") {
				memory++
			}
		}
		return memory >= want && len(rec.Starts()) >= want && len(rec.Grandchildren()) >= want
	})
	for _, left := range rec.Grandchildren() {
		if !slices.ContainsFunc(all, func(i identity) bool { return i.pid == left }) {
			t.Errorf("process %d is not below toolgate: nobody would end it", left)
		}
		all = append(all, identify(left))
	}
	t.Cleanup(func() {
		for _, i := range all {
			if i.alive() {
				_ = syscall.Kill(i.pid, syscall.SIGKILL) // it may go by itself
			}
		}
	})
	if len(all) < 4*want {
		t.Errorf("only %d processes found", len(all))
	}
	return all
}

// TestKilledLeavesNothing: no process is left after kill -9, with a call under
// way.
func TestKilledLeavesNothing(t *testing.T) {
	t.Run("serve", func(t *testing.T) {
		t.Parallel()
		rec, dir := clinging(t)
		g := serveReady(t, dir)
		d := openHTTP(t, g.Agents+"/mcp", agentToken)
		mustCall(t, d, "memory__read_graph", `{}`)
		begin(t, d, "clinging__hang", `{}`)
		program.Await(t, "the call is under way", func() bool { return len(rec.Calls()) == 1 })
		all := household(t, rec, g.Cmd.Process.Pid, 2) // shared, and of the session
		g.Kill(t)
		awaitGone(t, all)
	})
	t.Run("stdio", func(t *testing.T) {
		t.Parallel()
		rec, dir := clinging(t)
		d := openStdio(t, dir)
		awaitTools(t, d, 2+9)
		mustCall(t, d, "memory__read_graph", `{}`)
		d.send(t, callMessage("1", "clinging__hang", `{}`))
		program.Await(t, "the call is under way", func() bool { return len(rec.Calls()) == 1 })
		all := household(t, rec, d.proc.Cmd.Process.Pid, 2)
		d.proc.Kill(t)
		awaitGone(t, all)
	})
}

// TestOrderlyEnd: on TERM, and for stdio at the end of its input, the call
// under way is answered, the exit code is 0, no process is left and the trail
// is closed.
func TestOrderlyEnd(t *testing.T) {
	term := func(t *testing.T, p *program.Process) {
		t.Helper()
		if err := p.Cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
	}
	t.Run("serve", func(t *testing.T) {
		t.Parallel()
		rec, dir := clinging(t)
		g := serveReady(t, dir)
		late := begin(t, openHTTP(t, g.Agents+"/mcp", agentToken), "clinging__late", `{"n":1}`)
		program.Await(t, "the call is under way", func() bool { return len(rec.Calls()) == 1 })
		all := household(t, rec, g.Cmd.Process.Pid, 1)
		term(t, g.Process)
		ended(t, g.Process, dir, all, func() []byte { return (<-late).want(t) })
	})
	for name, end := range map[string]func(*testing.T, *pipeDoor){
		"stdio TERM": func(t *testing.T, d *pipeDoor) { term(t, d.proc) },
		"stdio end of input": func(t *testing.T, d *pipeDoor) {
			if err := d.in.Close(); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rec, dir := clinging(t)
			d := openStdio(t, dir)
			awaitTools(t, d, 2+9)
			d.send(t, callMessage("1", "clinging__late", `{"n":1}`))
			program.Await(t, "the call is under way", func() bool { return len(rec.Calls()) == 1 })
			all := household(t, rec, d.proc.Cmd.Process.Pid, 1)
			end(t, d)
			ended(t, d.proc, dir, all, func() []byte { return d.next(t) })
		})
	}
}

// ended checks an orderly end.
func ended(t *testing.T, p *program.Process, dir string, all []identity, answer func() []byte) {
	t.Helper()
	if got := answer(); !bytes.Contains(got, []byte(`"structuredContent":{"n":1}`)) {
		t.Errorf("the call under way: %s", got)
	}
	p.Wait(t)
	if p.Err != nil {
		t.Errorf("it ended with %v", p.Err)
	}
	for _, i := range all {
		if i.alive() {
			t.Errorf("still there: %d %s", i.pid, commandOf(i))
		}
	}
	for _, c := range verify(t, dir).Chains {
		if !c.Closed || len(c.Unfinished) > 0 {
			t.Errorf("the chain is not closed, or not finished: %+v", c)
		}
	}
}

// TestClientGone: a client that ends closes all its ends of the pipes at once,
// stderr too. The call that was under way still gets its outcome record, and
// the process ends by itself and not by SIGPIPE.
func TestClientGone(t *testing.T) {
	t.Parallel()
	rec, dir := clinging(t)
	d := openStdio(t, dir)
	awaitTools(t, d, 2+9)
	d.send(t, callMessage("1", "clinging__late", `{"n":1}`))
	program.Await(t, "the call is under way", func() bool { return len(rec.Calls()) == 1 })
	all := household(t, rec, d.proc.Cmd.Process.Pid, 1)
	d.hangUp(t)
	d.proc.Wait(t)
	var x *exec.ExitError
	if errors.As(d.proc.Err, &x) && x.ExitCode() < 0 {
		t.Errorf("it ended with %v", d.proc.Err)
	}
	awaitGone(t, all)
	for _, c := range verify(t, dir).Chains {
		if !c.Closed || len(c.Unfinished) > 0 {
			t.Errorf("the chain is not closed, or not finished: %+v", c)
		}
	}
}

// TestApprovalsSurviveKill: what was asked and decided before kill -9 holds
// after it, and a call that had begun is never made again.
func TestApprovalsSurviveKill(t *testing.T) {
	t.Parallel()
	rounds := 1
	if os.Getenv("TOOLGATE_SOAK") != "" {
		rounds = 10
	}
	for round := range rounds {
		t.Run(fmt.Sprint(round), func(t *testing.T) {
			rec := recorder.HTTP(t, recorder.Config{Tools: []recorder.Tool{{Name: "hang", Does: recorder.Hang}, {Name: "echo"}}})
			dir := configure(t, setup{servers: []server{httpOf("rec", rec, shared())}, policy: holdAll})
			g := serveReady(t, dir)
			d := openHTTP(t, g.Agents+"/mcp", agentToken)
			started, waiting, approved := hold(t, d, "rec__hang", `{"n":1}`), hold(t, d, "rec__echo", `{"n":2}`), hold(t, d, "rec__echo", `{"n":3}`)
			g.approve(t, started)
			g.approve(t, approved)
			begin(t, d, "rec__hang", `{"n":1}`)
			program.Await(t, "the approved call is under way", func() bool { return len(rec.Calls()) == 1 })
			g.Kill(t)

			if r := verify(t, dir); len(r.Chains) != 1 || r.Chains[0].Closed || len(r.Chains[0].Unfinished) != 1 || r.Chains[0].Unfinished[0].Tool != "hang" {
				t.Errorf("the trail does not tell of the one unfinished call: %+v", r)
			}
			g = serveReady(t, dir)
			d = openHTTP(t, g.Agents+"/mcp", agentToken)
			states := g.tickets(t)
			if states[started] != "unknown" || states[waiting] != "proposed" || states[approved] != "approved" {
				t.Errorf("after the restart: started %s, waiting %s, approved %s", states[started], states[waiting], states[approved])
			}
			for range 2 { // never again, however often it is asked for
				_, failure := call(t, d, "rec__hang", `{"n":1}`)
				if r := readRefusal(t, failure); r.Code != -32000 || r.Data.Code != "TOOL_FAILED" || r.Data.Detail["ticket"] != started {
					t.Errorf("the call that had begun: %s", failure)
				}
			}
			mustCall(t, d, "rec__echo", `{"n":3}`)
			if again := hold(t, d, "rec__echo", `{"n":2}`); again != waiting {
				t.Errorf("the waiting call has ticket %s now, before it had %s", again, waiting)
			}
			g.approve(t, waiting)
			mustCall(t, d, "rec__echo", `{"n":2}`)
			var got []string
			for _, c := range rec.Calls() {
				got = append(got, c.Tool+string(c.Arguments))
			}
			if want := []string{`hang{"n":1}`, `echo{"n":3}`, `echo{"n":2}`}; !slices.Equal(got, want) {
				t.Errorf("the server was called with %v, want %v", got, want)
			}
			verify(t, dir)
		})
	}
}

const holdAll = `decision := {"effect": "hold", "rule": "always", "reason": "a person decides", "approval": {"roles": ["approver"]}}`

// hold makes a call that is held and gives its ticket.
func hold(t testing.TB, d door, tool, args string) string {
	t.Helper()
	result, failure := call(t, d, tool, args)
	if result == nil {
		t.Fatalf("a held call: %s", failure)
	}
	status, ticket := ticketOf(t, result)
	if status != "pending" || ticket == "" {
		t.Fatalf("a held call: %s", result)
	}
	return ticket
}
