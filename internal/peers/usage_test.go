package peers_test

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/toolgate/toolgate/internal/testkit/program"
	"github.com/toolgate/toolgate/internal/testkit/recorder"
)

// windowed lets a thousand pass in a day, and has a person decide on the rest.
const windowed = `decision := {"effect": "hold", "rule": "window", "approval": {"roles": ["approver"]}} if {
	is_number(input.arguments.amount)
	input.usage.day.sum + input.arguments.amount > 1000
}

decision := {"effect": "allow", "rule": "below"} if {
	is_number(input.arguments.amount)
	input.usage.day.sum + input.arguments.amount <= 1000
}`

// till is a configuration with that policy and one tool, rec__pay.
func till(t *testing.T, does string) (dir string, rec *recorder.Recorder) {
	t.Helper()
	rec = recorder.HTTP(t, recorder.Config{Tools: []recorder.Tool{{Name: "pay", Does: does}}})
	dir = configure(t, setup{servers: []server{httpOf("rec", rec, shared())}, policy: windowed})
	write(t, filepath.Join(dir, "policy", "data.json"), `{"usage": {"rec__pay": {"day": {"window": "24h", "sum": "/amount", "per": ["/asset"]}}}}`)
	return dir, rec
}

func payment(n int) string { return fmt.Sprintf(`{"asset":"USD","amount":100,"n":%d}`, n) }

// TestEleventhPaymentIsHeld: ten of a hundred pass under a thousand, the eleventh
// waits, by whichever toolgate it comes and whether or not one was started anew;
// approved it runs, and its agent has its result as often as it asks.
func TestEleventhPaymentIsHeld(t *testing.T) {
	t.Parallel()
	dir, rec := till(t, recorder.Echo)
	g := serveReady(t, dir)
	d := openHTTP(t, g.Agents+"/mcp", agentToken)
	for n := range 5 {
		if got := came(t, d.exchange(t, callMessage("1", "rec__pay", payment(n)))); got != "done" {
			t.Fatalf("payment %d: %s", n, got)
		}
	}
	if err := g.Cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	g.Wait(t)
	g = serveReady(t, dir)
	d = openHTTP(t, g.Agents+"/mcp", agentToken)
	for n := range 5 {
		if got := came(t, d.exchange(t, callMessage("1", "rec__pay", payment(5+n)))); got != "done" {
			t.Fatalf("payment %d: %s", 5+n, got)
		}
	}
	id := hold(t, d, "rec__pay", payment(10))
	if got := came(t, d.exchange(t, callMessage("1", "rec__pay", `{"asset":"EUR","amount":1000}`))); got != "done" {
		t.Errorf("another asset: %s", got)
	}
	g.desk().must(t, id, "approve")
	for _, want := range []string{"done", "replayed", "replayed"} {
		if got := came(t, d.exchange(t, callMessage("1", "rec__pay", payment(10)))); got != want {
			t.Errorf("the approved payment: %s, want %s", got, want)
		}
	}
	wantRuns(t, rec, payment(10), 1)
	hold(t, d, "rec__pay", payment(11))
	if got := len(rec.Calls()); got != 12 {
		t.Errorf("%d payments were made, want 11 and one of another asset", got)
	}
	verify(t, dir)
}

// TestPaymentsOverTwoToolgates: 64 callers at two toolgates on one state, at the same
// moment, never pass the window, and use it up.
func TestPaymentsOverTwoToolgates(t *testing.T) {
	t.Parallel()
	dir, rec := till(t, recorder.Echo)
	gates := [2]*gate{serveReady(t, dir), serveReady(t, dir)}
	var doors [2]*httpDoor
	for i, g := range gates {
		doors[i] = openHTTP(t, g.Agents+"/mcp", agentToken)
	}
	var mu sync.Mutex
	words := map[string]int{}
	var do []func()
	for n := range 64 {
		do = append(do, func() {
			a := <-begin(t, doors[n%2], "rec__pay", payment(n))
			mu.Lock()
			defer mu.Unlock()
			if a.err != nil {
				t.Error(a.err)
				return
			}
			words[came(t, a.text)]++
		})
	}
	together(do...)
	if words["done"] != 10 || words["pending"] != 54 || len(rec.Calls()) != 10 {
		t.Errorf("%v, and %d payments were made, want 10 and 54 that wait", words, len(rec.Calls()))
	}
}

// TestPaymentsOfAKilledToolgate: what was on its way when a toolgate was killed may
// have been made, and stays counted.
func TestPaymentsOfAKilledToolgate(t *testing.T) {
	t.Parallel()
	dir, rec := till(t, recorder.Hang)
	g := serveReady(t, dir)
	d := openHTTP(t, g.Agents+"/mcp", agentToken)
	for n := range 10 {
		begin(t, d, "rec__pay", payment(n))
	}
	program.Await(t, "ten payments on their way", func() bool { return len(rec.Calls()) == 10 })
	g.Kill(t)
	g = serveReady(t, dir)
	hold(t, openHTTP(t, g.Agents+"/mcp", agentToken), "rec__pay", payment(10))
}
