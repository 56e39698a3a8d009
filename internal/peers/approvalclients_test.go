package peers_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/toolgate/toolgate/internal/testkit/program"
	"github.com/toolgate/toolgate/internal/testkit/recorder"
)

// patient are the clients that wait for people, in every era that they know,
// each with the time limits that it has by itself: of TypeScript's 60 s.
var patient = []peer{
	{name: "inspector legacy", run: inspectorOf("--protocol-era", "legacy")},
	{name: "inspector modern", run: inspectorOf("--protocol-era", "modern"), takesTasks: true},
	{name: "go-sdk legacy", run: goSDKOf(legacyEra), showsCode: true, showsData: true},
	{name: "go-sdk modern", run: goSDKOf(modernEra), showsCode: true, showsData: true},
	{name: "typescript 1", run: runTypeScript(1, legacyEra), showsCode: true, showsData: true},
	{name: "typescript 2 legacy", run: runTypeScript(2, legacyEra), showsCode: true, showsData: true},
	{name: "typescript 2 modern", run: runTypeScript(2, modernEra), showsCode: true, showsData: true},
	{name: "mcp-go", run: runMCPGo},
}

// decision is what people do about a call that waits, and how long they take.
type decision struct {
	args, action string
	takes        time.Duration
}

// await waits until a call with these arguments waits, and gives its ticket.
func (d desk) await(ctx context.Context, args string) (string, error) {
	ctx, stop := context.WithTimeout(ctx, 3*patience)
	defer stop()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		var found struct{ Approvals []shown }
		if _, err := d.try(ctx, http.MethodGet, "?state=proposed&limit=1000", "", &found); err != nil {
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

const noInvoice = "there is no invoice"

// decide decides on calls as soon as each of them waits.
func (d desk) decide(ctx context.Context, all ...decision) error {
	for _, one := range all {
		id, err := d.await(ctx, one.args)
		if err != nil {
			return err
		}
		select { // the time itself is what the test is about
		case <-time.After(one.takes):
		case <-ctx.Done():
			return ctx.Err()
		}
		v, err := d.vote(ctx, id, one.action, `{"reason":"`+noInvoice+`"}`)
		if err != nil || v.status != http.StatusOK {
			return errors.Join(err, fmt.Errorf("%s %s: %+v", one.action, one.args, v))
		}
	}
	return nil
}

// TestClientsWaitForPeople: clients that nobody here wrote live through a hold in
// which nobody decides, one in which the call is approved and one in which it is
// denied, and through an approval and a denial that come after the hold. In the
// long form the hold is that of a gateway nobody has configured.
func TestClientsWaitForPeople(t *testing.T) {
	t.Parallel()
	held := map[int]string{2: "2s", 45: "45s"}[rounds(2, 45)]
	rec := recorder.HTTP(t, recorder.Config{Tools: []recorder.Tool{{Name: "pay", Definition: payDefinition}}})
	g := serveReady(t, configure(t, setup{servers: []server{httpOf("rec", rec, shared())}, policy: holdAll, hold: held}))
	ways := map[string]way{
		"mcp":   {URL: g.Agents + "/mcp", Token: agentToken},
		"stdio": {Command: program.Toolgate(t), Dir: g.Dir, Args: []string{"stdio", "--config", "mcp.json", "--token", agentToken}},
	}
	t.Run("all", func(t *testing.T) { // so that the server outlives them
		for _, p := range patient {
			for name, w := range ways {
				if p.brief() && name == "stdio" {
					continue
				}
				wait := waitForPeople
				if p.takesTasks {
					wait = waitForTheTask
				}
				t.Run(p.name+"/"+name, func(t *testing.T) {
					t.Parallel()
					wait(t, g, p, w, rec, p.name+", "+name)
				})
			}
		}
	})
}

// payDefinition has an output schema: clients hold results to it, and must not
// take what is pending for one.
var payDefinition = []byte(`{"name":"pay","inputSchema":{"type":"object"},"outputSchema":{"type":"object","required":["who"],"properties":{"who":{"type":"string"}}}}`)

func waitForPeople(t *testing.T, g *gate, p peer, w way, rec *recorder.Recorder, who string) {
	t.Helper()
	args := func(what string) string { return fmt.Sprintf(`{"who":%q,"what":%q}`, who, what) }
	call := func(what string) step { return calling("rec__pay", args(what)) }
	carol := g.desk()

	var people errgroup.Group
	people.Go(func() error {
		return carol.decide(t.Context(), decision{args: args("approved"), action: "approve"}, decision{args: args("denied"), action: "deny"})
	})
	first := p.after(t, w, call("approved"), call("denied"), call("approved later"), call("denied later"))
	if err := people.Wait(); err != nil {
		t.Fatal(err)
	}
	p.wantDone(t, first[0], "")
	p.wantDenied(t, first[1])
	for i, action := range []string{"approve", "deny"} {
		got := first[2+i]
		if got.Result == nil {
			t.Fatalf("a call that nobody decided on: %s (%d)", got.Failed, got.Code)
		}
		status, ticket := ticketOf(t, got.Result)
		if status != "pending" || !strings.Contains(string(got.Result), "waiting for a person") {
			t.Errorf("a call that nobody decided on: %s", got.Result)
		}
		carol.must(t, ticket, action)
	}
	second := p.after(t, w, call("approved later"), call("denied later"), call("approved later"), call("approved"))
	p.wantDone(t, second[0], "")
	p.wantDenied(t, second[1])
	p.wantDone(t, second[2], "replayed")
	p.wantDone(t, second[3], "replayed")
	for what, want := range map[string]int{"approved": 1, "denied": 0, "approved later": 1, "denied later": 0} {
		wantRuns(t, rec, args(what), want)
	}
}

// waitForTheTask is waitForPeople for a client that takes tasks: its call is one
// as long as people take, however long others would be held, and is made when it
// is approved.
func waitForTheTask(t *testing.T, g *gate, p peer, w way, rec *recorder.Recorder, who string) {
	t.Helper()
	args := func(what string) string { return fmt.Sprintf(`{"who":%q,"what":%q}`, who, what) }
	call := func(what string) step { return calling("rec__pay", args(what)) }
	var people errgroup.Group
	people.Go(func() error {
		return g.desk().decide(t.Context(), decision{args: args("approved"), action: "approve"},
			decision{args: args("approved later"), action: "approve", takes: 4 * time.Second}, decision{args: args("denied"), action: "deny"})
	})
	got := p.after(t, w, call("approved"), call("approved later"), call("denied"), call("approved"))
	if err := people.Wait(); err != nil {
		t.Fatal(err)
	}
	for i, status := range map[int]string{0: "replayed", 1: "replayed", 3: "replayed"} { // what the task came to
		p.wantDone(t, got[i], status)
	}
	if refused := got[2].Failed + string(got[2].Result); !strings.Contains(refused, noInvoice) {
		t.Errorf("a denied call: %s", refused)
	}
	for what, want := range map[string]int{"approved": 1, "approved later": 1, "denied": 0} {
		wantRuns(t, rec, args(what), want)
	}
}

// brief reports whether a client starts anew for each step, which takes seconds:
// in the short form it goes one way and lists nothing.
func (p peer) brief() bool {
	return strings.HasPrefix(p.name, "inspector") && rounds(0, 1) == 0
}

// after takes the client through calls, once all servers are there.
func (p peer) after(t *testing.T, w way, calls ...step) []seen {
	t.Helper()
	if p.brief() {
		return p.run(t, w, calls...)
	}
	return p.run(t, w, append([]step{listing(1)}, calls...)...)[1:]
}

// wantDone wants the result of a run, with the status that it has by now.
func (p peer) wantDone(t *testing.T, got seen, status string) {
	t.Helper()
	if got.Result == nil {
		t.Fatalf("an approved call: %s (%d)", got.Failed, got.Code)
	}
	if is, _ := ticketOf(t, got.Result); is != status || !strings.Contains(string(got.Result), `"structuredContent"`) {
		t.Errorf("an approved call has status %q, want %q: %s", is, status, got.Result)
	}
}

// wantDenied wants the refusal, with the reason that the approver gave.
func (p peer) wantDenied(t *testing.T, got seen) {
	t.Helper()
	denial{what: "denied by a person", code: "APPROVAL_DENIED", gateway: -32600}.check(t, p, false, got)
	if !strings.Contains(got.Failed+string(got.Data), noInvoice) {
		t.Errorf("the reason is not told: %s %s", got.Failed, got.Data)
	}
}
