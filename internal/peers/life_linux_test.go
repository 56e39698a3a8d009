package peers_test

import (
	"bytes"
	"errors"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/toolgate/toolgate/internal/testkit/parts"
	"github.com/toolgate/toolgate/internal/testkit/program"
	"github.com/toolgate/toolgate/internal/testkit/recorder"
)

// TestUpstreamKilled: a kill of an upstream during a call fails that call and no
// other, and the upstream is restarted.
func TestUpstreamKilled(t *testing.T) {
	parts.Long(t, "starts whole programs")
	for _, isolation := range []string{"shared", "session"} {
		t.Run(isolation, func(t *testing.T) {
			t.Parallel()
			dying := recorder.Stdio(t, recorder.Config{Tools: []recorder.Tool{{Name: "hang", Does: recorder.Hang}, {Name: "echo"}}})
			other := recorder.Stdio(t, recorder.Config{Tools: []recorder.Tool{{Name: "late", Does: recorder.Late, Delay: time.Second}}})
			how := map[string]any{"isolation": isolation}
			g := serveReady(t, configure(t, setup{servers: []server{stdioOf("dying", dying, how), stdioOf("other", other, how)}}))
			d := openHTTP(t, g.Agents+"/mcp", agentToken)
			first, late := startCall(t, d, "dying__hang", `{}`), startCall(t, d, "other__late", `{}`)
			program.Await(t, "both calls run", func() bool { return len(dying.Calls()) == 1 && len(other.Calls()) == 1 })
			starts := len(dying.Starts())
			for _, pid := range dying.Starts() {
				if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) { // what only listed tools has ended
					t.Fatal(err)
				}
			}
			wantToolFailed(t, (<-first).mustText(t))
			if result, failure := splitAnswer((<-late).mustText(t)); result == nil {
				t.Errorf("the call to the other server: %s", failure)
			}
			awaitRecovery(t, d, "dying__echo", `{"again":1}`)
			if len(dying.Starts()) <= starts {
				t.Errorf("the server was started %d times, before the kill %d", len(dying.Starts()), starts)
			}
		})
	}
}

// wantToolFailed checks for the error on /mcp of a call whose server exited.
func wantToolFailed(t testing.TB, answer []byte) {
	t.Helper()
	_, failure := splitAnswer(answer)
	if failure == nil {
		t.Fatalf("got %s, want an error", answer)
	}
	if r := readRefusal(t, failure); r.Code != -32000 || r.Data.Code != "TOOL_FAILED" {
		t.Errorf("got %s, want TOOL_FAILED with -32000", failure)
	}
}

// awaitRecovery calls until the server answers. Until then each call must report
// UPSTREAM_UNAVAILABLE.
func awaitRecovery(t testing.TB, d rawClient, tool, args string) {
	t.Helper()
	program.Await(t, "the server answers again", func() bool {
		result, failure := call(t, d, tool, args)
		if failure != nil {
			if r := readRefusal(t, failure); r.Data.Code != "UPSTREAM_UNAVAILABLE" {
				t.Fatalf("before the server answers again: %s", failure)
			}
		}
		return result != nil
	})
}

// TestBadNeighbours: a server that hangs at start and a server that crashes do not
// delay a third one.
func TestBadNeighbours(t *testing.T) {
	t.Parallel()
	parts.Long(t, "starts whole programs")
	hanging := recorder.Stdio(t, recorder.Config{HangAtStart: true})
	crashing := recorder.Stdio(t, recorder.Config{CrashAtStart: true})
	good := recorder.Stdio(t, recorder.Config{Tools: []recorder.Tool{{Name: "echo"}}})
	slow := map[string]any{"timeout": timeout.String()}
	began := time.Now()
	g := serve(t, configure(t, setup{servers: []server{
		stdioOf("hanging", hanging, slow), stdioOf("crashing", crashing, slow), stdioOf("good", good, slow),
	}}))
	d := openHTTP(t, g.Agents+"/mcp", agentToken)
	awaitTools(t, d, 1)
	mustCall(t, d, "good__echo", `{}`)
	t.Logf("the third server answered %v after the start", time.Since(began).Round(time.Millisecond))
	if state := g.State(t, "hanging"); state != "starting" {
		t.Errorf("the hanging server is %s, want starting: the third server waited for its time limit", state)
	}
	program.Await(t, "readyz is 200", func() bool { return g.Ready(t) })
	if state := g.State(t, "hanging"); state != "starting" {
		t.Errorf("the hanging server is %s, want starting: readiness waited for its time limit", state)
	}
	program.Await(t, "the crashing server is started again", func() bool { return len(crashing.Starts()) >= 3 })
	if state := g.State(t, "crashing"); state != "failed" {
		t.Errorf("the crashing server is %s, want failed", state)
	}
	mustCall(t, d, "good__echo", `{}`)
}

