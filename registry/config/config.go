// Package config reads mcp.json and its overlay: strictly, whole, and with the
// position of every fault.
//
// mcp.json has the shape that MCP clients read: servers under mcpServers (or
// servers), each with command, args, env, cwd and envFile, or with url and
// headers, and with disabled and timeout (milliseconds). Our own settings are
// its member toolgate, or the same object alone in a second file, the overlay.
// Both are JSON with comments and trailing commas.
//
// In place of mcp.json, Load reads the file of another client where Options.Translate
// rewrites it into the form above, before the schema is checked.
//
// The published schema docs/schemas/config.json says which keys there are and
// what each value looks like; editors complete from it and Load checks against
// it. What a schema cannot say (uniqueness over several entries, keys that verify
// nothing, addresses that other machines reach) is code. A new key needs a
// property in the schema and a field with its name as tag; a test compares the
// two.
//
// Options.Translate reports the keys that other clients write into their own part as
// warnings; without it they are faults. Our own part is taken literally or not at all: an unknown, repeated
// or case-variant key, a duration without a unit and an unset variable are
// faults, and all of them are reported at once.
//
// Relative paths are resolved against the directory of the file that names
// them, the default state directory against that of mcp.json, and those that
// come from flags against the working directory.
package config

import (
	"encoding/json"
	"time"

	"github.com/toolgate/toolgate/internal/tree"
	"github.com/toolgate/toolgate/registry/lock"
)

// What Load finds in a file, and the error that it returns.
type (
	Fault   = tree.Fault
	Faults  = tree.Faults
	Warning = tree.Fault // a setting that was accepted and should be looked at
)

// Kinds of upstream, the values of Server.Type.
const (
	TypeStdio  = "stdio"  // a child process that speaks MCP on its standard streams
	TypeHTTP   = "http"   // Streamable HTTP
	TypeSSE    = "sse"    // the HTTP+SSE transport of MCP 2024-11-05
	TypeNDJSON = "ndjson" // a child process that speaks the NDJSON action protocol
)

// Values of Server.Isolation.
const (
	IsolationSession = "session" // one connection per downstream session
	IsolationShared  = "shared"  // one connection for all
)

// Values of Server.Pin.
const (
	PinFirst  Pin = "first"  // the first list of a server is accepted
	PinStrict Pin = "strict" // what toolgate.lock.json holds is accepted
	PinOff    Pin = "off"    // everything is
)

// Pin says which tool definitions of a server serve; all others are quarantined.
type Pin string

