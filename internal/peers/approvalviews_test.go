package peers_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/testkit/program"
	"github.com/toolgate/toolgate/internal/testkit/recorder"
)

// showing are the clients that show people a page when they are asked to.
var showing = []struct {
	library
	era string
}{
	{library{name: "go-sdk", play: playGoSDK}, legacyEra},
	{library{name: "go-sdk", play: playGoSDK}, modernEra},
	{library{name: "typescript 1", play: playTypeScript(1)}, legacyEra},
	{library{name: "typescript 2", play: playTypeScript(2)}, legacyEra},
	{library{name: "typescript 2", play: playTypeScript(2)}, modernEra},
}

// TestClientsShowWhereToApprove: a client that can show a page is given the
// ticket's while its call waits, in the way of its revision; the person approves
// there or denies, and the call comes to that. What the client answers, which is
// always yes, is no approval.
func TestClientsShowWhereToApprove(t *testing.T) {
	t.Parallel()
	rec := recorder.HTTP(t, recorder.Config{Tools: []recorder.Tool{{Name: "pay"}}})
	g := serveReady(t, configure(t, setup{servers: []server{httpOf("rec", rec, shared())}, policy: holdAll, hold: "20s"}))
	t.Run("all", func(t *testing.T) {
		for _, c := range showing {
			t.Run(c.name+" "+c.era, func(t *testing.T) {
				t.Parallel()
				who := c.name + " " + c.era
				args := func(what string) map[string]any { return map[string]any{"who": who, "what": what} }
				carol := g.desk()
				var people errgroup.Group
				people.Go(func() error {
					return carol.decide(t.Context(), decision{args: jsonText(t, args("approved")), action: "approve"}, decision{args: jsonText(t, args("denied")), action: "deny"})
				})
				all := c.play(t, way{URL: g.Agents + "/mcp", Token: agentToken}, c.era, []act{
					{Op: "call", Name: "rec__pay", Args: args("approved")},
					{Op: "call", Name: "rec__pay", Args: args("denied")},
				})
				if err := people.Wait(); err != nil {
					t.Fatal(err)
				}
				if all[0].Failed != "" || all[0].Result["isError"] == true {
					t.Errorf("approved: %+v", all[0])
				}
				if all[1].Failed == "" || !strings.Contains(all[1].Failed, noInvoice) {
					t.Errorf("denied: %+v", all[1])
				}
				for i, what := range []string{"approved", "denied"} {
					k := carol.named(t, jsonText(t, args(what)))
					if len(all[i].Asked) != 1 || all[i].Asked[0].Method != elicitMethod || all[i].Asked[0].Params["mode"] != "url" ||
						all[i].Asked[0].Params["url"] != g.Admin+"/console/approvals/"+k.ID {
						t.Errorf("%s: asked %+v", what, all[i].Asked)
					}
				}
				wantRuns(t, rec, jsonText(t, args("approved")), 1)
				wantRuns(t, rec, jsonText(t, args("denied")), 0)
			})
		}
	})
	verify(t, g.Dir)
}

// named gives the newest ticket of a call with these arguments.
func (d desk) named(t testing.TB, args string) shown {
	t.Helper()
	for _, k := range d.list(t, "") {
		if string(k.Arguments) == args {
			return k
		}
	}
	t.Fatalf("no ticket for %s", args)
	return shown{}
}

// stateless is a client of the revision without sessions that can show pages or
// takes tasks, as capabilities say.
type stateless struct{ url, capabilities string }

// ask sends one request and gives its result.
func (s stateless) ask(t testing.TB, method, name, members string) json.RawMessage {
	t.Helper()
	body := fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":%q,"params":{%s,"_meta":{"io.modelcontextprotocol/protocolVersion":%q,"io.modelcontextprotocol/clientCapabilities":%s}}}`,
		method, members, modernEra, s.capabilities)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{
		"Content-Type": "application/json", "Accept": "application/json, text/event-stream", "Authorization": "Bearer " + agentToken,
		"MCP-Protocol-Version": modernEra, "Mcp-Method": method, "Mcp-Name": name,
	} {
		req.Header.Set(name, value)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	var text bytes.Buffer
	if _, err := text.ReadFrom(res.Body); err != nil {
		t.Fatal(err)
	}
	result, ok := jsonrpc.Get(text.Bytes(), "result")
	if !ok {
		t.Fatalf("%s: %d %s", method, res.StatusCode, text.Bytes())
	}
	return result
}