// startLingering configures two servers that do not exit on their own: one ignores
// TERM and the end of its stdin and starts a process in another session, the other
// comes from npm.
func startLingering(t testing.TB) (*recorder.Recorder, string) {
	t.Helper()
	rec := recorder.Stdio(t, recorder.Config{
		IgnoreTERM: true, Grandchild: true,
		Tools: []recorder.Tool{{Name: "late", Does: recorder.Late, Delay: time.Second}, {Name: "hang", Does: recorder.Hang}},
	})
	return rec, configure(t, setup{servers: []server{
		stdioOf("lingering", rec, nil),
		{"memory", map[string]any{
			"command": requirePart(t, "node"), "args": []string{npmServer(t, "server-memory")},
			"env": map[string]string{"MEMORY_FILE_PATH": filepath.Join(t.TempDir(), "memory.jsonl")},
		}, nil},
	}})
}

// running counts the pids that are among all.
func running(all []process, pids []int) (n int) {
	for _, i := range all {
		if slices.Contains(pids, i.pid) {
			n++
		}
	}
	return n
}

// awaitProcesses waits until want processes of the recorder and of memory run, and
// returns every descendant of pid and the processes that the recorder started.
func awaitProcesses(t testing.TB, rec *recorder.Recorder, pid, want int) []process {
	t.Helper()
	var all []process
	program.Await(t, "every process runs", func() bool {
		all = descendants(t, pid)
		memory := 0
		for _, i := range all {
			if what := commandLine(i); strings.Contains(what, "server-memory") && !strings.Contains(what, "__child") {
				memory++
			}
		}
		return memory >= want && running(all, rec.Starts()) >= want && running(all, rec.Grandchildren()) >= want
	})
	started := rec.Grandchildren() // before the descendants: another process may be starting
	all = descendants(t, pid)
	for _, left := range started {
		if running(all, []int{left}) == 0 && processOf(left).alive() {
			t.Errorf("process %d is not a descendant of toolgate, so nothing ends it", left)
		}
		all = append(all, processOf(left))
	}
	t.Cleanup(func() {
		for _, i := range all {
			if i.alive() {
				_ = syscall.Kill(i.pid, syscall.SIGKILL) // it may have exited
			}
		}
	})
	if len(all) < 4*want {
		t.Errorf("only %d processes found", len(all))
	}
	return all
}

// TestKilledLeavesNothing: no process remains after kill -9 during a call.
func TestKilledLeavesNothing(t *testing.T) {
	parts.Long(t, "starts whole programs")
	t.Run("serve", func(t *testing.T) {
		t.Parallel()
		rec, dir := startLingering(t)
		g := serveReady(t, dir)
		d := openHTTP(t, g.Agents+"/mcp", agentToken)
		mustCall(t, d, "memory__read_graph", `{}`)
		startCall(t, d, "lingering__hang", `{}`)
		program.Await(t, "the call runs", func() bool { return len(rec.Calls()) == 1 })
		all := awaitProcesses(t, rec, g.Cmd.Process.Pid, 2) // the shared process and the session's
		g.Kill(t)
		awaitExit(t, all)
	})
	t.Run("stdio", func(t *testing.T) {
		t.Parallel()
		rec, dir := startLingering(t)
		d := openStdio(t, dir)
		awaitTools(t, d, 2+9)
		mustCall(t, d, "memory__read_graph", `{}`)
		d.send(t, callMessage("1", "lingering__hang", `{}`))
		program.Await(t, "the call runs", func() bool { return len(rec.Calls()) == 1 })
		all := awaitProcesses(t, rec, d.proc.Cmd.Process.Pid, 2)
		d.proc.Kill(t)
		awaitExit(t, all)
	})
}

// TestOrderlyEnd: on TERM, and on the end of input of toolgate stdio, the running
// call is answered, the exit code is 0, no process remains and the trail is closed.
func TestOrderlyEnd(t *testing.T) {
	parts.Long(t, "starts whole programs")
	term := func(t *testing.T, p *program.Process) {
		t.Helper()
		if err := p.Cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
	}
	t.Run("serve", func(t *testing.T) {
		t.Parallel()
		rec, dir := startLingering(t)
		g := serveReady(t, dir)
		late := startCall(t, openHTTP(t, g.Agents+"/mcp", agentToken), "lingering__late", `{"n":1}`)
		program.Await(t, "the call runs", func() bool { return len(rec.Calls()) == 1 })
		all := awaitProcesses(t, rec, g.Cmd.Process.Pid, 1)
		term(t, g.Process)
		checkOrderlyEnd(t, g.Process, dir, all, func() []byte { return (<-late).mustText(t) })
	})
	for name, end := range map[string]func(*testing.T, *rawStdio){
		"stdio TERM": func(t *testing.T, d *rawStdio) { term(t, d.proc) },
		"stdio end of input": func(t *testing.T, d *rawStdio) {
			if err := d.in.Close(); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rec, dir := startLingering(t)
			d := openStdio(t, dir)
			awaitTools(t, d, 2+9)
			d.send(t, callMessage("1", "lingering__late", `{"n":1}`))
			program.Await(t, "the call runs", func() bool { return len(rec.Calls()) == 1 })
			all := awaitProcesses(t, rec, d.proc.Cmd.Process.Pid, 1)
			end(t, d)
			checkOrderlyEnd(t, d.proc, dir, all, func() []byte { return d.next(t) })
		})
	}
}

