// Package audit is the trail of decisions and outcomes: an append-only log with one
// JSON record per line, chained by SHA-256. It is a gate, not only a log: a call that
// cannot be recorded is not made, and a result that cannot be recorded is withheld.
// The example of the package shows one call.
//
// # Files
//
// Each process writes to a directory of its own, <root>/<instance>/, which holds the
// segments 000001.jsonl, 000002.jsonl, … and a file HEAD. No other process writes
// there, so processes that share a state directory need no lock. Directories have mode
// 0700 and files 0600: arguments are recorded in full, including secrets in them. The
// segment that is being written may end in zeros, which records replace.
// Package audit/notary takes away what processes have left.
//
// # Chain
//
// The first record is of kind open; a clean end is a record of kind close. Every line
// ends with the member hash. The hash of a record is the SHA-256, in lower-case hex,
// of its line without that member: the bytes before `,"hash":"…"}` followed by `}`,
// without the line feed. The member prev is the hash of the record before, 64 zeros
// for the first record; seq counts from 1. Both continue from one segment to the next.
// A verifier needs only the files.
//
// # What a chain proves
//
// A changed, added, moved or missing record breaks the chain where it happened. A
// chain whose end was cut off is still a chain, so HEAD names the last record as of at
// most one second or 10,000 records ago, and after a clean end the last record of all.
// notary.Evidence.Verify reports records that are missing against HEAD. Someone who can write to the
// directory can also rewrite chain and HEAD together, or remove both; only a head that
// was noted elsewhere reveals that: package audit/notary has signed checkpoints of heads.
//
// # Envelope log
//
// EnvelopeLog is a second log, of every envelope that a door received. It serves
// observation and is not evidence: it has no hashes, never delays a call, and drops
// events, which it counts, rather than wait for a disk.
package audit

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"
)

// Kind is the event that a record describes.
type Kind string

// The kinds of records.
const (
	KindOpen     Kind = "open"     // first record of a chain
	KindDecision Kind = "decision" // a call is about to be made
	KindOutcome  Kind = "outcome"  // a call has ended, or was refused
	KindTicket   Kind = "ticket"   // an approval ticket is about to change
	KindEvent    Kind = "event"    // an act that is neither: see Event
	KindClose    Kind = "close"    // last record after a clean end
)

// Outcome is the result of a call.
type Outcome string

// The outcomes. The stage at which a call ended is Record.Stage.
const (
	Allowed   Outcome = "allowed"   // the upstream's result was passed on
	Denied    Outcome = "denied"    // refused by policy or by a person
	Held      Outcome = "held"      // waits for a person's decision
	Limited   Outcome = "limited"   // over a rate or a bound
	Invalid   Outcome = "invalid"   // the envelope or the arguments are wrong
	Unknown   Outcome = "unknown"   // no such tool for this principal
	Failed    Outcome = "failed"    // the upstream, or a part of ours, failed
	Cancelled Outcome = "cancelled" // the caller gave up
)

// Principal identifies the caller.
type Principal struct {
	Subject string   `json:"subject"`
	Person  string   `json:"person,omitempty"`
	Roles   []string `json:"roles"`
	Client  string   `json:"client,omitempty"`
	Tenant  string   `json:"tenant,omitempty"`
}

// Credential names what a call's requests to its server are made with. It holds no secret.
type Credential struct {
	ID      string    `json:"id"`
	Type    string    `json:"type"`              // oauth, exchange or command
	Issuer  string    `json:"issuer,omitempty"`  // of the authorization server; "" = not known
	Account string    `json:"account,omitempty"` // of the person at the server; "" = not known
	Scopes  []string  `json:"scopes,omitempty"`  // that were granted; nil = not known
	Until   time.Time `json:"until,omitzero"`    // when it ends unless it is renewed; zero = not known
}

// Policy is the policy's decision on a call.
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
	Seq     int64     `json:"seq"`              // number among the changes of all tickets of the store; of two with one number the later one happened
	From    string    `json:"from"`             // state; "" = the ticket is new
	To      string    `json:"to"`               // state; equal to From for a vote that did not decide the ticket
	Who     string    `json:"who"`              // a subject, or "toolgate" for a change that no person made
	Reason  string    `json:"reason"`           // as given, "" when there is none
	Digest  string    `json:"digest"`           // of the ticket's arguments, "sha256:<hex>"
	Expires time.Time `json:"expires,omitzero"` // of the ticket: from then on it allows nothing
	// Approvals of Quorum are given after the change. Each and Given have the same
	// numbers by role, where the policy asks for approvals of each role.
	Quorum    int            `json:"quorum,omitempty"`
	Approvals int            `json:"approvals,omitempty"`
	Each      map[string]int `json:"each,omitempty"`
	Given     map[string]int `json:"given,omitempty"`
}

