// Package approval keeps the tickets of held calls: durable records of what an agent
// asked for, what people decided, and how the call ended. A ticket is a state machine.
// The table lists all of its moves; each is one conditional update in the store:
//
//	from              to                when
//	(none)            proposed          a held call finds no ticket that answers it
//	proposed          approved          enough approvers said yes
//	proposed          denied            one approver said no
//	proposed          expired           nobody decided in time
//	proposed          superseded        the same call came under another policy, tool definition or obligation, or it would no longer be held on these terms
//	approved          dispatching       the next identical call spent the grant, before anything is sent
//	approved          needs_connection  the call was to be made, and its requester's credential at the server is missing or not as approved
//	approved          expired           no identical call came in time
//	approved          superseded        as above, or an approver no longer has the role when the grant is to be spent
//	needs_connection  approved          the requester's credential is as approved; the old expiry stays
//	needs_connection  expired           the requester did not connect in time
//	needs_connection  superseded        as above
//	dispatching       approved          it is certain that nothing was sent; the old expiry stays
//	dispatching       done              the upstream answered
//	dispatching       failed            the upstream answered with an error
//	dispatching       unknown           whether it ran is not known: timeout, crash, lost connection
//	proposed, approved, needs_connection, dispatching
//	                  unknown           something other than toolgate changed the store, or it is older than the audit trail
//	unknown           done              a person found that it took effect
//	unknown           failed            a person found that it did not
//
// The other states are final. An approved call therefore runs at most once,
// and one that may have run never runs again.
//
// A ticket answers calls that have its binding: requester, server, tool, tool
// fingerprint, argument digest, policy revision and obligation. Any other call has
// another ticket.
//
// Everything fails closed: an error of the store is an error of the call.
package approval

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/toolgate/toolgate/policy"
)

// State is the state of a ticket. The package comment lists the moves.
type State string

// The states of a ticket.
const (
	StateProposed        State = "proposed"         // waits for people
	StateApproved        State = "approved"         // the next identical call may run, once
	StateNeedsConnection State = "needs_connection" // likewise, once its requester is connected: see [Ticket.Unconnected]
	StateDenied          State = "denied"           // final
	StateExpired         State = "expired"          // final
	StateSuperseded      State = "superseded"       // final
	StateDispatching     State = "dispatching"      // the call is running, or was when its process died
	StateDone            State = "done"             // final, with the stored result
	StateFailed          State = "failed"           // final
	StateUnknown         State = "unknown"          // the call may or may not have run: waits for a person to find out
)

// States lists every state in the order of a ticket's life.
func States() []State {
	return []State{StateProposed, StateApproved, StateNeedsConnection, StateDenied, StateExpired, StateSuperseded, StateDispatching, StateDone, StateFailed, StateUnknown}
}

// moves are the changes of state that the package comment lists.
var moves = map[State][]State{
	StateProposed:        {StateApproved, StateDenied, StateExpired, StateSuperseded},
	StateApproved:        {StateDispatching, StateNeedsConnection, StateExpired, StateSuperseded},
	StateNeedsConnection: {StateApproved, StateExpired, StateSuperseded},
	StateDispatching:     {StateApproved, StateDone, StateFailed, StateUnknown},
	StateUnknown:         {StateDone, StateFailed},
}

// ToolError begins the note of a call that ran and that its tool answered with an error, a
// result with isError (MCP, server/tools, "Error Handling"). The beginning of the answer follows.
const ToolError = "the tool answered with an error"

// ToolFailed reports whether the call of t ran and its tool answered with an error. Such a ticket
// is done: whether the call took effect is for the tool to say.
func (t Ticket) ToolFailed() bool {
	return t.State == StateDone && strings.HasPrefix(t.Note, ToolError)
}

// Errors of the methods of [Tickets], for errors.Is.
var (
	ErrNotFound     = errors.New("no such approval ticket")
	ErrSelfApproval = errors.New("nobody decides on a call of their own")
	ErrNotApprover  = errors.New("not an approver of this call")
	// ErrPersonRequired: Options.RequirePerson, and the credential of the approver or of the
	// requester names no person.
	ErrPersonRequired = errors.New("a decision needs credentials that name two persons")
	ErrNotPending     = errors.New("the ticket is not waiting for a decision")
	ErrExpired        = errors.New("the ticket has expired")
	ErrReasonRequired = errors.New("a denial and a finding need a reason")
	ErrStaleDigest    = errors.New("the decision is about other arguments than the ticket has")
	ErrAlreadyVoted   = errors.New("one vote per person")
	ErrNotLive        = errors.New("the ticket is decided or spent")
	ErrNotUnknown     = errors.New("the outcome of the ticket is not unknown")
	// ErrNotDispatching: Release or Finish of a ticket that this instance is
	// not running.
	ErrNotDispatching = errors.New("the ticket is not being run by this instance")
	// ErrUntold: Options.Changed failed, so that the change was not made.
	ErrUntold = errors.New("nobody could be told of the change")
	// ErrClosed: Claim after Close.
	ErrClosed = errors.New("approvals are closed")
)

