package console_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/console"
	"github.com/toolgate/toolgate/policy"
)

// limited is a listener where operators see limits, and approvers who operate also arguments.
func limited(t *testing.T, whole bool, fault error) *listener {
	t.Helper()
	return newListener(t, func(o *console.Options) {
		o.May = func(_ context.Context, p policy.Principal, right policy.Right) (bool, error) {
			return right == policy.Operates && p.Has("operator", "approver") || right == policy.ReadsArguments && p.Has("approver"), nil
		}
		o.Limits = func(context.Context) ([]console.Limit, bool, error) {
			return []console.Limit{
				{Kind: console.LimitMeter, Rule: "day", Principal: "eve", Tool: "pay", Used: 3, Sum: "900", Per: json.RawMessage(`["secret"]`), Window: "24h", Known: console.KnownAll},
				{Kind: console.LimitMeter, Rule: "day", Principal: "eve", Tool: "pay", Used: 4, Sum: "1", Per: json.RawMessage(`["other"]`), Window: "24h", Known: console.KnownAll},
				{Kind: console.LimitRate, Rule: "default", Principal: "ann\u202e", Limit: "10/1m", Size: 10, Used: 5, Known: console.KnownProcess},
				{Kind: console.LimitRate, Rule: "tool=pay", Principal: "eve", Tool: "pay", Limit: "4/1h", Size: 4, Used: 4, Known: console.KnownReplicas},
				{Kind: console.LimitRefused, Rule: "default", Principal: "eve", Limit: "100/1m", Size: 100, Used: 1, Known: console.KnownProcess},
			}, whole, fault
		}
	})
}

// What is nearest to its end comes first, then meters, and each parameter chooses.
func TestLimits(t *testing.T) {
	l := limited(t, true, nil)
	for query, want := range map[string][]string{
		"":               {"rate tool=pay 4/4", "rate default 5/10", "refused default 1/100", "meter day 4/0", "meter day 3/0"},
		"?kind=rate":     {"rate tool=pay 4/4", "rate default 5/10"},
		"?tool=pay":      {"rate tool=pay 4/4", "meter day 4/0", "meter day 3/0"},
		"?principal=eve": {"rate tool=pay 4/4", "refused default 1/100", "meter day 4/0", "meter day 3/0"},
		"?limit=1":       {"rate tool=pay 4/4"},
	} {
		var page struct {
			Limits []console.Limit
			Next   string
			Cut    bool
		}
		w := l.ask("GET", "/v1/limits"+query, "", as("t-oda")...)
		if err := json.Unmarshal(w.Body.Bytes(), &page); err != nil || w.Code != 200 {
			t.Fatalf("%d %s: %v", w.Code, w.Body, err)
		}
		var found []string
		for _, one := range page.Limits {
			found = append(found, fmt.Sprintf("%s %s %d/%d", one.Kind, one.Rule, one.Used, one.Size))
		}
		if diff := cmp.Diff(want, found); diff != "" || page.Cut || (page.Next != "") != (query == "?limit=1") {
			t.Errorf("%s (-want +got):\n%s", query, diff)
		}
	}
	if body := l.ask("GET", "/v1/limits", "", as("t-oda")...).Body.String(); strings.Contains(body, "\u202e") || strings.Contains(body, "secret") {
		t.Errorf("who may not read arguments sees some: %s", body)
	}
	if body := l.ask("GET", "/v1/limits", "", as("t-ann")...).Body.String(); !strings.Contains(body, `"per":["secret"]`) {
		t.Errorf("who may read arguments does not: %s", body)
	}
	if body := limited(t, false, nil).ask("GET", "/v1/limits", "", as("t-oda")...).Body.String(); !strings.Contains(body, `"cut":true`) {
		t.Errorf("the rest is cut, and nothing says so: %s", body)
	}
	refused(t, l.ask("GET", "/v1/limits", "", as("t-eve")...), 403, "NOT_OPERATOR")
	refused(t, l.ask("GET", "/v1/limits", "", as("t-nobody")...), 401, "UNAUTHENTICATED")
	refused(t, limited(t, true, errors.New("planted")).ask("GET", "/v1/limits", "", as("t-oda")...), 500, "INTERNAL_ERROR")
	for _, query := range []string{"?all=true", "?limit=1001", "?kind=speed", "?cursor=~"} {
		refused(t, l.ask("GET", "/v1/limits"+query, "", as("t-oda")...), 400, "BAD_REQUEST")
	}
}
