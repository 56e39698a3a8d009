package approval_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/toolgate/toolgate/internal/testkit/parts"
	"github.com/toolgate/toolgate/policy/approval"
)

// The tests below are two processes on one store: this one and another, which
// does what it is told and says what came of it.

// obey is the other process: "claim N" or "vote ID SUBJECT yes|no", a line each.
func obey(ctx context.Context, tickets *approval.Tickets, path string) error {
	fmt.Println("ready")
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		switch words[0] {
		case "claim":
			got, err := contend(ctx, tickets, path, words[1])
			if err != nil {
				return err
			}
			fmt.Println(got)
		case "vote":
			fmt.Println(voteOf(ctx, tickets, words[1], words[2], words[3]))
		}
	}
	return lines.Err()
}

// contenders is how many claims each of the two processes makes at once.
const contenders = 32

// contend makes one call many times at once. Who gets the grant writes a line
// into a file, as an upstream that counts would, and ends the run.
func contend(ctx context.Context, tickets *approval.Tickets, path, n string) (outcomes, error) {
	sent, err := os.OpenFile(path+".sent", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer sent.Close()
	held := transfer(`{"n":` + n + `}`)
	var mu sync.Mutex
	got := outcomes{}
	var failed error
	together(contenders, func(int) {
		c, err := tickets.Claim(ctx, held)
		if err == nil && c.Outcome == approval.Granted {
			if _, err = fmt.Fprintln(sent, held.Digest); err == nil {
				err = tickets.Finish(ctx, c.Ticket.ID, approval.StateDone, []byte(answer), "")
			}
		}
		mu.Lock()
		defer mu.Unlock()
		got[c.Outcome]++
		failed = errors.Join(failed, err)
	})
	return got, failed
}

// outcomes counts what claims got.
type outcomes map[approval.ClaimOutcome]int

func (o outcomes) String() string {
	return fmt.Sprintf("granted=%d in_flight=%d replay=%d", o[approval.Granted], o[approval.InFlight], o[approval.Replay])
}

func (o outcomes) add(t *testing.T, text string) {
	t.Helper()
	var granted, inFlight, replay int
	if _, err := fmt.Sscanf(text, "granted=%d in_flight=%d replay=%d", &granted, &inFlight, &replay); err != nil {
		t.Fatalf("the other process said %q: %v", text, err)
	}
	o[approval.Granted] += granted
	o[approval.InFlight] += inFlight
	o[approval.Replay] += replay
}

// voteOf gives "ok", or the refusal.
func voteOf(ctx context.Context, tickets *approval.Tickets, id, subject, yes string) string {
	_, err := tickets.Decide(ctx, approval.Vote{ID: id, Approver: person(subject, "approver"), Approve: yes == "yes", Reason: "because"})
	switch {
	case err == nil:
		return "ok"
	case errors.Is(err, approval.ErrNotPending):
		return "not pending"
	}
	return err.Error()
}

// ends lets the other process end by itself.
func (p process) ends(t *testing.T) {
	t.Helper()
	if err := p.in.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		t.Fatal(err)
	}
	if err := p.Wait(); err != nil {
		t.Errorf("the other process: %v", err)
	}
}

func (p process) say(t *testing.T, format string, a ...any) {
	t.Helper()
	if _, err := fmt.Fprintf(p.in, format+"\n", a...); err != nil {
		t.Fatal(err)
	}
}

// rounds is how often a race is run: the whole number in the soak.
func rounds(whole int) int {
	switch {
	case os.Getenv("TOOLGATE_SOAK") != "":
		return whole
	case testing.Short():
		return whole / 50
	}
	return whole / 25
}

// Two processes and 64 contenders for each of a thousand grants: a thousand runs.
func TestOneGrantOverTwoProcesses(t *testing.T) {
	parts.Long(t, "races processes")
	w := newWorld(t)
	p := start(t, "obey", w.path)
	defer p.ends(t)
	want := map[string]int{}
	all := outcomes{}
	began := time.Now()
	n := rounds(1000)
	for round := range n {
		held := transfer(fmt.Sprintf(`{"n":%d}`, round))
		want[held.Digest] = 1
		k := w.claim(held, approval.Pending)
		w.approve(k.ID, ann)
		p.say(t, "claim %d", round)
		got, err := contend(t.Context(), w.Tickets, w.path, fmt.Sprint(round))
		if err != nil {
			t.Fatal(err)
		}
		got.add(t, p.lines(t, 1))
		if got[approval.Granted] != 1 || got[approval.Granted]+got[approval.InFlight]+got[approval.Replay] != 2*contenders {
			t.Fatalf("round %d: %v", round, got)
		}
		for o, n := range got {
			all[o] += n
		}
	}
	for digest, n := range sentCalls(t, w.path) {
		if want[digest] != n {
			t.Errorf("a call was sent %d times", n)
		}
		delete(want, digest)
	}
	if len(want) != 0 {
		t.Errorf("%d calls were not sent", len(want))
	}
	t.Logf("%d rounds in %v: %v", n, time.Since(began).Round(time.Millisecond), all)
}

// sentCalls counts the lines of the counting upstream by the digest of the call.
func sentCalls(t *testing.T, path string) map[string]int {
	t.Helper()
	text, err := os.ReadFile(path + ".sent")
	if err != nil {
		t.Fatal(err)
	}
	sent := map[string]int{}
	for line := range strings.Lines(string(text)) {
		sent[strings.TrimSpace(line)]++
	}
	return sent
}

// Votes of two people in two processes at the same moment: one counts where one
// is enough or where they differ, both where two are needed.
func TestVotesOverTwoProcesses(t *testing.T) {
	w := newWorld(t)
	p := start(t, "obey", w.path)
	defer p.ends(t)
	seen := map[string]int{}
	for round := range rounds(300) {
		held := transfer(fmt.Sprintf(`{"n":%d}`, round))
		held.Approval.Quorum = 1 + round%2
		theirs := []string{"yes", "yes", "no"}[round%3]
		k := w.claim(held, approval.Pending)
		p.say(t, "vote %s bob %s", k.ID, theirs)
		ours := voteOf(t.Context(), w.Tickets, k.ID, "ann", "yes")
		theirWord := p.lines(t, 1)
		got := w.get(k.ID)
		counted := 0
		for _, word := range []string{ours, theirWord} {
			if word == "ok" {
				counted++
			} else if word != "not pending" {
				t.Fatalf("round %d: %s", round, word)
			}
		}
		want := approval.StateApproved
		if theirs == "no" && (held.Approval.Quorum == 2 || theirWord == "ok") {
			want = approval.StateDenied
		}
		if got.State != want || counted != len(got.Votes) || counted == 0 || held.Approval.Quorum == 2 && theirs == "yes" && counted != 2 {
			t.Fatalf("round %d, quorum %d: ours %q, theirs (%s) %q: %s with %d votes", round, held.Approval.Quorum, ours, theirs, theirWord, got.State, len(got.Votes))
		}
		seen[fmt.Sprintf("quorum %d, %s, ours %s, theirs %s", held.Approval.Quorum, theirs, ours, theirWord)]++
	}
	t.Logf("%v", seen)
}
