// Package notice notifies people of tickets where they already look: by signed
// webhooks, in Slack and Teams, by email. A notice says that a call waits, how it
// was decided, or how it ended, and links to the page of its ticket; or it says that
// the definition of a tool has changed. It grants no authority: it holds no arguments
// and no secret, and whoever follows the link has to sign in.
//
// Notices are kept in an outbox in the store. [Sender.Enqueue] writes them in the
// transaction of the change, so that there is no change without its notices and no
// notice of a change that was undone. Each is attempted until it is delivered or
// pointless:
//
//	waiting --due--> attempt --2xx--> delivered (the row is deleted)
//	   ^                |
//	   +---- backoff ---+--no time left, or 410 Gone--> dead (kept for a week)
//
// An attempt begins with one conditional update that leases the row for longer than
// an attempt may take, so that of any number of processes on one store one sends
// the notice. The lease of a process that dies runs out. Delivery is thus at least
// once; the id of a notice stays the same, and receivers recognize repeats by it.
// On one channel the notices of one ticket are delivered in order.
package notice

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/toolgate/toolgate/policy/approval"
)

// Event is the kind of a notice.
type Event string

// The events.
const (
	Requested Event = "approval.requested" // a call waits for people
	Decided   Event = "approval.decided"   // it was approved, denied, superseded, or expired
	Ended     Event = "approval.ended"     // it ran: done, failed or unknown
	Changed   Event = "definition.changed" // a tool is quarantined until somebody accepts its new definition
)

// Definition describes, in a notice of [Changed], a tool whose definition has changed.
// Texts are cut to 500 characters.
type Definition struct {
	Server string `json:"server"`
	Tool   string `json:"tool"`             // the server's name
	Count  int    `json:"count,omitempty"`  // tools of the server that this one stands for; 0 = one
	Reason string `json:"reason,omitempty"` // what differs first
	URL    string `json:"url"`              // of the page of tools
}

// byToolgate makes the changes that no person makes.
const byToolgate = "toolgate"

// eventOf returns the event of a change of a ticket, "" when people need no notice:
// votes that leave the ticket waiting, and the run of an approved call until it
// ends.
func eventOf(c approval.Change) Event {
	switch c.To {
	case approval.StateProposed:
		if c.From == "" {
			return Requested
		}
	case approval.StateApproved:
		if c.From == approval.StateProposed {
			return Decided
		}
	case approval.StateDenied, approval.StateExpired, approval.StateSuperseded:
		return Decided
	case approval.StateDone, approval.StateFailed, approval.StateUnknown:
		return Ended
	}
	return ""
}

// Body is the payload of a webhook of format json, in the form of Standard Webhooks.
type Body struct {
	Type      Event     `json:"type"`
	Timestamp time.Time `json:"timestamp"` // of the change
	Data      Data      `json:"data"`
}

// Data describes a ticket in a notice. It has neither arguments nor answers of
// upstreams, which may be secrets. Texts are cut to 500 characters.
type Data struct {
	Ticket    string         `json:"ticket"`
	State     approval.State `json:"state"`                // after the change
	URL       string         `json:"url"`                  // of the page of the ticket
	ToolError bool           `json:"tool_error,omitempty"` // the call ran, and the tool answered with an error
	Requester string         `json:"requester"`
	Tenant    string         `json:"tenant,omitempty"`
	Server    string         `json:"server"`
	Tool      string         `json:"tool"` // as agents know it
	Rule      string         `json:"rule"`
	Reason    string         `json:"reason"` // why the policy holds it
	Roles     []string       `json:"roles"`  // an approver has one of these
	Quorum    int            `json:"quorum"`
	Approvals int            `json:"approvals"`       // given so far, of Quorum
	Each      map[string]int `json:"each,omitempty"`  // of Quorum, how many of each role; absent = any of Roles
	Given     map[string]int `json:"given,omitempty"` // given so far, of Each; an absent role has none
	Created   time.Time      `json:"created_at"`
	Expires   time.Time      `json:"expires_at"`
	By        string         `json:"by,omitempty"`      // who made the change: a subject, or toolgate
	Because   string         `json:"because,omitempty"` // why, in the words of a person or of toolgate

	// RunsAs is what the call is made with at its server; absent = as the configuration says.
	RunsAs *approval.Account `json:"runs_as,omitempty"`
}

