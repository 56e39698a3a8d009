package peers_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/toolgate/toolgate/internal/testkit/parts"
	"github.com/toolgate/toolgate/internal/testkit/recorder"
)

// waitingPeers are the clients that wait for people, with their own time limits:
// the shortest is the 60 s of the TypeScript SDK.
var waitingPeers = append([]peer{inspectorSession, inspectorStateless}, libraries...)

// decision is a vote on a held call, made delay after its ticket appears.
type decision struct {
	args   args
	action string
	delay  time.Duration
}

// pollTicket waits for the ticket of a held call and returns its ID.
func (d approver) pollTicket(ctx context.Context, args string) (string, error) {
	ctx, stop := context.WithTimeout(ctx, 3*timeout)
	defer stop()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		var found struct{ Approvals []ticketView }
		if _, err := d.request(ctx, http.MethodGet, "?state=proposed&limit=1000", "", &found); err != nil {
			return "", err
		}
		for _, k := range found.Approvals {
			if string(k.Arguments) == args {
				return k.ID, nil
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return "", fmt.Errorf("waiting for a ticket for %s: %w", args, ctx.Err())
		}
	}
}

const denialReason = "there is no invoice"

// decideAll makes decisions in order, each as soon as its ticket appears.
func (d approver) decideAll(ctx context.Context, all ...decision) error {
	for _, one := range all {
		id, err := d.pollTicket(ctx, argsText(one.args))
		if err != nil {
			return err
		}
		select { // the test is about the time that people take
		case <-time.After(one.delay):
		case <-ctx.Done():
			return ctx.Err()
		}
		v, err := d.vote(ctx, id, one.action, `{"reason":"`+denialReason+`"}`)
		if err != nil || v.status != http.StatusOK {
			return errors.Join(err, fmt.Errorf("%s %s: %+v", one.action, argsText(one.args), v))
		}
	}
	return nil
}

// argsText returns arguments as every client here sends them: keys in order.
func argsText(args args) string {
	text, err := json.Marshal(args)
	if err != nil {
		panic(err)
	}
	return string(text)
}

// TestClientsWaitForPeople: third-party clients handle a call that nobody decides
// on during the hold, and calls that are approved or denied during and after the
// hold. With TOOLGATE_SOAK=1 the hold is the default of 45 s.
func TestClientsWaitForPeople(t *testing.T) {
	t.Parallel()
	parts.Long(t, "starts whole programs")
	// The calls that people decide on in time are held as long as clients wait.
	policy := holdAll + ` if not endswith(input.arguments.what, "later")
decision := {"effect": "hold", "rule": "always", "reason": "a person decides", "approval": {"roles": ["approver"], "hold": "` +
		fmt.Sprint(shortOrSoak(2, 45), "s") + `"}} if endswith(input.arguments.what, "later")
`
	rec := recorder.HTTP(t, recorder.Config{Tools: []recorder.Tool{{Name: "pay", Definition: payDefinition}}})
	g := serveReady(t, configure(t, setup{servers: []server{httpOf("rec", rec, shared())}, policy: policy, hold: "45s"}))
	targets := map[string]target{"mcp": g.route(""), "server": g.route("rec"), "stdio": g.stdio(t, "mcp.json")}
	t.Run("all", func(t *testing.T) { // the subtests end before the server does
		for _, p := range waitingPeers {
			for name, at := range targets {
				if name == "stdio" && p.short() || name == "server" && p.name != "go-sdk" && p.name != "typescript 1" && shortOrSoak(0, 1) == 0 {
					continue
				}
				check := checkHeldCalls
				if p.acceptsTasks {
					check = checkHeldTasks
				}
				t.Run(p.String()+"/"+name, func(t *testing.T) {
					t.Parallel()
					tool := "rec__pay"
					if name == "server" {
						tool = "pay"
					}
					check(t, g, p, at.bare(), tool, rec, p.String()+", "+name)
				})
			}
		}
	})
}

// payDefinition has an output schema: clients validate results against it, and
// must not validate a pending answer.
var payDefinition = []byte(`{"name":"pay","inputSchema":{"type":"object"},"outputSchema":{"type":"object","required":["who"],"properties":{"who":{"type":"string"}}}}`)

