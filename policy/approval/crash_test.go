package approval_test

import (
	"bufio"
	"context"
	"database/sql"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/toolgate/toolgate/internal/keys"
	"github.com/toolgate/toolgate/internal/testkit/parts"
	"github.com/toolgate/toolgate/internal/testkit/postgres"
	"github.com/toolgate/toolgate/policy/approval"
)

// The tests below start this binary again as the process that dies.
const (
	roleVar  = "APPROVAL_TEST_ROLE"
	stateVar = "APPROVAL_TEST_STATE"
)

func TestMain(m *testing.M) {
	if role := os.Getenv(roleVar); role != "" {
		if err := act(role, os.Getenv(stateVar)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	// A default, so that -rapid.checks still says how many histories are tried.
	if err := flag.Set("rapid.checks", "25"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

// act is the life of the other process; it says on stdout how far it is.
func act(role, path string) error {
	ctx := context.Background()
	db, err := postgres.State(ctx, path)
	if err != nil {
		return err
	}
	defer db.Close()
	dir, err := keys.Open(filepath.Join(filepath.Dir(path), "keys"))
	if err != nil {
		return err
	}
	told, err := os.OpenFile(path+".told", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer told.Close()
	tickets, err := approval.New(ctx, db, approval.Options{
		Dir: filepath.Join(filepath.Dir(path), "instances"), Keys: dir, Now: func() time.Time { return noon },
		Changed: func(_ context.Context, _ *sql.Tx, t approval.Ticket, c approval.Change) error {
			if role == "freeze" {
				fmt.Println("changing")
				_, _ = io.Copy(io.Discard, os.Stdin) // until the parent, which stops this process meanwhile, lets go
			}
			_, err := fmt.Fprintf(told, "%d %s %s %s\n", c.Seq, t.ID, c.From, c.To)
			return err
		},
	})
	if err != nil {
		return err
	}
	defer tickets.Close()
	switch role {
	case "claim":
		c, err := tickets.Claim(ctx, transfer(hundred))
		if err != nil {
			return err
		}
		fmt.Println(c.Outcome)
		_, err = io.Copy(io.Discard, os.Stdin) // until the parent kills or lets go
		return err
	case "freeze":
		c, err := tickets.Claim(ctx, transfer(hundred))
		fmt.Println(c.Outcome)
		fmt.Fprintln(os.Stderr, err)
		return nil
	case "work":
		return work(ctx, tickets, path)
	case "obey":
		return obey(ctx, tickets, path)
	}
	return fmt.Errorf("no role %q", role)
}

// work makes, approves, sends and finishes one call after the other, with a
// word after each step. Sending is a line in a file, as an upstream that counts
// would write it.
func work(ctx context.Context, tickets *approval.Tickets, path string) error {
	sent, err := os.OpenFile(path+".sent", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer sent.Close()
	fmt.Println("working")
	for i := 0; ; i++ {
		held := transfer(fmt.Sprintf(`{"pid":%d,"n":%d}`, os.Getpid(), i))
		c, err := tickets.Claim(ctx, held)
		if err != nil {
			return err
		}
		fmt.Println("asked")
		if _, err := tickets.Decide(ctx, approval.Vote{ID: c.Ticket.ID, Approver: ann, Approve: true}); err != nil {
			return err
		}
		fmt.Println("approved")
		if c, err = tickets.Claim(ctx, held); err != nil || c.Outcome != approval.Granted {
			return fmt.Errorf("outcome %q: %w", c.Outcome, err)
		}
		fmt.Println("granted")
		if _, err := fmt.Fprintln(sent, held.Digest); err != nil {
			return err
		}
		fmt.Println("sent")
		if err := tickets.Finish(ctx, c.Ticket.ID, approval.StateDone, []byte(answer), ""); err != nil {
			return err
		}
	}
}

// process is the other process; its stdin stays open until it ends.
type process struct {
	*exec.Cmd
	path  string // of the store
	in    io.WriteCloser
	out   *bufio.Reader
	first string
}

// lines reads n lines of what the process says.
func (p process) lines(t *testing.T, n int) (last string) {
	t.Helper()
	for range n {
		line, err := p.out.ReadString('\n')
		if err != nil {
			t.Fatalf("the other process said no more: %v", err)
		}
		last = strings.TrimSpace(line)
	}
	return last
}

// start starts the other process and waits for its first line.
func start(t *testing.T, role, path string) process {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.CommandContext(t.Context(), exe)
	c.Env = append(os.Environ(), roleVar+"="+role, stateVar+"="+path)
	c.Stderr = os.Stderr
	stdin, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	p := process{Cmd: c, path: path, in: stdin, out: bufio.NewReader(stdout)}
	p.first = p.lines(t, 1)
	return p
}

// kill ends the process as kill -9 does. On a server, its lease has run out then.
func (p process) kill(t *testing.T) {
	t.Helper()
	if err := p.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := p.Wait(); err == nil || p.ProcessState.ExitCode() >= 0 {
		t.Fatalf("the other process ended by itself: %v", p.ProcessState)
	}
	if postgres.Used() {
		if _, err := openStore(t, p.path).Write.Exec("DELETE FROM instances WHERE who LIKE ?", fmt.Sprintf("process %d on %%", p.Process.Pid)); err != nil {
			t.Fatal(err)
		}
	}
}

func TestReopen(t *testing.T) {
	w := newWorld(t)
	pending := w.claim(transfer(`{"n":1}`), approval.Pending)
	approved := w.claim(transfer(`{"n":2}`), approval.Pending)
	w.approve(approved.ID, ann)
	ran := w.claim(transfer(`{"n":3}`), approval.Pending)
	w.approve(ran.ID, ann)
	w.claim(transfer(`{"n":3}`), approval.Granted)
	w.finish(ran.ID, approval.StateDone, answer, "")

	after := w.open(approval.Options{})
	if k := claimOn(t, after, transfer(`{"n":1}`), approval.Pending); k.ID != pending.ID || !k.Expires.Equal(pending.Expires) {
		t.Errorf("the pending ticket came back as %+v", k)
	}
	claimOn(t, after, transfer(`{"n":2}`), approval.Granted)
	claimOn(t, after, transfer(`{"n":3}`), approval.Replay)
}

func TestCloseLeavesTheRunUnknown(t *testing.T) {
	w := newWorld(t)
	gone, err := openTickets(t, w.path, approval.Options{Now: w.clock})
	if err != nil {
		t.Fatal(err)
	}
	k := claimOn(t, gone, transfer(hundred), approval.Pending)
	w.approve(k.ID, ann)
	claimOn(t, gone, transfer(hundred), approval.Granted)
	w.claim(transfer(hundred), approval.InFlight)
	if err := gone.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := gone.Claim(t.Context(), transfer(hundred)); err == nil {
		t.Error("closed tickets took a claim")
	}
	w.claim(transfer(hundred), approval.Unknown)
}

func TestKillBetweenGrantAndOutcome(t *testing.T) {
	w := newWorld(t)
	k := w.claim(transfer(hundred), approval.Pending)
	w.approve(k.ID, ann)
	p := start(t, "claim", w.path)
	if p.first != string(approval.Granted) {
		t.Fatalf("the other process got %q", p.first)
	}
	w.claim(transfer(hundred), approval.InFlight)
	w.open(approval.Options{}) // a third process that starts while the second lives leaves its run alone
	w.claim(transfer(hundred), approval.InFlight)
	p.kill(t)
	t.Run("at the next start", func(t *testing.T) {
		w.open(approval.Options{})
		w.wantState(k.ID, approval.StateUnknown)
	})
	w.claim(transfer(hundred), approval.Unknown)
	if postgres.Used() {
		return // leases are not files
	}
	if locks, _ := filepath.Glob(filepath.Join(filepath.Dir(w.path), "instances", "*.lock")); len(locks) != 3 {
		t.Errorf("locks %v, want those of the three that live", locks)
	}
}

// A living process learns of the death at the next identical call.
func TestKillSeenWithoutARestart(t *testing.T) {
	w := newWorld(t)
	k := w.claim(transfer(hundred), approval.Pending)
	w.approve(k.ID, ann)
	p := start(t, "claim", w.path)
	p.kill(t)
	w.claim(transfer(hundred), approval.Unknown)
}

// Wherever the process is killed, what was sent was granted once, what is
// approved was not sent, what is done was, and what happened was told before.
func TestKillAnywhere(t *testing.T) {
	parts.Long(t, "kills processes")
	w := newWorld(t)
	kills := 12
	if testing.Short() {
		kills = 3
	}
	for i := range kills {
		p := start(t, "work", w.path)
		p.lines(t, 1+11*i) // it goes on meanwhile, and so dies anywhere
		p.kill(t)
	}
	tickets, err := w.open(approval.Options{}).List(t.Context(), approval.Filter{Limit: 1000})
	if err != nil {
		t.Fatal(err)
	}
	sent := sentCalls(t, w.path)
	seen := map[approval.State]int{}
	for _, k := range tickets {
		seen[k.State]++
		n := sent[k.Digest]
		ok := map[approval.State]bool{
			approval.StateProposed: n == 0, approval.StateApproved: n == 0, approval.StateDone: n == 1, approval.StateUnknown: n <= 1,
		}[k.State]
		if !ok {
			t.Errorf("ticket %s is %s and was sent %d times", k.ID, k.State, n)
		}
	}
	if seen[approval.StateDone] == 0 {
		t.Error("no run was seen whole")
	}
	told := kept(t, w.path+".told")
	n := 0
	for e, err := range w.Follow(t.Context(), 0) {
		if err != nil {
			t.Fatal(err)
		}
		if n++; e.Change.To != approval.StateUnknown && !told[fmt.Sprintf("%d %s %s %s", e.Seq, e.Ticket.ID, e.Change.From, e.Change.To)] {
			t.Errorf("nobody was told of %+v", e.Change)
		}
		if e.Ticket.ID == tickets[0].ID && e.Change.To == tickets[0].State {
			break // the newest ticket has come to where it is
		}
	}
	t.Logf("states after %d kills: %v, %d changes", kills, seen, n)
}

// kept is the set of lines of a file.
func kept(t *testing.T, path string) map[string]bool {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lines := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		lines[strings.TrimSpace(line)] = true
	}
	return lines
}