// checkOrderlyEnd checks the running call, the exit code, the processes and the trail.
func checkOrderlyEnd(t *testing.T, p *program.Process, dir string, all []process, answer func() []byte) {
	t.Helper()
	if got := answer(); !bytes.Contains(got, []byte(`"structuredContent":{"n":1}`)) {
		t.Errorf("the running call: %s", got)
	}
	p.Wait(t)
	if p.Err != nil {
		t.Errorf("toolgate exited with %v", p.Err)
	}
	for _, i := range all {
		if i.alive() {
			t.Errorf("process %d still runs: %s", i.pid, commandLine(i))
		}
	}
	for _, c := range verifyTrail(t, dir).Chains {
		if !c.Closed || len(c.Unfinished) > 0 {
			t.Errorf("the chain is not closed, or has unfinished calls: %+v", c)
		}
	}
}

// TestClientGone: a client that exits closes its ends of stdin, stdout and stderr at
// once. The running call still gets its outcome record, and toolgate exits without
// SIGPIPE.
func TestClientGone(t *testing.T) {
	t.Parallel()
	parts.Long(t, "starts whole programs")
	rec, dir := startLingering(t)
	d := openStdio(t, dir)
	awaitTools(t, d, 2+9)
	d.send(t, callMessage("1", "lingering__late", `{"n":1}`))
	program.Await(t, "the call runs", func() bool { return len(rec.Calls()) == 1 })
	all := awaitProcesses(t, rec, d.proc.Cmd.Process.Pid, 1)
	d.closePipes(t)
	d.proc.Wait(t)
	var x *exec.ExitError
	if errors.As(d.proc.Err, &x) && x.ExitCode() < 0 {
		t.Errorf("toolgate exited with %v", d.proc.Err)
	}
	awaitExit(t, all)
	for _, c := range verifyTrail(t, dir).Chains {
		if !c.Closed || len(c.Unfinished) > 0 {
			t.Errorf("the chain is not closed, or has unfinished calls: %+v", c)
		}
	}
}

// TestApprovalsSurviveKill: tickets and decisions survive kill -9, and a call that
// had started is never made again.
func TestApprovalsSurviveKill(t *testing.T) {
	t.Parallel()
	parts.Long(t, "starts whole programs")
	rec := recorder.HTTP(t, recorder.Config{Tools: []recorder.Tool{{Name: "hang", Does: recorder.Hang}, {Name: "echo"}}})
	dir := configure(t, setup{servers: []server{httpOf("rec", rec, shared())}, policy: holdAll})
	g := serveReady(t, dir)
	d := openHTTP(t, g.Agents+"/mcp", agentToken)
	started, waiting, approved := holdCall(t, d, "rec__hang", `{"n":1}`), holdCall(t, d, "rec__echo", `{"n":2}`), holdCall(t, d, "rec__echo", `{"n":3}`)
	g.approve(t, started)
	g.approve(t, approved)
	startCall(t, d, "rec__hang", `{"n":1}`)
	program.Await(t, "the approved call runs", func() bool { return len(rec.Calls()) == 1 })
	g.Kill(t)

	if r := verifyTrail(t, dir); len(r.Chains) != 1 || r.Chains[0].Closed || len(r.Chains[0].Unfinished) != 1 || r.Chains[0].Unfinished[0].Tool != "hang" {
		t.Errorf("the trail must report one unfinished call of hang: %+v", r)
	}
	g = serveReady(t, dir)
	d = openHTTP(t, g.Agents+"/mcp", agentToken)
	states := g.tickets(t)
	if states[started] != "unknown" || states[waiting] != "proposed" || states[approved] != "approved" {
		t.Errorf("after the restart: started %s, waiting %s, approved %s", states[started], states[waiting], states[approved])
	}
	for range 2 { // every repetition is refused
		_, failure := call(t, d, "rec__hang", `{"n":1}`)
		if r := readRefusal(t, failure); r.Code != -32000 || r.Data.Code != "TOOL_FAILED" || r.Data.Detail["ticket"] != started {
			t.Errorf("the call that had started: %s", failure)
		}
	}
	mustCall(t, d, "rec__echo", `{"n":3}`)
	if again := holdCall(t, d, "rec__echo", `{"n":2}`); again != waiting {
		t.Errorf("the waiting call has ticket %s, before the restart %s", again, waiting)
	}
	g.approve(t, waiting)
	mustCall(t, d, "rec__echo", `{"n":2}`)
	var got []string
	for _, c := range rec.Calls() {
		got = append(got, c.Tool+string(c.Arguments))
	}
	if want := []string{`hang{"n":1}`, `echo{"n":3}`, `echo{"n":2}`}; !slices.Equal(got, want) {
		t.Errorf("the server received %v, want %v", got, want)
	}
	verifyTrail(t, dir)
}
