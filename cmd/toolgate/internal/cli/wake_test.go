package cli

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/toolgate/toolgate/internal/testkit/postgres"
	"github.com/toolgate/toolgate/internal/testkit/program"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/approval"
	"github.com/toolgate/toolgate/policy/identity"
)

// wakeSite holds each call for a decision, and calls a server that answers at once.
func wakeSite() site {
	return site{
		servers: `"up": {"command": "recorder", "args": ["up.json", "calledREPLICA"]}`,
		settings: fmt.Sprintf(`"policy": {"path": "policy", "timeout": "10s"}, "approvals": {"hold": "5m", "max_live": 1000}, "limits": {"default": "off", "refused": "off"},
			"identity": {"tokens": [{"subject": "agent", "roles": ["agent"], "sha256": %q}, {"subject": "boss", "roles": ["boss"], "sha256": %q}]}`,
			identity.HashToken("agent"), identity.HashToken("boss")),
		files: map[string]string{
			"up.json": `{"Tools": [{"Name": "say"}]}`,
			"policy/p.rego": "package toolgate\n\nimport rego.v2\n\nvisible := true\n\n" +
				`hold contains {"rule": "EACH", "reason": "each call", "approval": {"roles": ["boss"], "quorum": 1}} if input.tool.name` + "\n",
		},
	}
}

// woken is one held call: when its decision was sent and answered, and when its caller had the result.
type woken struct{ sent, answered, heard time.Time }

// heldCalls are calls from number first on, each made at a replica and decided at the next one.
type heldCalls struct {
	*cluster
	first int
	all   []woken
	work  sync.WaitGroup
}

// hold makes n calls, and does not wait for their results.
func (f *cluster) hold(t *testing.T, first, n int) *heldCalls {
	t.Helper()
	h := &heldCalls{cluster: f, first: first, all: make([]woken, n)}
	t.Cleanup(h.work.Wait)
	for i := range h.all {
		h.work.Go(func() {
			r := &replica{agents: f.replicas[(first+i)%3].agents}
			if how, answer := r.say(t.Context(), first+i); how != "done" || !strings.Contains(answer, `"result"`) {
				t.Errorf("call %d: %s %s", first+i, how, answer)
			}
			h.all[i].heard = time.Now()
		})
	}
	return h
}

// decide waits until all calls are held, approves them one after the other, and returns when their callers have
// the results.
func (h *heldCalls) decide(t *testing.T) []woken {
	t.Helper()
	var list struct {
		Approvals []struct {
			ID, Digest string
			Arguments  struct{ Text string }
		}
	}
	program.Await(t, "all calls wait", func() bool {
		_, body, err := visit("http://"+h.replicas[0].admin+"/v1/approvals?state=proposed&limit=500", "boss")
		return err == nil && json.Unmarshal([]byte(body), &list) == nil && len(list.Approvals) == len(h.all)
	})
	for _, k := range list.Approvals {
		var n int
		if _, err := fmt.Sscanf(k.Arguments.Text, "call-%d.", &n); err != nil {
			t.Fatal(err)
		}
		w := &h.all[n-h.first]
		w.sent = time.Now()
		status, text := send(t.Context(), "http://"+h.replicas[(n+1)%3].admin+"/v1/approvals/"+k.ID+"/approve", "boss", fmt.Sprintf(`{"digest": %q}`, k.Digest))
		if w.answered = time.Now(); status != http.StatusOK {
			t.Fatalf("deciding on call %d: %d %s", n, status, text)
		}
	}
	h.work.Wait()
	return h.all
}

// waits lets n callers wait in one process for decisions of another, without what they do then.
func waits(t *testing.T, n int) []woken {
	t.Helper()
	address, secrets := postgres.Database(t), filepath.Join(t.TempDir(), "keys")
	here, there := openTickets(t, openDatabase(t, address), secrets), openTickets(t, openDatabase(t, address), secrets)
	all, claims := make([]woken, n), make([]approval.Claim, n)
	for i := range all {
		claim, err := here.Claim(t.Context(), heldCall(fmt.Sprintf(`{"n":%d}`, i)))
		if claims[i] = claim; err != nil {
			t.Fatal(err)
		}
	}
	var work sync.WaitGroup
	defer work.Wait()
	for i := range all {
		work.Go(func() {
			if err := there.Wait(t.Context(), claims[i].Ticket.ID); err != nil {
				t.Error(err)
			}
			all[i].heard = time.Now()
		})
	}
	for i := range all { // all wait after that
		if _, err := there.Get(t.Context(), claims[i].Ticket.ID); err != nil {
			t.Fatal(err)
		}
	}
	for i := range all {
		all[i].sent = time.Now()
		if _, err := here.Decide(t.Context(), approval.Vote{ID: claims[i].Ticket.ID, Approver: policy.Principal{Subject: "bo", Roles: []string{"boss"}}, Approve: true}); err != nil {
			t.Fatal(err)
		}
		all[i].answered = time.Now()
	}
	work.Wait()
	return all
}

// printWakes prints the median and the highest of two times of held calls.
func printWakes(what string, all []woken) {
	for _, of := range []struct {
		from string
		time func(w woken) time.Duration
	}{
		{"from sending the decision", func(w woken) time.Duration { return w.heard.Sub(w.sent) }},
		{"from the decision's answer", func(w woken) time.Duration { return w.heard.Sub(w.answered) }},
	} {
		var times []time.Duration
		for _, w := range all {
			times = append(times, of.time(w))
		}
		slices.Sort(times)
		fmt.Printf("%s, %d calls, %s to the caller: median %.1f ms, highest %.1f ms\n", what, len(times), of.from,
			float64(times[len(times)/2].Microseconds())/1e3, float64(times[len(times)-1].Microseconds())/1e3)
	}
}

// TestWakes prints how long callers at one replica wait after a decision at another one, for
// docs/evidence/capacity.md. It runs only with TOOLGATE_MEASURE set.
func TestWakes(t *testing.T) {
	if os.Getenv("TOOLGATE_MEASURE") == "" {
		t.Skip("prints figures of docs/evidence/capacity.md (TOOLGATE_MEASURE=1)")
	}
	f := startFleet(t, t.TempDir(), wakeSite())
	const calls = 200
	f.hold(t, 0, 3).decide(t) // each replica has run a call
	var alone []woken
	for n := range calls {
		alone = append(alone, f.hold(t, 3+n, 1).decide(t)...)
	}
	printWakes("one call waits", alone)
	printWakes(fmt.Sprintf("%d calls wait, decided one after the other", calls), f.hold(t, 3+calls, calls).decide(t))
	f.ends(t)
	printWakes("200 callers wait, without what they do then", waits(t, calls))
}