// Ticket is one held call. A Ticket is a copy: changing it changes nothing.
type Ticket struct {
	Held  // the first call. Its Arguments are nil in a list when over ListedArgumentBytes
	ID    string
	State State

	ArgumentBytes    int       // length of the judged bytes
	Created, Expires time.Time // wall clock, UTC
	Instance         string    // the process that created the ticket, see [Options]

	DecidedBy, DecisionReason string // the deciding vote: its approver and reason

	Result   json.RawMessage // of a call that is done, or the error object of one that failed; nil when none, too large to keep, or a second past Expires
	Note     string          // about the outcome, "" when there is nothing to note
	Attached int             // identical calls that found the ticket waiting

	Approvals int            // votes for it so far, of Quorum
	Given     map[string]int // votes for it that fill each role of Each, with the voters' roles at the vote; one vote fills one role; absent = 0
	Votes     []Ballot       // filled by Get and Decide
	History   []Change       // filled by Get and Decide, oldest first

	binding, subject, tenant string   // as the row has them, for its index
	parties                  []string // likewise
	version                  int64    // number of the last change
	resultDigest, mac        string
	stored                   State  // of the row, where State says what a doubt leaves
	doubt                    string // why the row cannot be relied on, "" = it can

	runner    string     // the instance that runs the call while it is dispatching
	deadline  int64      // Expires in the store's time
	reported  bool       // an agent has got the answer that it expired
	approvers [][]string // the roles of each
	people    bool       // see Options.RequirePerson
}

// Ballot is one person's vote.
type Ballot struct {
	Subject string
	Person  string // of the voter, "" = its credential names none
	Approve bool
	Reason  string
	Digest  string // of the arguments that the ticket had, "sha256:<hex>"
	At      time.Time

	roles     []string // at the vote
	parties   []string // the voter's policy.Principal.Parties at the vote
	mac       string
	countedBy string    // instance
	until     time.Time // when the approver's credential ends, zero = configured
}

// Change is one line of a ticket's history. A vote that did not decide the ticket is a
// Change from proposed to proposed.
type Change struct {
	Seq      int64 // place among the changes of all tickets of the store, ascending, from 1
	At       time.Time
	Who      string // a subject, or "toolgate" for a change that no person made
	From, To State  // From is "" for a new ticket
	Reason   string
	Digest   string
}

// MayDecide reports whether p is an approver of t: same tenant, one of the roles, not the same
// party as the requester (see [policy.Principal.SameParty]), and with Options.RequirePerson
// another person. It says nothing about t's state.
func (t Ticket) MayDecide(p policy.Principal) bool { return t.refuse(p) == nil }

// VisibleTo reports whether p may read t: its requester and the holders of its roles may.
func (t Ticket) VisibleTo(p policy.Principal) bool {
	return p.Valid() && p.Tenant == t.Principal.Tenant && (p.Subject == t.Principal.Subject || p.Has(t.Roles...))
}

// VoteOf returns the vote of p, or of somebody who is the same party.
func (t Ticket) VoteOf(p policy.Principal) (Ballot, bool) {
	i := slices.IndexFunc(t.Votes, func(b Ballot) bool { return b.castBy(p.Parties()) })
	if i < 0 {
		return Ballot{}, false
	}
	return t.Votes[i], true
}

// castBy reports whether the voter of b is one of the parties.
func (b *Ballot) castBy(parties []string) bool {
	return slices.Contains(parties, b.Subject) || slices.ContainsFunc(b.parties, func(name string) bool { return slices.Contains(parties, name) })
}

// refuse returns why p is not an approver of t, nil when p is one.
func (t Ticket) refuse(p policy.Principal) error {
	switch {
	case p.Valid() && p.SameParty(t.Principal):
		return ErrSelfApproval
	case !p.Valid() || p.Tenant != t.Principal.Tenant || !p.Has(t.Roles...):
		return ErrNotApprover
	case t.people && (p.Person == "" || t.Principal.Person == ""):
		return ErrPersonRequired
	}
	return nil
}

