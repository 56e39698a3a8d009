package console_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/console"
	"github.com/toolgate/toolgate/console/people"
	"github.com/toolgate/toolgate/console/tickets"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/approval"
)

// briefing is what is known of a transfer.
func (k talker) briefing(context.Context, approval.Ticket) (tickets.Briefing, error) {
	return tickets.Briefing{
		Offered: true, Waiting: true, Risk: k.or("high"), Notice: k.or("Payments leave the house at once."),
		Description: "Sends money to an account.\n\nThe bank books it at once, and takes nothing back. Ask for the account's owner first. " + k.or("The memo is printed on the statement of the receiver, who sees nothing else of the sender; write it so that a stranger understands it.\n- at most 140 characters\n- no secrets"),
		Budgets: []tickets.Budget{
			{Meter: k.or("spent_today"), Window: "24h", Adds: k.or("amount"), Asset: k.or("USD"), Per: json.RawMessage(`["` + k.or("USD") + `"]`), Before: policy.Reading{Calls: 7, Sum: "290.5"}, With: policy.Reading{Calls: 8, Sum: "410.5"}},
			{Meter: k.or("transfers"), Window: "1h", Before: policy.Reading{Calls: 1, Sum: "0"}, With: policy.Reading{Calls: 2, Sum: "0"}},
		},
	}, nil
}

// TestBriefing holds that a ticket says what its tool does, what the operator says of it, whether somebody waits, and
// what is used before and after.
func TestBriefing(t *testing.T) {
	l := newListener(t, func(o *console.Options) { o.Brief = talker{}.briefing })
	h := held(`{"n":1}`)
	h.Tags = map[string]string{"urgency": "high", "domain": "pay\u202eroll"}
	k := l.holds(h)
	b := newBrowser(l).signIn("t-ann")
	b.shows("/console/approvals/"+k.ID, []string{
		"the agent waits now", "Payments leave the house at once.", "<b>high</b>", "as configured for standard", "Sends money to an account.", "- no secrets",
		"spent_today of USD in 24h: 290.5 USD in 7 calls before this call, 410.5 USD in 8 calls with it", "transfers in 1h: 1 call before this call, 2 calls with it",
		`domain <b>pay\u202eroll</b>, urgency <b>high</b>`, "as the requester says", "needed to deny",
	}, []string{"does not offer", "\u202e"})
	got := accepted(t, l.ask("GET", "/v1/approvals/"+k.ID, "", as("t-ann")...))
	brief, _ := got["briefing"].(map[string]any)
	if brief["notice"] != "Payments leave the house at once." || brief["waiting"] != true || len(brief["budgets"].([]any)) != 2 {
		t.Errorf("the briefing is %v", brief)
	}
	if want := map[string]any{"urgency": "high", "domain": `pay\u202eroll`}; !cmp.Equal(got["tags"], any(want)) {
		t.Errorf("the tags are %v", got["tags"])
	}
	for _, one := range accepted(t, l.ask("GET", "/v1/approvals", "", as("t-ann")...))["approvals"].([]any) {
		if one.(map[string]any)["briefing"] != nil {
			t.Error("a list has a briefing")
		}
	}
	refused(t, l.ask("GET", "/v1/approvals/"+k.ID, "", as("t-eve")...), 404, "NOT_FOUND")
}

func TestBriefingOfAnotherDefinition(t *testing.T) {
	known, failed := tickets.Briefing{Description: "an old text"}, error(nil)
	l := newListener(t, func(o *console.Options) {
		o.Brief = func(context.Context, approval.Ticket) (tickets.Briefing, error) { return known, failed }
	})
	k := l.hold(`{"n":1}`)
	b := newBrowser(l).signIn("t-ann")
	b.shows("/console/approvals/"+k.ID, []string{"standard does not offer this definition now", "no agent waits at this process"}, []string{"an old text", "<dt>Risk</dt>", "<dt>Notice</dt>"})
	known.Offered, known.Description = true, ""
	b.shows("/console/approvals/"+k.ID, []string{"standard does not describe it"}, nil)
	failed = errors.New("the store is away")
	if w := b.do("GET", "/console/approvals/"+k.ID, nil); w.Code != 500 {
		t.Errorf("without a briefing: %d", w.Code)
	}
}

// answers gives a ticket whose call was made with a result.
func (l *listener) answers(arguments, result, note string) approval.Ticket {
	return l.runs(held(arguments), "", result, note)
}

