// Package lock reads and writes toolgate.lock.json, the file next to mcp.json that
// says which tools of which servers a project has accepted. It is made to be
// committed: the same servers give the same bytes, and it holds no secret.
//
//	{
//	  "version": 1,
//	  "servers": {
//	    "files": {
//	      "origin": { "type": "stdio", "command": "npx", "args": ["-y", "files-server@2.1.0", "${HOME}/notes"] },
//	      "serverInfo": { "name": "files", "version": "2.1.0" },
//	      "tools": { "read": "sha256:…", "write": "sha256:…" },
//	      "variants": { "read": { "client:io.modelcontextprotocol/ui": "sha256:…" } }
//	    }
//	  }
//	}
package lock

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// Name is the name of the file, next to mcp.json.
const Name = "toolgate.lock.json"

const version = 1

// File is a lock. It is not changed after it was read.
type File struct {
	Version int               `json:"version"`
	Servers map[string]Server `json:"servers"` // :: name in mcp.json ⇒ what is accepted of it
}

// Server is what is accepted of one server.
type Server struct {
	Origin Origin            `json:"origin"`
	Info   Info              `json:"serverInfo,omitzero"` // as the server names itself; only compared by Diff
	Tools  map[string]string `json:"tools"`               // :: the server's own name of a tool ⇒ fingerprint of its definition
	// Variants are the definitions of tools for some clients only: by the server's own name
	// and the condition for which one serves, its fingerprint. Locks of versions before these had none.
	Variants map[string]map[string]string `json:"variants,omitempty"`
}

// Fingerprint returns what the lock holds of a tool under a condition, which is "" for all
// clients; "" when it holds nothing.
func (s Server) Fingerprint(tool, condition string) string {
	if condition == "" {
		return s.Tools[tool]
	}
	return s.Variants[tool][condition]
}

// Add puts the fingerprint of a tool's definition under a condition into s.
func (s *Server) Add(tool, condition, fingerprint string) {
	if condition == "" {
		s.Tools[tool] = fingerprint
		return
	}
	if s.Variants == nil {
		s.Variants = make(map[string]map[string]string)
	}
	if s.Variants[tool] == nil {
		s.Variants[tool] = make(map[string]string)
	}
	s.Variants[tool][condition] = fingerprint
}

// Origin says how a server is reached, as mcp.json writes it: variables are not
// expanded, and what else looks like a secret is masked.
type Origin struct {
	Type    string   `json:"type"`
	Command string   `json:"command,omitempty"`
	Args    []string `json:"args,omitempty"`
	URL     string   `json:"url,omitempty"`
}

// Info is a server's name and version of itself (MCP, serverInfo).
type Info struct {
	Name    string `json:"name"`
	Version string `json:"version"`
}

// Equal reports whether two origins are the same.
func (o Origin) Equal(other Origin) bool {
	return o.Type == other.Type && o.Command == other.Command && slices.Equal(o.Args, other.Args) && o.URL == other.URL
}

var (
	secretName = regexp.MustCompile(`(?i)(token|secret|passw|passphrase|credential|authorization|cookie|private|signature|(api|access)[_-]?key|auth[_-]?header)|(^|[_-])(key|auth|pwd|pass|pat|dsn|sig|session)$`)
	aboutName  = regexp.MustCompile(`(?i)[_-](file|path|dir|url|uri|name|host|ttl|type)$`) // it says where a secret is, or what it is like
)

// Secret reports whether a variable, header, flag or member of a query of this name
// has a secret as its value.
func Secret(name string) bool { return secretName.MatchString(name) && !aboutName.MatchString(name) }

// SecretArg returns the secret in an argument of a command, which ends with it: the value
// of a flag, or of the header that a flag adds, whose name looks like a secret.
func SecretArg(args []string, i int) (name, secret string, ok bool) {
	if flag, value, assigned := strings.Cut(args[i], "="); assigned && strings.HasPrefix(flag, "-") && Secret(flag) {
		return flag, value, true
	}
	if i == 0 {
		return "", "", false
	}
	before := args[i-1]
	if before == "--header" || before == "-H" {
		name, value, found := strings.Cut(args[i], ":")
		value = strings.TrimLeft(value, " ")
		if scheme, credentials, ok := strings.Cut(value, " "); ok && strings.Trim(credentials, " ") != "" && !strings.Contains(scheme, "${") { // Bearer, Basic
			value = strings.TrimLeft(credentials, " ")
		}
		return name, value, found && Secret(name)
	}
	follows := strings.HasPrefix(before, "-") && !strings.Contains(before, "=") && Secret(before)
	return before, args[i], follows && !strings.HasPrefix(args[i], "-")
}

// masked stands for a value that the lock must not hold.
const masked = "***"

