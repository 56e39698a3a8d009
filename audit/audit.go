// Package audit remembers what was decided and what came of it: an append-only
// log of one JSON record per line, chained by SHA-256, in which a call that is
// not recorded is a call that is not made.
//
// # Files
//
// A process writes to a directory of its own, <root>/<instance>/, which holds
// segments 000001.jsonl, 000002.jsonl, … and a file HEAD. Nobody else writes
// there, so that processes that share a state directory need no lock. The
// directories are 0700 and the files 0600: arguments are recorded in full,
// secrets in them included.
//
// # Chain
//
// The first record is of kind open, and a clean end is a record of kind close.
// Every line ends with the member hash. The hash of a record is the SHA-256, in
// lower-case hex, of its line without that member: the bytes before
// `,"hash":"…"}` followed by `}`, without the line feed. The member prev is the
// hash of the record before, 64 zeros for the first; seq counts from 1. Both go
// on from one segment to the next. A verifier needs only the files.
//
// # What a chain proves
//
// A changed, added, moved or missing record breaks the chain where it happened.
// A chain whose end was cut is still a chain, so HEAD names the last record as
// of at most one second or 1000 records ago, and the last of all after a clean
// end. Records missing against HEAD are reported. Whoever can write to the
// directory can also rewrite chain and HEAD together, or remove both: against
// that helps only a head noted elsewhere (Chain.Head of a Report).
//
// # Envelope log
//
// Beside the chain there is a log of every envelope that a door received, for
// observation and not as evidence: EnvelopeLog. It has no hashes, never holds a
// call up and drops events, counted, rather than wait for a disk.
package audit

import (
	"encoding/json"
	"time"
)

// Kind says what a record is about.
type Kind string

// The kinds of records.
const (
	KindOpen     Kind = "open"     // first record of a chain
	KindDecision Kind = "decision" // a call is about to be made
	KindOutcome  Kind = "outcome"  // what a call came to, refusals included
	KindTicket   Kind = "ticket"   // an approval ticket is about to change
	KindClose    Kind = "close"    // last record after a clean end
)

// Outcome says what a call came to.
type Outcome string

// The outcomes. The stage at which a call ended is Record.Stage.
const (
	Allowed   Outcome = "allowed"   // the upstream's result was passed on
	Denied    Outcome = "denied"    // refused by policy or by a person
	Held      Outcome = "held"      // waits for a person
	Limited   Outcome = "limited"   // over a rate or a bound
	Invalid   Outcome = "invalid"   // the envelope or the arguments are wrong
	Unknown   Outcome = "unknown"   // no such tool for this principal
	Failed    Outcome = "failed"    // the upstream, or a part of ours, failed
	Cancelled Outcome = "cancelled" // the caller gave up
)

// Principal is who made a call.
type Principal struct {
	Subject string   `json:"subject"`
	Roles   []string `json:"roles"`
	Client  string   `json:"client,omitempty"`
	Tenant  string   `json:"tenant,omitempty"`
}

// Policy is the verdict that a record carries.
type Policy struct {
	Effect   string `json:"effect"`             // allow, hold or deny; "" = the policy was not asked
	Rule     string `json:"rule,omitempty"`     // identifier of the rule that decided
	Reason   string `json:"reason,omitempty"`   //
	Remedy   string `json:"remedy,omitempty"`   //
	Revision string `json:"revision,omitempty"` // "sha256:<hex>" of the policy
	// Obligations is the rest of the decision, an object of approval, limit, redact
	// and labels as far as there are any; nil when there are none.
	Obligations json.RawMessage `json:"obligations,omitempty"`
}

// Change is a change of an approval ticket. Its record also has the call that made
// the ticket: its requester, tool and policy.
type Change struct {
	Seq    int64  `json:"seq"`    // number among the changes of all tickets of the store; of two with one number the later one happened
	From   string `json:"from"`   // state; "" = the ticket is new
	To     string `json:"to"`     // state; equal to From for a vote that did not decide the ticket
	Who    string `json:"who"`    // a subject, or "toolgate" for a change that no person made
	Reason string `json:"reason"` // as given, "" when there is none
	Digest string `json:"digest"` // of the ticket's arguments, "sha256:<hex>"
	// Approvals of Quorum are given after the change. Each and Given have the same
	// numbers by role, where the policy asks for approvals of each role.
	Quorum    int            `json:"quorum,omitempty"`
	Approvals int            `json:"approvals,omitempty"`
	Each      map[string]int `json:"each,omitempty"`
	Given     map[string]int `json:"given,omitempty"`
}

// Record is one line of the log. A caller fills what it knows and keeps the
// Record: the log reads it only until Decision, Outcome or Ticket returns, and
// never writes to it. The members of the first group are the log's own and are only
// read back.
type Record struct {
	V        int    `json:"v"` // version of the form, 1
	Seq      uint64 `json:"seq"`
	Kind     Kind   `json:"kind"`
	Instance string `json:"instance"`
	Prev     string `json:"prev"`
	Hash     string `json:"hash"`
	Version  string `json:"version,omitempty"` // of the program; open only
	PID      int    `json:"pid,omitempty"`     // open only

	Time       time.Time `json:"time"` // UTC; zero = when the log got the record
	CallID     string    `json:"call_id"`
	DecisionID string    `json:"decision_id"`
	TraceID    string    `json:"trace_id"`
	ParentID   string    `json:"parent_id,omitempty"`
	Principal  Principal `json:"principal"`

	Transport string `json:"transport"`
	Era       string `json:"era"`
	Route     string `json:"route"`
	Session   string `json:"session,omitempty"`
	RequestID string `json:"request_id"` // the JSON-RPC id as text

	Method      string `json:"method,omitempty"` // "" = tools/call
	Server      string `json:"server"`
	Tool        string `json:"tool"`    // as the upstream calls it
	Exposed     string `json:"exposed"` // as the agent called it
	Fingerprint string `json:"fingerprint"`
	// Arguments are the judged bytes. What is not one line of JSON in UTF-8 is
	// recorded as a JSON string of its text.
	Arguments json.RawMessage `json:"arguments,omitempty"`
	// ArgumentsSHA256 is lower-case hex; "" = the log computes it from Arguments.
	ArgumentsSHA256 string `json:"arguments_sha256,omitempty"`

	Policy Policy `json:"policy,omitzero"`
	// Input is an object of what the policy judged beside the other members of the
	// record; nil when the policy was not asked, or when the decision record of the
	// same call has it. Package policy/judgement writes and reads it.
	Input  json.RawMessage `json:"input,omitempty"`
	Ticket string          `json:"ticket,omitempty"` // approval ticket
	// Task is params.task of a tool call whose result is to be a task (MCP
	// 2025-11-25, tasks), an object; nil when none was wanted.
	Task json.RawMessage `json:"task,omitempty"`

	Change *Change `json:"change,omitempty"` // ticket records only

	Outcome      Outcome `json:"outcome,omitempty"`       // outcome records only, as is all below
	Stage        string  `json:"stage,omitempty"`         // where on the road the call ended
	Code         string  `json:"code,omitempty"`          // kernel code of a refusal
	DurationMS   float64 `json:"duration_ms,omitempty"`   // milliseconds, kept to the microsecond
	ResultSHA256 string  `json:"result_sha256,omitempty"` // lower-case hex
	ResultBytes  int     `json:"result_bytes,omitempty"`
	Error        string  `json:"error,omitempty"`
	Replayed     bool    `json:"replayed,omitempty"` // the stored result of an earlier run was given
}
