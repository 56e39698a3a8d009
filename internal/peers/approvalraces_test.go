package peers_test

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/toolgate/toolgate/internal/testkit/parts"
	"github.com/toolgate/toolgate/internal/testkit/program"
	"github.com/toolgate/toolgate/internal/testkit/recorder"
)

// shortOrSoak returns few, or many with TOOLGATE_SOAK=1.
func shortOrSoak(few, many int) int {
	if os.Getenv("TOOLGATE_SOAK") != "" {
		return many
	}
	return few
}

// gatePair is two toolgates with one state directory, and the server behind both.
type gatePair struct {
	rec   *recorder.Recorder
	gates [2]*gate
	doors [2]*rawHTTP
}

// startPair starts them with one held tool, rec__pay.
func startPair(t *testing.T, s setup, pay recorder.Tool) gatePair {
	t.Helper()
	return startPairWith(t, s, pay, shared())
}

// startPairWith is startPair with settings of the server.
func startPairWith(t *testing.T, s setup, pay recorder.Tool, settings map[string]any) gatePair {
	t.Helper()
	pay.Name = "pay"
	p := gatePair{rec: recorder.HTTP(t, recorder.Config{Tools: []recorder.Tool{pay}})}
	s.servers = []server{httpOf("rec", p.rec, settings)}
	if s.policy == "" {
		s.policy = holdAll
	}
	dir := configure(t, s)
	for i := range p.gates {
		p.gates[i] = serveReady(t, dir)
		p.doors[i] = openHTTP(t, p.gates[i].Agents+"/mcp", agentToken)
	}
	return p
}

// runTogether starts functions at the same moment and waits for all of them.
func runTogether(do ...func()) {
	var all sync.WaitGroup
	start := make(chan struct{})
	for _, one := range do {
		all.Go(func() {
			<-start
			one()
		})
	}
	close(start)
	all.Wait()
}

// TestTwoApprovers: carol and dave vote on one ticket at the same moment, each at
// another toolgate. One vote counts and decides the call; the other gets
// NOT_PENDING.
func TestTwoApprovers(t *testing.T) {
	t.Parallel()
	parts.Long(t, "starts whole programs")
	p := startPair(t, setup{}, recorder.Tool{})
	won := map[string]int{}
	for n := range shortOrSoak(20, 400) {
		args := fmt.Sprintf(`{"n":%d}`, n)
		id := holdCall(t, p.doors[n%2], "rec__pay", args)
		against := []string{"approve", "deny"}[n%2]
		actions := [2]string{"approve", against}
		var got [2]verdict
		var errs [2]error
		vote := func(i int) func() {
			return func() {
				who := approver{p.gates[i].Admin, []string{approverToken, daveToken}[i]}
				got[i], errs[i] = who.vote(t.Context(), id, actions[i], `{"reason":"first"}`)
			}
		}
		runTogether(vote(0), vote(1))
		winner := 0
		if got[1].code == "" {
			winner = 1
		}
		if errs[0] != nil || errs[1] != nil || got[winner].status != http.StatusOK || got[1-winner].code != "NOT_PENDING" {
			t.Fatalf("%s: carol %+v, %v; dave %+v, %v", args, got[0], errs[0], got[1], errs[1])
		}
		want, runs := "done", 1
		if actions[winner] == "deny" {
			want, runs = "APPROVAL_DENIED", 0
		}
		won[fmt.Sprint(winner, " ", actions[winner])]++
		if got := outcome(t, p.doors[1-n%2].exchange(t, callMessage("1", "rec__pay", args))); got != want {
			t.Errorf("%s after %s: %s", args, actions[winner], got)
		}
		if k := p.gates[0].carol().ticket(t, id); len(k.Votes) != 1 || k.DecidedBy != []string{"carol", "dave"}[winner] {
			t.Errorf("%s has the votes %+v, decided by %s", args, k.Votes, k.DecidedBy)
		}
		wantRuns(t, p.rec, args, runs)
	}
	t.Logf("winner and vote: %v", won)
}

