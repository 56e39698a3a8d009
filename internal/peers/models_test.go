package peers_test

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"

	"github.com/toolgate/toolgate/internal/testkit/parts"
	"github.com/toolgate/toolgate/internal/testkit/recorder"
)

var update = flag.Bool("update", false, "write what models read into testdata/models")

// modelCall is one call of a model. says is what its model has to be able to read.
type modelCall struct {
	outcome, says string // outcome "" = not shown
	Name          string `json:"name"`
	Args          args   `json:"args"`
}

// modelCalls returns calls that are made in order: the limit is used up by the one
// before. Each client pays another amount, so that people can tell its ticket.
func modelCalls(amount int) []modelCall {
	return []modelCall{
		{"answered", "sunny", "web__search", args{"query": "weather"}},
		{"denied by the policy", "salaries are confidential", "web__search", args{"query": "salaries"}},
		{"denied, and the arguments break the schema", "/limit", "web__search", args{"query": "salaries", "limit": "many"}},
		{"the arguments break the schema", "/limit", "web__search", args{"query": "weather", "limit": "many"}},
		{"an argument is missing", "query", "web__search", args{"limit": 3}},
		{"", "", "web__rare", args{}},
		{"over the limit", "try again in", "web__rare", args{}},
		{"held for a person", "call web__pay again with exactly the same arguments", "web__pay", args{"amount": amount}},
		{"not answered in time", "find out whether the call took effect", "web__slow", args{}},
		{"failed, says the tool", "no such file", "web__broken", args{}},
		{"failed, says the server", "database is locked", "web__failing", args{}},
	}
}

// afterDenial is the call that was held, after a person has denied it.
func afterDenial(amount int) []modelCall {
	return []modelCall{{"denied by a person", denialReason, "web__pay", args{"amount": amount}}}
}

const modelPolicy = `
decision := {"effect": "deny", "rule": "no-salaries", "reason": "salaries are confidential", "remedy": "ask the payroll office"} if {
	input.arguments.query == "salaries"
} else := {"effect": "hold", "rule": "payments", "reason": "a payment above 100", "approval": {"roles": ["approver"]}} if {
	input.arguments.amount > 100
} else := {"effect": "allow", "rule": "peers"}`

// modelServer has the tools that modelCalls call.
func modelServer() recorder.Config {
	definition := func(name, properties string) json.RawMessage {
		return json.RawMessage(`{"name":"` + name + `","description":"d","inputSchema":{"type":"object",` + properties + `}}`)
	}
	text := func(s, more string) json.RawMessage {
		return json.RawMessage(`{"content":[{"type":"text","text":"` + s + `"}]` + more + `}`)
	}
	none := `"properties":{}`
	return recorder.Config{Tools: []recorder.Tool{
		{
			Name: "search", Result: text("sunny", ""),
			Definition: definition("search", `"properties":{"query":{"type":"string"},"limit":{"type":"integer"}},"required":["query"]`),
		},
		{Name: "rare", Definition: definition("rare", none), Result: text("found", "")},
		{Name: "pay", Definition: definition("pay", `"properties":{"amount":{"type":"number"}}`)},
		{Name: "slow", Definition: definition("slow", none), Does: recorder.Hang},
		{Name: "broken", Definition: definition("broken", none), Result: text("no such file: a.txt", `,"isError":true`)},
		{Name: "failing", Definition: definition("failing", none), Does: recorder.Fail, Error: json.RawMessage(`{"code":-32000,"message":"database is locked"}`)},
	}}
}

// reader makes calls as a client does, and returns what its model reads of each.
type reader func(t *testing.T, at target, calls []modelCall) []string

const behindNote = "The client behind the bridge is go-sdk.\n"

// models are the clients with their golden files. A framework's program says what the
// framework gives its model; a library has no model, and gives a program the text of a
// result or an error. own has outcomes for which the client has words of its own, and
// note says so. direct compares the results of the server with those that the client
// gets without toolgate; the other clients have TestRevisions or TestForeignBridges.
var models = []struct {
	name   string
	read   reader
	direct bool
	own    []string
	note   string
}{
	{name: "ai-sdk", read: framework("@ai-sdk/mcp", "ai-sdk.mjs"), direct: true},
	{name: "openai-agents", read: framework("@openai/agents-core", "openai-agents.mjs"), direct: true},
	{
		name: "langchain", read: framework("@langchain/mcp-adapters", "langchain.mjs"), direct: true,
		own:  []string{"denied, and the arguments break the schema", "the arguments break the schema", "an argument is missing"},
		note: "LangChain itself refuses arguments that break the schema: toolgate is not asked.\n",
	},
	{name: "go-sdk", read: library(goSession)},
	{name: "mcp-go", read: library(mcpGoSession)},
	{name: "typescript-1", read: library(typescript1)},
	{name: "typescript-2", read: library(typescript2Stateless)},
	{
		name: "inspector", read: library(inspectorSession),
		note: "The inspector prints an error as JSON. It converts arguments to the types of the schema: \"many\" becomes null.\n",
	},
	{name: "mcp-remote", read: behind(mcpRemote), note: behindNote},
	{name: "supergateway", read: behind(supergateway), note: behindNote},
}