// bodyOf is the body of a notice of change c, after which the ticket is t.
func bodyOf(event Event, t approval.Ticket, c approval.Change, link string) ([]byte, error) {
	d := Data{
		Ticket: t.ID, State: c.To, ToolError: t.ToolFailed(), URL: link, Requester: bound(t.Principal.Subject), Tenant: bound(t.Principal.Tenant),
		Server: bound(t.Server), Tool: bound(t.Exposed), Rule: bound(t.Rule), Reason: bound(t.Reason),
		Roles: t.Roles, Quorum: t.Quorum, Approvals: t.Approvals, Each: t.Each, Given: t.Given, Created: t.Created.UTC(), Expires: t.Expires.UTC(), RunsAs: t.RunsAs,
	}
	if event != Requested {
		d.By = bound(c.Who)
	}
	// The reason of a change that no person made may quote the upstream.
	if event == Decided || event == Ended && c.Who != byToolgate {
		d.Because = bound(c.Reason)
	}
	return json.Marshal(Body{event, c.At.UTC(), d})
}

// bound cuts a text that others wrote.
func bound(s string) string {
	const most = 500
	if len(s) <= most {
		return s
	}
	if r := []rune(s); len(r) > most {
		return string(r[:most]) + "…"
	}
	return s
}

// A fact is one line of a notice for people.
type fact struct{ name, value string }

// title says in one line what happened.
func (b Body) title() string {
	d := b.Data
	who, tool := oneLine(d.Requester), oneLine(d.Tool)
	switch b.Type {
	case Requested:
		return fmt.Sprintf("%s asks to call %s", who, tool)
	case Changed:
		return fmt.Sprintf("the definition of %s of %s has changed: the tool is withheld", tool, oneLine(d.Server))
	case Ended:
		if d.ToolError {
			return fmt.Sprintf("ran; the tool answered with an error: %s, called by %s", tool, who)
		}
		return fmt.Sprintf("%s: %s, called by %s", d.State, tool, who)
	}
	return fmt.Sprintf("%s: call of %s by %s", d.State, tool, who)
}

// facts are what people read before they follow the link.
func (b Body) facts() []fact {
	d := b.Data
	needed, given := d.approvers()
	all := []fact{
		{"Requester", d.Requester}, {"Tenant", d.Tenant}, {"Tool", d.Tool}, d.server(),
		{"Rule", d.Rule}, {"Reason", d.Reason}, {"Approvers", needed}, {"Approvals", given},
	}
	if b.Type == Requested {
		all = append(all, fact{"Expires", d.Expires.Format("2006-01-02 15:04:05 UTC")})
	}
	all = append(all, fact{"By", d.By}, fact{"Because", d.Because})
	said := all[:0]
	for _, l := range all {
		if l.value = oneLine(l.value); l.value != "" {
			said = append(said, l)
		}
	}
	return said
}

// server names the server, and what the call is made with there where that is the requester's own.
func (d Data) server() fact {
	as := d.RunsAs
	if as == nil {
		return fact{"Server", d.Server}
	}
	said := d.Server + " (" + as.Type + ")"
	if as.Account != "" {
		said = as.Account + " at " + said
	}
	if as.Issuer != "" {
		said += ", by " + as.Issuer
	}
	if len(as.Scopes) > 0 {
		said += ", with " + strings.Join(as.Scopes, ", ")
	}
	return fact{"Runs as", said}
}

// approvers says which approvals are needed, and how many are given, "" where one
// is enough.
func (d Data) approvers() (needed, given string) {
	roles := strings.Join(d.Roles, " or ")
	if d.Quorum <= 1 {
		return roles, ""
	}
	needed, given = fmt.Sprintf("%d of %s", d.Quorum, roles), fmt.Sprintf("%d of %d", d.Approvals, d.Quorum)
	if len(d.Each) > 0 {
		var each []string
		for _, role := range slices.Sorted(maps.Keys(d.Each)) {
			each = append(each, fmt.Sprintf("%d %s", d.Each[role], role))
			given += fmt.Sprintf(", %s %d of %d", role, d.Given[role], d.Each[role])
		}
		needed = fmt.Sprintf("%d: %s", d.Quorum, strings.Join(each, " and "))
	}
	return needed, given
}

// oneLine makes a text that others wrote one line without characters that
// cannot be seen or that change how their neighbours are read.
func oneLine(s string) string {
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '\ufffd'
	}, strings.ToValidUTF8(bound(s), "\ufffd")))
}
