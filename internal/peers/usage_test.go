package peers_test

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/toolgate/toolgate/internal/testkit/parts"
	"github.com/toolgate/toolgate/internal/testkit/program"
	"github.com/toolgate/toolgate/internal/testkit/recorder"
)

// dailyLimit allows payments of 1,000 per day and holds further ones.
const dailyLimit = `decision := {"effect": "hold", "rule": "window", "approval": {"roles": ["approver"]}} if {
	is_number(input.arguments.amount)
	input.usage.day.sum + input.arguments.amount > 1000
}

decision := {"effect": "allow", "rule": "below"} if {
	is_number(input.arguments.amount)
	input.usage.day.sum + input.arguments.amount <= 1000
}`

// paymentServer writes a configuration with dailyLimit and one tool, rec__pay.
func paymentServer(t *testing.T, does string) (dir string, rec *recorder.Recorder) {
	t.Helper()
	rec = recorder.HTTP(t, recorder.Config{Tools: []recorder.Tool{{Name: "pay", Does: does}}})
	dir = configure(t, setup{servers: []server{httpOf("rec", rec, shared())}, policy: dailyLimit})
	write(t, filepath.Join(dir, "policy", "data.json"), `{"usage": {"rec__pay": {"day": {"window": "24h", "sum": "/amount", "per": ["/asset"]}}}}`)
	return dir, rec
}

func payment(n int) string { return fmt.Sprintf(`{"asset":"USD","amount":100,"n":%d}`, n) }

// TestEleventhPaymentIsHeld: of payments of 100 with a limit of 1,000, ten run and
// the eleventh is held, also across a restart. After approval it runs once, and its
// agent gets the result as often as it asks.
func TestEleventhPaymentIsHeld(t *testing.T) {
	t.Parallel()
	parts.Long(t, "starts whole programs")
	dir, rec := paymentServer(t, recorder.Echo)
	g := serveReady(t, dir)
	d := openHTTP(t, g.Agents+"/mcp", agentToken)
	for n := range 5 {
		if got := outcome(t, d.exchange(t, callMessage("1", "rec__pay", payment(n)))); got != "done" {
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
		if got := outcome(t, d.exchange(t, callMessage("1", "rec__pay", payment(5+n)))); got != "done" {
			t.Fatalf("payment %d: %s", 5+n, got)
		}
	}
	id := holdCall(t, d, "rec__pay", payment(10))
	if got := outcome(t, d.exchange(t, callMessage("1", "rec__pay", `{"asset":"EUR","amount":1000}`))); got != "done" {
		t.Errorf("another asset: %s", got)
	}
	g.carol().mustVote(t, id, "approve")
	for _, want := range []string{"done", "replayed", "replayed"} {
		if got := outcome(t, d.exchange(t, callMessage("1", "rec__pay", payment(10)))); got != want {
			t.Errorf("the approved payment: %s, want %s", got, want)
		}
	}
	wantRuns(t, rec, payment(10), 1)
	holdCall(t, d, "rec__pay", payment(11))
	if got := len(rec.Calls()); got != 12 {
		t.Errorf("%d payments ran, want 11 and one of another asset", got)
	}
	verifyTrail(t, dir)
}

// TestPaymentsOverTwoToolgates: 64 concurrent callers at two toolgates with one state
// directory use up the limit and never exceed it.
func TestPaymentsOverTwoToolgates(t *testing.T) {
	t.Parallel()
	parts.Long(t, "starts whole programs")
	dir, rec := paymentServer(t, recorder.Echo)
	gates := [2]*gate{serveReady(t, dir), serveReady(t, dir)}
	var doors [2]*rawHTTP
	for i, g := range gates {
		doors[i] = openHTTP(t, g.Agents+"/mcp", agentToken)
	}
	var mu sync.Mutex
	outcomes := map[string]int{}
	var do []func()
	for n := range 64 {
		do = append(do, func() {
			a := <-startCall(t, doors[n%2], "rec__pay", payment(n))
			mu.Lock()
			defer mu.Unlock()
			if a.err != nil {
				t.Error(a.err)
				return
			}
			outcomes[outcome(t, a.text)]++
		})
	}
	runTogether(do...)
	if outcomes["done"] != 10 || outcomes["pending"] != 54 || len(rec.Calls()) != 10 {
		t.Errorf("%v, and %d payments ran, want 10 done and 54 pending", outcomes, len(rec.Calls()))
	}
}

// TestPaymentsOfAKilledToolgate: payments that were running when toolgate was killed
// may have taken effect, and stay counted.
func TestPaymentsOfAKilledToolgate(t *testing.T) {
	t.Parallel()
	parts.Long(t, "starts whole programs")
	dir, rec := paymentServer(t, recorder.Hang)
	g := serveReady(t, dir)
	d := openHTTP(t, g.Agents+"/mcp", agentToken)
	for n := range 10 {
		startCall(t, d, "rec__pay", payment(n))
	}
	program.Await(t, "ten payments run", func() bool { return len(rec.Calls()) == 10 })
	g.Kill(t)
	g = serveReady(t, dir)
	holdCall(t, openHTTP(t, g.Agents+"/mcp", agentToken), "rec__pay", payment(10))
}
