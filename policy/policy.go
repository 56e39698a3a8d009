// Package policy holds the words in which a call is judged: who calls, which
// tool, with what arguments, and what was decided. The types are the typed
// form of the policy contract (input and decision of data.toolgate); engines,
// identities, limits and tickets live in the packages below.
package policy

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	jsonv1 "github.com/go-json-experiment/json/v1"
)

// Principal is who makes a call. The zero Principal is nobody: no stage of
// the road lets it pass.
//
// Who calls, for whom, through what and from where are separate facts. Only Client is
// the caller's own claim; the credential vouches for the others.
type Principal struct {
	Subject  string   `json:"subject"`             // stable name, never empty
	Person   string   `json:"person,omitempty"`    // the human who acts, or owns the agent that acts; "" = the credential names none
	Issuer   string   `json:"issuer,omitempty"`    // iss of a JWT or an ID token; "" = a configured token or the local principal
	Roles    []string `json:"roles"`               // in configured order, may be empty
	Client   string   `json:"client,omitempty"`    // name/version the client gave of itself: unverified
	ClientID string   `json:"client_id,omitempty"` // the OAuth client that the token was issued to (client_id or azp)
	Tenant   string   `json:"tenant,omitempty"`    // empty outside multi-tenant identity
	Actors   []string `json:"actors,omitempty"`    // who acts for Subject, named like subjects, the present actor first (RFC 8693 section 4.1)
	MayAct   []string `json:"may_act,omitempty"`   // who may act for Subject (RFC 8693 section 4.4)
	Scopes   []string `json:"scopes"`              // of the access token; empty for every other credential
	// Until is when the credential ends that named the principal; zero = it ends
	// when the operator says so. It is no part of what policies see.
	Until time.Time `json:"-"`
	// Shape is how answers are shown to whoever has the credential. It is no part of
	// what policies see.
	Shape Shape `json:"-"`
}

// Shape says how answers are shown to a client. It changes no verdict, limit or record.
type Shape struct {
	Errors  string // of tool calls: result, an error dialect, or "" = not said
	Results string // off, compact, full, signals, or "" = not said
}

// Valid reports whether p names somebody.
func (p Principal) Valid() bool { return p.Subject != "" }

// Has reports whether p holds any of roles.
func (p Principal) Has(roles ...string) bool {
	return slices.ContainsFunc(p.Roles, func(role string) bool { return slices.Contains(roles, role) })
}

// Parties returns the names that p goes by where duties are separated: its subject, its
// person, and everybody who acts for it.
func (p Principal) Parties() []string {
	names := append([]string{p.Subject}, p.Actors...)
	if p.Person != "" {
		names = append(names, p.Person)
	}
	return names
}

// SameParty reports whether p and q must not check each other: one human stands behind
// both, one acts for the other, or may. Principals without a Person are the same party
// only by their subjects.
func (p Principal) SameParty(q Principal) bool {
	ps, qs := p.Parties(), q.Parties()
	shares := func(a, b []string) bool {
		return slices.ContainsFunc(a, func(name string) bool { return slices.Contains(b, name) })
	}
	return shares(ps, qs) || shares(p.MayAct, qs) || shares(q.MayAct, ps)
}

// Clone returns a copy of p that shares no memory with it.
func (p Principal) Clone() Principal {
	p.Roles, p.Actors, p.MayAct, p.Scopes = slices.Clone(p.Roles), slices.Clone(p.Actors), slices.Clone(p.MayAct), slices.Clone(p.Scopes)
	return p
}

// Tool is what a policy may know of a tool. Annotations are the upstream's own
// claims: a policy may read them, never trust them.
type Tool struct {
	Server      string          `json:"server"`
	Name        string          `json:"name"`    // as the upstream calls it
	Exposed     string          `json:"exposed"` // as agents call it; rights are keyed by this
	Risk        string          `json:"risk"`    // the server's configured risk, "" when none
	Annotations json.RawMessage `json:"annotations,omitempty"`
	Fingerprint string          `json:"fingerprint"` // "sha256:<hex>" of the definition
}

