package peers_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/testkit/parts"
	"github.com/toolgate/toolgate/internal/testkit/program"
	"github.com/toolgate/toolgate/internal/testkit/recorder"
)

// pagePeers are the clients that show people a page when the server asks for it.
var pagePeers = []peer{goSession, goStateless, typescript1, typescript2Session, typescript2Stateless}

// TestClientsShowWhereToApprove: a client that can show a page gets the address of
// the ticket's page while its call is held, in the form of its revision. The vote
// on the page decides the call. The client's own answer, which is always yes, is
// no approval.
func TestClientsShowWhereToApprove(t *testing.T) {
	t.Parallel()
	parts.Long(t, "starts whole programs")
	rec := recorder.HTTP(t, recorder.Config{Tools: []recorder.Tool{{Name: "pay"}}})
	g := serveReady(t, configure(t, setup{servers: []server{httpOf("rec", rec, shared())}, policy: holdAll, hold: "20s"}))
	t.Run("all", func(t *testing.T) {
		for _, p := range pagePeers {
			t.Run(p.String(), func(t *testing.T) {
				t.Parallel()
				approved, denied := args{"who": p.String(), "what": "approved"}, args{"who": p.String(), "what": "denied"}
				carol := g.carol()
				var people errgroup.Group
				people.Go(func() error {
					return carol.decideAll(t.Context(), decision{args: approved, action: "approve"}, decision{args: denied, action: "deny"})
				})
				all := p.run(t, g.route(""), p.revision, []action{callTool("rec__pay", approved), callTool("rec__pay", denied)})
				if err := people.Wait(); err != nil {
					t.Fatal(err)
				}
				if all[0].Failed != "" || all[0].Result["isError"] == true {
					t.Errorf("approved: %s", all[0].text(t))
				}
				if !strings.Contains(all[1].Failed, denialReason) {
					t.Errorf("denied: %s", all[1].text(t))
				}
				for i, a := range []args{approved, denied} {
					page := g.Admin + "/console/approvals/" + carol.ticketFor(t, argsText(a)).ID
					asked := all[i].Requests
					if len(asked) != 1 || asked[0].Method != elicitMethod || asked[0].Params["mode"] != "url" || asked[0].Params["url"] != page {
						t.Errorf("%v: the client was asked %+v, want one URL elicitation for %s", a, asked, page)
					}
				}
				wantRuns(t, rec, argsText(approved), 1)
				wantRuns(t, rec, argsText(denied), 0)
			})
		}
	})
	verifyTrail(t, g.Dir)
}

// ticketFor returns the newest ticket of a call with these arguments.
func (d approver) ticketFor(t testing.TB, args string) ticketView {
	t.Helper()
	for _, k := range d.list(t, "") {
		if string(k.Arguments) == args {
			return k
		}
	}
	t.Fatalf("no ticket for %s", args)
	return ticketView{}
}

// statelessClient is a client of the stateless revision with capabilities.
type statelessClient struct{ url, capabilities string }

// request sends one request and returns its result.
func (s statelessClient) request(t testing.TB, method, name, members string) json.RawMessage {
	t.Helper()
	body := fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":%q,"params":{%s,%s}}`, method, members, statelessMeta(s.capabilities))
	answer := postStateless(t, s.url, method, name, []byte(body), nil)
	result, _ := splitAnswer(answer)
	if result == nil {
		t.Fatalf("%s: %s", method, answer)
	}
	return result
}

func (s statelessClient) call(t testing.TB, args, more string) json.RawMessage {
	t.Helper()
	return s.request(t, "tools/call", "rec__pay", `"name":"rec__pay","arguments":`+args+more)
}

// textAt returns the text at a path of members.
func textAt(raw json.RawMessage, path ...string) string {
	for _, step := range path {
		raw, _ = jsonrpc.Get(raw, step)
	}
	if text, ok := jsonrpc.Text(raw); ok {
		return text
	}
	return string(raw)
}

// TestLinksOutliveToolgate: a client that was sent to the approval page comes back
// after toolgate was killed and started again. Once approved, the call runs once
// and the client gets its result.
func TestLinksOutliveToolgate(t *testing.T) {
	t.Parallel()
	parts.Long(t, "starts whole programs")
	rec := recorder.HTTP(t, recorder.Config{Tools: []recorder.Tool{{Name: "pay"}}})
	dir := configure(t, setup{servers: []server{httpOf("rec", rec, shared())}, policy: holdAll})
	g := serveReady(t, dir)
	s := statelessClient{g.Agents + "/mcp", `{"elicitation":{"url":{}}}`}
	const args = `{"n":1}`
	asked := s.call(t, args, "")
	state, link := textAt(asked, "requestState"), textAt(asked, "inputRequests", "approval", "params", "url")
	k := g.carol().ticketFor(t, args)
	if textAt(asked, "resultType") != "input_required" || state == "" || link != g.Admin+"/console/approvals/"+k.ID {
		t.Fatalf("asked %s", asked)
	}
	g.Kill(t)
	g = serveReady(t, dir)
	s.url = g.Agents + "/mcp"
	back := `,"inputResponses":{"approval":{"action":"accept"}},"requestState":` + jsonText(t, state)
	if got := s.call(t, args, back); textAt(got, "_meta", "io.toolgate/approval", "status") != "pending" || textAt(got, "_meta", "io.toolgate/approval", "ticket") != k.ID {
		t.Errorf("back before the approval: %s", got)
	}
	wantRuns(t, rec, args, 0)
	g.carol().mustVote(t, k.ID, "approve")
	if got := s.call(t, args, back); textAt(got, "resultType") != "complete" || textAt(got, "isError") == "true" {
		t.Errorf("back after the approval: %s", got)
	}
	if got := s.call(t, args, back); textAt(got, "_meta", "io.toolgate/approval", "status") != "replayed" {
		t.Errorf("back once more: %s", got)
	}
	wantRuns(t, rec, args, 1)
	verifyTrail(t, dir)
}