func (s stateless) call(t testing.TB, args, more string) json.RawMessage {
	t.Helper()
	return s.ask(t, "tools/call", "rec__pay", `"name":"rec__pay","arguments":`+args+more)
}

// in gives the text at a path of members.
func in(raw json.RawMessage, path ...string) string {
	for _, step := range path {
		raw, _ = jsonrpc.Get(raw, step)
	}
	if text, ok := jsonrpc.Text(raw); ok {
		return text
	}
	return string(raw)
}

// TestLinksOutliveToolgate: a client that was sent to the page comes back after
// toolgate was killed and started again, and gets what was approved meanwhile,
// made once.
func TestLinksOutliveToolgate(t *testing.T) {
	t.Parallel()
	rec := recorder.HTTP(t, recorder.Config{Tools: []recorder.Tool{{Name: "pay"}}})
	dir := configure(t, setup{servers: []server{httpOf("rec", rec, shared())}, policy: holdAll})
	g := serveReady(t, dir)
	s := stateless{g.Agents + "/mcp", `{"elicitation":{"url":{}}}`}
	const args = `{"n":1}`
	asked := s.call(t, args, "")
	state, link := in(asked, "requestState"), in(asked, "inputRequests", "approval", "params", "url")
	k := g.desk().named(t, args)
	if in(asked, "resultType") != "input_required" || state == "" || link != g.Admin+"/console/approvals/"+k.ID {
		t.Fatalf("asked %s", asked)
	}
	g.Kill(t)
	g = serveReady(t, dir)
	s.url = g.Agents + "/mcp"
	back := `,"inputResponses":{"approval":{"action":"accept"}},"requestState":` + jsonText(t, state)
	if got := s.call(t, args, back); in(got, "_meta", "io.toolgate/approval", "status") != "pending" || in(got, "_meta", "io.toolgate/approval", "ticket") != k.ID {
		t.Errorf("back before the approval: %s", got)
	}
	wantRuns(t, rec, args, 0)
	g.desk().must(t, k.ID, "approve")
	if got := s.call(t, args, back); in(got, "resultType") != "complete" || in(got, "isError") == "true" {
		t.Errorf("back after the approval: %s", got)
	}
	if got := s.call(t, args, back); in(got, "_meta", "io.toolgate/approval", "status") != "replayed" {
		t.Errorf("back once more: %s", got)
	}
	wantRuns(t, rec, args, 1)
	verify(t, dir)
}