// Config is everything that mcp.json and the overlay say, defaults filled in.
// Fields with a tag are keys of the toolgate object. A Config is not changed
// after Load and then safe for concurrent use. It holds secrets (Server.Env,
// Server.Headers, Store, Shared, Policy, Notify, OIDC.ClientSecret, Telemetry): do not print it.
type Config struct {
	Servers        []Server  // in file order, disabled ones included
	Listen         string    `json:"listen"`          // host:port of the agents' listener
	Admin          string    `json:"admin"`           // host:port of the people's listener
	PublicURL      string    `json:"public_url"`      // origin at which agents reach their listener; "" = the address of Listen
	State          string    `json:"state"`           // absolute path of the state directory
	Store          string    `json:"store"`           // postgres:// URL of the database in place of state.db, a secret; "" = state.db in State
	Keys           string    `json:"keys"`            // absolute path of the key directory, not below State; "" = the user has no configuration directory
	TLS            *TLS      `json:"tls"`             // of the agents' listener; nil = it speaks plain HTTP
	AdminTLS       *TLS      `json:"admin_tls"`       // of the people's listener; nil = it speaks plain HTTP
	Insecure       bool      `json:"insecure"`        // plain HTTP is accepted on addresses that other machines reach
	AllowedHosts   []string  `json:"allowed_hosts"`   // host or host:port, accepted as Host on both listeners
	AllowedOrigins []string  `json:"allowed_origins"` // of pages that may call the agents' listener
	TrustedProxies []string  `json:"trusted_proxies"` // addresses and networks of proxies in front
	Policy         Policy    `json:"policy"`
	Identity       Identity  `json:"identity"`
	Limits         Limits    `json:"limits"`
	Shared         *Shared   `json:"shared"`  // nil = each process has limits of its own
	Replica        *Replica  `json:"replica"` // set only with Shared; nil = each process serves its own sessions alone
	Approvals      Approvals `json:"approvals"`
	Console        Console   `json:"console"`
	Audit          Audit     `json:"audit"`
	Errors         string    `json:"errors"`  // dialect of /mcp: gateway, canonical, kernel or mcp
	Results        string    `json:"results"` // off, compact, full or signals
	Methods        []string  `json:"methods"` // methods of extensions that are relayed for every server; Server.Methods has them too
	// RetryAfter is the delay suggested for transient errors that a retry may fix
	// and that know no delay of their own; at least 1 s.
	RetryAfter    time.Duration `json:"retry_after"`
	Artifacts     Artifacts     `json:"artifacts"`
	Telemetry     *Telemetry    `json:"telemetry"`    // nil = nothing is sent
	Sandbox       string        `json:"sandbox"`      // auto, require or off: of servers that say nothing else
	Envelope      string        `json:"envelope"`     // mcp or strict
	MinRevision   string        `json:"min_revision"` // the oldest revision of MCP that is served; "" = all are
	Shutdown      Shutdown      `json:"shutdown"`
	MetricsRole   string        `json:"metrics_role"`  // may read metrics and details of the status; "" = see mayWatch of the app
	PprofRole     string        `json:"pprof_role"`    // may take profiles on the people's listener; "" = nobody may
	Deterministic bool          `json:"deterministic"` // ids and times come from a counter, and strict ids must be UUIDs: for golden runs
	Warnings      []Warning     // what was accepted and needs a look, by file and line
	Files         []string      // absolute path of every file read, mcp.json first: what a watcher watches
	SecretFiles   []string      // those of Files that hold a secret, or the hash of a token, as it is written
	SHA256        string        // hex, over the bytes of all Files

	// Lock is toolgate.lock.json, which is next to mcp.json, nil when there is none;
	// LockPath is its absolute path in any case.
	Lock     *lock.File
	LockPath string
}

// TLS names the files of a listener's certificate, by absolute paths. They are read
// when the listener opens, and again when they change.
type TLS struct {
	Cert     string `json:"cert"`      // PEM: the certificate, and then its intermediates
	Key      string `json:"key"`       // PEM: the private key of the certificate
	ClientCA string `json:"client_ca"` // PEM: authorities of which each client shows a certificate; "" = none is asked for
}

// Bounds where the configuration gives none.
const (
	DefaultTimeout       = time.Minute
	DefaultMaxTimeout    = 10 * time.Minute
	DefaultStartWait     = 15 * time.Second // of a command
	DefaultHTTPStartWait = 5 * time.Second
)

// Bounds of one message of a server where the configuration gives none.
const (
	DefaultMaxMessage = 12 // MiB
	DefaultMaxDepth   = 1_000
)

// Resources bound what a command uses together with all that it starts; file sizes and open
// files, each process.
type Resources struct {
	Memory    Amount `json:"memory"`     // bytes
	Processes Amount `json:"processes"`  // with their threads
	CPUWeight Amount `json:"cpu_weight"` // 1 to 10,000, against 100 of other control groups
	FileSize  Amount `json:"file_size"`  // bytes
	Files     Amount `json:"files"`      // open at once
}

// Amount is a number, which may be written with a binary unit; 0 = not limited, written as
// "off".
type Amount uint64

// DefaultResources are the bounds of a command where the configuration gives none.
var DefaultResources = Resources{Memory: 2 << 30, Processes: 512, CPUWeight: 100, FileSize: 4 << 30, Files: 4096}