// The names of events.
const (
	EventSignIn        = "sign_in"               // somebody signed in to the console
	EventSignInRefused = "sign_in_refused"       //
	EventSignOut       = "sign_out"              //
	EventVoteRefused   = "vote_refused"          // a vote or a finding on a ticket did not count
	EventTrailRead     = "trail_read"            // somebody read the trail, through the admin listener or from its files
	EventConfiguration = "configuration_changed" // another configuration serves
	EventPolicy        = "policy_changed"        // another policy serves
	EventReloadRefused = "reload_refused"        // a configuration or policy that was read does not serve
	EventAccepted      = "definition_accepted"   // tool definitions of a server are accepted: first = with its first list, lock, or accept = by a person
	EventNotAccepted   = "definition_refused"    // a person does not accept the definition of a tool that Removed names; the reason is the person's
	EventDefinition    = "definition_changed"    // a server offers another definition of a tool than the accepted one: the tool is withheld; Count = tools of the server that the record stands for
	EventTokenMade     = "token_made"            // a person made the token that Added names, or was refused to
	EventRevoked       = "token_revoked"         // a token was revoked; Removed names it
	EventKeysRotated   = "keys_rotated"          // the keys that Added names get another version
	EventConfined      = "server_confined"       // a server's command starts; the reason says how it is confined
	EventArchived      = "trail_archived"        // records were moved to an archive; Removed names the last records of the chains that were removed
	EventRetired       = "replica_retired"       // a replica is gone for good; Removed names it, and the last record of each of its chains
	EventRestarted     = "server_restarted"      // a person restarted a server, or was refused to
	EventArguments     = "arguments_read"        // somebody read the arguments of the call that Added names, or searched in arguments; or was refused to
	EventProfile       = "profile_taken"         // a person took the profile of toolgate that Added names, or was refused to

	EventStopped = "calls_stopped" // a person stopped the calls that Added names, or was refused to
	EventResumed = "calls_resumed" // a person ended the stop that Removed names, or was refused to

	EventTried    = "policy_tried"   // a person tried a policy that does not serve on recorded calls, or was refused to
	EventVerified = "trail_verified" // a person had the trail verified, or was refused to
	EventExported = "trail_exported" // a person exported the trail, or was refused to

	EventSessionEnded = "session_ended" // a person ended the session of a client that Removed names, or was refused to

	EventConnect        = "connection_begun"   // a person went to connect an account at a server
	EventConnected      = "connection_made"    // and came back
	EventConnectRefused = "connection_refused" // a connection was not begun, or not made
	EventDisconnect     = "connection_revoked" // a person ended the connection that Removed names

	EventCredentialRefused = "credential_refused" // a credential named nobody; the reason is an identity.Kind
	EventCallsRefused      = "calls_refused"      // a call was refused beyond limits.refused; the reason is its kernel code
)

// Event is an act that is neither a call nor a change of a ticket. Its record has the
// principal, if one is known, and the ticket, server and tool that the act is about.
type Event struct {
	Name       string   `json:"name"`                 // one of the constants, or of another package
	Source     string   `json:"source,omitempty"`     // address of the client; "" = the act did not come over the network
	Credential string   `json:"credential,omitempty"` // kind of credential: token, jwt, session, provider, files; "" = none
	Reason     string   `json:"reason,omitempty"`     // why it was refused, or what it was for
	Count      int      `json:"count,omitempty"`      // acts that one folded record stands for; 0 = one
	Added      []string `json:"added,omitempty"`      // things that the act brought, such as "token agent-7 1f2e3d4c5b6a"
	Removed    []string `json:"removed,omitempty"`    // things that the act took away
}

// Refused reports whether the event says that an act was refused.
func (e *Event) Refused() bool {
	switch e.Name {
	case EventTrailRead, EventArguments, EventRestarted, EventProfile, EventStopped, EventResumed, EventTried, EventVerified, EventExported, EventSessionEnded: // their reason is that of a refusal
		return e.Reason != ""
	case EventAccepted, EventNotAccepted, EventTokenMade, EventRevoked: // what is done says to what
		return len(e.Added)+len(e.Removed) == 0
	}
	return strings.HasSuffix(e.Name, "_refused")
}

// Earlier names a chain as it was when another chain began.
type Earlier struct {
	Instance string `json:"instance"`
	Seq      uint64 `json:"seq"`  // number of its last record at the time
	Hash     string `json:"hash"` // of that record
}

// String returns e as it is in Event.Removed.
func (e Earlier) String() string { return fmt.Sprintf("chain %s %d %s", e.Instance, e.Seq, e.Hash) }

