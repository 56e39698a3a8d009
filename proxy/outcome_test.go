package proxy_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/toolgate/toolgate/internal/keys"
	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/internal/testkit/postgres"
	"github.com/toolgate/toolgate/policy/approval"
	"github.com/toolgate/toolgate/policy/identity"
	"github.com/toolgate/toolgate/proxy"
	"github.com/toolgate/toolgate/signal"
)

// A connection is lost while a grant is spent, and the commit may have happened. The call is
// not made, and the answer says what is unknown. A grant that was spent never runs; one
// that was not runs once.
func TestAGrantOfUnknownOutcome(t *testing.T) {
	server := postgres.Started(t)
	for _, committed := range []bool{false, true} {
		t.Run(fmt.Sprint("committed ", committed), func(t *testing.T) {
			address, err := server.Database(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			relay := server.Relay(t, address)
			db, err := store.OpenPostgres(t.Context(), relay.URL, store.PostgresMigrations())
			if err != nil {
				t.Fatal(err)
			}
			secrets, err := keys.Open(filepath.Join(t.TempDir(), "keys"))
			if err != nil {
				t.Fatal(err)
			}
			m := newWorkerGate(t, db, secrets, proxy.Settings{})
			m.decision.Approval.ExecuteOnApprove = false
			m.approve(t, m.ask(t, `{"n":7}`))
			call := func() (*proxy.Reply, *proxy.Failure) {
				in := request(t, `{"name":"web__find","arguments":{"n":7}}`)
				in.Credential = identity.Credential{Bearer: "ann-token"}
				return m.Call(t.Context(), in)
			}
			relay.Interrupt(string(approval.StateDispatching), committed, func() {})
			_, f := call()
			if f == nil || f.Kernel.Code != signal.CodeStoreUnavailable || !strings.Contains(f.Reason, "whether its approval or usage was spent is unknown") {
				t.Errorf("a commit of unknown outcome: %+v", f)
			}
			if n := len(m.arrivals()); n != 0 {
				t.Fatalf("the call was made %d times", n)
			}
			for range 2 {
				switch reply, f := call(); {
				case committed && (f == nil || !strings.Contains(f.Reason, "it is not made again") || len(m.arrivals()) != 0):
					t.Errorf("after a grant that was spent: %v, %+v, %d calls", reply, f, len(m.arrivals()))
				case !committed && (f != nil || len(m.arrivals()) != 1):
					t.Errorf("after a grant that was not spent: %+v, %d calls", f, len(m.arrivals()))
				}
			}
		})
	}
}
