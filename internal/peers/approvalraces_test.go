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

	"github.com/toolgate/toolgate/internal/testkit/program"
	"github.com/toolgate/toolgate/internal/testkit/recorder"
)

// rounds is how often a race is run: few times, or many in the long form.
func rounds(few, many int) int {
	if os.Getenv("TOOLGATE_SOAK") != "" {
		return many
	}
	return few
}

// pair is two toolgates on one state, and the server behind both.
type pair struct {
	rec   *recorder.Recorder
	gates [2]*gate
	doors [2]*httpDoor
}

// paired starts them with one held tool, rec__pay.
func paired(t *testing.T, s setup, pay recorder.Tool) pair {
	t.Helper()
	return pairedWith(t, s, pay, shared())
}

// pairedWith is paired with settings of the server.
func pairedWith(t *testing.T, s setup, pay recorder.Tool, settings map[string]any) pair {
	t.Helper()
	pay.Name = "pay"
	p := pair{rec: recorder.HTTP(t, recorder.Config{Tools: []recorder.Tool{pay}})}
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

// together does things at the same moment, and waits for all of them.
func together(do ...func()) {
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

// TestTwoApprovers: carol and dave decide on one ticket at the same moment, each
// at a toolgate of their own. One of the two counts, the other is told that it
// came too late, and the call runs as often as the one says.
func TestTwoApprovers(t *testing.T) {
	t.Parallel()
	p := paired(t, setup{}, recorder.Tool{})
	won := map[string]int{}
	for n := range rounds(20, 400) {
		args := fmt.Sprintf(`{"n":%d}`, n)
		id := hold(t, p.doors[n%2], "rec__pay", args)
		against := []string{"approve", "deny"}[n%2]
		actions := [2]string{"approve", against}
		var got [2]verdict
		var errs [2]error
		vote := func(i int) func() {
			return func() {
				who := desk{p.gates[i].Admin, []string{approverToken, daveToken}[i]}
				got[i], errs[i] = who.vote(t.Context(), id, actions[i], `{"reason":"first"}`)
			}
		}
		together(vote(0), vote(1))
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
		if got := came(t, p.doors[1-n%2].exchange(t, callMessage("1", "rec__pay", args))); got != want {
			t.Errorf("%s after %s: %s", args, actions[winner], got)
		}
		if k := p.gates[0].desk().ticket(t, id); len(k.Votes) != 1 || k.DecidedBy != []string{"carol", "dave"}[winner] {
			t.Errorf("%s has the votes %+v, decided by %s", args, k.Votes, k.DecidedBy)
		}
		wantRuns(t, p.rec, args, runs)
	}
	t.Logf("who won with what: %v", won)
}

// at waits for a moment. These tests are about moments: what they wait for is
// the time itself.
func at(t testing.TB, when time.Time) {
	t.Helper()
	select {
	case <-time.After(time.Until(when)):
	case <-t.Context().Done():
	}
}

// call makes the call with these arguments at the toolgate of a number's turn.
func (p pair) call(t testing.TB, n int, args string) ([]byte, error) {
	a := <-begin(t, p.doors[n%2], "rec__pay", args)
	return a.text, a.err
}

// begunWith makes a call and gives its ticket as soon as there is one.
func begunWith(t testing.TB, p pair, n int, args string) (<-chan answer, shown) {
	t.Helper()
	done := begin(t, p.doors[n%2], "rec__pay", args)
	return done, p.gates[0].desk().asked(t, args)
}

// TestApprovalAgainstExpiry: votes around the moment at which a ticket expires,
// each with an identical call at the same time at the other toolgate, and one
// more after it. A vote that counts lets the call run at most once; after one
// that does not it never runs.
func TestApprovalAgainstExpiry(t *testing.T) {
	t.Parallel()
	p := paired(t, setup{ttl: "4s"}, recorder.Tool{})
	// The store knows the moment to the nanosecond; a vote takes some
	// milliseconds to get there.
	offsets := []time.Duration{-2 * time.Second}
	for n := range rounds(24, 60) {
		offsets = append(offsets, time.Duration(n-rounds(20, 50))*time.Millisecond)
	}
	offsets = append(offsets, 300*time.Millisecond)
	verdicts, ends := make([]verdict, len(offsets)), make([][2][]byte, len(offsets))
	var all sync.WaitGroup
	for n, offset := range offsets {
		args := fmt.Sprintf(`{"n":%d}`, n)
		id := hold(t, p.doors[n%2], "rec__pay", args)
		carol := desk{p.gates[1-n%2].Admin, approverToken}
		expires := carol.ticket(t, id).Expires
		all.Go(func() {
			at(t, expires.Add(offset))
			var errs [3]error
			call := func(i int) { ends[n][i], errs[i] = p.call(t, n, args) }
			together(func() { call(0) }, func() { verdicts[n], errs[2] = carol.vote(t.Context(), id, "approve", `{}`) })
			call(1)
			if err := errors.Join(errs[:]...); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	seen, ran := map[string]int{}, runs(p.rec)
	for n, offset := range offsets {
		times, counted, done := ran[fmt.Sprintf(`{"n":%d}`, n)], verdicts[n].status == http.StatusOK, 0
		for _, end := range ends[n] {
			if came(t, end) == "done" {
				done++
			}
		}
		seen[fmt.Sprintf("vote %q, %d runs", verdicts[n].code, times)]++
		if !counted && verdicts[n].code != "EXPIRED" || times > 1 || times != done || times == 1 && !counted {
			t.Errorf("a vote %v after the expiry: %+v; it ran %d times, %d calls say so", offset, verdicts[n], times, done)
		}
	}
	t.Logf("what was seen: %v", seen)
	if seen[`vote "", 1 runs`] == 0 || seen[`vote "EXPIRED", 0 runs`] == 0 {
		t.Errorf("one side of the moment was never seen: %v", seen)
	}
}

// TestApprovalWhenTheHoldEnds: votes around the moment at which the call gives
// up waiting, one millisecond after it among them. The agent gets the result or
// is told to ask again; either way the next identical call has the result, and
// the call ran once.
func TestApprovalWhenTheHoldEnds(t *testing.T) {
	t.Parallel()
	const held = 3 * time.Second
	p := paired(t, setup{hold: held.String()}, recorder.Tool{})
	offsets := []time.Duration{-2 * time.Second}
	for n := range rounds(24, 60) {
		offsets = append(offsets, time.Duration(n-rounds(16, 40))*time.Millisecond)
	}
	offsets = append(offsets, 300*time.Millisecond)
	first, second := make([][]byte, len(offsets)), make([][]byte, len(offsets))
	var all sync.WaitGroup
	for n, offset := range offsets {
		args := fmt.Sprintf(`{"n":%d}`, n)
		done, k := begunWith(t, p, n, args)
		all.Go(func() {
			at(t, k.Created.Add(held+offset))
			v, err := (desk{p.gates[1-n%2].Admin, approverToken}).vote(t.Context(), k.ID, "approve", `{}`)
			if err != nil || v.status != http.StatusOK {
				t.Errorf("a vote %v after the hold: %+v, %v", offset, v, err)
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
		story := came(t, first[n]) + ", " + came(t, second[n])
		seen[story]++
		if story != "done, replayed" && story != "pending, done" {
			t.Errorf("a vote %v after the hold: %s", offset, story)
		}
		wantRuns(t, p.rec, args, 1)
	}
	t.Logf("first and second call: %v", seen)
	if seen["done, replayed"] == 0 || seen["pending, done"] == 0 {
		t.Errorf("one side of the moment was never seen: %v", seen)
	}
}

// TestIdenticalCallsAtOnce: a hundred identical calls at once, through two
// toolgates, of which all wait when the approval comes, and a hundred more that
// come after one. Exactly one is made; every other gets its result, or hears
// that it is being made and gets the result next time.
func TestIdenticalCallsAtOnce(t *testing.T) {
	t.Parallel()
	const crowd = 100
	p := paired(t, setup{hold: "20s"}, recorder.Tool{Does: recorder.Late, Delay: 300 * time.Millisecond})
	for n := range rounds(2, 20) {
		for _, waits := range []bool{true, false} {
			args := fmt.Sprintf(`{"n":%d,"waits":%v}`, n, waits)
			p.crowd(t, args, crowd, waits)
			wantRuns(t, p.rec, args, 1)
			if got := came(t, p.doors[0].exchange(t, callMessage("1", "rec__pay", args))); got != "replayed" {
				t.Errorf("%s afterwards: %s", args, got)
			}
			wantRuns(t, p.rec, args, 1)
		}
	}
}

// crowd makes so many identical calls at once, all of them before the approval
// or all but one after it, and wants one to be made.
func (p pair) crowd(t *testing.T, args string, calls int, waits bool) {
	t.Helper()
	all := make([]<-chan answer, 1, calls)
	all[0] = begin(t, p.doors[0], "rec__pay", args)
	carol := p.gates[1].desk()
	k := carol.asked(t, args)
	if !waits { // the others come while the one that waited is being made
		carol.must(t, k.ID, "approve")
	}
	for i := range calls - 1 {
		all = append(all, begin(t, p.doors[i%2], "rec__pay", args))
	}
	if waits {
		program.Await(t, "every call has found the ticket", func() bool { return carol.ticket(t, k.ID).Attached == calls-1 })
		carol.must(t, k.ID, "approve")
	}
	ends := map[string]int{}
	for _, one := range all {
		text := (<-one).want(t)
		end := came(t, text)
		ends[end]++
		if (end == "done" || end == "replayed") && !bytes.Contains(text, []byte(`"structuredContent":`+args)) {
			t.Errorf("a call got %s", text)
		}
	}
	t.Logf("%s came to %v", args, ends)
	if ends["done"] != 1 || ends["done"]+ends["replayed"]+ends["running"] != calls {
		t.Errorf("%s came to %v", args, ends)
	}
}
