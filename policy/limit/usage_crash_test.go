package limit_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/toolgate/toolgate/internal/testkit/postgres"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/limit"
)

// The tests below start this binary again as a second process on one store.
const stateVar = "USAGE_TEST_STATE"

func TestMain(m *testing.M) {
	if path := os.Getenv(stateVar); path != "" {
		if err := spender(path); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

const callers = 32 // in each process

// spender says "ready", waits for a line, has all its callers spend at once, says
// how many passed, and waits for its end.
func spender(path string) error {
	ctx := context.Background()
	db, err := postgres.State(ctx, path)
	if err != nil {
		return err
	}
	defer db.Close()
	u := limit.NewUsage(db, func() time.Time { return noon })
	lines := bufio.NewScanner(os.Stdin)
	fmt.Println("ready")
	for lines.Scan() {
		passed, err := spendTogether(ctx, u)
		if err != nil {
			return err
		}
		fmt.Println(passed)
	}
	return lines.Err()
}

// spendUpTo makes one call of hundred as the road does: judged by what was read,
// and again by what stands when it is counted.
func spendUpTo(ctx context.Context, u *limit.Usage, most float64) error {
	passes := func(stands map[string]policy.Reading) bool {
		sum, err := stands["day"].Sum.Float64()
		return err == nil && sum+100 <= most
	}
	use, err := limit.Measure(who("ann"), "wallet", "sha256:"+hundred, json.RawMessage(hundred), spending)
	if err != nil {
		return err
	}
	judged, err := u.Read(ctx, use)
	if err != nil {
		return err
	}
	if !passes(judged) {
		return limit.ErrRefused
	}
	_, err = u.Reserve(ctx, use, judged, passes)
	return err
}

func spendTogether(ctx context.Context, u *limit.Usage) (passed int, failed error) {
	var mu sync.Mutex // protects what is returned
	var all sync.WaitGroup
	for range callers {
		all.Go(func() {
			err := spendUpTo(ctx, u, 1000)
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				passed++
			} else if !errors.Is(err, limit.ErrRefused) {
				failed = errors.Join(failed, err)
			}
		})
	}
	all.Wait()
	return passed, failed
}

// Sixty-four callers in two processes never pass the window, and what a process has
// counted when it is killed stays counted.
func TestUsageOverTwoProcesses(t *testing.T) {
	c := newCounter(t)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), exe)
	cmd.Env = append(os.Environ(), stateVar+"="+c.path)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	said := bufio.NewReader(out)
	hears := func() string {
		line, err := said.ReadString('\n')
		if err != nil {
			t.Fatalf("the other process said no more: %v", err)
		}
		return strings.TrimSpace(line)
	}
	hears()
	if _, err := fmt.Fprintln(in, "go"); err != nil {
		t.Fatal(err)
	}
	ours, err := spendTogether(t.Context(), c.Usage)
	if err != nil {
		t.Fatal(err)
	}
	var theirs int
	if _, err := fmt.Sscan(hears(), &theirs); err != nil {
		t.Fatal(err)
	}
	if ours+theirs != 10 {
		t.Errorf("%d and %d calls of 100 passed a window of 1000", ours, theirs)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it was killed
	c.wants(hundred, "{day:{10,1000},hour:{10,0}}")
	t.Logf("%d here, %d there", ours, theirs)
}