// Server is one upstream. A disabled one may lack what an unset variable or its
// envFile would have said.
type Server struct {
	Name         string            // 1 to 64 of letters, digits, "_", "." and "-", the first no "." or "-"; unique without regard to case
	Type         string            `json:"type"`         // one of the Type constants
	Command      string            `json:"command"`      // stdio and ndjson: the program; "toolgate" means this binary
	Args         []string          `json:"args"`         // its arguments
	Env          map[string]string `json:"env"`          // variables added to its environment, envFile included
	Dir          string            `json:"cwd"`          // absolute working directory; "" = toolgate's own
	Sandbox      string            `json:"sandbox"`      // auto, require or off: what happens where a command cannot be confined
	User         string            `json:"user"`         // that the command runs as, name or number; "" = toolgate's own
	Network      string            `json:"network"`      // of the command: "none" or "host"
	Audience     []string          `json:"audience"`     // of tokens that are accepted on its routes in addition
	RLimits      map[string]uint64 `json:"rlimits"`      // resource limits of the command by their names in setrlimit(2), lower case
	Resources    Resources         `json:"resources"`    // bounds of the command; RLimits takes precedence
	URL          string            `json:"url"`          // http and sse: http or https, with a host
	Headers      map[string]string `json:"headers"`      // sent with every request, names as written
	Credential   *Credential       `json:"credential"`   // http and sse: what it is shown beside Headers; nil = nothing
	TLS          *ClientTLS        `json:"tls"`          // http and sse; nil = as the system has it
	Disabled     bool              `json:"disabled"`     // kept, not started
	Timeout      time.Duration     `json:"timeout"`      // bound of one call, from its last progress; more than 0
	MaxTimeout   time.Duration     `json:"max_timeout"`  // bound of one call in spite of progress; at least Timeout
	StartWait    time.Duration     `json:"start_wait"`   // bound of the wait for its first answer since it was started; more than 0
	Prefix       string            `json:"prefix"`       // put before tool names; "<name>__" unless configured, may be ""
	Risk         string            `json:"risk"`         // for the policy; "" = not said
	Isolation    string            `json:"isolation"`    // one of the Isolation constants
	Revision     string            `json:"revision"`     // MCP revision that is spoken to it; "" = as the client's
	ClientInfo   string            `json:"client_info"`  // whom the server sees as its client: toolgate, or with IsolationSession client
	Spare        bool              `json:"spare"`        // a process is started ahead for the next session, with a command and IsolationSession
	MaxSessions  int               `json:"max_sessions"` // most connections at once with IsolationSession; at least 1
	Expose       []string          `json:"expose"`       // upstream names of the tools to offer, with * and ?; nil = all, empty = none
	Exclude      []string          `json:"exclude"`      // upstream names of the tools not to offer, with * and ?; takes precedence over Expose
	Only         []string          // what the server's entry offers of its tools, in addition to Expose: a tool has to be in both; nil = all
	Pin          Pin               `json:"pin"`             // one of the Pin constants
	MaxMessage   int               `json:"max_message_mib"` // largest message of the server, in MiB; at least 1
	MaxDepth     int               `json:"max_depth"`       // how many arrays and objects of a message may be in each other; at least 64
	InputSchema  string            `json:"input_schema"`    // enforce or warn
	OutputSchema string            `json:"output_schema"`   // enforce, warn or off
	CaseVariants string            `json:"case_variants"`   // refuse or allow: keys inside arguments that differ only in case
	HiddenText   string            `json:"hidden_text"`     // report or escape: characters of the server's texts that a reader does not see
	SecretNames  []string          `json:"secrets"`         // variables and headers of the server whose values are secrets, although their names do not say so; see Secrets
	Notice       string            `json:"notice"`          // boundary notice; "" = none
	Errors       string            `json:"errors"`          // of calls of its tools, as Client.Errors; "" = not said
	Results      string            `json:"results"`         // in place of Config.Results; "" = not said
	Methods      []string          `json:"methods"`         // methods of extensions that are relayed, none of MCP's own but subscriptions/listen; notifications begin with "notifications/"

	// BeforeConnection says whether the accepted tools of a server whose Credential is Personal
	// are listed for a caller who has none: show or hide.
	BeforeConnection string `json:"before_connection"`

	// Origin is how mcp.json says that the server is reached, without secrets.
	Origin lock.Origin
}