// Request is the envelope of a call.
type Request struct {
	ID        string    `json:"id"`        // the JSON-RPC id as text
	Transport string    `json:"transport"` // http, stdio, ndjson, rest, cli
	Era       string    `json:"era"`       // MCP revision, "" outside MCP
	TraceID   string    `json:"trace_id"`
	Time      time.Time `json:"time"` // set by the road; policies have no clock of their own
	// Tags are what the caller of a job claims of it (seed 002, tag conventions), by key:
	// urgency, domain, complexity, confidence, grounding. Nothing vouches for them. Nil when
	// there are none.
	Tags map[string]string `json:"tags,omitempty"`
}

// ActionCall is the action of a tool call. Every other action is the method of
// that name, of MCP or of an extension, and has a Resource, a Prompt or a Server
// in place of a Tool.
const ActionCall = "tools/call"

// Resource is what resources/read reads, and what completion/complete completes
// the template of.
type Resource struct {
	Server string `json:"server"`
	URI    string `json:"uri"` // as the client gave it, or a template
}

// Prompt is what prompts/get gets, and what completion/complete completes the
// arguments of.
type Prompt struct {
	Server string `json:"server"`
	Name   string `json:"name"` // as the upstream calls it
}

// Server is what a request is about that names neither a tool nor a resource nor
// a prompt: one that sets something on a server, one about a task, one of an
// extension, and what the server itself asks of the caller.
type Server struct {
	Name string `json:"name"` // as configured; "" = all servers, for a log level where all are
	// Tools are the exposed names of the tools that the request is about: all of
	// the server's for logging/setLevel, for requests about a task the one that
	// was called. Nil for everything else.
	Tools []string `json:"tools,omitempty"`
	// Asks is set when it is the server that asks the caller, and not the
	// reverse: the method of its request, or of the one that a task of the
	// caller's came of.
	Asks string `json:"asks,omitempty"`
}

// Input is the document a policy judges. Exactly one of Tool, Resource, Prompt
// and Server is about the request: a policy sees no tool where there is none.
type Input struct {
	Action    string    `json:"action"` // "" means ActionCall
	Principal Principal `json:"principal"`
	Tool      Tool      `json:"tool,omitzero"`
	Resource  *Resource `json:"resource,omitempty"`
	Prompt    *Prompt   `json:"prompt,omitempty"`
	Server    *Server   `json:"server,omitempty"`
	// Arguments is a JSON object, numbers exact: the arguments of a tool or a
	// prompt, {} for a resource, the params where a Server is what it is about.
	Arguments json.RawMessage `json:"arguments"`
	Request   Request         `json:"request"`
	// Facts are what toolgate has read of the arguments of a tool, as data.facts of the
	// policy declares. The engine reads them anew at each judgement: they are in no record.
	Facts json.RawMessage `json:"facts,omitempty"`
	// Usage is what each meter of the tool stands at, by the meter's name, before
	// this call; nil for a tool that has none.
	Usage map[string]Reading `json:"usage,omitempty"`
}

// Calls reports whether in is about the call of a tool.
func (in *Input) Calls() bool { return in.Action == "" || in.Action == ActionCall }

type plain Input // without the methods

// MarshalJSON writes in as a policy sees it.
func (in Input) MarshalJSON() ([]byte, error) {
	d := plain(in)
	d.Action = cmp.Or(d.Action, ActionCall)
	if !in.Calls() {
		d.Tool = Tool{}
	}
	if d.Principal.Roles == nil {
		d.Principal.Roles = []string{}
	}
	if d.Principal.Scopes == nil {
		d.Principal.Scopes = []string{}
	}
	if len(d.Arguments) == 0 {
		d.Arguments = json.RawMessage("{}")
	}
	d.Request.Time = d.Request.Time.UTC()
	return json.Marshal(d)
}

