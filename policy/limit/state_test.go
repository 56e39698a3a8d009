package limit_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/limit"
)

// States lists what is used of buckets, by whom and of what, and nothing of full ones. To look at a
// bucket spends nothing and does not keep it.
func TestStates(t *testing.T) {
	fallback := rate("10/10m")
	l := limit.New(limit.Rules{Default: &fallback, Rules: []limit.Rule{{Tool: "pay", Role: "agent", Rate: rate("4/1h")}}})
	passes(t, l, start, 2, who("ann", "agent"), tool("s", "pay"))
	passes(t, l, start, 1, who("bob"), tool("s", "read"))
	if e := l.Spend(start, who("bob"), tool("s", "read"), &policy.Limit{Rate: "2/1h", Key: "reads"}); e != nil {
		t.Fatal(e)
	}
	states := func(at time.Time) (lines []string) {
		for _, s := range l.States(at) {
			lines = append(lines, fmt.Sprintf("%s (%s) of %s: %.1f of %s, %v", s.Rule, s.Tool, s.Subject, s.Left, s.Rate, s.Shared))
		}
		slices.Sort(lines)
		return lines
	}
	want := []string{"default () of bob: 8.0 of 10/10m, false", "policy reads () of bob: 1.0 of 2/1h, false", "tool=pay role=agent (pay) of ann: 2.0 of 4/1h, false"}
	for range 2 {
		if diff := cmp.Diff(want, states(start)); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
	want = []string{"policy reads () of bob: 1.5 of 2/1h, false", "tool=pay role=agent (pay) of ann: 3.0 of 4/1h, false"}
	if diff := cmp.Diff(want, states(start.Add(15*time.Minute))); diff != "" {
		t.Errorf("a quarter of an hour later (-want +got):\n%s", diff)
	}
	passes(t, l, start, 2, who("ann", "agent"), tool("s", "pay"))
}

// States of meters add up what their windows have, for each principal and each row of values apart.
func TestUsageStates(t *testing.T) {
	c := newCounter(t)
	c.spends(hundred)
	c.now = c.now.Add(30 * time.Minute)
	c.spends(hundred)
	c.spends(`{"action":"transfer","asset":"EUR","amount":0.5}`)
	c.takes(measure(t, who("bob"), `{"action":"balance"}`, spending))
	states := func() (lines []string) {
		all, whole, err := c.States(t.Context())
		if err != nil || !whole {
			t.Fatal(whole, err)
		}
		for _, s := range all {
			lines = append(lines, fmt.Sprintf("%s %s of %s %s: %d %s in %s", s.Subject, s.Meter, s.Tool, s.Per, s.Calls, s.Sum, s.Window))
		}
		slices.Sort(lines)
		return lines
	}
	want := []string{
		`ann day of wallet ["EUR"]: 1 0.5 in 24h0m0s`, `ann day of wallet ["USD"]: 2 200 in 24h0m0s`,
		`ann hour of wallet []: 3 0 in 1h0m0s`, `bob hour of wallet []: 1 0 in 1h0m0s`,
	}
	if diff := cmp.Diff(want, states()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	c.now = c.now.Add(45 * time.Minute)
	want[2] = `ann hour of wallet []: 2 0 in 1h0m0s`
	if diff := cmp.Diff(want, states()); diff != "" {
		t.Errorf("when the first call has left the hour (-want +got):\n%s", diff)
	}
}

// A budget is what a call's meters read, and what they will read with the call.
func TestBudgets(t *testing.T) {
	c := newCounter(t)
	c.spends(hundred)
	for arguments, want := range map[string]string{
		`{"action":"transfer","asset":"USD","amount":0.5}`: `day ["USD"] 1,100 2,100.5; hour [] 1,0 2,0; `,
		`{"action":"transfer","asset":"EUR","amount":7}`:   `day ["EUR"] 0,0 1,7; hour [] 1,0 2,0; `,
		`{"action":"balance"}`:                             `hour [] 1,0 2,0; `,
		`{"action":"transfer","asset":"USD","amount":"x"}`: "",
	} {
		all, err := c.Budgets(t.Context(), measure(t, who("ann"), arguments, spending))
		got := ""
		for _, b := range all {
			got += fmt.Sprintf("%s %s %d,%s %d,%s; ", b.Meter.Name, b.Per, b.Before.Calls, b.Before.Sum, b.With.Calls, b.With.Sum)
		}
		if err != nil || got != want {
			t.Errorf("%s: %q, %v, want %q", arguments, got, err, want)
		}
	}
	c.wants(hundred, "{day:{1,100},hour:{1,0}}")
	if err := c.db.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Budgets(t.Context(), measure(t, who("ann"), hundred, spending)); err == nil {
		t.Error("no error without a store")
	}
}