// Policy says where the policy is.
type Policy struct {
	PolicySource
	Log    DecisionLog   `json:"log"`    // where decisions are sent
	Shadow *PolicySource `json:"shadow"` // a policy that judges next to it and decides nothing; nil = none
	Verify Verify        `json:"verify"` // how served decisions are verified
}

// Verify says how decisions are verified while they are served.
type Verify struct {
	Sample float64 `json:"sample"` // share of decisions that are judged a second time; from 0 (none) to 1 (every one)
}

// PolicySource says where a policy comes from, and what must be true of it. It
// holds secrets (Keys, Headers).
type PolicySource struct {
	Path    string               `json:"path"`    // absolute directory or .tar.gz, or an http(s) URL; "" = the embedded default
	Data    json.RawMessage      `json:"data"`    // one object that is added to its data; empty = nothing is
	Keys    map[string]PolicyKey `json:"keys"`    // by key id; not empty = what none of them signed is refused
	Signing Signing              `json:"signing"` // zero unless Keys has one
	Poll    Poll                 `json:"poll"`    // of a URL; zero for every other path
	Headers map[string]string    `json:"headers"` // sent to a URL, names as written; a configured token is one of them
	Timeout time.Duration        `json:"timeout"` // bound of one evaluation; 1 ms to 10 s
	Places  map[string]string    // :: JSON Pointer into Data ⇒ file:line:column where its member is written
}

// Signing says which signature of a policy counts.
type Signing struct {
	KeyID string `json:"keyid"` // the key that must have signed; "" = the one that the signature names
	Scope string `json:"scope"` // the scope that the signature must name; "" = the one of its key
}

// PolicyKey verifies the signature of a policy.
type PolicyKey struct {
	Algorithm string `json:"algorithm"` // RS256, PS256, ES256, HS256 or one of their longer kin
	Key       string `json:"key"`       // a public key or certificate in PEM; with HS256 and its kin the secret
	Scope     string `json:"scope"`     // the scope that its signatures must name; "" = none
}

// Poll says how often a policy at a URL is asked for.
type Poll struct {
	Min  time.Duration `json:"min"`  // shortest time between two requests; a second or more
	Max  time.Duration `json:"max"`  // longest time between two requests; the time between is random
	Long time.Duration `json:"long"` // how long the server may wait for a change before it answers; 0 = not at all
}

// DecisionLog says where decisions are sent, in the form of OPA's decision logs.
// It holds secrets: do not print it. The zero DecisionLog sends nothing.
type DecisionLog struct {
	File    string            `json:"file"`    // absolute path that lines are appended to; "" = none
	URL     string            `json:"url"`     // that chunks are posted to: https, or http on loopback; "" = none
	Token   string            `json:"token"`   // bearer token for URL; "" = none
	Headers map[string]string `json:"headers"` // sent with every chunk, names as written
	MaxLag  time.Duration     `json:"max_lag"` // age of the oldest unsent event that is warned of; more than 0
}

// Identity says who is known. Configured is set when the file has an identity
// section, even an empty one: then nobody comes in over the network without a
// credential.
type Identity struct {
	Configured bool
	Local      bool          `json:"local"` // the local principal is admitted although there is a section
	Tokens     []Token       `json:"tokens"`
	JWT        []JWT         `json:"jwt"`
	MTLS       []Certificate `json:"mtls"`   // set only with the client_ca of the agents' listener
	Scopes     []string      `json:"scopes"` // that clients are told to ask for; nil = they are told nothing
}

// Token is one bearer token, known by its hash only. Tokens of one subject differ in
// hash and expiry only.
type Token struct {
	Subject string    `json:"subject"`          // never empty
	Person  string    `json:"person,omitempty"` // the human who shows it, or who owns the agent that does; "" = not known
	Owner   string    `json:"owner,omitempty"`  // another name for Person, empty once loaded
	Tenant  string    `json:"tenant,omitempty"`
	Roles   []string  `json:"roles"`            // none empty, none twice; an empty list grants nothing
	SHA256  string    `json:"sha256"`           // 64 lower-case hexadecimal digits, unique
	Expires time.Time `json:"expires,omitzero"` // zero = never
	Errors  string    `json:"errors,omitzero"`  // of tool calls, as Client.Errors; "" = not said
	Results string    `json:"results,omitzero"` // in place of Config.Results; "" = not said
}

