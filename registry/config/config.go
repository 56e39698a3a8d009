// Package config reads mcp.json and its overlay: strictly, whole, and with the
// position of every fault.
//
// mcp.json has the shape that MCP clients read: servers under mcpServers (or
// servers), each with command, args, env, cwd and envFile, or with url and
// headers, and with disabled and timeout (milliseconds). Our own settings are
// its member toolgate, or the same object alone in a second file, the overlay.
// Both are JSON with comments and trailing commas.
//
// What another client may have written into its own part is accepted and
// reported as a warning. What is written for us is taken literally or not at
// all: an unknown, repeated or case-variant key, a duration without a unit, an
// unset variable are faults, and all of them are reported at once.
//
// Relative paths are resolved against the directory of the file that names
// them, the default state directory against that of mcp.json, and those that
// come from flags against the working directory.
package config

import "time"

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

// Defaults of what mcp.json leaves out.
const (
	DefaultListen      = "127.0.0.1:8787"
	DefaultAdmin       = "127.0.0.1:8788"
	DefaultState       = ".toolgate"
	DefaultTTL         = 15 * time.Minute
	DefaultMaxLive     = 64
	DefaultMaxSessions = 256
	DefaultTimeout     = 30 * time.Second
	DefaultSession     = 8 * time.Hour

	DefaultArtifactTTL = 7 * 24 * time.Hour
	DefaultMaxMiB      = 1024
	DefaultInlineKiB   = 64

	DefaultMaxLag = 5 * time.Minute

	defaultPer = time.Minute // of limits.default, 60/1m
)

// Config is everything that mcp.json and the overlay say, defaults filled in.
// It is not changed after Load and then safe for concurrent use. It holds
// secrets (Server.Env, Server.Headers, Notify, OIDC.ClientSecret, DecisionLog): it is not for
// printing.
type Config struct {
	Servers       []Server  // in file order, disabled ones included
	Listen        string    // host:port of the agents' listener
	Admin         string    // host:port of the people's listener
	State         string    // absolute path of the state directory
	Policy        Policy    // where the policy comes from
	Identity      Identity  // who is known
	Limits        Limits    // how often
	Approvals     Approvals // held calls
	Console       Console   // how people come to the pages
	Audit         Audit     // the record
	Errors        string    // dialect of /mcp: gateway, canonical, kernel or mcp
	Results       string    // off, compact, full or signals
	Artifacts     Artifacts // bytes that results carried
	Envelope      string    // mcp or strict
	Deterministic bool      // ids and times come from a counter, and strict ids must be UUIDs: for golden runs
	Warnings      []Warning // what was accepted and should be looked at, by file and line
	Files         []string  // absolute path of every file read, mcp.json first: what a watcher watches
	SHA256        string    // hex, over the bytes of all Files
}

// Server is one upstream. A disabled one may lack what an unset variable or its
// envFile would have said.
type Server struct {
	Name         string            // 1 to 64 of letters, digits, "_", "." and "-", the first no "." or "-"; unique without regard to case
	Type         string            // one of the Type constants
	Command      string            // stdio and ndjson: the program; "toolgate" means this binary
	Args         []string          // its arguments
	Env          map[string]string // variables added to its environment, envFile included
	Dir          string            // absolute working directory; "" = toolgate's own
	URL          string            // http and sse: http or https, with a host
	Headers      map[string]string // sent with every request, names as written
	Disabled     bool              // kept, not started
	Timeout      time.Duration     // bound of one call; more than 0
	Prefix       string            // put before tool names; "<name>__" unless configured, may be ""
	Risk         string            // for the policy; "" = not said
	Isolation    string            // one of the Isolation constants
	MaxSessions  int               // most connections at once with IsolationSession; at least 1
	Expose       []string          // upstream names of the tools to offer; nil = all, empty = none
	Pin          bool              // a changed tool definition is quarantined
	OutputSchema string            // enforce, warn or off
	CaseVariants string            // refuse or allow: keys inside arguments that differ only in case
	Notice       string            // boundary notice; "" = none
	Methods      []string          // methods of extensions that are relayed, none of MCP's own; notifications begin with "notifications/"
}

// Identity says who is known. Configured is set when the file has an identity
// section, even an empty one: then nobody comes in over the network without a
// credential.
type Identity struct {
	Configured bool
	Tokens     []Token
	JWT        []JWT
}

// Token is one bearer token, known by its hash only.
type Token struct {
	Subject string   // never empty, unique
	Roles   []string // none empty, none twice; an empty list grants nothing
	SHA256  string   // 64 lower-case hexadecimal digits, unique
}

// JWT is one trusted issuer of signed tokens (RFC 7519).
type JWT struct {
	Issuer     string   // compared with the iss claim byte for byte; unique
	Audience   []string // one of these must be in aud; never empty
	JWKS       string   // URL of the key set: https, or http on loopback
	RolesClaim string   // member that holds the roles, "roles" unless configured
}

// Limits say how often tools may be called.
type Limits struct {
	Default *Rate       // of what no rule matches; nil = explicitly "off"
	Rules   []LimitRule // in file order
}

// LimitRule is one rate for the calls that match all of its non-empty fields.
type LimitRule struct {
	Tool      string // exposed name
	Role      string
	Server    string
	Principal string // subject
	Rate      Rate
}

// Approvals say how held calls live.
type Approvals struct {
	TTL     time.Duration  // life of a ticket; more than 0
	Hold    *time.Duration // how long a held call waits for its decision, 0 = not at all; nil = the client decides
	MaxLive int            // most undecided tickets of one principal; at least 1
	Execute []string       // exposed names of the tools whose calls run as soon as they are approved
	Clients []Client       // how long each client may be kept waiting; nil = KnownClients
	Notify  []Notify       // where people are told of tickets
}

// Artifacts say how long, and how many, bytes of results are kept.
type Artifacts struct {
	TTL       time.Duration // since somebody was last given them; more than 0
	MaxMiB    int           // of all together, oldest first beyond it; at least 1
	InlineKiB int           // most of one text that results "signals" leaves inline; at least 1
}

// Audit says how durable a record is before its call goes out.
type Audit struct {
	Durability string // sync = on disk, os = written
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

	State  string // overrides the file's state; "" = does not
	Listen string // overrides the file's listen; "" = does not
	Admin  string // overrides the file's admin; "" = does not
}
