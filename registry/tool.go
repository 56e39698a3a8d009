package registry

import (
	"cmp"
	"encoding/json"
	"strings"
	"time"

	"github.com/toolgate/toolgate/internal/schema"
	"github.com/toolgate/toolgate/registry/credential"
	"github.com/toolgate/toolgate/registry/upstream"
)

// Tool is one tool of one upstream as the catalogue knows it. It is immutable
// and safe for concurrent use.
type Tool struct {
	// Server is the configured name of the upstream.
	Server string
	// Name is what the upstream calls the tool.
	Name string
	// Exposed is what agents call it: the server's prefix and Name. Rights are
	// keyed by it.
	Exposed string
	// Definition is the upstream's definition, byte for byte but for raw line
	// ends between tokens, which arrive as spaces, without an outputSchema that
	// is invalid, and, if so configured, with the hidden characters of its texts
	// spelled out (jsonrpc.MapTexts).
	Definition json.RawMessage
	// Listed is Definition with its name replaced by Exposed and nothing else.
	Listed json.RawMessage
	// Fingerprint is "sha256:<hex>" of the definition as the upstream listed it. A
	// definition that differs in one byte, white space and key order included, has
	// another.
	Fingerprint string
	// Form is the upstream.Form of the definition. A connection that lists a definition of
	// this Form offers the tool.
	Form string
	// Condition says which clients the server offers this definition to, "" for all
	// clients, and for a tool that nobody else is offered.
	Condition upstream.Condition
	// Risk is the server's configured risk, "" when none.
	Risk string
	// Annotations are the upstream's own claims, nil when it makes none.
	Annotations json.RawMessage
	// Input judges arguments. It is nil only when the tool is quarantined.
	Input *schema.Schema
	// Output judges structuredContent, nil when the tool declares none.
	Output *schema.Schema
	// InputMode is the server's input_schema: warn, or enforce, which "" means too.
	InputMode string
	// OutputMode is the server's output_schema: enforce, warn or off.
	OutputMode string
	// AllowVariants permits case-variant keys inside arguments.
	AllowVariants bool
	// Timeout bounds one call, from its last progress; MaxTimeout bounds it in
	// spite of progress.
	Timeout, MaxTimeout time.Duration
	// Quarantine is why the tool does not serve, "" when it does.
	Quarantine string
	// EscapeHidden says that hidden characters of results are spelled out.
	EscapeHidden bool
	// Notice is the server's configured boundary notice, "" when none.
	Notice string
	// AsConfigured says that calls are made with what the configuration says, the same for all
	// callers: Registry.Credential gives none for the server.
	AsConfigured bool

	withheld string             // the reason of a quarantine by pin, for agents
	pinned   bool               // quarantined by its pin, so that accepting it makes it serve
	own      bool               // only connections of some sessions list it
	listedBy upstream.Condition // of an own one, the clients of the connection that listed it first
	live     bool               // of an own one: a client's connection has listed it
	unproven bool               // of an own one: it is not accepted as the first list
	unplaced bool               // it has no pin, and cannot have one
	former   string             // fingerprint in its pin, if that is another
	source   json.RawMessage    // the definition that Fingerprint is about
	warning  string             // what an operator should know of a tool that serves, "" for nothing
	unseen   []string           // kinds of hidden characters in the definition
}

// Own reports whether the server offers the definition only to some clients, on connections
// of their own.
func (t *Tool) Own() bool { return t.own }

// Withheld reports whether the tool does not serve because its definition is not accepted.
func (t *Tool) Withheld() bool { return t.withheld != "" && t.Quarantine != "" }

// label names a definition for people, by the upstream's name of the tool and those it is
// for.
func label(tool string, c upstream.Condition) string {
	if c == "" {
		return tool
	}
	return tool + " (" + c.Words() + ")"
}

// Refusal says to agents why the tool does not serve, on one line and without the hint for
// the operator; "" when it serves.
func (t *Tool) Refusal() string {
	reason, _, _ := strings.Cut(t.Quarantine, "\nhint: ")
	return cmp.Or(t.withheld, strings.Join(strings.Fields(reason), " "))
}

// Outgoing is one tools/call that has been judged. Its bytes are sent as they
// are. Forward sets the fields that name the tool.
type Outgoing = upstream.Call

// Ask is one request that calls no tool; see package upstream.
type Ask = upstream.Ask

// Listen is the stream of a client's subscriptions/listen request at one server.
type Listen = upstream.Listen

// What servers ask and tell on their own account, and whom; see package
// upstream.
type (
	Downstream = upstream.Downstream
	Peer       = upstream.Peer
	Question   = upstream.Question
	Answer     = upstream.Answer
)

// Whose credential a request is made with; see package credential.
type (
	Credential = credential.Credential
	Missing    = credential.Missing
)

// TaskLifetime is how long to remember a task that says so much; see package
// upstream.
func TaskLifetime(ttl json.RawMessage) time.Duration { return upstream.TaskLifetime(ttl) }

// ErrMaxTimeout is the cause of a timeout that progress could not put off any
// longer.
var ErrMaxTimeout = upstream.ErrMaxTimeout

// ForwardError is why a forwarded call has no result. Its Sent field decides
// whether a spent grant may be given back.
type ForwardError = upstream.Error

// ErrorKind says how a forwarded call came to nothing.
type ErrorKind = upstream.ErrorKind

// The kinds of ForwardError; see package upstream for what each means.
const (
	Failed      = upstream.Failed
	Timeout     = upstream.Timeout
	Unavailable = upstream.Unavailable
	Cancelled   = upstream.Cancelled
	TooLarge    = upstream.TooLarge
	Quarantined = upstream.Quarantined
	Unconnected = upstream.Unconnected
)

// ServerStatus is what one upstream looks like from here.
type ServerStatus struct {
	Name string `json:"name"`
	// State is starting, ready, failed, stopped or disabled.
	State string `json:"state"`
	// Tools counts the tools that serve, Quarantined the definitions that do not.
	Tools       int `json:"tools"`
	Quarantined int `json:"quarantined"`
	// Withheld says why, by the upstream's name of each tool that does not serve, which
	// for a definition that only some clients are offered says for whom it is.
	Withheld map[string]string `json:"withheld,omitempty"`
	// Error is why the state is failed, "" otherwise.
	Error string `json:"error,omitempty"`
	// Warnings name what the operator should look at: names in expose that the
	// upstream does not offer, tools that are quarantined.
	Warnings []string `json:"warnings,omitempty"`
	// Since is when the state began.
	Since time.Time `json:"since"`
	// Sandbox says how the upstream's command is confined, "" for one without a command.
	Sandbox string `json:"sandbox,omitempty"`
	// Transport is the type of the upstream: stdio, http, sse or ndjson.
	Transport string `json:"transport"`
	// Revision is the MCP revision of the shared connection, "" without one.
	Revision string `json:"revision,omitempty"`
	// Capabilities and Extensions are the names of what it declared last, as far as clients can
	// have that; at most 64 of each.
	Capabilities []string `json:"capabilities,omitempty"`
	Extensions   []string `json:"extensions,omitempty"`
	// Restarts counts how often it was ready again after the first time.
	Restarts int `json:"restarts,omitempty"`
	// Sessions counts the connections that belong to one downstream session each.
	Sessions int `json:"sessions"`
	// Dropped counts messages of the upstream that were nobody's: garbage,
	// answers with unknown ids, what nobody was there to hear or took in time.
	Dropped int64 `json:"dropped,omitempty"`
}