// Certificate names the principal of a client that shows a certificate and no token. Exactly
// one of URI, DNS, Email and Subject is set.
type Certificate struct {
	URI     string   `json:"uri"`     // one of the certificate's URIs
	DNS     string   `json:"dns"`     // one of its DNS names
	Email   string   `json:"email"`   // one of its mail addresses
	Subject string   `json:"subject"` // its subject as RFC 2253 writes it
	As      string   `json:"as"`      // subject of the principal; never empty
	Person  string   `json:"person"`
	Tenant  string   `json:"tenant"`
	Roles   []string `json:"roles"` // none empty, none twice; an empty list grants nothing
}

// JWT is one trusted issuer of signed tokens (RFC 7519).
type JWT struct {
	Issuer       string              `json:"issuer"`        // compared with the iss claim byte for byte; unique
	Audience     []string            `json:"audience"`      // accepted everywhere in addition to the routes' own; may be empty
	JWKS         string              `json:"jwks"`          // URL of the key set: https, or http on loopback; "" = the issuer is asked
	Private      bool                `json:"private"`       // the issuer that is asked may have an address of a private network
	SubjectClaim string              `json:"subject_claim"` // member that names the subject, "sub" unless configured
	RolesClaim   string              `json:"roles_claim"`   // member that holds the roles, "roles" unless configured
	GroupsClaim  string              `json:"groups_claim"`  // member that holds the groups, "groups" unless configured
	PersonClaim  string              `json:"person_claim"`  // the same for the person; "" = not configured: "person" is looked at
	TenantClaim  string              `json:"tenant_claim"`  // the same for the tenant; "" = none
	Scopes       map[string][]string `json:"scopes"`        // :: scope of a token ⇒ roles
	Groups       map[string][]string `json:"groups"`        // :: group of a token ⇒ roles
	Algorithms   []string            `json:"algorithms"`    // of signatures; nil = RS256, ES256, EdDSA
	Types        []string            `json:"types"`         // of the typ header, "" = absent; nil = absent, JWT, at+jwt
	MaxLifetime  time.Duration       `json:"max_lifetime"`  // of a token, 24 hours unless configured
	Skew         time.Duration       `json:"skew"`          // how far nbf and iat may be in the future, 1 minute unless configured
}

// Limits say how often tools may be called, and how large messages of clients may be.
type Limits struct {
	Default *Rate       `json:"default"` // of what no rule matches; nil = explicitly "off"
	Rules   []LimitRule `json:"rules"`   // in file order
	Refused *Rate       `json:"refused"` // of refused calls of one principal; nil = explicitly "off"

	MaxMessage int `json:"max_message_mib"` // largest message of a client, in MiB; 1 to 32
	MaxDepth   int `json:"max_depth"`       // how many arrays and objects of one may be in each other; 16 to 1000

	InFlight      int     `json:"in_flight_mib"`   // most that bodies of requests have together, in MiB; at least 1
	InFlightShare float64 `json:"in_flight_share"` // part of InFlight that one principal may have; above 0, at most 1
}

// Shared is the Valkey or Redis server on which replicas share limits. It holds a secret (URL).
type Shared struct {
	URL      string `json:"url"`       // redis:// or rediss://, with user and password if it wants them
	WhenDown string `json:"when_down"` // while it is away: closed = a share of each limit, open = the whole of each limit
	CA       string `json:"ca"`        // absolute path of the server's root certificates in PEM; "" = the system's
}

// Replica is the listener at which other replicas reach the sessions of this one.
type Replica struct {
	Listen  string `json:"listen"`  // host:port
	Address string `json:"address"` // host:port at which the others reach it; Listen unless configured
	TLS     struct {
		Cert string `json:"cert"` // absolute path, PEM: the certificate, and then its intermediates
		Key  string `json:"key"`  // absolute path, PEM: the private key of the certificate
		CA   string `json:"ca"`   // absolute path, PEM: authorities of the certificates of all replicas
	} `json:"tls"`
}