// sleepUntil waits until a point in time: these tests are about deadlines.
func sleepUntil(t testing.TB, when time.Time) {
	t.Helper()
	select {
	case <-time.After(time.Until(when)):
	case <-t.Context().Done():
	}
}

// call makes the call with these arguments at toolgate n%2.
func (p gatePair) call(t testing.TB, n int, args string) ([]byte, error) {
	a := <-startCall(t, p.doors[n%2], "rec__pay", args)
	return a.text, a.err
}

// startHeld makes a call and returns its ticket as soon as it exists.
func startHeld(t testing.TB, p gatePair, n int, args string) (<-chan answer, ticketView) {
	t.Helper()
	done := startCall(t, p.doors[n%2], "rec__pay", args)
	return done, p.gates[0].carol().awaitTicket(t, args)
}

// TestApprovalAgainstExpiry: votes around the moment at which a ticket expires, each
// with an identical call at the same time at the other toolgate, and one call after
// it. After a vote that counts the call runs at most once; after a rejected vote it
// never runs.
func TestApprovalAgainstExpiry(t *testing.T) {
	t.Parallel()
	parts.Long(t, "starts whole programs")
	p := startPair(t, setup{ttl: "4s"}, recorder.Tool{})
	// The store compares nanoseconds; a vote takes some milliseconds to arrive.
	offsets := []time.Duration{-2 * time.Second}
	for n := range shortOrSoak(24, 60) {
		offsets = append(offsets, time.Duration(n-shortOrSoak(20, 50))*time.Millisecond)
	}
	offsets = append(offsets, 300*time.Millisecond)
	verdicts, ends := make([]verdict, len(offsets)), make([][2][]byte, len(offsets))
	var all sync.WaitGroup
	for n, offset := range offsets {
		args := fmt.Sprintf(`{"n":%d}`, n)
		id := holdCall(t, p.doors[n%2], "rec__pay", args)
		carol := approver{p.gates[1-n%2].Admin, approverToken}
		expires := carol.ticket(t, id).Expires
		all.Go(func() {
			sleepUntil(t, expires.Add(offset))
			var errs [3]error
			call := func(i int) { ends[n][i], errs[i] = p.call(t, n, args) }
			runTogether(func() { call(0) }, func() { verdicts[n], errs[2] = carol.vote(t.Context(), id, "approve", `{}`) })
			call(1)
			if err := errors.Join(errs[:]...); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	seen, ran := map[string]int{}, callCounts(p.rec)
	for n, offset := range offsets {
		times, counted, done := ran[fmt.Sprintf(`{"n":%d}`, n)], verdicts[n].status == http.StatusOK, 0
		for _, end := range ends[n] {
			if outcome(t, end) == "done" {
				done++
			}
		}
		seen[fmt.Sprintf("vote %q, %d runs", verdicts[n].code, times)]++
		if !counted && verdicts[n].code != "EXPIRED" || times > 1 || times != done || times == 1 && !counted {
			t.Errorf("vote %v after the expiry: %+v; the call ran %d times, %d answers have its result", offset, verdicts[n], times, done)
		}
	}
	t.Logf("votes and runs: %v", seen)
	if seen[`vote "", 1 runs`] == 0 || seen[`vote "EXPIRED", 0 runs`] == 0 {
		t.Errorf("only one side of the deadline was tested: %v", seen)
	}
}

// TestApprovalWhenTheHoldEnds: votes around the moment at which the hold ends, also
// one millisecond after it. The agent gets the result or a pending answer; in both
// cases the next identical call has the result, and the call runs once.
func TestApprovalWhenTheHoldEnds(t *testing.T) {
	t.Parallel()
	parts.Long(t, "starts whole programs")
	const held = 3 * time.Second
	p := startPair(t, setup{hold: held.String()}, recorder.Tool{})
	offsets := []time.Duration{-2 * time.Second}
	for n := range shortOrSoak(24, 60) {
		offsets = append(offsets, time.Duration(n-shortOrSoak(16, 40))*time.Millisecond)
	}
	offsets = append(offsets, 300*time.Millisecond)
	first, second := make([][]byte, len(offsets)), make([][]byte, len(offsets))
	var all sync.WaitGroup
	for n, offset := range offsets {
		args := fmt.Sprintf(`{"n":%d}`, n)
		done, k := startHeld(t, p, n, args)
		all.Go(func() {
			sleepUntil(t, k.Created.Add(held+offset))
			v, err := (approver{p.gates[1-n%2].Admin, approverToken}).vote(t.Context(), k.ID, "approve", `{}`)
			if err != nil || v.status != http.StatusOK {
				t.Errorf("vote %v after the hold: %+v, %v", offset, v, err)
			}
			first[n] = (<-done).text
			if second[n], err = p.call(t, n, args); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	seen := map[string]int{}
	for n, offset := range offsets {
		args := fmt.Sprintf(`{"n":%d}`, n)
		story := outcome(t, first[n]) + ", " + outcome(t, second[n])
		seen[story]++
		if story != "done, replayed" && story != "pending, done" {
			t.Errorf("vote %v after the hold: %s", offset, story)
		}
		wantRuns(t, p.rec, args, 1)
	}
	t.Logf("first and second call: %v", seen)
	if seen["done, replayed"] == 0 || seen["pending, done"] == 0 {
		t.Errorf("only one side of the deadline was tested: %v", seen)
	}
}

// TestIdenticalCallsAtOnce: a hundred identical calls at once, through two toolgates,
// all held when the approval arrives; and a hundred, of which all but one arrive
// after the approval. One call runs. Every other gets its result, or the status
// running and the result next time.
func TestIdenticalCallsAtOnce(t *testing.T) {
	t.Parallel()
	parts.Long(t, "starts whole programs")
	const crowd = 100
	p := startPair(t, setup{hold: "20s"}, recorder.Tool{Does: recorder.Late, Delay: 300 * time.Millisecond})
	for n := range shortOrSoak(2, 20) {
		for _, waits := range []bool{true, false} {
			args := fmt.Sprintf(`{"n":%d,"waits":%v}`, n, waits)
			p.callTogether(t, args, crowd, waits)
			wantRuns(t, p.rec, args, 1)
			if got := outcome(t, p.doors[0].exchange(t, callMessage("1", "rec__pay", args))); got != "replayed" {
				t.Errorf("%s afterwards: %s", args, got)
			}
			wantRuns(t, p.rec, args, 1)
		}
	}
}

// callTogether makes identical calls at once, all of them before the approval or all
// but one after it, and checks that one runs.
func (p gatePair) callTogether(t *testing.T, args string, calls int, waits bool) {
	t.Helper()
	all := make([]<-chan answer, 1, calls)
	all[0] = startCall(t, p.doors[0], "rec__pay", args)
	carol := p.gates[1].carol()
	k := carol.awaitTicket(t, args)
	if !waits { // the others arrive while the held call runs
		carol.mustVote(t, k.ID, "approve")
	}
	for i := range calls - 1 {
		all = append(all, startCall(t, p.doors[i%2], "rec__pay", args))
	}
	if waits {
		program.Await(t, "every call is attached to the ticket", func() bool { return carol.ticket(t, k.ID).Attached == calls-1 })
		carol.mustVote(t, k.ID, "approve")
	}
	ends := map[string]int{}
	for _, one := range all {
		text := (<-one).mustText(t)
		end := outcome(t, text)
		ends[end]++
		if (end == "done" || end == "replayed") && !bytes.Contains(text, []byte(`"structuredContent":`+args)) {
			t.Errorf("a call got %s", text)
		}
	}
	t.Logf("%s: outcomes %v", args, ends)
	if ends["done"] != 1 || ends["done"]+ends["replayed"]+ends["running"] != calls {
		t.Errorf("%s: outcomes %v", args, ends)
	}
}