// Held is a call that the policy holds.
type Held struct {
	Principal              policy.Principal // the requester
	Server, Tool, Exposed  string           // see policy.Tool
	Fingerprint            string           // of the tool's definition, "sha256:<hex>"
	Arguments              json.RawMessage  // the judged bytes
	Digest                 string           // of Arguments, "sha256:<hex>"; another digest is an error
	Revision, Rule, Reason string           // of the policy decision that holds the call
	DecisionID, TraceID    string
	// Approval has the Roles, the Quorum and Each of the ticket. In a call, TTL 0 means
	// Options.TTL and Quorum 0 means 1.
	policy.Approval
	// RunsAs is what the requests of the call to its server are made with; nil = with what the
	// configuration says, the same for all callers. Not part of the binding.
	RunsAs *Account
	// Unconnected, in a call: why the caller has no credential at the server. Claim then makes no
	// ticket and gives no grant. In a ticket: why its state is [StateNeedsConnection]. "" otherwise.
	Unconnected string
	// How the call was received (see policy.Request), and by which downstream session
	// ("" = none), for people; not part of the binding.
	Transport, Era, Session string
	// Tags are what the caller of a job claims of it (see policy.Request): those of the
	// ticket's first call are judged again; not part of the binding.
	Tags map[string]string
	// Execute makes the call run as soon as it is approved, whether or not the agent
	// calls again. Once set, it stays set on the ticket.
	Execute bool
}

// ClaimOutcome is a ticket's answer to a held call.
type ClaimOutcome string

// The outcomes of a Claim. Only Granted may be sent, and only once.
const (
	Pending  ClaimOutcome = "pending"   // people have not decided yet
	Granted  ClaimOutcome = "granted"   // spent: send now, then Finish or Release
	InFlight ClaimOutcome = "in_flight" // an identical call is running now
	Replay   ClaimOutcome = "replay"    // it ran: Ticket.Result is the stored result, nil when it was too large (see Note)
	Failed   ClaimOutcome = "failed"    // it ran and failed: see Ticket.Note and Result
	Unknown  ClaimOutcome = "unknown"   // it may have run
	Denied   ClaimOutcome = "denied"    // a person said no: see Ticket.DecisionReason
	Expired  ClaimOutcome = "expired"   // answered once; the next identical call gets a new ticket
	// Unconnected: the call may not run with the credential that the requester has now, if any. Of
	// an approved ticket the grant is kept, in StateNeedsConnection. Ticket is zero where there is none.
	Unconnected ClaimOutcome = "unconnected"
	TooMany     ClaimOutcome = "too_many" // the requester has MaxLive calls waiting; no ticket was made
)

// Claim is a ticket and its answer. Ticket is zero for TooMany.
type Claim struct {
	Ticket  Ticket
	Outcome ClaimOutcome
}

// Vote is one approver's decision on one ticket.
type Vote struct {
	ID       string
	Approver policy.Principal
	Approve  bool
	Reason   string // needed for a denial
	Digest   string // of the arguments that the approver saw; "" = not checked
}

// Finding is a person's finding about a call whose outcome was unknown.
type Finding struct {
	ID         string
	Approver   policy.Principal
	TookEffect bool
	Reason     string // needed: how the person knows
}

// Event is a change of one ticket, as Follow yields it.
type Event struct {
	Seq    int64 // of Change
	Change Change
	// Ticket is the ticket as in a list, at the time of the yield: it may have changed
	// again since the Change.
	Ticket Ticket
}

// Filter chooses tickets for List; zero fields choose everything.
type Filter struct {
	States    []State          // any of these
	Principal string           // the requester's subject
	Server    string           // that has the tool
	Tool      string           // as agents call it
	Roles     []string         // tickets that an approver with one of these may decide
	Viewer    policy.Principal // when valid: only what VisibleTo allows
	Awaiting  policy.Principal // when valid: only what waits for its vote: proposed, its to decide, not yet voted on by its party
	Before    string           // only tickets older than the one with this id; one that does not exist has none before it
	Limit     int              // 0 = 100, at most 1000
}

// ListedArgumentBytes is the largest Arguments that List fills in.
const ListedArgumentBytes = 16 << 10

// MaxResultBytes is the largest result that Finish keeps for replay.
const MaxResultBytes = 1 << 20