// Files names the files of r as those of a listener, nil for a nil r.
func (r *Replica) Files() *TLS {
	if r == nil {
		return nil
	}
	return &TLS{Cert: r.TLS.Cert, Key: r.TLS.Key, ClientCA: r.TLS.CA}
}

// LimitRule is one rate for the calls that match all of its non-empty fields.
type LimitRule struct {
	Tool      string `json:"tool"` // exposed name
	Role      string `json:"role"`
	Server    string `json:"server"`
	Principal string `json:"principal"` // subject
	Tenant    string `json:"tenant"`
	Rate      Rate   `json:"rate"`
}

// Approvals say how held calls live.
type Approvals struct {
	TTL           time.Duration  `json:"ttl"`            // life of a ticket; more than 0
	Hold          *time.Duration `json:"hold"`           // how long a held call waits for its decision, 0 = not at all; nil = the client decides
	Keep          time.Duration  `json:"keep"`           // how long a ticket that has ended is kept beyond its expiry
	MaxLive       int            `json:"max_live"`       // most undecided tickets of one principal; at least 1
	RequirePerson bool           `json:"require_person"` // a vote counts only between credentials that name two persons

	Execute []string `json:"execute_on_approve"` // exposed names of the tools whose calls run as soon as they are approved
	Clients []Client // how long each client may be kept waiting; nil = KnownClients
	Notify  []Notify `json:"notify"` // where people are notified of tickets
}

// Notify is one way in which people are notified of tickets: Webhook or Email is
// set, never both.
type Notify struct {
	Webhook string `json:"webhook"` // URL that is posted to: https, or http on loopback; unique
	Secret  string `json:"secret"`  // signs what is posted; never empty with Format json
	Format  string `json:"format"`  // json, slack or teams; "" with Email

	Email []string `json:"email"` // addresses; unique over all entries
	SMTP  string   `json:"smtp"`  // smtp:// or smtps:// URL of the mail server, with user and password if it wants them
	From  string   `json:"from"`  // address that mails come from

	Roles []string `json:"roles"` // only of tickets that one of these may decide; empty = all
}

// Console says how people come to the pages.
type Console struct {
	URL     string        `json:"url"`     // where browsers find the admin listener: scheme and host, no slash at its end; "" = at its address
	Session time.Duration `json:"session"` // how long one stays signed in; at least a minute
	OIDC    *OIDC         `json:"oidc"`    // nil = people sign in by token only

	Environment string `json:"environment"` // name of this toolgate among others, which every page shows; "" = none
	TraceURL    string `json:"trace_url"`   // page of a trace in a viewer, with {trace_id} for its id; "" = none
}

// OIDC is the identity provider at which people sign in (OpenID Connect).
type OIDC struct {
	Issuer       string   `json:"issuer"`        // https, or http on loopback
	ClientID     string   `json:"client_id"`     // as registered there, with <URL>/console/login/callback
	ClientSecret string   `json:"client_secret"` // "" = a public client
	Scopes       []string `json:"scopes"`        // asked for in addition to openid
	RolesClaim   string   `json:"roles_claim"`   // member of the ID token that holds the roles, "roles" unless configured
	PersonClaim  string   `json:"person_claim"`  // the same for the person; "" = not configured: "person" is looked at
	TenantClaim  string   `json:"tenant_claim"`  // the same for the tenant; "" = none
}

// Artifacts say how long, and how many, bytes of results are kept.
type Artifacts struct {
	TTL       time.Duration `json:"ttl"`        // since somebody last read them; more than 0
	MaxMiB    int           `json:"max_mib"`    // of all together, oldest first beyond it; at least 1
	InlineKiB int           `json:"inline_kib"` // most of one text that results "signals" leaves inline; at least 1
}

// Shutdown says what happens between the signal to stop and the end.
type Shutdown struct {
	Delay time.Duration `json:"delay"` // in which serve is not ready and still takes requests
	Drain time.Duration `json:"drain"` // a second or more, for calls under way after Delay
}