// runs makes a call that bob approved with a comment, with a result.
func (l *listener) runs(h approval.Held, comment, result, note string) approval.Ticket {
	l.t.Helper()
	k := l.holds(h)
	if _, err := l.tickets.Decide(l.t.Context(), approval.Vote{ID: k.ID, Approver: staff["t-bob"], Approve: true, Reason: comment}); err != nil {
		l.t.Fatal(err)
	}
	if c, err := l.tickets.Claim(l.t.Context(), h); err != nil || c.Outcome != approval.Granted {
		l.t.Fatalf("%q, %v", c.Outcome, err)
	}
	if err := l.tickets.Finish(l.t.Context(), k.ID, approval.StateDone, []byte(result), note); err != nil {
		l.t.Fatal(err)
	}
	return k
}

func textResult(says string) string {
	text, _ := json.Marshal(says) // strings always marshal
	return `{"content":[{"type":"text","text":` + string(text) + `}]}`
}

// TestResults holds that the requester reads the result, others with the right to read arguments, and that this is recorded.
func TestResults(t *testing.T) {
	unrecorded := false
	l := newListener(t, func(o *console.Options) {
		o.May = func(_ context.Context, p policy.Principal, right policy.Right) (bool, error) {
			return p.Subject == "ann" && right == policy.ReadsArguments, nil
		}
		record := o.Record
		o.Record = func(a people.Act) error {
			if unrecorded && a.Name == audit.EventArguments {
				return errors.New("disk full")
			}
			return record(a)
		}
	})
	k := l.answers(`{"n":1}`, `{"content":[{"type":"text","text":"paid\nreference <b>17</b>"},{"type":"image","data":"AAAA"}]}`, "")
	for token, tt := range map[string]struct{ says, not string }{
		"t-ann":   {says: "reference &lt;b&gt;17&lt;/b&gt;\n(image, 30 bytes)", not: "does not let you read"},
		"t-agent": {says: "reference &lt;b&gt;17", not: "does not let you read"},
		"t-bob":   {says: "The policy does not let you read results", not: "paid"},
	} {
		b := newBrowser(l).signIn(token)
		l.acts = nil
		b.shows("/console/approvals/"+k.ID, []string{tt.says}, []string{tt.not})
		read := 0
		for _, a := range l.acts {
			if a.Name == audit.EventArguments && a.Ticket == k.ID && a.Credential == "session" {
				read++
			}
		}
		if want := map[string]int{"t-ann": 1}[token]; read != want {
			t.Errorf("%s: recorded %d readings, want %d", token, read, want)
		}
		got, _ := accepted(t, l.ask("GET", "/v1/approvals/"+k.ID, "", as(token)...))["result"].(map[string]any)
		if withheld := got["withheld"] == true; withheld != (token == "t-bob") || withheld == strings.Contains(fmt.Sprint(got["text"]), "paid") {
			t.Errorf("%s reads %v", token, got)
		}
	}
	unrecorded = true
	refused(t, l.ask("GET", "/v1/approvals/"+k.ID, "", as("t-ann")...), 503, "AUDIT_UNAVAILABLE")
	if got := l.ask("GET", "/v1/approvals/"+k.ID, "", as("t-agent")...); got.Code != 200 {
		t.Errorf("the requester: %d", got.Code)
	}
}

// What a tool answers is text, its beginning is shown, and an error is not green.
func TestTextOfResults(t *testing.T) {
	l := newListener(t, nil)
	good, bad := l.answers(`{"n":1}`, `{"content":[{"type":"text","text":"paid"}]}`, ""), l.answers(`{"n":2}`, `{"content":[{"type":"text","text":"no funds"}],"isError":true}`, approval.ToolError+": no funds")
	b := newBrowser(l).signIn("t-agent")
	b.shows("/console/approvals/"+good.ID, []string{"<pre>paid</pre>", "The tool answered"}, []string{`class="bad"`})
	b.shows("/console/approvals/"+bad.ID, []string{"<pre>no funds</pre>", `<span class="bad">The tool answered with an error</span>`}, []string{`class="state done"`})
}

// Everybody who decided is named, with what they said.
func TestDeciders(t *testing.T) {
	l := newListener(t, nil)
	k := l.holds(quorum(`{"n":1}`))
	ann := newBrowser(l).signIn("t-ann")
	path := "/console/approvals/" + k.ID
	if w := ann.do("POST", path+"/vote", ann.form(path, "vote", "approve", "reason", "invoice <17>", "digest", k.Digest)); w.Code != 303 {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	l.advance(time.Second)
	l.ask("POST", "/v1/approvals/"+k.ID+"/approve", `{"reason":"called them"}`, as("t-bob")...)
	ann.shows(path, []string{"approved by ann and bob, has not run yet", "<b>ann</b> approved: invoice &lt;17&gt;", "<b>bob</b> approved: called them"}, nil)
}
