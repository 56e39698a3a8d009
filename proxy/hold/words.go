package hold

import (
	"cmp"
	"encoding/json"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/policy/approval"
	"github.com/toolgate/toolgate/signal"
)

const (
	// RetryAfter is the wait that an answer suggests to the agent of a ticket that is under way.
	RetryAfter = 10 * time.Second
	// pollTask is the polling interval that a task suggests to its client.
	pollTask = 2 * time.Second
)

// Console is what stands before the paths of people's pages, without a slash at its end; "" = there
// are no pages. Links carry no secret: whoever follows one has to sign in.
type Console string

// Approval returns the address of the page on which people decide on a ticket, "" without pages.
func (c Console) Approval(t approval.Ticket) string { return c.link("/console/approvals/" + t.ID) }

// Connection returns the address of the page on which people connect to a server, "" without pages.
func (c Console) Connection(server string) string {
	return c.link("/connections/" + url.PathEscape(server))
}

func (c Console) link(path string) string {
	if c == "" {
		return ""
	}
	return string(c) + path
}

// wording is what agents read of a ticket in one state. See Fill for the texts.
type wording struct {
	word string // the state; "" = its own name
	code string // of the failure of an identical call, where the ticket is over without a result
	text string // what has become of the call
	next string // what the agent can do
	runs string // takes the place of next for a call that is made upon approval, where it is not ""
}

var words = map[approval.State]wording{
	approval.StateProposed: {
		word: "pending",
		text: "waiting for a person with role {roles} to approve it (rule {rule}: {reason}); nothing has been done yet, and the request expires at {expires}",
		next: "when it is approved, {again} and it is made", runs: "it is made as soon as it is approved",
	},
	approval.StateApproved: {text: "approved", next: "to have it made, {again} before {expires}", runs: "it is about to be made: ask again in a moment for its result"},
	approval.StateNeedsConnection: {
		text: "approved, and not made, because its requester is not connected to server {server} as approved: {unconnected}",
		next: "a person has to connect; then {again} before {expires}", runs: "a person has to connect; then it is made, before {expires}",
	},
	approval.StateDispatching: {word: "running", text: "approved, and being made now", next: "ask again in a moment for its result"},
	approval.StateDone:        {text: "approved and made", next: "ask for this ticket to have the result"},
	approval.StateDenied:      {code: signal.CodeApprovalDenied, text: "{denial}; nothing was done", next: "the same call gets the same answer: change it as the approver says, or do without it"},
	approval.StateExpired:     {code: signal.CodeApprovalExpired, text: "nobody approved it in time; nothing was done", next: "{again} to ask again"},
	approval.StateSuperseded: {
		code: signal.CodeApprovalExpired, next: "{again} to ask again",
		text: "the request was taken back, because it was withdrawn or its terms have changed; nothing was done",
	},
	approval.StateFailed: {code: signal.CodeToolFailed, text: "the approved call was made and failed: {note}"},
	approval.StateUnknown: {
		code: signal.CodeToolFailed, text: "the approved call was begun and its outcome is not known; it is not made again",
		next: "a person has to find out whether it took effect",
	},
}

// Fill puts the facts of t into a text: {roles}, {note} and so on. The agent calls
// the tool by name.
func Fill(text string, t approval.Ticket, name string) string {
	again := "all " + name + " again with exactly the same arguments"
	return strings.NewReplacer(
		"{ticket}", t.ID, "{tool}", t.Exposed, "{roles}", strings.Join(t.Roles, " or "), "{rule}", t.Rule, "{reason}", t.Reason, "{note}", t.Note, "{server}", t.Server, "{unconnected}", t.Unconnected,
		"{denial}", strings.TrimSuffix("an approver denied this call: "+t.DecisionReason, ": "), "{expires}", t.Expires.UTC().Format(time.RFC3339),
		"{again}", "c"+again, "{Again}", "C"+again, "{soon}", strconv.Itoa(int(RetryAfter.Seconds())),
	).Replace(text)
}

// State is the word for the state of t.
func State(t approval.Ticket) string { return cmp.Or(words[t.State].word, string(t.State)) }

// Ended returns the kernel code, the text and the remedy of a call whose ticket is over without a
// result. The agent calls the tool by name.
func Ended(t approval.Ticket, name string) (code, text, remedy string) {
	w := words[t.State]
	return cmp.Or(w.code, signal.CodeInternal), Fill(w.text, t, name), Fill(w.next, t, name)
}

// Text is the status of a ticket, for a model.
func Text(t approval.Ticket) string {
	w := words[t.State]
	if t.Execute {
		w.next = cmp.Or(w.runs, w.next)
	}
	return Fill(strings.TrimSuffix("Ticket {ticket}, your call of {tool}: "+w.text+"; "+w.next, "; ")+".", t, t.Exposed)
}

// UnderWay reports whether something may still become of t.
func UnderWay(t approval.Ticket) bool {
	return t.State == approval.StateProposed || t.State == approval.StateApproved || t.State == approval.StateNeedsConnection || t.State == approval.StateDispatching
}

// Connects reports whether a person can connect again for the call of a ticket.
func Connects(t approval.Ticket) bool { return t.RunsAs != nil && t.RunsAs.Type == "oauth" }

// Describe is what an agent may know of its ticket, as data: the member
// io.toolgate/approval of a result's _meta. Status is State, or another word for what the agent gets.
func Describe(t approval.Ticket, status, decisionID string, pages Console) map[string]any {
	view := map[string]any{
		"status": status, "ticket": t.ID, "tool": t.Exposed, "rule": t.Rule, "reason": t.Reason, "roles": t.Roles,
		"expires_at": t.Expires.UTC().Format(time.RFC3339), "decision_id": decisionID,
	}
	if UnderWay(t) {
		view["retry_after_ms"] = RetryAfter.Milliseconds()
	}
	if link := pages.Approval(t); link != "" && (UnderWay(t) || t.State == approval.StateDone) {
		view["approval_url"] = link
	}
	if link := pages.Connection(t.Server); link != "" && t.State == approval.StateNeedsConnection && Connects(t) {
		view["connect_url"] = link
	}
	return view
}

// Task is t as the state of a task, in the form of the caller's revision. Where a task has its
// result in itself (inline, 2026-07-28), what was not made is a result that says so; before, it is
// a task that failed.
func Task(t approval.Ticket, inline bool, pages Console) json.RawMessage {
	status, ttl, poll := "failed", "ttl", "pollInterval"
	if inline {
		status, ttl, poll = "completed", "ttlMs", "pollIntervalMs"
	}
	failed, _ := jsonrpc.Get(t.Result, "isError")
	switch {
	case UnderWay(t):
		status = "working"
	case t.State == approval.StateSuperseded:
		status = "cancelled"
	case t.State == approval.StateDone && string(failed) != "true":
		status = "completed"
	}
	changed := t.Created
	if n := len(t.History); n > 0 {
		changed = t.History[n-1].At
	}
	message := Text(t)
	if link := pages.Approval(t); link != "" && t.State == approval.StateProposed {
		message += " Approvers decide at " + link
	} else if link := pages.Connection(t.Server); link != "" && t.State == approval.StateNeedsConnection && Connects(t) {
		message += " The person connects at " + link
	}
	state, _ := json.Marshal(map[string]any{ // texts and numbers
		"taskId": t.ID, "status": status, "statusMessage": message,
		"createdAt": t.Created.UTC().Format(time.RFC3339Nano), "lastUpdatedAt": changed.UTC().Format(time.RFC3339Nano),
		ttl: t.Expires.Sub(t.Created).Milliseconds(), poll: pollTask.Milliseconds(),
	})
	return state
}