// UnmarshalJSON reads what MarshalJSON writes, as people may write it by hand:
// everything but the principal and what the request is about may be missing.
// A member that no policy sees is an error.
func (in *Input) UnmarshalJSON(raw []byte) error {
	var d plain
	if err := ReadStrict(raw, &d); err != nil {
		return fmt.Errorf("reading input: %w", err)
	}
	*in = Input(d)
	var about struct{ Tool *json.RawMessage }
	if err := json.Unmarshal(raw, &about); err != nil || in.Calls() != (about.Tool != nil) {
		return errors.New("reading input: tool: wanted for tools/call, and for that only (hint: name one of tool, resource, prompt, server)")
	}
	return nil
}

// ReadStrict reads one JSON document and refuses unknown members.
func ReadStrict(raw []byte, to any) error {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	if err := d.Decode(to); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("more than one JSON value")
	}
	return nil
}

// Meter is something that a policy wants counted for each principal that uses a
// tool: data.usage[exposed][name] of its bundle.
type Meter struct {
	Name   string
	Window time.Duration // how far back it counts, above zero
	// Sum points (RFC 6901) into the arguments at the number that is added up, or
	// names a fact; "" counts calls only.
	Sum string
	// Per points at arguments, or names facts, whose values are counted apart, the
	// asset of a transfer for one.
	Per []string
	// Where says which calls count: at each pointer stands one of the values. An
	// empty Where is every call.
	Where map[string][]json.RawMessage
	// Facts reads the facts of the tool from the arguments of a call; nil when it has
	// none.
	Facts func(arguments []byte) jsontext.Value
}

// Reading is what a meter stands at: input.usage[name] of a policy.
type Reading struct {
	Calls int64 `json:"calls"`
	// Sum is exact, in decimal digits: a JSON number of any size.
	Sum json.Number `json:"sum"`
}

// Unused returns the readings of meters before any call; nil for no meters.
func Unused(meters []Meter) map[string]Reading {
	if len(meters) == 0 {
		return nil
	}
	usage := make(map[string]Reading)
	for _, m := range meters {
		usage[m.Name] = Reading{Sum: "0"}
	}
	return usage
}

// Effect is a verdict.
type Effect string

// The verdicts, weakest first: deny wins over hold, hold over allow.
const (
	Allow Effect = "allow"
	Hold  Effect = "hold" // a person decides
	Deny  Effect = "deny"
)

// Compare orders effects, the weakest first.
func (e Effect) Compare(other Effect) int {
	order := []Effect{Allow, Hold, Deny}
	return slices.Index(order, e) - slices.Index(order, other)
}

// Decision is what a policy answered. An engine returns only decisions that
// are well formed: a known effect, and for Hold at least one approver role.
type Decision struct {
	Effect   Effect    `json:"effect"`
	Rule     string    `json:"rule,omitempty"`   // identifier of the rule that decided
	Reason   string    `json:"reason,omitempty"` // for the agent and for people
	Remedy   string    `json:"remedy,omitempty"` // what would make it pass, if anything
	Approval *Approval `json:"approval,omitempty"`
	Limit    *Limit    `json:"limit,omitempty"`
	Redact   []string  `json:"redact,omitempty"` // JSON Pointers into the result, or the caller's answer to a server
	// Scopes of OAuth are what the caller's token lacks, sorted: with them nothing denies the
	// call any more. Nil unless every rule that denies names some.
	Scopes   []string `json:"scopes,omitempty"`
	Revision string   `json:"revision"` // "sha256:<hex>" of the policy that judged
	// Labels are those of the METADATA of the rule that decided; nil when it has
	// none. They are shared between decisions and must not be written to.
	Labels map[string]string `json:"labels,omitempty"`
}