// NewOrigin returns the origin of a server from what mcp.json says of it, with
// masks for the values of flags whose names look like secrets, for passwords in an
// address, and for its query.
func NewOrigin(kind, command string, args []string, address string) Origin {
	o := Origin{Type: kind, Command: command}
	for i, arg := range args {
		if _, secret, ok := SecretArg(args, i); ok {
			arg = strings.TrimSuffix(arg, secret) + mask(secret)
		} else {
			arg = maskAddress(arg)
		}
		o.Args = append(o.Args, arg)
	}
	o.URL = maskAddress(address)
	return o
}

// mask hides a value, unless it is written as variables, whose values it does not hold.
func mask(value string) string {
	if strings.HasPrefix(value, "${") && strings.HasSuffix(value, "}") {
		return value
	}
	return masked
}

// maskAddress hides the query of a URL and what stands before its host. Other texts
// stay as they are.
func maskAddress(text string) string {
	scheme, rest, ok := strings.Cut(text, "://")
	if !ok {
		return text
	}
	if before, _, found := strings.Cut(rest, "?"); found {
		rest = before + "?" + masked
	}
	if host, _, _ := strings.Cut(rest, "/"); strings.Contains(host, "@") {
		rest = masked + rest[strings.LastIndexByte(host, '@'):]
	}
	return scheme + "://" + rest
}

// Parse reads a lock. The error says what is wrong with it.
func Parse(data []byte) (*File, error) {
	f := &File{}
	if err := json.Unmarshal(data, f, json.RejectUnknownMembers(true)); err != nil {
		return nil, fmt.Errorf("reading %s: %w", Name, err)
	}
	if f.Version != version {
		return nil, fmt.Errorf("%s has version %d, this toolgate knows %d", Name, f.Version, version)
	}
	return f, nil
}

// Bytes returns the file as it is written: the same lock gives the same bytes.
func (f *File) Bytes() []byte {
	var out bytes.Buffer
	// Only texts and numbers are written, which cannot fail.
	_ = json.MarshalWrite(&out, File{Version: version, Servers: f.Servers}, json.Deterministic(true), jsontext.WithIndent("  "))
	return append(out.Bytes(), '\n')
}

// Difference is one way in which two locks differ.
type Difference struct {
	Server string `json:"server"`
	Tool   string `json:"tool,omitempty"` // "" = the server itself
	// Condition says which clients the definition of the tool is for, "" for all.
	Condition string `json:"condition,omitempty"`
	What      string `json:"what"` // added, removed or changed; of a server also origin and serverInfo
	Was       string `json:"was,omitempty"`
	Now       string `json:"now,omitempty"`
}

// Diff returns what leads from one lock to another, in the order of the names. A nil
// lock has no servers.
func Diff(was, now *File) []Difference {
	before, after := was.servers(), now.servers()
	found := []Difference{}
	for _, name := range names(before, after) {
		a, had := before[name]
		b, has := after[name]
		switch {
		case !had:
			found = append(found, Difference{Server: name, What: "added"})
		case !has:
			found = append(found, Difference{Server: name, What: "removed"})
			continue
		case !a.Origin.Equal(b.Origin):
			found = append(found, Difference{Server: name, What: "origin", Was: a.Origin.String(), Now: b.Origin.String()})
		}
		if had && a.Info != b.Info {
			found = append(found, Difference{Server: name, What: "serverInfo", Was: a.Info.Name + " " + a.Info.Version, Now: b.Info.Name + " " + b.Info.Version})
		}
		found = append(found, diffTools(name, "", a.Tools, b.Tools)...)
		for _, tool := range names(a.Variants, b.Variants) {
			for _, condition := range names(a.Variants[tool], b.Variants[tool]) {
				one := func(s Server) map[string]string { return map[string]string{tool: s.Variants[tool][condition]} }
				found = append(found, diffTools(name, condition, one(a), one(b))...)
			}
		}
	}
	return found
}

func diffTools(server, condition string, was, now map[string]string) (found []Difference) {
	for _, tool := range names(was, now) {
		if d := (Difference{Server: server, Tool: tool, Condition: condition, What: "changed", Was: was[tool], Now: now[tool]}); d.Was != d.Now {
			if d.Was == "" {
				d.What = "added"
			} else if d.Now == "" {
				d.What = "removed"
			}
			found = append(found, d)
		}
	}
	return found
}

func (f *File) servers() map[string]Server {
	if f == nil {
		return nil
	}
	return f.Servers
}

// names returns the keys of both maps in order, each once.
func names[V any](a, b map[string]V) []string {
	all := slices.AppendSeq(slices.Collect(maps.Keys(a)), maps.Keys(b))
	slices.Sort(all)
	return slices.Compact(all)
}

// String returns the origin as people write it.
func (o Origin) String() string {
	return cmp.Or(o.URL, strings.Join(append([]string{o.Command}, o.Args...), " "))
}