func checkHeldCalls(t *testing.T, g *gate, p peer, at target, tool string, rec *recorder.Recorder, who string) {
	t.Helper()
	argsOf := func(what string) args { return args{"who": who, "what": what} }
	call := func(what string) action { return callTool(tool, argsOf(what)) }
	carol := g.carol()

	var people errgroup.Group
	people.Go(func() error {
		return carol.decideAll(t.Context(), decision{args: argsOf("approved"), action: "approve"}, decision{args: argsOf("denied"), action: "deny"})
	})
	first := p.callAll(t, at, call("approved"), call("denied"), call("approved later"), call("denied later"))
	if err := people.Wait(); err != nil {
		t.Fatal(err)
	}
	wantDone(t, first[0], "")
	p.wantDenied(t, first[1])
	for i, vote := range []string{"approve", "deny"} {
		status, ticket := first[2+i].ticket(t)
		if status != "pending" || !strings.Contains(first[2+i].text(t), "waiting for a person") {
			t.Fatalf("undecided call: %s", first[2+i].text(t))
		}
		carol.mustVote(t, ticket, vote)
	}
	after := []action{call("approved later"), call("denied later"), call("approved later"), call("approved")}
	if p.short() {
		after = after[:2]
	}
	second := p.callAll(t, at, after...)
	wantDone(t, second[0], "")
	p.wantDenied(t, second[1])
	for _, again := range second[2:] {
		wantDone(t, again, "replayed")
	}
	for what, want := range map[string]int{"approved": 1, "denied": 0, "approved later": 1, "denied later": 0} {
		wantRuns(t, rec, argsText(argsOf(what)), want)
	}
}

// checkHeldTasks is checkHeldCalls for a client that accepts tasks: its call is a
// task until people decide, also after the hold, and runs on approval.
func checkHeldTasks(t *testing.T, g *gate, p peer, at target, tool string, rec *recorder.Recorder, who string) {
	t.Helper()
	argsOf := func(what string) args { return args{"who": who, "what": what} }
	call := func(what string) action { return callTool(tool, argsOf(what)) }
	var people errgroup.Group
	people.Go(func() error {
		return g.carol().decideAll(t.Context(), decision{args: argsOf("approved"), action: "approve"},
			decision{args: argsOf("approved later"), action: "approve", delay: 4 * time.Second}, decision{args: argsOf("denied"), action: "deny"})
	})
	got := p.callAll(t, at, call("approved"), call("approved later"), call("denied"), call("approved"))
	if err := people.Wait(); err != nil {
		t.Fatal(err)
	}
	for _, i := range []int{0, 1, 3} {
		wantDone(t, got[i], "replayed")
	}
	if text := got[2].text(t); !strings.Contains(text, denialReason) {
		t.Errorf("denied call: %s", text)
	}
	for what, want := range map[string]int{"approved": 1, "approved later": 1, "denied": 0} {
		wantRuns(t, rec, argsText(argsOf(what)), want)
	}
}

// short reports whether a client runs one process per action, which takes seconds.
// Except with TOOLGATE_SOAK=1 it uses one route and lists no tools.
func (p peer) short() bool { return p.name == "inspector" && shortOrSoak(0, 1) == 0 }

// callAll makes calls once every server is ready.
func (p peer) callAll(t *testing.T, at target, calls ...action) []observation {
	t.Helper()
	if p.short() {
		return p.run(t, at, p.revision, calls)
	}
	return p.run(t, at, p.revision, append([]action{listTools(1)}, calls...))[1:]
}

// ticket returns the approval status and the ticket of a result.
func (o observation) ticket(t testing.TB) (status, ticket string) {
	t.Helper()
	if o.Result == nil {
		t.Fatalf("held call: %s", o.text(t))
	}
	return ticketOf(t, json.RawMessage(jsonText(t, o.Result)))
}

// wantDone checks for the result of an approved call with an approval status.
func wantDone(t *testing.T, got observation, status string) {
	t.Helper()
	if is, _ := got.ticket(t); is != status || got.Result["structuredContent"] == nil {
		t.Errorf("approved call: status %q, want %q: %s", is, status, got.text(t))
	}
}

// wantDenied checks for a refusal with the approver's reason.
func (p peer) wantDenied(t *testing.T, got observation) {
	t.Helper()
	if text := got.text(t); !strings.Contains(text, denialReason) {
		t.Errorf("denied call without the reason: %s", text)
	}
	if got.Result["isError"] != true { // on /mcp/{server} a refusal is a result
		denial{name: "denied by a person", code: "APPROVAL_DENIED", gateway: -32600}.check(t, p, false, got)
	}
}