// TestHeldCallsAreTasks: a client that takes tasks has one for a held call at
// once; it runs when it is approved, without its agent, once, and the task tells
// what came of it, after a restart too. Nobody else has that task.
func TestHeldCallsAreTasks(t *testing.T) {
	t.Parallel()
	rec := recorder.HTTP(t, recorder.Config{Tools: []recorder.Tool{{Name: "pay"}}})
	dir := configure(t, setup{servers: []server{httpOf("rec", rec, shared())}, policy: holdAll, hold: "20s"})
	g := serveReady(t, dir)
	t.Run("libraries", func(t *testing.T) {
		for major := range 2 {
			t.Run(fmt.Sprint("typescript ", major+1), func(t *testing.T) {
				t.Parallel()
				args := map[string]any{"typescript": major + 1}
				var people errgroup.Group
				people.Go(func() error {
					return g.desk().decide(t.Context(), decision{args: jsonText(t, args), action: "approve"})
				})
				all := playTypeScript(major+1)(t, way{URL: g.Agents + "/mcp", Token: agentToken}, legacyEra, []act{{Op: "task", Name: "rec__pay", Args: args}})
				if err := people.Wait(); err != nil {
					t.Fatal(err)
				}
				if all[0].Failed != "" || !strings.Contains(jsonText(t, all[0].Result), `"content"`) || all[0].Result["isError"] == true {
					t.Errorf("got %+v", all[0])
				}
				wantRuns(t, rec, jsonText(t, args), 1)
			})
		}
	})
	s := stateless{g.Agents + "/mcp", `{"extensions":{"io.modelcontextprotocol/tasks":{}}}`}
	if found := s.ask(t, "server/discover", "", `"x":1`); in(found, "capabilities", "extensions", "io.modelcontextprotocol/tasks") == "" {
		t.Errorf("discovered %s", found)
	}
	const approved, denied = `{"modern":1}`, `{"modern":2}`
	ids := map[string]string{}
	for _, args := range []string{approved, denied} {
		begun := s.call(t, args, "")
		if ids[args] = in(begun, "taskId"); in(begun, "resultType") != "task" || in(begun, "status") != "working" || ids[args] == "" {
			t.Fatalf("begun: %s", begun)
		}
	}
	get := func(args string) json.RawMessage {
		return s.ask(t, "tasks/get", ids[args], `"taskId":`+jsonText(t, ids[args]))
	}
	g.desk().must(t, ids[approved], "approve")
	g.desk().must(t, ids[denied], "deny")
	program.Await(t, "the task is done", func() bool { return in(get(approved), "status") == "completed" })
	g.Kill(t)
	g = serveReady(t, dir)
	s.url = g.Agents + "/mcp"
	if got := get(approved); in(got, "result", "resultType") != "complete" || in(got, "result", "isError") == "true" || in(got, "result", "content") == "" {
		t.Errorf("approved: %s", got)
	}
	if got := get(denied); in(got, "status") != "completed" || in(got, "result", "isError") != "true" || !strings.Contains(in(got, "statusMessage"), noInvoice) {
		t.Errorf("denied: %s", got)
	}
	wantRuns(t, rec, approved, 1)
	wantRuns(t, rec, denied, 0)
	verify(t, dir)
}

// TestApprovalStatus: the tool is there for who has tickets, as long as they
// answer, and for nobody else; it tells what came of them.
func TestApprovalStatus(t *testing.T) {
	t.Parallel()
	rec := recorder.HTTP(t, recorder.Config{Tools: []recorder.Tool{{Name: "pay"}}})
	g := serveReady(t, configure(t, setup{servers: []server{httpOf("rec", rec, shared())}, policy: holdAll, agents: 1}))
	mine, other := openHTTP(t, g.Agents+"/mcp", agentToken), openHTTP(t, g.Agents+"/mcp", tokenOf(0))
	offered := func(d door) bool {
		for _, tool := range list(t, d) {
			if nameOf(tool) == "approval_status" {
				return true
			}
		}
		return false
	}
	if offered(mine) {
		t.Error("it is offered to who has no ticket")
	}
	ticket := hold(t, mine, "rec__pay", `{"n":1}`)
	if !offered(mine) || offered(other) || !offered(openHTTP(t, g.Agents+"/mcp/rec", agentToken)) {
		t.Error("it is not offered to its requester, or to somebody else, or not on every road")
	}
	if _, failure := call(t, other, "approval_status", `{"ticket":"`+ticket+`"}`); failure == nil {
		t.Error("somebody else may ask")
	}
	status := func() json.RawMessage { return mustCall(t, mine, "approval_status", `{"ticket":"`+ticket+`"}`) }
	if got := status(); in(got, "_meta", "io.toolgate/approval", "status") != "pending" {
		t.Errorf("waiting: %s", got)
	}
	g.approve(t, ticket)
	if got := status(); in(got, "_meta", "io.toolgate/approval", "status") != "approved" {
		t.Errorf("approved: %s", got)
	}
	wantRuns(t, rec, `{"n":1}`, 0) // asking spends nothing
	mustCall(t, mine, "rec__pay", `{"n":1}`)
	if got := status(); in(got, "_meta", "io.toolgate/approval", "status") != "replayed" || in(got, "content") == "" {
		t.Errorf("made: %s", got)
	}
	wantRuns(t, rec, `{"n":1}`, 1)
	verify(t, g.Dir)
}