// TestHeldCallsAreTasks: a client that accepts tasks gets one for a held call at
// once. The call runs once on approval, without its agent, and the task has the
// outcome, also after a restart.
func TestHeldCallsAreTasks(t *testing.T) {
	t.Parallel()
	parts.Long(t, "starts whole programs")
	rec := recorder.HTTP(t, recorder.Config{Tools: []recorder.Tool{{Name: "pay"}}})
	dir := configure(t, setup{servers: []server{httpOf("rec", rec, shared())}, policy: holdAll, hold: "20s"})
	g := serveReady(t, dir)
	t.Run("libraries", func(t *testing.T) {
		for _, p := range []peer{typescript1, typescript2Session} {
			t.Run(p.name, func(t *testing.T) {
				t.Parallel()
				args := args{"client": p.name}
				var people errgroup.Group
				people.Go(func() error { return g.carol().decideAll(t.Context(), decision{args: args, action: "approve"}) })
				got := p.run(t, g.route(""), p.revision, []action{{Op: "task", Name: "rec__pay", Args: args}})[0]
				if err := people.Wait(); err != nil {
					t.Fatal(err)
				}
				if got.Result["content"] == nil || got.Result["isError"] == true {
					t.Errorf("task: %s", got.text(t))
				}
				wantRuns(t, rec, argsText(args), 1)
			})
		}
	})
	s := statelessClient{g.Agents + "/mcp", `{"extensions":{"io.modelcontextprotocol/tasks":{}}}`}
	if found := s.request(t, "server/discover", "", `"x":1`); textAt(found, "capabilities", "extensions", "io.modelcontextprotocol/tasks") == "" {
		t.Errorf("discovered %s", found)
	}
	const approved, denied = `{"n":1}`, `{"n":2}`
	ids := map[string]string{}
	for _, args := range []string{approved, denied} {
		started := s.call(t, args, "")
		if ids[args] = textAt(started, "taskId"); textAt(started, "resultType") != "task" || textAt(started, "status") != "working" || ids[args] == "" {
			t.Fatalf("no task: %s", started)
		}
	}
	get := func(args string) json.RawMessage {
		return s.request(t, "tasks/get", ids[args], `"taskId":`+jsonText(t, ids[args]))
	}
	g.carol().mustVote(t, ids[approved], "approve")
	g.carol().mustVote(t, ids[denied], "deny")
	program.Await(t, "the task is done", func() bool { return textAt(get(approved), "status") == "completed" })
	g.Kill(t)
	g = serveReady(t, dir)
	s.url = g.Agents + "/mcp"
	if got := get(approved); textAt(got, "result", "resultType") != "complete" || textAt(got, "result", "isError") == "true" || textAt(got, "result", "content") == "" {
		t.Errorf("approved: %s", got)
	}
	if got := get(denied); textAt(got, "status") != "completed" || textAt(got, "result", "isError") != "true" || !strings.Contains(textAt(got, "statusMessage"), denialReason) {
		t.Errorf("denied: %s", got)
	}
	wantRuns(t, rec, approved, 1)
	wantRuns(t, rec, denied, 0)
	verifyTrail(t, dir)
}

// TestApprovalStatus: the tool approval_status is offered to principals with
// tickets and to nobody else, and reports the state of their tickets.
func TestApprovalStatus(t *testing.T) {
	t.Parallel()
	parts.Long(t, "starts whole programs")
	rec := recorder.HTTP(t, recorder.Config{Tools: []recorder.Tool{{Name: "pay"}}})
	g := serveReady(t, configure(t, setup{servers: []server{httpOf("rec", rec, shared())}, policy: holdAll, agents: 1}))
	mine, other := openHTTP(t, g.Agents+"/mcp", agentToken), openHTTP(t, g.Agents+"/mcp", tokenOf(0))
	offered := func(d rawClient) bool {
		for _, tool := range list(t, d) {
			if toolName(tool) == "approval_status" {
				return true
			}
		}
		return false
	}
	if offered(mine) {
		t.Error("approval_status is offered to a principal without tickets")
	}
	ticket := holdCall(t, mine, "rec__pay", `{"n":1}`)
	if !offered(mine) || offered(other) || !offered(openHTTP(t, g.Agents+"/mcp/rec", agentToken)) {
		t.Error("approval_status must be offered to the requester on every route, and to nobody else")
	}
	if _, failure := call(t, other, "approval_status", `{"ticket":"`+ticket+`"}`); failure == nil {
		t.Error("another principal read the ticket")
	}
	status := func() json.RawMessage { return mustCall(t, mine, "approval_status", `{"ticket":"`+ticket+`"}`) }
	if got := status(); textAt(got, "_meta", "io.toolgate/approval", "status") != "pending" {
		t.Errorf("waiting: %s", got)
	}
	g.approve(t, ticket)
	if got := status(); textAt(got, "_meta", "io.toolgate/approval", "status") != "approved" {
		t.Errorf("approved: %s", got)
	}
	wantRuns(t, rec, `{"n":1}`, 0) // reading the status runs nothing
	mustCall(t, mine, "rec__pay", `{"n":1}`)
	if got := status(); textAt(got, "_meta", "io.toolgate/approval", "status") != "replayed" || textAt(got, "content") == "" {
		t.Errorf("made: %s", got)
	}
	wantRuns(t, rec, `{"n":1}`, 1)
	verifyTrail(t, g.Dir)
}