// Approval is the obligation of a Hold.
type Approval struct {
	Roles  []string `json:"roles"`            // an approver has one of these; never empty
	Quorum int      `json:"quorum,omitempty"` // approvals needed; 0 means 1
	// Each is how many of these approvals have to come from holders of each role;
	// empty = from any of Roles. Whoever has several roles counts for each of them,
	// but Quorum counts people.
	Each map[string]int `json:"each,omitempty"`
	TTL  time.Duration  `json:"ttl,omitempty"`  // nanoseconds in Go, a duration string in Rego; 0 = the configured default
	Hold *time.Duration `json:"hold,omitempty"` // how long the call may wait for a decision, 0 = not at all; nil = not said
	// ExecuteOnApprove makes the call run as soon as it is approved, whether or
	// not the agent comes back for it.
	ExecuteOnApprove bool `json:"execute_on_approve,omitempty"`
}

// Limit is a bucket that the policy adds to the configured ones.
type Limit struct {
	Rate  string `json:"rate"`            // "60/1m"
	Burst int    `json:"burst,omitempty"` // 0 = the rate's count
	Key   string `json:"key,omitempty"`   // bucket name; "" = the rule
}

// Durations are JSON options that write and read durations as policies do: "15m0s".
var Durations = jsonv2.JoinOptions(jsonv1.DefaultOptionsV1(),
	jsonv2.WithMarshalers(jsonv2.MarshalToFunc(func(e *jsontext.Encoder, d time.Duration) error {
		return e.WriteToken(jsontext.String(d.String()))
	})),
	jsonv2.WithUnmarshalers(jsonv2.UnmarshalFromFunc(func(from *jsontext.Decoder, d *time.Duration) error {
		token, err := from.ReadToken()
		if err != nil {
			return err
		}
		if *d, err = time.ParseDuration(token.String()); err != nil {
			return fmt.Errorf("%s: %w", from.StackPointer(), err)
		}
		return nil
	})))

// ParseRate parses the form of Limit.Rate, COUNT/DURATION: a whole number and a
// duration with a unit, both above zero.
func ParseRate(s string) (count int, per time.Duration, ok bool) {
	number, duration, _ := strings.Cut(s, "/")
	n, err := strconv.ParseUint(number, 10, 31)
	per, perErr := time.ParseDuration(duration)
	return int(n), per, err == nil && n > 0 && perErr == nil && per > 0
}

// A Right is something that a policy lets people do with toolgate itself: the name of the rule of
// package toolgate that decides, with a boolean.
type Right string

// The rights, each with the member of data in which the default policy names roles.
const (
	Operates       Right = "operates"            // data.operators: operate servers, and see tools, limits, sessions and tokens
	Stops          Right = "stops"               // data.stops: stop calls and resume them
	Definitions    Right = "accepts_definitions" // data.definitions: accept and refuse changed definitions
	ReadsArguments Right = "reads_arguments"     // data.arguments: read arguments of recorded calls, and search in them
	Exports        Right = "exports_trail"       // data.exports: export the audit trail
	Connections    Right = "sees_connections"    // data.connections: see and revoke connections of other people
)

// Rights are all rights.
var Rights = []Right{Operates, Stops, Definitions, ReadsArguments, Exports, Connections}

// TrailRight says which records of the audit trail a principal may read.
type TrailRight string

// The rights to read the trail.
const (
	TrailNone    TrailRight = ""
	TrailDecides TrailRight = "decides" // records of held calls that the principal may decide on
	TrailAll     TrailRight = "all"
)

// Mask says what the decision log leaves out of an event: what
// data.system.log.drop and .mask of a policy answer.
type Mask struct {
	Drop  bool // there is no event
	Rules []MaskRule
}

// MaskRule hides one value of an event.
type MaskRule struct {
	// Path points (RFC 6901) at it, from the event: its first part is input,
	// result or nd_builtin_cache.
	Path string
	// Value is put in its place; nil removes it.
	Value json.RawMessage
}
