// Package notice tells people about tickets where they already look: by signed
// webhooks, in Slack and Teams, by email. A notice says that a call waits, how
// it was decided or what became of it, and carries the link to the page of its
// ticket. It is word, never authority: it holds no arguments and no secret, and
// whoever follows the link has to sign in.
//
// Notices are kept in an outbox in the store. [Sender.Enqueue] writes them in
// the transaction of the change that they tell of, so that there is no change
// without its notices and no notice of a change that was undone. Each is then
// tried until it is delivered or has become pointless:
//
//	waiting --due--> being tried --2xx--> delivered (the row is deleted)
//	   ^                 |
//	   +---- back off ---+--no time left, or 410 Gone--> dead (kept for a week)
//
// A try is begun by one conditional update that hides the row for longer than a
// try may take, so that of any number of processes on one store one sends it. A
// process that dies meanwhile leaves a row that comes due again. Delivery is
// thus at least once; the id of a notice stays the same, and receivers know
// repeats by it. On one channel the notices of one ticket come in their order.
package notice

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"
	"unicode"

	"github.com/toolgate/toolgate/policy/approval"
)

// Event is what a notice tells of.
type Event string

// The events.
const (
	Requested Event = "approval.requested" // a call waits for people
	Decided   Event = "approval.decided"   // it was approved, denied, superseded, or expired
	Ended     Event = "approval.ended"     // it ran: done, failed or unknown
)

// machine is who makes the changes that no person makes.
const machine = "toolgate"

// eventOf says what a change of a ticket is to people, "" when nothing: votes
// that leave it waiting, and the run of an approved call until its end.
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

// Body is what a webhook of format json is sent, a payload of Standard Webhooks.
type Body struct {
	Type      Event     `json:"type"`
	Timestamp time.Time `json:"timestamp"` // of the change
	Data      Data      `json:"data"`
}

// Data is what a notice says of a ticket. Arguments are not in it, nor what an
// upstream answered: they may be secrets. Texts are cut to 500 characters.
type Data struct {
	Ticket    string         `json:"ticket"`
	State     approval.State `json:"state"` // after the change
	URL       string         `json:"url"`   // of the page of the ticket
	Requester string         `json:"requester"`
	Tenant    string         `json:"tenant,omitempty"`
	Server    string         `json:"server"`
	Tool      string         `json:"tool"` // as agents know it
	Rule      string         `json:"rule"`
	Reason    string         `json:"reason"` // why the policy holds it
	Roles     []string       `json:"roles"`  // an approver has one of these
	Quorum    int            `json:"quorum"`
	Created   time.Time      `json:"created_at"`
	Expires   time.Time      `json:"expires_at"`
	By        string         `json:"by,omitempty"`      // who made the change: a subject, or toolgate
	Because   string         `json:"because,omitempty"` // why, in the words of a person or of toolgate
}

// bodyOf is the body of a notice of change c, after which the ticket is t.
func bodyOf(event Event, t approval.Ticket, c approval.Change, link string) ([]byte, error) {
	d := Data{
		Ticket: t.ID, State: c.To, URL: link, Requester: clip(t.Principal.Subject), Tenant: clip(t.Principal.Tenant),
		Server: clip(t.Server), Tool: clip(t.Exposed), Rule: clip(t.Rule), Reason: clip(t.Reason),
		Roles: t.Roles, Quorum: t.Quorum, Created: t.Created.UTC(), Expires: t.Expires.UTC(),
	}
	if event != Requested {
		d.By = clip(c.Who)
	}
	// The reason of an end that nobody brought about may quote the upstream.
	if event == Decided || event == Ended && c.Who != machine {
		d.Because = clip(c.Reason)
	}
	return json.Marshal(Body{event, c.At.UTC(), d})
}

// clip bounds a text that others wrote.
func clip(s string) string {
	const most = 500
	if len(s) <= most {
		return s
	}
	if r := []rune(s); len(r) > most {
		return string(r[:most]) + "…"
	}
	return s
}

// line is one fact of a notice, for people.
type line struct{ name, value string }

// title says in one line what has happened.
func (b Body) title() string {
	d := b.Data
	who, tool := plain(d.Requester), plain(d.Tool)
	switch b.Type {
	case Requested:
		return fmt.Sprintf("%s asks to call %s", who, tool)
	case Ended:
		return fmt.Sprintf("%s: %s, called by %s", d.State, tool, who)
	}
	return fmt.Sprintf("%s: call of %s by %s", d.State, tool, who)
}

// lines are the facts that people read before they follow the link.
func (b Body) lines() []line {
	d := b.Data
	roles := strings.Join(d.Roles, ", ")
	if d.Quorum > 1 {
		roles = fmt.Sprintf("%d of %s", d.Quorum, roles)
	}
	all := []line{
		{"Requester", d.Requester}, {"Tenant", d.Tenant}, {"Tool", d.Tool}, {"Server", d.Server},
		{"Rule", d.Rule}, {"Reason", d.Reason}, {"Approvers", roles},
	}
	if b.Type == Requested {
		all = append(all, line{"Expires", d.Expires.Format("2006-01-02 15:04:05 UTC")})
	}
	all = append(all, line{"By", d.By}, line{"Because", d.Because})
	said := all[:0]
	for _, l := range all {
		if l.value = plain(l.value); l.value != "" {
			said = append(said, l)
		}
	}
	return said
}

// plain makes a text that others wrote one line without characters that cannot
// be seen or that change how their neighbours are read.
func plain(s string) string {
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '\ufffd'
	}, strings.ToValidUTF8(clip(s), "\ufffd")))
}
