package proxy_test

import (
	"encoding/json"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/proxy"
)

// side is who sends a message, and whether it expects an answer.
type side string

const (
	asksServer  side = "request of a client"
	asksClient  side = "request of a server"
	tellsServer side = "notification of a client"
	tellsClient side = "notification of a server"
)

// revision is the methods of one revision of MCP (its schema: ClientRequest,
// ServerRequest or InputRequest, ClientNotification, ServerNotification), or of
// an official extension.
type revision map[side][]string

var older = revision{
	asksServer: {
		"initialize", "ping", "resources/list", "resources/templates/list", "resources/read", "resources/subscribe", "resources/unsubscribe",
		"prompts/list", "prompts/get", "tools/list", "tools/call", "logging/setLevel", "completion/complete",
	},
	asksClient:  {"ping", "sampling/createMessage", "roots/list"},
	tellsServer: {"notifications/cancelled", "notifications/progress", "notifications/initialized", "notifications/roots/list_changed"},
	tellsClient: {
		"notifications/cancelled", "notifications/progress", "notifications/message", "notifications/resources/updated",
		"notifications/resources/list_changed", "notifications/tools/list_changed", "notifications/prompts/list_changed",
	},
}

var revisions = map[string]revision{
	"2024-11-05": older,
	"2025-03-26": older,
	"2025-06-18": older.with(revision{asksClient: {"elicitation/create"}}),
	"2025-11-25": older.with(revision{
		asksServer:  {"tasks/get", "tasks/result", "tasks/list", "tasks/cancel"},
		asksClient:  {"elicitation/create", "tasks/get", "tasks/result", "tasks/list", "tasks/cancel"},
		tellsServer: {"notifications/tasks/status"},
		tellsClient: {"notifications/elicitation/complete", "notifications/tasks/status"},
	}),
	"2026-07-28": {
		asksServer: {
			"server/discover", "completion/complete", "prompts/get", "prompts/list", "resources/list", "resources/templates/list",
			"resources/read", "subscriptions/listen", "tools/call", "tools/list",
		},
		asksClient:  {"sampling/createMessage", "roots/list", "elicitation/create"},
		tellsServer: {"notifications/cancelled"},
		tellsClient: {
			"notifications/cancelled", "notifications/progress", "notifications/message", "notifications/resources/updated",
			"notifications/resources/list_changed", "notifications/tools/list_changed", "notifications/prompts/list_changed",
			"notifications/subscriptions/acknowledged",
		},
	},
	"io.modelcontextprotocol/tasks": {
		asksServer:  {"tasks/get", "tasks/update", "tasks/cancel"},
		tellsClient: {"notifications/tasks"},
	},
	"io.modelcontextprotocol/skills": {
		asksServer: {"skills/list", "skills/get", "resources/directory/read"},
	},
}

// atTheEnds is what the doors and the upstream connections deal with themselves:
// what is between two ends only, and tool calls, which have a road of their own.
var atTheEnds = revision{
	asksServer:  {"initialize", "ping", "server/discover", "subscriptions/listen", "tools/list", "tools/call"},
	asksClient:  {"ping"},
	tellsServer: {"notifications/initialized", "notifications/cancelled", "notifications/progress"},
	tellsClient: {
		"notifications/cancelled", "notifications/progress", "notifications/tools/list_changed", "notifications/subscriptions/acknowledged",
	},
}

func (r revision) with(more revision) revision {
	out := revision{}
	for s, methods := range r {
		out[s] = slices.Concat(methods, more[s])
	}
	return out
}

// Every method of every revision has a row or is dealt with at the ends, never
// both, and every row is a method of a revision.
func TestEveryMethodHasARow(t *testing.T) {
	rows := revision{asksServer: proxy.Methods(), asksClient: proxy.Questions(), tellsServer: proxy.ClientNotices(), tellsClient: proxy.ServerNotices()}
	known := map[side]map[string]bool{}
	for name, r := range revisions {
		for s, methods := range r {
			if known[s] == nil {
				known[s] = map[string]bool{}
			}
			for _, m := range methods {
				known[s][m] = true
				row, end := slices.Contains(rows[s], m), slices.Contains(atTheEnds[s], m)
				if row == end {
					t.Errorf("%s, %s %s: has a row %v, is dealt with at the ends %v", name, s, m, row, end)
				}
			}
		}
	}
	for _, table := range []revision{rows, atTheEnds} {
		for s, methods := range table {
			for _, m := range methods {
				if !known[s][m] {
					t.Errorf("no revision has the %s %s", s, m)
				}
			}
		}
	}
}

// An operator may name every method but those of the revisions and of known extensions; of a filter of
// subscriptions/listen, servers get the members that toolgate does not know.
func TestNamedMethodsHaveNoRow(t *testing.T) {
	text, err := os.ReadFile("../docs/schemas/config.json")
	if err != nil {
		t.Fatal(err)
	}
	var schema struct {
		Defs struct {
			Methods struct {
				Items struct{ Not struct{ Enum []string } }
			}
		} `json:"$defs"`
	}
	if err := json.Unmarshal(text, &schema); err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for _, r := range revisions {
		for _, methods := range r {
			for _, m := range methods {
				known[m] = true
			}
		}
	}
	delete(known, "subscriptions/listen")
	if diff := cmp.Diff(slices.Sorted(maps.Keys(known)), slices.Sorted(slices.Values(schema.Defs.Methods.Items.Not.Enum))); diff != "" {
		t.Errorf("what methods refuses (-known +refused):\n%s", diff)
	}
}

// The policy author is told of every method that the policy is asked about.
func TestEveryMethodIsDocumented(t *testing.T) {
	text, err := os.ReadFile("../docs/policy.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range slices.Concat(proxy.Methods(), proxy.Questions()) {
		if !strings.Contains(string(text), "`"+m+"`") {
			t.Errorf("docs/policy.md does not say what %s is", m)
		}
	}
}

// Rules for rates may name what costs quota, and nothing else.
func TestLimitedMethods(t *testing.T) {
	var got []string
	for _, m := range slices.Concat(proxy.Methods(), proxy.Questions(), []string{"tools/call", "vendor/thing", ""}) {
		if proxy.Limited(m) {
			got = append(got, m)
		}
	}
	want := []string{"prompts/get", "resources/directory/read", "resources/read", "resources/subscribe", "skills/get", "elicitation/create", "sampling/createMessage"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// What costs no quota is written here once more.
func TestFreeMethods(t *testing.T) {
	want := []string{
		"completion/complete", "logging/setLevel", "resources/unsubscribe", "roots/list",
		"tasks/cancel", "tasks/get", "tasks/list", "tasks/result", "tasks/update",
	}
	if diff := cmp.Diff(want, slices.Sorted(maps.Keys(proxy.Free()))); diff != "" {
		t.Error(diff)
	}
}
