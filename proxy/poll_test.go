package proxy_test

import (
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/toolgate/toolgate/policy/identity"
	"github.com/toolgate/toolgate/policy/limit"
	"github.com/toolgate/toolgate/proxy"
	"github.com/toolgate/toolgate/signal"
)

// TestPollingCostsNoQuota holds that an agent that comes back for a held call as it
// was told, and the call that spends the grant, cost none of the caller's quota; that
// coming back sooner does; and that other calls find the quota as it was.
func TestPollingCostsNoQuota(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	synctest.Test(t, func(t *testing.T) {
		m := openWorkerGate(t, path, proxy.Settings{})
		m.decision.Approval.ExecuteOnApprove = false
		var err error
		m.Gate, err = proxy.New(proxy.Options{
			Identifier: m.auth, Policy: m, Limiter: limit.New(limit.Rules{Default: &limit.Rate{Count: 3, Per: time.Hour}}),
			Tickets: m.tickets, Waiter: m.tickets, Repeats: m.tickets, Book: m.tickets, Recorder: m, Upstreams: m,
			Settings: proxy.Settings{Hold: new(time.Duration(0))},
		})
		if err != nil {
			t.Fatal(err)
		}
		call := func(args string) (*proxy.Reply, *proxy.Failure) {
			in := request(t, `{"name":"web__find","arguments":`+args+`}`)
			in.Credential, in.Client, in.Era = identity.Credential{Bearer: "ann-token"}, "agent/1", "2025-11-25"
			return m.Call(t.Context(), in)
		}
		id := m.ask(t, `{"n":1}`) // the first of three
		for range 20 {
			time.Sleep(10 * time.Second)
			if reply, f := call(`{"n":1}`); f != nil || reply.Ticket != id {
				t.Fatalf("a poll got %v, %v", reply, f)
			}
		}
		for i, want := range []string{"", "", signal.CodeRateLimited} { // at once: the second and the third of three
			if _, f := call(`{"n":1}`); (f == nil) != (want == "") || f != nil && f.Kernel.Code != want {
				t.Errorf("poll %d at once: %v, want %q", i, f, want)
			}
		}
		if _, f := call(`{"n":2}`); f == nil || f.Kernel.Code != signal.CodeRateLimited {
			t.Errorf("another call: %v, want a rate limit", f)
		}
		m.approve(t, id)
		if _, f := call(`{"n":1}`); f != nil || len(m.arrivals()) != 1 {
			t.Errorf("the approved call: %v, arrived %v", f, m.arrivals())
		}
	})
}