// Record is one line of the log. A caller fills the fields that it knows and keeps the
// Record: the log reads it only until Decision, Outcome or Ticket returns, and never
// writes to it. The log sets the members of the first group itself; callers only read
// them.
type Record struct {
	V        int    `json:"v"` // version of the form, 1
	Seq      uint64 `json:"seq"`
	Kind     Kind   `json:"kind"`
	Instance string `json:"instance"`
	Prev     string `json:"prev"`
	Hash     string `json:"hash"`
	Version  string `json:"version,omitempty"` // of the program; open only
	PID      int    `json:"pid,omitempty"`     // open only
	// Before names the ends of the chains that were there when this one began, except
	// those that one of the others names already; open only.
	Before []Earlier `json:"before,omitempty"`

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
	// Tags are what the caller of a job claims of it (seed 002, tag conventions), by key; nil
	// for other requests.
	Tags map[string]string `json:"tags,omitempty"`

	Method      string `json:"method,omitempty"` // "" = tools/call
	Server      string `json:"server"`
	Tool        string `json:"tool"`    // as the upstream calls it
	Exposed     string `json:"exposed"` // as the agent called it
	Fingerprint string `json:"fingerprint"`
	// Arguments are the judged bytes. A value that is not one line of JSON in UTF-8 is
	// recorded as a JSON string of its text.
	Arguments json.RawMessage `json:"arguments,omitempty"`
	// About are the judged bytes where Arguments does not have them. They are not recorded:
	// who writes the record finds out with them whether it quotes a secret.
	About json.RawMessage `json:"-"`
	// Accepted says that Arguments, Input, Policy.Obligations and Task, as far as there are any, are
	// JSON that package jsonrpc accepted or toolgate made: the log does not check them again. It is
	// not recorded.
	Accepted bool `json:"-"`
	// ArgumentsSHA256 is lower-case hex; "" = the log computes it from Arguments.
	ArgumentsSHA256 string `json:"arguments_sha256,omitempty"`
	// ArgumentsBytes and ArgumentsExcerpt, the beginning, take the place of the large
	// arguments of a refused call.
	ArgumentsBytes   int    `json:"arguments_bytes,omitempty"`
	ArgumentsExcerpt string `json:"arguments_excerpt,omitempty"`
	// ArgumentsKept says how arguments are recorded that are not recorded whole: masked,
	// or digest for not at all. ArgumentsHMAC then takes the place of ArgumentsSHA256:
	// lower-case hex of HMAC-SHA256, under the key ArgumentsKey, of "sha256:" and the hex
	// digest. Who has no key cannot find the arguments by trying.
	ArgumentsKept string `json:"arguments_kept,omitempty"`
	ArgumentsHMAC string `json:"arguments_hmac,omitempty"`
	ArgumentsKey  string `json:"arguments_key,omitempty"`

	// Credential is what the request was made with, or would have been, where callers have
	// credentials of their own at the server; nil elsewhere.
	Credential *Credential `json:"credential,omitempty"`

	Policy Policy `json:"policy,omitzero"`
	// Input is an object with the policy's input, except for the members that the
	// record has anyway; nil when the policy was not asked, or when the decision record
	// of the same call has it. Package policy/judgement writes and reads it.
	Input  json.RawMessage `json:"input,omitempty"`
	Ticket string          `json:"ticket,omitempty"` // approval ticket
	// Task is params.task, an object, of a tool call that asks for a task (MCP
	// 2025-11-25, tasks); nil for other calls.
	Task json.RawMessage `json:"task,omitempty"`

	Change *Change `json:"change,omitempty"` // ticket records only
	Event  *Event  `json:"event,omitempty"`  // event records only

	Outcome      Outcome `json:"outcome,omitempty"`       // outcome records only, as is all below
	Stage        string  `json:"stage,omitempty"`         // the stage at which the call ended
	Code         string  `json:"code,omitempty"`          // kernel code of a refusal
	DurationMS   float64 `json:"duration_ms,omitempty"`   // milliseconds, kept to the microsecond
	UpstreamMS   float64 `json:"upstream_ms,omitempty"`   // of which the server took, in milliseconds; 0 = it was not called
	ResultSHA256 string  `json:"result_sha256,omitempty"` // lower-case hex
	ResultBytes  int     `json:"result_bytes,omitempty"`
	// ResultTokens estimates what the result takes of a model's context: a token for each
	// four bytes. It is not token_count of seed 002, which counts what toolgate's own calls of
	// models cost: toolgate makes none.
	ResultTokens int `json:"result_tokens_estimated,omitempty"`
	// Signals are the IDs of the first eight Signals of the result, which the agent was told.
	Signals []string `json:"signals,omitempty"`
	// Hidden are the kinds of characters in the upstream's result that a reader does
	// not see: control, bidi, invisible, tag.
	Hidden []string `json:"hidden,omitempty"`
	// Warnings say what was wrong with a call that was made all the same, or with its
	// result: that they break a schema of the tool, or could not be kept whole.
	Warnings []string `json:"warnings,omitempty"`
	Error    string   `json:"error,omitempty"`
	Replayed bool     `json:"replayed,omitempty"` // the result is the stored one of an earlier run
}