// TestModels: the model of each client can read why a call was refused or held or has
// failed, and what to do. testdata/models has the words, for people; -update writes it.
func TestModels(t *testing.T) {
	t.Parallel()
	parts.Long(t, "starts whole programs")
	requirePart(t, "node")
	rec := recorder.HTTP(t, modelServer())
	g := serveReady(t, configure(t, setup{
		servers: []server{httpOf("web", rec, map[string]any{"isolation": "shared", "timeout": "1s"})},
		policy:  modelPolicy, agents: len(models),
		limits: `{"default": "100000/1m", "rules": [{"tool": "web__rare", "rate": "1/1h"}]}`,
	}))
	t.Run("all", func(t *testing.T) { // the subtests end before the server does
		for n, m := range models {
			t.Run(m.name, func(t *testing.T) {
				t.Parallel()
				at, amount := g.route("").bare(), 500+n
				at.Token = tokenOf(n)
				calls := modelCalls(amount)
				read := m.read(t, at, calls)
				if err := g.carol().decideAll(t.Context(), decision{args: args{"amount": amount}, action: "deny"}); err != nil {
					t.Fatal(err)
				}
				last := afterDenial(amount)
				calls, read = append(calls, last...), append(read, m.read(t, at, last)...)
				for i, c := range calls {
					if !strings.Contains(read[i], c.says) && !slices.Contains(m.own, c.outcome) {
						t.Errorf("%s: the model reads %q, without %q", c.outcome, read[i], c.says)
					}
				}
				wantModel(t, m.name, m.note, calls, read)
				if m.direct {
					wantDirect(t, m.read, target{URL: rec.URL}, calls, read)
				}
			})
		}
	})
}

// wantDirect compares results of the server, except for the prefix of the tool's name.
func wantDirect(t *testing.T, read reader, server target, calls []modelCall, through []string) {
	t.Helper()
	var own []modelCall
	var got []string
	for i, c := range calls {
		if c.outcome == "answered" || c.outcome == "failed, says the tool" {
			c.Name = strings.TrimPrefix(c.Name, "web__")
			own, got = append(own, c), append(got, strings.ReplaceAll(through[i], "web__", ""))
		}
	}
	if diff := cmp.Diff(read(t, server, own), got); diff != "" || len(got) != 2 {
		t.Errorf("(-directly +through toolgate):\n%s", diff)
	}
}

// wantModel compares what a model reads with the golden file of its client.
func wantModel(t *testing.T, name, note string, calls []modelCall, read []string) {
	t.Helper()
	got := &txtar.Archive{Comment: []byte("What the model of " + name + " reads after a call: see internal/peers/models_test.go.\n" + note + "\n")}
	for i, c := range calls {
		if c.outcome != "" {
			got.Files = append(got.Files, txtar.File{Name: c.outcome, Data: []byte(steady(read[i]) + "\n\n")})
		}
	}
	wantGolden(t, name, got)
}

// wantGolden compares what a model reads with testdata/models; -update writes it.
func wantGolden(t *testing.T, name string, got *txtar.Archive) {
	t.Helper()
	path := filepath.Join("testdata", "models", name+".txtar")
	if *update {
		write(t, path, string(txtar.Format(got)))
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(txtar.Format(got))); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// unsteady matches what differs between two runs, and what stands for it.
var unsteady = []struct {
	text *regexp.Regexp
	as   string
}{
	{regexp.MustCompile(`apr_\w+`), "apr_TICKET"},
	{regexp.MustCompile(`agent-\d+`), "agent"},
	{regexp.MustCompile(`again in [\d.]+ s`), "again in 3600 s"},
	{regexp.MustCompile(`\d{4}-\d\d-\d\dT[\d:]+Z`), "2027-01-31T12:00:00Z"},
}

func steady(text string) string {
	for _, u := range unsteady {
		text = u.text.ReplaceAllString(text, u.as)
	}
	return strings.TrimSpace(text)
}

// framework returns what a program below testdata/npm/models says that its model reads.
func framework(part, program string) reader {
	return func(t *testing.T, at target, calls []modelCall) []string {
		t.Helper()
		requirePart(t, part+"/package.json")
		script, err := filepath.Abs("../../testdata/npm/models/" + program)
		if err != nil {
			t.Fatal(err)
		}
		stdout, stderr := node(t, []byte(jsonText(t, map[string]any{"url": at.URL, "token": at.Token, "calls": calls})), script)
		var all []any
		if err := json.Unmarshal(stdout, &all); err != nil || len(all) != len(calls) {
			t.Fatalf("%s printed %q: %v\n%s", program, stdout, err, stderr)
		}
		read := make([]string, len(all))
		for i, one := range all {
			read[i] = readable(t, one)
		}
		return read
	}
}

// readable returns v for people, with everything that is in it: a text as it is, parts
// of a message as "[type] text".
func readable(t *testing.T, v any) string {
	t.Helper()
	switch v := v.(type) {
	case string:
		return v
	case []any:
		var parts []string
		for _, one := range v {
			parts = append(parts, readable(t, one))
		}
		return strings.Join(parts, "\n")
	case map[string]any:
		for _, member := range []string{"text", "value"} {
			if kind, _ := v["type"].(string); len(v) == 2 && kind != "" && v[member] != nil {
				return "[" + kind + "] " + readable(t, v[member])
			}
		}
	}
	return jsonText(t, v)
}

// behind returns what the client of a library behind a bridge gives its program.
func behind(bridge bridgeTo) reader {
	return func(t *testing.T, at target, calls []modelCall) []string {
		t.Helper()
		return library(goSession)(t, bridge(t, at).bare(), calls)
	}
}

// library returns the text of each result, or the first line of each error, that a
// client library gives its program.
func library(p peer) reader {
	return func(t *testing.T, at target, calls []modelCall) []string {
		t.Helper()
		var actions []action
		for _, c := range calls {
			actions = append(actions, callTool(c.Name, c.Args))
		}
		var read []string
		for _, o := range p.run(t, at, p.revision, actions) {
			text, _, _ := strings.Cut(o.Failed, "\n")
			if o.Result != nil {
				text = readable(t, o.Result["content"])
			}
			if o.Result["isError"] == true {
				text = "[isError] " + text
			}
			read = append(read, text)
		}
		return read
	}
}