// Telemetry says where traces and metrics are sent, by OTLP over HTTP. It holds secrets
// (Headers).
type Telemetry struct {
	Endpoint string            `json:"endpoint"` // base URL: https, or http on loopback; "" = nothing is sent
	Headers  map[string]string `json:"headers"`  // sent with every request, names as written
	CA       string            `json:"ca"`       // absolute path of the collector's root certificates in PEM; "" = the system's
	Cert     string            `json:"cert"`     // absolute path of the certificate, in PEM, that the collector is shown; "" = none
	Key      string            `json:"key"`      // absolute path of its private key in PEM
	Traces   Traces            `json:"traces"`
	Metrics  Metrics           `json:"metrics"`
	Baggage  []string          `json:"baggage"` // keys of callers' baggage that servers receive
}

// Traces say which traces are recorded.
type Traces struct {
	Ratio       float64 `json:"ratio"`        // share of traces, from 0 to 1
	ParentBased bool    `json:"parent_based"` // what the caller decided takes precedence over Ratio
}

// Metrics say how often metrics are sent.
type Metrics struct {
	Interval time.Duration `json:"interval"` // a second or more
}

// Audit says how durable a record is before its call goes out, what it holds, and who
// receives the signed checkpoints.
type Audit struct {
	Durability string      `json:"durability"`          // sync = on disk, os = written
	ReserveMiB int         `json:"reserve_mib"`         // of the disk, at most 5 % of it, that no new call may use; 0 = none
	Anchors    []Anchor    `json:"anchors,omitempty"`   // that receive the signed checkpoints
	Signer     *Signer     `json:"signer,omitempty"`    // nil = a key of the key directory
	Index      bool        `json:"index"`               // serve keeps a search index of calls
	Arguments  []Arguments `json:"arguments,omitempty"` // the first that matches counts; none = without secrets, see package app
}

// Signer signs checkpoints: Key is set, or Command and PublicKey. It holds a secret (Key).
type Signer struct {
	Key       string   `json:"key,omitempty"`        // Ed25519 private key: PKCS #8 in PEM or base64, or a seed in base64
	Command   []string `json:"command,omitempty"`    // reads a text, writes its signature
	PublicKey string   `json:"public_key,omitempty"` // absolute path of the PEM file with the public half
}

// Arguments says how the trail keeps the arguments of calls.
type Arguments struct {
	Tool string   `json:"tool"`           // exposed name or method; * and ? as in path.Match, "*" = any
	Keep string   `json:"keep"`           // whole, masked or digest
	Mask []string `json:"mask,omitempty"` // JSON Pointers that masked masks, in addition to what the tool's schema or a name calls secret
}

// Anchor is a place outside the state directory that receives checkpoints of the audit
// trail: Directory or Webhook is set, and Witness only with Directory.
type Anchor struct {
	Directory  string `json:"directory,omitempty"`   // absolute path
	Webhook    string `json:"webhook,omitempty"`     // URL
	Witness    string `json:"witness,omitempty"`     // URL of a witness that signs what Directory keeps
	WitnessKey string `json:"witness_key,omitempty"` // absolute path of the key of the witness; "" = any
}

// Options say what to read. The zero value reads mcp.json.
type Options struct {
	Path    string // of mcp.json; "" = mcp.json in the working directory
	Overlay string // of the overlay; "" = none
	// Getenv looks up variables for ${VAR}; nil = os.LookupEnv.
	Getenv func(string) (string, bool)
	// ReadFile reads one file whole, given its absolute path; nil = from disk,
	// regular files up to 1 MiB.
	ReadFile func(string) ([]byte, error)
	// Translate turns the tree of another client's file into toolgate's own form, in place: its
	// servers become the member mcpServers or servers. It returns the names of the servers that it
	// leaves out, and reports each. nil = only toolgate's own form is read.
	Translate func(root *tree.Node, r *tree.Report) (leftOut []string)
	// Workspace returns what ${workspaceFolder} stands for in a file; nil = the file's directory.
	Workspace func(path string) string

	State  string // overrides the file's state; "" = does not
	Keys   string // overrides the file's keys; "" = does not
	Listen string // overrides the file's listen; "" = does not
	Admin  string // overrides the file's admin; "" = does not
}
